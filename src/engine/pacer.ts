// Decides when a lane syncs: at once while syncs are cheap or when urgent, otherwise up to a minimum distance after the last sync; again
// after a failure; and at least once per maximum interval.
//
// The minimum distance limits the load that runs cause, so what a run costs decides how long the next one waits. A run of `wholeRunMs` or
// longer counts as one, and there is one per minimum distance; a shorter run counts as its share. With 50 ms and a distance of one second,
// runs of 1 ms may follow each other several times per second, and all runs together take a twentieth of the time, unless single runs are
// longer than 50 ms. After a quiet time a few runs may exceed this; they are paid back.

import { ProxyError } from '../lib/errors.ts'
import type { Clock, Timer } from '../lib/time.ts'

export interface PacerOptions {
  /** Distance between the end of a run of `wholeRunMs` or longer and the start of the next one, on average. */
  readonly minMs: number
  /** A run that costs less than this counts for less. */
  readonly wholeRunMs: number
  /** Runs after a quiet time that need not keep the minimum distance, however long they take. */
  readonly quickRuns: number
  /** Distance between a failed run and the next one, unless `minMs` is longer. */
  readonly retryMs: number
  /** Longest time without a run. */
  readonly maxMs: number
  readonly clock: Clock
  /** What runs have cost so far, in ms; the time if absent. On a busy machine a run takes much longer than it costs. */
  readonly spentMs?: () => number
  /** A rejection is a bug and ends the process. */
  readonly run: () => Promise<RunResult>
}

/** The shortest distance of runs: requests that come together lead to one run. */
const quickMs = 10
/** No run counts for less than a run of this time: reports and steps that follow a run take time, too. */
const leastRunMs = 1

/** How a run ended. After `unfinished` the next run follows at once. */
export type RunResult = 'ok' | 'failed' | 'unfinished'

export class Pacer {
  readonly #options: PacerOptions
  #state: 'idle' | 'running' | 'stopped' = 'stopped'
  #requested = false
  /** Something is broken: the next run does not wait for the minimum distance. */
  #urgent = false
  /** When the last urgent run began. */
  #lastUrgent = Number.NEGATIVE_INFINITY
  /** Monotonic times. A run starts at the later of the two; if it is requested, at the later of now and `#earliest`. */
  #earliest = Number.NEGATIVE_INFINITY
  #latest = Number.POSITIVE_INFINITY
  /** When the next run would be due if every run had waited for what those before it cost. */
  #paidUntil = Number.NEGATIVE_INFINITY
  /** What unfinished runs cost; the run that finishes pays for them. */
  #unpaidMs = 0
  /** What had been spent when it was read last. */
  #spentMs = 0
  /** The timer of a run that is requested. */
  #timer: Timer | undefined
  /** The timer of a run that nobody requests. It may fire before `#latest`, which moves with every run, and is set again then. */
  #latestTimer: Timer | undefined
  #latestTimerAt = Number.POSITIVE_INFINITY
  #running: Promise<void> = Promise.resolve()

  constructor(options: PacerOptions) {
    if (options.maxMs < options.minMs) {
      const { minMs, maxMs } = options
      throw new ProxyError('config', `the maximum sync interval (${maxMs} ms) is below the minimum (${minMs} ms)`)
    }
    this.#options = options
  }

  /** From now on, runs start on request, and without requests after the maximum interval. */
  start(): void {
    if (this.#state !== 'stopped') return
    this.#state = 'idle'
    this.#latest = this.#options.clock.monotonic() + this.#options.maxMs
    this.#setTimer()
  }

  /**
   * Asks for a run. Any number of requests before a run starts lead to one run; a request during a run leads to one more. An urgent run
   * starts as soon as possible; but if something breaks again and again, there is one urgent run per minimum distance.
   */
  requestRun(urgent = false): void {
    if (this.#state === 'stopped' || (this.#requested && !urgent)) return
    this.#requested = true
    this.#urgent ||= urgent && this.#options.clock.monotonic() - this.#lastUrgent >= this.#options.minMs
    if (this.#state === 'idle') this.#setTimer()
  }

  /** Starts no further run; resolves when the current run has ended. */
  async stop(): Promise<void> {
    this.#state = 'stopped'
    this.#timer?.cancel()
    this.#latestTimer?.cancel()
    this.#latestTimerAt = Number.POSITIVE_INFINITY
    await this.#running
  }

  #setTimer(): void {
    const now = this.#options.clock.monotonic()
    if (!this.#requested) {
      this.#setLatestTimer(now)
      return
    }
    this.#timer?.cancel()
    const at = this.#urgent ? now : Math.max(now, this.#earliest)
    // A timer also for a run that is due now: a run never starts inside the event that asked for it, so one read leads to one run.
    this.#timer = this.#options.clock.after(at - now, () => {
      this.#running = this.#runAndReschedule()
    })
  }

  #setLatestTimer(now: number): void {
    const at = Math.max(this.#latest, this.#earliest)
    if (at >= this.#latestTimerAt) return
    this.#latestTimer?.cancel()
    this.#latestTimerAt = at
    this.#latestTimer = this.#options.clock.after(Math.max(0, at - now), () => {
      this.#latestTimerAt = Number.POSITIVE_INFINITY
      // A run that runs, or that is requested, sets the timer again when it has ended.
      if (this.#state !== 'idle' || this.#requested) return
      const isDue = this.#options.clock.monotonic() >= Math.max(this.#latest, this.#earliest)
      if (isDue) this.#running = this.#runAndReschedule()
      else this.#setTimer()
    })
  }

  async #runAndReschedule(): Promise<void> {
    const { run, clock, maxMs, retryMs } = this.#options
    this.#state = 'running'
    if (this.#urgent) this.#lastUrgent = clock.monotonic()
    this.#requested = false
    this.#urgent = false
    const began = clock.monotonic()
    const result = await run()
    if ((this.#state as string) === 'stopped') return
    const now = clock.monotonic()
    this.#unpaidMs += this.#findCost(now - began)
    this.#state = 'idle'
    this.#requested ||= result === 'unfinished'
    this.#earliest = result === 'unfinished' ? now : this.#findEarliest(now, result)
    this.#latest = now + (result === 'failed' ? Math.min(retryMs, maxMs) : maxMs)
    this.#setTimer()
  }

  /**
   * What a run cost that took as long. To read what was spent, before and after each run, takes longer than a short run is worth. So it is
   * read after long runs only, and everything since the last reading counts, but never more than the time.
   */
  #findCost(tookMs: number): number {
    const { spentMs } = this.#options
    if (spentMs === undefined || tookMs <= leastRunMs) return tookMs
    const before = this.#spentMs
    this.#spentMs = spentMs()
    return Math.min(tookMs, this.#spentMs - before)
  }

  #findEarliest(now: number, result: RunResult): number {
    const { minMs, quickRuns, wholeRunMs } = this.#options
    const share = Math.min(1, Math.max(leastRunMs, this.#unpaidMs) / wholeRunMs)
    this.#unpaidMs = 0
    // Urgent runs do not delay others by more than the minimum distance.
    this.#paidUntil = Math.min(Math.max(this.#paidUntil, now), now + quickRuns * minMs) + share * minMs
    if (result === 'failed') return now + minMs
    return Math.max(now + Math.min(quickMs, minMs), this.#paidUntil - quickRuns * minMs)
  }
}
