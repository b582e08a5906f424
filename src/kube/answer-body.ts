// Reads the body of an answer, within limits on its size, its compression and its time.

import type { IncomingMessage } from 'node:http'
import { createGunzip } from 'node:zlib'
import { ProxyError } from '../lib/errors.ts'
import type { Clock } from '../lib/time.ts'
import { makeNetworkError } from './api-errors.ts'
import type { Deadline } from './deadline.ts'

/** Counted after decompression. A page holds 250 objects; the parsed objects need up to ten times the memory. */
export const maxBodyBytes = 32 << 20
/** Lists of equal objects reach 100; the format allows 1,032. Small answers may have any ratio. */
const maxGzipRatio = 200
const freeBytes = 1 << 20
const maxSilenceMs = 60_000
const maxBodyMs = 600_000

export interface BodyOptions {
  readonly clock: Clock
  readonly deadline: Deadline
  /** The request, for errors. */
  readonly what: string
  /** Called for each part that arrives. */
  readonly onHeard?: (() => void) | undefined
}

/** Throws a ProxyError. */
export async function readBody(response: IncomingMessage, options: BodyOptions): Promise<Buffer> {
  const { clock, deadline, what } = options
  const isZipped = response.headers['content-encoding'] === 'gzip'
  const chunks: Buffer[] = []
  const startedAt = clock.monotonic()
  const makeSilenceError = () => new ProxyError('timeout', `${what}: the answer stopped before its end`)
  let bytes = 0
  let receivedBytes = 0
  if (isZipped) response.on('data', (chunk: Buffer) => (receivedBytes += chunk.length))
  const stream = isZipped ? response.pipe(createGunzip()) : response
  // pipe() does not forward an error of the source.
  if (isZipped) response.once('error', (error) => stream.destroy(error))
  deadline.start(maxSilenceMs, makeSilenceError)
  try {
    for await (const chunk of stream as AsyncIterable<Buffer>) {
      options.onHeard?.()
      chunks.push(chunk)
      bytes += chunk.length
      if (bytes > maxBodyBytes) throw tooLarge(what, `the answer is larger than ${maxBodyBytes} bytes`)
      if (isZipped && bytes > freeBytes && bytes > receivedBytes * maxGzipRatio) {
        throw tooLarge(what, `the answer is compressed to less than 1/${maxGzipRatio} of its size`)
      }
      if (clock.monotonic() - startedAt > maxBodyMs) {
        throw new ProxyError('timeout', `${what}: the answer did not end within ${maxBodyMs / 1000} s`)
      }
      deadline.start(maxSilenceMs, makeSilenceError)
    }
  } catch (error) {
    response.destroy()
    throw deadline.reason ?? makeNetworkError(what, error)
  }
  deadline.stop()
  return Buffer.concat(chunks)
}

const tooLarge = (what: string, problem: string): ProxyError =>
  new ProxyError('answer-too-large', `${what}: ${problem}`)
