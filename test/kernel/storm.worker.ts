// The two ends of a storm of connections, with blocking calls in processes of their own: sockets of Node would be the bottleneck.
//
//   storm.worker server PORT                          answers every connection with the address it came to
//   storm.worker client COUNT SOURCE PORT VIP=NET…    connects to the services in turn; NET is how right answers begin

import { createRequire } from 'node:module'

interface Libc {
  func(prototype: string): (...args: unknown[]) => number
}
const koffi = createRequire(import.meta.url)('koffi') as { load(path: null): Libc; errno(): number }
const libc = koffi.load(null)
const socket = libc.func('int socket(int domain, int type, int protocol)')
const bind = libc.func('int bind(int fd, const uint8_t *address, uint32_t length)')
const listen = libc.func('int listen(int fd, int backlog)')
const accept = libc.func('int accept(int fd, void *address, void *length)')
const connect = libc.func('int connect(int fd, const uint8_t *address, uint32_t length)')
const getsockname = libc.func('int getsockname(int fd, _Out_ uint8_t *address, _Inout_ uint32_t *length)')
const send = libc.func('int send(int fd, const uint8_t *bytes, size_t length, int flags)')
const recv = libc.func('int recv(int fd, _Out_ uint8_t *bytes, size_t length, int flags)')
const close = libc.func('int close(int fd)')
const setsockopt = libc.func('int setsockopt(int fd, int level, int option, const uint8_t *value, uint32_t length)')

const [AF_INET, SOCK_STREAM, SOL_SOCKET, SO_REUSEADDR, SO_RCVTIMEO, SO_SNDTIMEO, SO_LINGER] = [2, 1, 1, 2, 20, 21, 13]
const [IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, MSG_NOSIGNAL] = [0, 24, 0x4000]

function address(ip: string, port: number): Buffer {
  const bytes = Buffer.alloc(16)
  bytes.writeUInt16LE(AF_INET, 0)
  bytes.writeUInt16BE(port, 2)
  for (const [i, part] of ip.split('.').entries()) bytes[4 + i] = Number(part)
  return bytes
}

const int = (value: number): Buffer => {
  const bytes = Buffer.alloc(4)
  bytes.writeInt32LE(value)
  return bytes
}

const check = (what: string, returned: number): number => {
  if (returned < 0) throw new Error(`${what}: errno ${koffi.errno()}`)
  return returned
}

function serve(port: number): void {
  const fd = check('socket', socket(AF_INET, SOCK_STREAM, 0))
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, int(1), 4)
  check('bind', bind(fd, address('0.0.0.0', port), 16))
  check('listen', listen(fd, 4096))
  process.stdout.write('listening\n')
  const name = Buffer.alloc(16)
  // Until it is killed; nothing else happens in this process.
  for (;;) {
    const client = accept(fd, null, null)
    if (client < 0) continue
    getsockname(client, name, [16])
    send(client, name.subarray(4, 8), 4, MSG_NOSIGNAL)
    close(client)
  }
}

function dial(count: number, source: string, port: number, targets: readonly { vip: string; net: string }[]): void {
  const from = address(source, 0)
  const aims = targets.map(({ vip, net }) => ({ address: address(vip, port), vip, net: net.split('.').map(Number) }))
  const linger = Buffer.concat([int(1), int(0)])
  const patience = Buffer.alloc(16)
  patience.writeBigInt64LE(20n, 0)
  const answer = Buffer.alloc(4)
  const failed: string[] = []
  const micros: number[] = []
  let misrouted = 0
  let slow = 0
  for (let i = 0; i < count; i++) {
    const aim = aims[i % aims.length] as (typeof aims)[number]
    const fd = check('socket', socket(AF_INET, SOCK_STREAM, 0))
    setsockopt(fd, SOL_SOCKET, SO_LINGER, linger, 8)
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, patience, 16)
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, patience, 16)
    setsockopt(fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, int(1), 4)
    check('bind', bind(fd, from, 16))
    const began = process.hrtime.bigint()
    if (connect(fd, aim.address, 16) < 0) failed.push(`connect to ${aim.vip}: errno ${koffi.errno()}`)
    else if (recv(fd, answer, 4, 0) !== 4) failed.push(`answer of ${aim.vip}: errno ${koffi.errno()}`)
    else if (aim.net.some((part, n) => answer[n] !== part)) misrouted++
    const took = Number(process.hrtime.bigint() - began) / 1000
    if (took > 900_000) slow++
    micros.push(took)
    close(fd)
  }
  micros.sort((a, b) => a - b)
  const at = (share: number) => micros[Math.floor((micros.length - 1) * share)]
  const figures = { made: count, failed: failed.length, first: failed[0], misrouted, slow, p50: at(0.5), p99: at(0.99) }
  process.stdout.write(`${JSON.stringify(figures)}\n`)
}

const [role, ...args] = process.argv.slice(2)
if (role === 'server') serve(Number(args[0]))
else {
  const [count, source, port, ...targets] = args as [string, string, string, ...string[]]
  const aims = targets.map((target) => {
    const [vip, net] = target.split('=') as [string, string]
    return { vip, net }
  })
  dial(Number(count), source, Number(port), aims)
}
