// Long work in short stints: whoever has used up its time lets others have a turn of the event loop.

import { type Clock, nextTurn } from './time.ts'

/** How long one may hold the event loop: several may, one after the other, and the collector comes on top. */
export const stintMs = 5

/** Time to work in, between two rests. By the clock, as the same work takes ten times as long while its code is new to the engine. */
export class Stint {
  readonly #clock: Pick<Clock, 'monotonic'>
  readonly #breathe: () => Promise<void>
  #end: number

  constructor(clock: Pick<Clock, 'monotonic'>, breathe: () => Promise<void> = nextTurn) {
    this.#clock = clock
    this.#breathe = breathe
    this.#end = clock.monotonic() + stintMs
  }

  /** Its time is used up. To be asked every tenth of a millisecond or so. */
  get over(): boolean {
    return this.#clock.monotonic() >= this.#end
  }

  /** After a wait for something else. */
  begin(): void {
    this.#end = this.#clock.monotonic() + stintMs
  }

  async rest(): Promise<void> {
    await this.#breathe()
    this.begin()
  }
}

/** Work that may be interrupted at every `yield`. What it works on must be whole again there. */
export type Walk<T> = Generator<void, T, void>

/** To the end without a rest, for those who do not mind. */
export function finish<T>(walk: Walk<T>): T {
  for (;;) {
    const step = walk.next()
    if (step.done === true) return step.value
  }
}

/** To the end, with rests. What needs none is done at once, without a promise. */
export function stroll<T>(walk: Walk<T>, stint: Stint): T | Promise<T> {
  for (;;) {
    const step = walk.next()
    if (step.done === true) return step.value
    if (stint.over) return strollOn(walk, stint)
  }
}

async function strollOn<T>(walk: Walk<T>, stint: Stint): Promise<T> {
  try {
    for (;;) {
      await stint.rest()
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
