// Answers netsh.c inside a network namespace: judges the arguments, and really adds the address to an interface or deletes it.

import { spawnSync } from 'node:child_process'
import { once } from 'node:events'
import { createServer, type Server } from 'node:net'
import type { Namespace } from '../lab/namespace.ts'
import { type NetshCommand, parseNetsh } from './netsh-arguments.ts'

export class NetshServer {
  readonly port: number
  /** The commands so far, as text, also those that failed. */
  readonly calls: string[] = []
  /** Commands that were not as Windows wants them. Every suite checks that there are none. */
  readonly mistakes: string[] = []
  /** Returns what netsh prints instead of doing its work; undefined if it works. */
  refuse: (command: NetshCommand) => string | undefined = () => undefined
  readonly #space: Namespace
  readonly #server: Server

  private constructor(space: Namespace, port: number) {
    this.#space = space
    this.port = port
    this.#server = createServer({ allowHalfOpen: true }, (socket) => {
      let text = ''
      socket.on('error', () => undefined)
      socket.on('data', (chunk) => {
        text += chunk
      })
      socket.on('end', () => socket.end(this.#run(text.split('\n').slice(0, -1))))
    })
  }

  static async listen(space: Namespace, port = 7777): Promise<NetshServer> {
    const server = new NetshServer(space, port)
    server.#server.listen({ fd: space.openSocket('tcp', '127.0.0.1', port) })
    await once(server.#server, 'listening')
    return server
  }

  close(): void {
    this.#server.close()
  }

  /** Returns the exit code in a line, then what netsh prints. */
  #run(args: readonly string[]): string {
    this.calls.push(args.join(' '))
    const command = parseNetsh(args)
    if (typeof command === 'string') {
      this.mistakes.push(command)
      return `1\nThe syntax supplied for this command is not valid: ${command}\n\n`
    }
    const refused = this.refuse(command)
    if (refused !== undefined) return `1\n${refused}\n\n`
    const { verb, ip, bits = command.family === 4 ? 32 : 128, interface: device } = command
    const change = ['-n', this.#space.name, 'address', verb === 'add' ? 'add' : 'del', `${ip}/${bits}`, 'dev', device]
    const { status, stderr } = spawnSync('ip', change, { encoding: 'utf8' })
    if (status === 0) return '0\n\n'
    if (stderr.includes('File exists')) return '1\nThe object already exists.\n\n'
    if (stderr.includes('Cannot assign')) return '1\nElement not found.\n\n'
    if (stderr.includes('Cannot find device')) {
      return '1\nThe filename, directory name, or volume label syntax is incorrect.\n\n'
    }
    return `1\n${stderr}\n`
  }
}
