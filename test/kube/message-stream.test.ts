// Tests how a byte stream becomes batches of messages: few batches for many parts, and no more in memory than a turn may read.

import { PassThrough } from 'node:stream'
import { describe, expect, it } from 'vitest'
import { bytesPerTurn, readLines } from '../../src/kube/message-stream.ts'
import { nextTurn } from '../../src/lib/time.ts'

const options = { maxBytes: 1 << 20 }

describe('parts that arrive together', () => {
  it('are read as a few batches, not as one for each part', async () => {
    const stream = new PassThrough()
    const batches: (readonly string[])[] = []
    const reading = (async () => {
      for await (const batch of readLines(stream, options)) batches.push(batch)
    })()
    await nextTurn()
    for (let i = 0; i < 500; i++) stream.write(`line ${i}\n`)
    stream.end()
    await reading
    expect(batches.flat()).toEqual(Array.from({ length: 500 }, (_, i) => `line ${i}`))
    expect(batches.length).toBeLessThan(50)
  })

  it('wait in the stream if the reader is slow: it holds no more than may be read in a turn', async () => {
    const stream = new PassThrough({ highWaterMark: 1024 })
    const lines = readLines(stream, options)
    const line = `${'x'.repeat(1023)}\n`
    for (let i = 0; i < 1000; i++) stream.write(line)
    for (let i = 0; i < 50; i++) await nextTurn()
    expect(stream.isPaused()).toBe(true)
    const first = await lines.next()
    expect(first.value?.length).toBeLessThanOrEqual(bytesPerTurn / 1024 + 1)
    let count = first.value?.length ?? 0
    stream.end()
    for await (const batch of lines) count += batch.length
    expect(count).toBe(1000)
  })
})
