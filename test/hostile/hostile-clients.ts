// Clients that a listener cannot trust: half-open and broken requests, random bytes, bodies that never end, readers that do not read.

import { connect, type NetConnectOpts, type Socket } from 'node:net'
import { setTimeout as sleep } from 'node:timers/promises'
import { connect as connectTls } from 'node:tls'
import type { Random } from './random.ts'

export interface AttackedListener {
  readonly name: string
  readonly where: NetConnectOpts
  readonly isTls: boolean
  readonly paths: readonly string[]
  /** Added to some requests. */
  readonly headers: string
}

const methods = [
  'GET',
  'POST',
  'PUT',
  'PATCH',
  'DELETE',
  'HEAD',
  'OPTIONS',
  'CONNECT',
  'TRACE',
  'PRI',
  'get',
  'X'.repeat(100),
]
const hosts = ['localhost', '127.0.0.1', 'evil.example', '', '\u0000', 'a'.repeat(9000)]
const oddHeaders = [
  'Transfer-Encoding: chunked\r\nContent-Length: 5',
  'Content-Length: -1',
  'Content-Length: 99999999999999999999',
  'Content-Length: 1000000',
  'Transfer-Encoding: chunked, chunked',
  'Connection: Upgrade\r\nUpgrade: websocket',
  'Expect: 100-continue',
  'Content-Encoding: gzip',
  'Accept-Encoding: gzip;q=x, *;q=0',
  `X: ${'y'.repeat(20_000)}`,
  Array.from({ length: 300 }, (_, i) => `H${i}: ${i}`).join('\r\n'),
  'Authorization: Bearer x',
  ' folded: yes',
  ': nameless',
]

function randomBytes(random: Random, most: number): Buffer {
  return Buffer.from(Array.from({ length: random.between(0, most) }, () => random.between(0, 256)))
}

function composeRequest(listener: AttackedListener, random: Random): Buffer {
  const path = random.chance(0.8)
    ? `${random.choose(listener.paths)}${random.choose(['', '?', '?watch=true', '?x=%zz', '?limit=-1', '/../..', '%00'])}`
    : random.choose(['', '*', '//', '/%', `/${'p'.repeat(20_000)}`, 'http://[', '/\u0000'])
  const lines = [
    `${random.choose(methods)} ${path} HTTP/${random.choose(['1.1', '1.0', '2.0', '1.1', 'x'])}`,
    `Host: ${random.choose(hosts)}`,
  ]
  if (random.chance(0.3)) lines.push(listener.headers)
  if (random.chance(0.5)) lines.push(random.choose(oddHeaders))
  const head = Buffer.from(`${lines.filter((line) => line !== '').join('\r\n')}\r\n\r\n`, 'latin1')
  return random.chance(0.4) ? Buffer.concat([head, randomBytes(random, 2000)]) : head
}

/** What one client sends. */
function compose(listener: AttackedListener, random: Random): Buffer {
  const request = composeRequest(listener, random)
  const kind = random.between(0, 6)
  if (kind === 0) return Buffer.alloc(0)
  if (kind === 1) return randomBytes(random, 3000)
  if (kind === 2) return request.subarray(0, random.between(0, request.length))
  // Several requests at once.
  if (kind === 3) return Buffer.concat(Array.from({ length: random.between(2, 30) }, () => request))
  return request
}

function open({ where, isTls }: AttackedListener, random: Random): Socket {
  // Some clients of a TLS port do not speak TLS.
  const socket = isTls && random.chance(0.7) ? connectTls({ ...where, rejectUnauthorized: false }) : connect(where)
  socket.on('error', () => undefined)
  if (random.chance(0.3)) socket.pause()
  else socket.resume()
  return socket
}

/** One hostile client, from its connection until it gives up. Returns the bytes that it sent. */
export async function attackOnce(listener: AttackedListener, random: Random): Promise<number> {
  const socket = open(listener, random)
  const bytes = compose(listener, random)
  const pieces = random.chance(0.3) ? 5 : 1
  for (let i = 0; i < pieces && !socket.destroyed; i++) {
    const size = Math.ceil(bytes.length / pieces)
    socket.write(bytes.subarray(i * size, (i + 1) * size))
    if (pieces > 1) await sleep(random.between(1, 30))
  }
  if (random.chance(0.2)) socket.end()
  await sleep(random.chance(0.8) ? random.between(0, 50) : random.between(50, 1500))
  const canReset = 'port' in listener.where && !listener.isTls
  if (canReset && random.chance(0.5)) socket.resetAndDestroy()
  else socket.destroy()
  return bytes.length
}
