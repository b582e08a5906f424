// A DNS server that answers every question with one IPv4 address, so that the proxy under test looks up the name of its API server.

import { createSocket } from 'node:dgram'
import { once } from 'node:events'
import type { Namespace } from '../lab/namespace.ts'

const headerBytes = 12
const typeA = 1

export async function serveName(node: Namespace, ip: string): Promise<{ close(): void }> {
  const server = createSocket('udp4')
  server.on('message', (question, client) => {
    let end = headerBytes
    while (question[end] !== 0 && end < question.length) end += (question[end] as number) + 1
    const isWanted = question.readUInt16BE(end + 1) === typeA
    // The question is repeated without what comes after it; the answer's name is a pointer to it.
    const answer = Buffer.from([0xc0, headerBytes, 0, typeA, 0, 1, 0, 0, 0, 1, 0, 4, ...ip.split('.').map(Number)])
    const reply = Buffer.concat([question.subarray(0, end + 5), isWanted ? answer : Buffer.alloc(0)])
    reply.writeUInt16BE(0x8580, 2)
    for (const [i, count] of [1, isWanted ? 1 : 0, 0, 0].entries()) reply.writeUInt16BE(count, 4 + 2 * i)
    server.send(reply, client.port, client.address)
  })
  const listening = once(server, 'listening')
  server.bind({ fd: node.openSocket('udp', '127.0.0.1', 53) })
  await listening
  return { close: () => server.close() }
}
