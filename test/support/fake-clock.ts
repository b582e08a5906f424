// A clock that the test moves: time passes only in `advance`, and timers fire in order.

import type { Clock, Timer } from '../../src/lib/time.ts'

interface Alarm {
  readonly at: number
  readonly order: number
  readonly run: () => void
}

export class FakeClock implements Clock {
  #elapsed = 0
  #order = 0
  #start: number
  readonly #alarms = new Set<Alarm>()

  constructor(startUnixMs = 1_700_000_000_000) {
    this.#start = startUnixMs
  }

  now(): number {
    return this.#start + this.#elapsed
  }

  /** Sets the wall clock, as NTP does. No timer notices. */
  stepWall(ms: number): void {
    this.#start += ms
  }

  monotonic(): number {
    return this.#elapsed
  }

  after(ms: number, run: () => void): Timer {
    const alarm = { at: this.#elapsed + Math.max(0, ms), order: this.#order++, run }
    this.#alarms.add(alarm)
    return { cancel: () => void this.#alarms.delete(alarm) }
  }

  /** Number of timers that are armed and have not fired. */
  get armed(): number {
    return this.#alarms.size
  }

  /** Milliseconds from now until each armed timer fires. */
  waiting(): readonly number[] {
    return [...this.#alarms].map(({ at }) => at - this.#elapsed)
  }

  /** Lets `ms` pass. Every timer fires at its own time, and promises settle after each. */
  async advance(ms: number): Promise<void> {
    const until = this.#elapsed + ms
    await settle()
    for (let next = this.#next(until); next !== undefined; next = this.#next(until)) {
      this.#alarms.delete(next)
      this.#elapsed = next.at
      next.run()
      await settle()
    }
    this.#elapsed = until
  }

  /** The same without waiting for promises. */
  advanceSync(ms: number): void {
    const until = this.#elapsed + ms
    for (let next = this.#next(until); next !== undefined; next = this.#next(until)) {
      this.#alarms.delete(next)
      this.#elapsed = next.at
      next.run()
    }
    this.#elapsed = until
  }

  #next(until: number): Alarm | undefined {
    let best: Alarm | undefined
    for (const alarm of this.#alarms) {
      if (alarm.at > until) continue
      if (best === undefined || alarm.at < best.at || (alarm.at === best.at && alarm.order < best.order)) best = alarm
    }
    return best
  }
}

/** Waits until every promise that needs no I/O has settled. */
async function settle(): Promise<void> {
  for (let i = 0; i < 3; i++) await new Promise<void>((resolve) => setImmediate(resolve))
}
