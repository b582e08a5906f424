// Copies bytes between the two sockets of a relayed connection: passes on half-close and resets, and never buffers without bound.

import type { NetConnectOpts, Socket } from 'node:net'
import { busyPoll } from './busy-poll.ts'
import { freeReadBuffer } from './read-buffers.ts'

/** Bytes from the endpoint come through `readInto`. A reset of one side becomes a reset of the other: an answer that was cut off must not look complete. */
export function joinSockets(client: Socket, endpoint: Socket): void {
  client.on('error', () => endpoint.resetAndDestroy())
  endpoint.on('error', () => client.resetAndDestroy())
  client.on('close', () => endpoint.destroy())
  endpoint.on('close', () => client.destroySoon())
  if (client.destroyed) {
    endpoint.destroy()
    return
  }
  const unwritten: Buffer[] = []
  client.on('data', (chunk) => {
    const belowHighWater = endpoint.write(chunk)
    busyPoll.noteRelayed(chunk.length)
    // A chunk that went out at once needs no pause, whatever the high-water mark says.
    if (endpoint.writableLength === 0) return freeReadBuffer(chunk)
    if (belowHighWater) return
    unwritten.push(chunk)
    client.pause()
  })
  endpoint.on('drain', () => {
    for (const chunk of unwritten.splice(0)) freeReadBuffer(chunk)
    client.resume()
  })
  client.on('drain', () => endpoint.resume())
  client.on('end', () => endpoint.end())
  endpoint.on('end', () => client.end())
  client.resume()
}

const smallBufferBytes = 2 * 1024
const largeBufferBytes = 128 * 1024
/** After this many reads in a row that would have fitted into a small buffer, the buffer becomes small again. */
const smallReadsToShrink = 32

/**
 * Options that read from an endpoint into a buffer which is used again as soon as its content is written. That halves the cost of Node's
 * own way, which is a new buffer per read. The buffer is small until a read fills it, because idle connections must use little memory.
 * Node offers this only for sockets that connect, not for accepted ones.
 */
export function readInto(to: Socket, from: () => Socket): NonNullable<NetConnectOpts['onread']> {
  let buffer = new Uint8Array(0)
  let size = smallBufferBytes
  let smallReads = 0
  return {
    buffer: () => {
      if (buffer.length !== size) buffer = Buffer.allocUnsafeSlow(size)
      return buffer
    },
    callback(bytes, filled) {
      const belowHighWater = to.write(filled.subarray(0, bytes))
      busyPoll.noteRelayed(bytes)
      // Bytes that are not written yet are still in this buffer, so the next read needs another one.
      const isPending = to.writableLength > 0
      if (isPending) buffer = new Uint8Array(0)
      if (isPending && !belowHighWater) from().pause()
      if (bytes === filled.length) size = largeBufferBytes
      smallReads = bytes <= smallBufferBytes && size === largeBufferBytes ? smallReads + 1 : 0
      if (smallReads === smallReadsToShrink) size = smallBufferBytes
      return true
    },
  }
}
