// Network namespaces with names: made and removed by iproute2, entered for the moment in which a socket is opened.

import { constants, existsSync, readdirSync } from 'node:fs'
import { join } from 'node:path'
import { ProxyError } from '../lib/errors.ts'
import { familyOf, parseIp } from '../lib/ip.ts'
import * as libc from './libc.ts'
import { callError } from './netlink/netlink-errors.ts'
import { runProgram } from './process/exec.ts'

const folder = '/run/netns'
const AF_INET = 2
const AF_INET6 = 10
const SOCK_STREAM = 1
const SOCK_NONBLOCK = 0o4000
const SO_REUSEADDR = 2

/** Names of those there are. */
export const listNamespaces = (): readonly string[] => (existsSync(folder) ? readdirSync(folder) : [])

/** Commands of `ip`, one a line, all in one process; stops at the first that fails. `namespace` '' is where we are. */
export async function ip(namespace: string, commands: readonly string[]): Promise<void> {
  if (commands.length === 0) return
  const where = namespace === '' ? [] : ['-n', namespace]
  await runProgram('ip', [...where, '-batch', '-'], { stdin: `${commands.join('\n')}\n` })
}

/** Runs `work` with this thread inside. It must not wait: everything else on the thread would be inside, too. */
export function inside<T>(namespace: string, work: () => T): T {
  const home = opened('/proc/thread-self/ns/net')
  try {
    const there = opened(join(folder, namespace))
    try {
      enter(there)
      return work()
    } finally {
      enter(home)
      libc.close(there)
    }
  } finally {
    libc.close(home)
  }
}

/** A TCP socket bound inside the namespace, for `net` to listen on or to connect with. Port 0: any. */
export function openTcp(namespace: string, address: string, port: number): number {
  const six = familyOf(address) === 6
  const type = SOCK_STREAM | SOCK_NONBLOCK | libc.SOCK_CLOEXEC
  const fd = inside(namespace, () => libc.socket(six ? AF_INET6 : AF_INET, type, 0))
  if (fd < 0) throw callError('socket', `open one in ${namespace}`, -fd)
  libc.setsockopt(fd, libc.SOL_SOCKET, SO_REUSEADDR, 1)
  const bound = libc.bind(fd, socketAddress(address, port))
  if (bound >= 0) return fd
  libc.close(fd)
  throw callError('socket', `bind ${address} port ${port} in ${namespace}`, -bound)
}

/** struct sockaddr_in or sockaddr_in6. */
function socketAddress(address: string, port: number): Buffer {
  const bytes = parseIp(address)
  if (bytes === undefined) throw new ProxyError('address', `${address} is no IP address`)
  const six = bytes.length === 16
  const buffer = Buffer.alloc(six ? 28 : 16)
  new Uint16Array(buffer.buffer, buffer.byteOffset, 1)[0] = six ? AF_INET6 : AF_INET
  buffer.writeUInt16BE(port, 2)
  buffer.set(bytes, six ? 8 : 4)
  return buffer
}

function opened(path: string): number {
  const fd = libc.open(path, constants.O_RDONLY)
  if (fd < 0) throw callError('network namespace', `open ${path}`, -fd)
  return fd
}

function enter(fd: number): void {
  const returned = libc.setns(fd, libc.CLONE_NEWNET)
  if (returned < 0) throw callError('network namespace', 'enter', -returned)
}
