// Long work in short stints: whoever has used up its time lets others have a turn of the event loop.

import { type Clock, nextTurn } from './time.ts'

/** How long one may hold the event loop: several may, one after the other, and the collector comes on top. */
export const timeSliceMs = 5

/** Time to work in, between two rests. By the clock, as the same work takes ten times as long while its code is new to the engine. */
export class TimeSlice {
  readonly #clock: Pick<Clock, 'monotonic'>
  readonly #breathe: () => Promise<void>
  #end: number

  constructor(clock: Pick<Clock, 'monotonic'>, breathe: () => Promise<void> = nextTurn) {
    this.#clock = clock
    this.#breathe = breathe
    this.#end = clock.monotonic() + timeSliceMs
  }

  /** Its time is used up. To be asked every tenth of a millisecond or so. */
  get over(): boolean {
    return this.#clock.monotonic() >= this.#end
  }

  /** After a wait for something else. */
  restart(): void {
    this.#end = this.#clock.monotonic() + timeSliceMs
  }

  async yieldLoop(): Promise<void> {
    await this.#breathe()
    this.restart()
  }
}

/** Work that may be interrupted at every `yield`. What it works on must be whole again there. */
export type Steps<T> = Generator<void, T, void>

/** To the end without a rest, for those who do not mind. */
export function runAtOnce<T>(walk: Steps<T>): T {
  for (;;) {
    const step = walk.next()
    if (step.done === true) return step.value
  }
}

/** To the end, with rests. What needs none is done at once, without a promise. */
export function runSliced<T>(walk: Steps<T>, stint: TimeSlice): T | Promise<T> {
  for (;;) {
    const step = walk.next()
    if (step.done === true) return step.value
    if (stint.over) return runRemaining(walk, stint)
  }
}

async function runRemaining<T>(walk: Steps<T>, stint: TimeSlice): Promise<T> {
  try {
    for (;;) {
      await stint.yieldLoop()
      do {
        const step = walk.next()
        if (step.done === true) return step.value
      } while (!stint.over)
    }
  } finally {
    // If it is given up, it may put in order what it was about to change.
    walk.return(undefined as T)
  }
}
