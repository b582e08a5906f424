// Reads and deletes chains of endpoints that are gone, a second or more after nothing jumps to them.

import { describeError } from '../../../lib/errors.ts'
import type { Timer } from '../../../lib/time.ts'
import type { OpenContext } from '../../backend.ts'
import type { LingeringChains } from './lingering-chains.ts'
import type { ChainCounters, ChainReading } from './read-chains.ts'

/** A packet that was in the chain when the last jump was taken away has left it long before. */
const lingerMs = 1_000
/** Chains that are deleted at once: syncs wait meanwhile. */
const mostAtOnce = 500
/** Sweeps take a twentieth of the time at most: in a large legacy table each takes seconds. */
const restPerWork = 20
/** Sweeps come so often even if they take long, as on a busy machine. */
const longestRestMs = 60_000

export interface SweeperOptions {
  readonly context: Pick<OpenContext, 'clock' | 'log'>
  readonly lingering: LingeringChains
  readonly counters: ChainCounters
  /** Deletes chains that have been read. Gets the ids of their ports by chain. */
  readonly remove: (chains: ReadonlyMap<string, string>, reading: ChainReading) => Promise<void>
}

export class ChainSweeper {
  readonly #options: SweeperOptions
  #timer: Timer | undefined
  #isRunning = false
  #isClosed = false
  #workMs = 0

  constructor(options: SweeperOptions) {
    this.#options = options
  }

  /** Call it after every write. */
  schedule(): void {
    if (this.#isClosed || this.#isRunning || this.#timer !== undefined || this.#options.lingering.isEmpty) return
    const { clock } = this.#options.context
    // A little more than the time that chains linger: the timer may be early.
    const restMs = Math.min(longestRestMs, restPerWork * this.#workMs)
    this.#timer = clock.after(Math.max(lingerMs + 100, restMs), () => {
      this.#timer = undefined
      void this.#sweep()
    })
  }

  close(): void {
    this.#isClosed = true
    this.#timer?.cancel()
  }

  async #sweep(): Promise<void> {
    const { context, lingering, counters, remove } = this.#options
    const { clock, log } = context
    const begun = clock.monotonic()
    this.#isRunning = true
    try {
      const chains = [...lingering.listSince(begun - lingerMs)]
      const reading = await counters.readSome(chains.map(([chain]) => chain))
      for (let from = 0; from < chains.length && !this.#isClosed; from += mostAtOnce) {
        await remove(new Map(chains.slice(from, from + mostAtOnce)), reading)
      }
    } catch (error) {
      log.v(2, 'Cannot remove chains of endpoints that are gone; trying again', { error: describeError(error) })
    }
    this.#workMs = clock.monotonic() - begun
    this.#isRunning = false
    this.schedule()
  }
}
