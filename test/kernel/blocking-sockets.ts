// Sockets with blocking calls, for processes that do nothing else: those of Node would be the bottleneck of what is measured.

import { createRequire } from 'node:module'

interface Libc {
  func(prototype: string): (...args: unknown[]) => number
}
const koffi = createRequire(import.meta.url)('koffi') as { load(path: null): Libc; errno(): number }
export const libc = koffi.load(null)
export const socket = libc.func('int socket(int domain, int type, int protocol)')
export const bind = libc.func('int bind(int fd, const uint8_t *address, uint32_t length)')
const listen = libc.func('int listen(int fd, int backlog)')
const accept = libc.func('int accept(int fd, void *address, void *length)')
export const connect = libc.func('int connect(int fd, const uint8_t *address, uint32_t length)')
const getsockname = libc.func('int getsockname(int fd, _Out_ uint8_t *address, _Inout_ uint32_t *length)')
export const send = libc.func('int send(int fd, const uint8_t *bytes, size_t length, int flags)')
export const recv = libc.func('int recv(int fd, _Out_ uint8_t *bytes, size_t length, int flags)')
export const close = libc.func('int close(int fd)')
export const setsockopt = libc.func(
  'int setsockopt(int fd, int level, int option, const uint8_t *value, uint32_t length)',
)

export const [AF_INET, SOCK_STREAM, SOL_SOCKET, SO_LINGER, SO_RCVTIMEO, SO_SNDTIMEO] = [2, 1, 1, 13, 20, 21]
export const MSG_NOSIGNAL = 0x4000
const SO_REUSEADDR = 2

export const errno = (): number => koffi.errno()

export function check(what: string, returned: number): number {
  if (returned < 0) throw new Error(`${what}: errno ${errno()}`)
  return returned
}

export function address(ip: string, port: number): Buffer {
  const bytes = Buffer.alloc(16)
  bytes.writeUInt16LE(AF_INET as number, 0)
  bytes.writeUInt16BE(port, 2)
  for (const [i, part] of ip.split('.').entries()) bytes[4 + i] = Number(part)
  return bytes
}

export const ints = (...values: readonly number[]): Buffer => Buffer.from(Int32Array.from(values).buffer)

/** Answers every connection with the address it came to, until the process is killed. */
export function serve(port: number): void {
  const fd = check('socket', socket(AF_INET, SOCK_STREAM, 0))
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, ints(1), 4)
  check('bind', bind(fd, address('0.0.0.0', port), 16))
  check('listen', listen(fd, 4096))
  process.stdout.write('listening\n')
  const name = Buffer.alloc(16)
  for (;;) {
    const client = accept(fd, null, null)
    if (client < 0) continue
    getsockname(client, name, [16])
    send(client, name.subarray(4, 8), 4, MSG_NOSIGNAL)
    close(client)
  }
}
