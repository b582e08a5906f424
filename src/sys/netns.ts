// Lists, changes and enters named network namespaces. iproute2 makes and removes them; a thread enters one only to open a socket.

import { constants, existsSync, readdirSync } from 'node:fs'
import { join } from 'node:path'
import { ProxyError } from '../lib/errors.ts'
import { familyOf, parseIp } from '../lib/ip.ts'
import { AF_INET, AF_INET6 } from './ip-numbers.ts'
import * as libc from './libc.ts'
import { callError } from './netlink/netlink-errors.ts'
import { runProgram } from './process/exec.ts'

export const namespaceFolder = '/run/netns'
const SOCK_STREAM = 1
const SOCK_NONBLOCK = 0o4000
const SO_REUSEADDR = 2

/** Returns the names of all named namespaces. */
export const listNamespaces = (): readonly string[] => (existsSync(namespaceFolder) ? readdirSync(namespaceFolder) : [])

/** Runs commands of `ip` in one process, and stops at the first that fails. `namespace` '' is our own. */
export async function runIp(namespace: string, commands: readonly string[]): Promise<void> {
  if (commands.length === 0) return
  const option = namespace === '' ? [] : ['-n', namespace]
  await runProgram('ip', [...option, '-batch', '-'], { stdin: `${commands.join('\n')}\n` })
}

/** Runs `work` while this thread is in the namespace. `work` must be synchronous: everything else on the thread would be there too. */
export function runInside<T>(namespace: string, work: () => T): T {
  const home = openNamespace('/proc/thread-self/ns/net')
  try {
    const there = openNamespace(join(namespaceFolder, namespace))
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

/** Moves this thread into the network namespace of a process, for good. Programs that it starts are there too. */
export function enterNamespaceOf(pid: number): void {
  const there = openNamespace(`/proc/${pid}/ns/net`)
  try {
    enter(there)
  } finally {
    libc.close(there)
  }
}

/** Opens a TCP socket that is bound in the namespace, for `net` to listen on or to connect with. Port 0 means any port. */
export function openTcp(namespace: string, address: string, port: number): number {
  const isIpv6 = familyOf(address) === 6
  const type = SOCK_STREAM | SOCK_NONBLOCK | libc.SOCK_CLOEXEC
  const fd = runInside(namespace, () => libc.socket(isIpv6 ? AF_INET6 : AF_INET, type, 0))
  if (fd < 0) throw callError('socket', `open a socket in ${namespace}`, -fd)
  libc.setsockopt(fd, libc.SOL_SOCKET, SO_REUSEADDR, 1)
  const bound = libc.bind(fd, socketAddress(address, port))
  if (bound >= 0) return fd
  libc.close(fd)
  throw callError('socket', `bind ${address} port ${port} in ${namespace}`, -bound)
}

/** Makes a struct sockaddr_in or sockaddr_in6. */
function socketAddress(address: string, port: number): Buffer {
  const bytes = parseIp(address)
  if (bytes === undefined) throw new ProxyError('address', `${address} is not a valid IP address`)
  const isIpv6 = bytes.length === 16
  const buffer = Buffer.alloc(isIpv6 ? 28 : 16)
  new Uint16Array(buffer.buffer, buffer.byteOffset, 1)[0] = isIpv6 ? AF_INET6 : AF_INET
  buffer.writeUInt16BE(port, 2)
  buffer.set(bytes, isIpv6 ? 8 : 4)
  return buffer
}

function openNamespace(path: string): number {
  const fd = libc.open(path, constants.O_RDONLY)
  if (fd < 0) throw callError('network namespace', `open ${path}`, -fd)
  return fd
}

function enter(fd: number): void {
  const returned = libc.setns(fd, libc.CLONE_NEWNET)
  if (returned < 0) throw callError('network namespace', 'enter', -returned)
}
