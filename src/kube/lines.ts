// Lines out of a byte stream, with back-pressure: the next chunk is read when the lines of the last one are dealt with.

import { ProxyError } from '../lib/errors.ts'
import { nextTurn } from '../lib/time.ts'

const newline = 10

/** As much as its reader deals with in a few milliseconds; then everybody else of the process has a turn. */
export const turnBytes = 64 << 10

/** Yields the complete lines of each chunk. What follows the last newline when the stream ends is half a line, and dropped. */
export async function* readLines(chunks: AsyncIterable<Buffer>, maxBytes: number): AsyncGenerator<readonly string[]> {
  let held: Buffer[] = []
  let heldBytes = 0
  let sinceTurn = 0
  for await (const chunk of chunks) {
    const lines: string[] = []
    let start = 0
    for (let end = chunk.indexOf(newline); end >= 0; end = chunk.indexOf(newline, start)) {
      const last = chunk.subarray(start, end)
      const line = heldBytes === 0 ? last : Buffer.concat([...held, last])
      held = []
      heldBytes = 0
      start = end + 1
      if (line.length > 0) lines.push(line.toString('utf8'))
    }
    if (lines.length > 0) yield lines
    if (start < chunk.length) {
      held.push(chunk.subarray(start))
      heldBytes += chunk.length - start
      if (heldBytes > maxBytes)
        throw new ProxyError('line-too-long', `a line of the stream is longer than ${maxBytes} bytes`)
    }
    // A stream that has more is read on in the same turn of the event loop, megabytes of it.
    sinceTurn += chunk.length
    if (sinceTurn < turnBytes) continue
    sinceTurn = 0
    await nextTurn()
  }
}
