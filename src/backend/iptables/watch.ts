// Notices that somebody else changed our chains: a cheap look twice a second, a thorough one only if anybody changed anything.

import { describeError } from '../../lib/errors.ts'
import type { Logger } from '../../lib/log.ts'
import type { Clock, Timer } from '../../lib/time.ts'
import { canary, kubeletFirewall } from './chains.ts'
import type { Seen, Sight } from './sight.ts'

export interface WatchOptions {
  readonly sight: Sight
  /** What we wrote, as `Book.uses`. */
  readonly expected: () => ReadonlyMap<string, number>
  readonly onDrift: (culprit: string) => void
  readonly clock: Clock
  readonly log: Logger
}

/** A look costs 20 µs in the nft flavour, 30 µs in the other. */
const periodMs = 500
/** A thorough look takes at most this share of the time, however busy other writers are. */
const lookShare = 0.05

/** More than these need not be told. */
const named = 3

export class Watch {
  readonly #options: WatchOptions
  /** The mark under which all was as we wrote it; undefined: unknown, so the next look is a thorough one. */
  #mark: string | undefined
  /** Jumps of others to our chains, which no rewriting of ours takes away. */
  #tolerated: ReadonlyMap<string, number> = new Map()
  #timer: Timer | undefined
  #writing = false
  /** Told, and not repaired yet. */
  #told = false
  #suspected = ''
  #closed = false

  constructor(options: WatchOptions) {
    this.#options = options
  }

  /** Something of ours is not as we wrote it. */
  get drifted(): boolean {
    return this.#told
  }

  /** Before a write of our own. Returns the mark, so that foreign changes in between can be told. */
  async pause(): Promise<string | undefined> {
    this.#writing = true
    this.#timer?.cancel()
    if (this.#mark === undefined) return undefined
    const mark = await this.#options.sight.mark()
    return mark === this.#mark ? mark : undefined
  }

  /** After a write: `before` as `pause` returned it. A full write took away all that was not ours in our chains. */
  async resume(before: string | undefined, commits: number, full: boolean, signal: AbortSignal): Promise<void> {
    const { sight } = this.#options
    const mark = await sight.mark()
    this.#mark = mark
    if (full) await this.#adopt(signal)
    else if (before === undefined || (sight.after(before, commits) ?? mark) !== mark) this.#mark = undefined
    this.#writing = false
    this.#arm(periodMs)
  }

  /** After a write that failed: nothing is known. */
  abandon(): void {
    this.#mark = undefined
    this.#writing = false
    this.#arm(periodMs)
  }

  close(): void {
    this.#closed = true
    this.#timer?.cancel()
    this.#options.sight.close()
  }

  /**
   * After everything was written because something differed, what still differs comes of others' jumps, and what is missing
   * is a drift, but only once. Without that cause there is nothing to doubt.
   */
  async #adopt(signal: AbortSignal): Promise<void> {
    if (!this.#told && this.#suspected === '') return
    const { sight, expected } = this.#options
    const { uses } = await sight.look(signal)
    const extra = new Map<string, number>()
    for (const [chain, wanted] of expected()) {
      const more = (uses.get(chain) ?? wanted) - wanted
      if (more > 0) extra.set(chain, more)
    }
    this.#tolerated = extra
    const found = this.#compare({ uses, jumps: new Set() })
    if (found !== '' && found === this.#suspected) {
      // Rewriting everything does not help, so this kernel counts otherwise than we think: no reason to rewrite for ever.
      for (const [chain, wanted] of expected()) extra.set(chain, (uses.get(chain) ?? wanted) - wanted)
      this.#options.log.warn('rules do not become what was written', { found })
    } else if (found !== '') {
      this.#tell(found)
      return
    }
    this.#suspected = ''
    this.#told = false
  }

  #arm(ms: number): void {
    if (this.#closed) return
    this.#timer?.cancel()
    this.#timer = this.#options.clock.after(ms, () => {
      this.#check().catch((error: unknown) => {
        // The next look tries again.
        this.#options.log.warn('cannot look after our rules', { error: describeError(error) })
        this.#arm(periodMs)
      })
    })
  }

  async #check(): Promise<void> {
    const { sight, clock } = this.#options
    if (this.#told) return
    const mark = await sight.mark()
    if (this.#writing || this.#closed) return
    if (mark === this.#mark) return this.#arm(periodMs)
    const begun = clock.monotonic()
    const seen = await sight.look()
    if (this.#writing || this.#closed) return
    const found = this.#compare(seen)
    if (found !== '') return this.#tell(found)
    this.#mark = mark
    this.#arm(Math.max(periodMs, (clock.monotonic() - begun) / lookShare))
  }

  #tell(found: string): void {
    this.#mark = undefined
    this.#told = true
    this.#suspected = found
    this.#options.onDrift(`another program (${found})`)
  }

  /** '' if all is as it should be. */
  #compare({ uses }: Seen): string {
    const found: string[] = []
    const complain = (text: string) => found.push(text)
    for (const table of ['filter', 'nat', 'mangle']) {
      if (!uses.has(`${table} ${canary}`)) complain(`${table} ${canary} is gone`)
    }
    for (const [chain, own] of this.#options.expected()) {
      const wanted = own + (this.#tolerated.get(chain) ?? 0)
      const use = uses.get(chain)
      // Kubelet writes its chain, too; only what is missing there is our business.
      const missing = use === undefined || (chain.endsWith(` ${kubeletFirewall}`) ? use < wanted : use !== wanted)
      if (!missing) continue
      complain(use === undefined ? `${chain} is gone` : `${chain} has ${use} rules and jumps instead of ${wanted}`)
      if (found.length > named) break
    }
    return found.length > named ? `${found.slice(0, named).join(', ')} and more` : found.join(', ')
  }
}
