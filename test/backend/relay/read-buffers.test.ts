// Which buffers are freed at once, and that Node's own reads are among them.

import { once } from 'node:events'
import { createConnection, createServer } from 'node:net'
import { describe, expect, it } from 'vitest'
import { freeReadBuffer } from '../../../src/backend/relay/read-buffers.ts'

describe('freeReadBuffer', () => {
  it('frees a large buffer that owns its memory', () => {
    const large = Buffer.allocUnsafeSlow(64 * 1024)
    const { buffer } = large
    freeReadBuffer(large)
    expect(buffer.byteLength).toBe(0)
  })

  it('does not free a buffer that is small, a part of another, or shared', () => {
    const small = Buffer.allocUnsafeSlow(1024)
    const whole = Buffer.allocUnsafeSlow(64 * 1024)
    const shared = new Uint8Array(new SharedArrayBuffer(64 * 1024))
    for (const chunk of [small, whole.subarray(1), shared]) freeReadBuffer(chunk)
    expect([small.length, whole.length, shared.length]).toEqual([1024, 64 * 1024, 64 * 1024])
  })

  it('frees buffers that Node reads from accepted sockets', async () => {
    const server = createServer().listen(0, '127.0.0.1')
    await once(server, 'listening')
    const address = server.address()
    const sender = createConnection(typeof address === 'object' && address !== null ? address.port : 0, '127.0.0.1')
    sender.write(Buffer.alloc(8 << 20))
    const [receiver] = await once(server, 'connection')
    let freed = 0
    for (let got = 0; got < 8 << 20; ) {
      const [chunk] = (await once(receiver, 'data')) as [Buffer]
      got += chunk.length
      const { buffer } = chunk
      freeReadBuffer(chunk)
      if (buffer.byteLength === 0) freed++
    }
    sender.destroy()
    server.close()
    expect(freed).toBeGreaterThan(8)
  })
})
