// Runs long work in time slices: work whose slice is used up lets the event loop run other tasks before it continues.

import { type Clock, nextTurn } from './time.ts'

/** How long one task may hold the event loop. Several tasks may follow each other, and the garbage collector adds its own time. */
export const timeSliceMs = 5

/**
 * Items that a loop handles before it may yield: about a tenth of a millisecond of work, ten times that while the code is new to V8.
 * Reading the clock after every item would cost as much as the work itself.
 */
export const stride = 100

/** The time until work must yield. Measured by the clock, since the same work takes ten times as long while its code is new to V8. */
export class TimeSlice {
  readonly #clock: Pick<Clock, 'monotonic'>
  readonly #waitForTurn: () => Promise<void>
  #end: number

  constructor(clock: Pick<Clock, 'monotonic'>, waitForTurn: () => Promise<void> = nextTurn) {
    this.#clock = clock
    this.#waitForTurn = waitForTurn
    this.#end = clock.monotonic() + timeSliceMs
  }

  /** True if the slice is used up. Reads the clock, so callers ask once per tenth of a millisecond or so. */
  get over(): boolean {
    return this.#clock.monotonic() >= this.#end
  }

  /** Starts a new slice, after the caller has waited for something else. */
  restart(): void {
    this.#end = this.#clock.monotonic() + timeSliceMs
  }

  /** Lets the event loop run other tasks, then starts a new slice. */
  async yieldLoop(): Promise<void> {
    await this.#waitForTurn()
    this.restart()
  }
}

/** Work that may be interrupted at every `yield`. The data that it changes must be consistent there. */
export type Steps<T> = Generator<void, T, void>

/** Runs the work to its end without a pause. */
export function runAtOnce<T>(steps: Steps<T>): T {
  for (;;) {
    const step = steps.next()
    if (step.done === true) return step.value
  }
}

/** Runs the work to its end in time slices. Work that fits in the current slice is done when this returns, without a promise. */
export function runSliced<T>(steps: Steps<T>, slice: TimeSlice): T | Promise<T> {
  const result = runUntilOver(steps, slice)
  return result.done ? result.value : runRemaining(steps, slice)
}

async function runRemaining<T>(steps: Steps<T>, slice: TimeSlice): Promise<T> {
  try {
    for (;;) {
      await slice.yieldLoop()
      const result = runUntilOver(steps, slice)
      if (result.done) return result.value
    }
  } finally {
    // If the work is abandoned, its `finally` blocks make its data consistent.
    steps.return(undefined as T)
  }
}

/** Runs the work until it ends or the slice is used up. */
function runUntilOver<T>(steps: Steps<T>, slice: TimeSlice): { done: true; value: T } | { done: false } {
  do {
    const step = steps.next()
    if (step.done === true) return { done: true, value: step.value }
  } while (!slice.over)
  return { done: false }
}

/**
 * Runs the work until it ends, or until `shouldPause` says so when a slice is used up. Returns true if it ended. A caller that does not
 * continue work that paused must end it.
 */
export async function runUntilPaused(
  steps: Steps<void>,
  slice: TimeSlice,
  shouldPause: () => boolean,
): Promise<boolean> {
  while (!runUntilOver(steps, slice).done) {
    await slice.yieldLoop()
    if (shouldPause()) return false
  }
  return true
}
