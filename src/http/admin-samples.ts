// The samples of the last hour on the admin socket: their types and their route. The daemon takes them.

import type { Exchange } from './routing.ts'

/** What the proxy was like at one time, and what happened since the sample before. */
export interface Sample {
  /** Unix ms. */
  readonly at: number
  readonly services: number
  readonly endpoints: number
  /** The connections that the kernel tracks; null if it tracks none. */
  readonly tracked: number | null
  /** New connections to services per second; null if they are not counted. */
  readonly connectionsPerSecond: number | null
  readonly syncs: number
  /** The longest sync; null if there was none. */
  readonly syncMs: number | null
  /** The longest time from an event of the API server to the kernel; null if nothing was programmed. */
  readonly programmingMs: number | null
  /** How late the event loop was for the timer of the sample. */
  readonly loopDelayMs: number
  /** The share of the time in which the event loop was busy, between 0 and 1. */
  readonly loopBusy: number
  /** The resident memory; null if it could not be read. */
  readonly rssBytes: number | null
  /** How often another program changed our rules. */
  readonly drifts: number
  readonly quarantined: number
  readonly conflicts: number
}

export interface SampleAnswer {
  /** The time between two samples. */
  readonly everyMs: number
  /** Oldest first. */
  readonly samples: readonly Sample[]
}

export interface SampleSource {
  /** The samples after this time, in Unix ms. */
  samples(after: number): SampleAnswer
}

type Answer = (compute: (exchange: Exchange) => unknown) => (exchange: Exchange) => Promise<void>

export const makeSampleRoutes = (source: SampleSource, answer: Answer) => ({
  '/v1/samples': answer(({ query }) => source.samples(Number(query.get('after') ?? 0))),
})
