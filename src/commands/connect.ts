// `sluice connect`: connects standard input and output to the admin socket of the proxy that runs beside it. `--node` runs it in the pod
// of another node's proxy, by the API server's exec, so that the proxy needs no listener for other machines.

import { connect } from 'node:net'
import { findSocket, socketPath } from '../http/admin-client.ts'
import { ProxyError } from '../lib/errors.ts'
import { platform } from '../sys/platform/platform.ts'
import type { Command } from './command.ts'

export const connectCommand: Command = {
  name: 'connect',
  usage: 'NODE',
  about:
    'Connects standard input and output to the admin socket of the proxy of this node. It only carries questions and answers.',
  flags: [],
  examples: [['sluice connect worker-3', 'run by sluice status --node worker-3 in the pod of the proxy']],
  arguments: { least: 1, most: 1 },
  run: ({ args }) => carry(args[0] ?? ''),
}

async function carry(node: string): Promise<number> {
  const own = socketPath(node, process.env)
  const path = own !== '' && platform.sockets.exists(own) ? own : await findSocket('', process.env)
  return new Promise((resolve, reject) => {
    const socket = connect(path)
    socket.on('error', (error) => reject(new ProxyError('admin', `${path}: ${error.message}`, { cause: error })))
    socket.on('close', () => {
      process.stdin.destroy()
      resolve(0)
    })
    process.stdin.pipe(socket)
    socket.pipe(process.stdout)
  })
}
