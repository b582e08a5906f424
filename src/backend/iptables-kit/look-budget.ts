// Limits how much time thorough looks at the tables take, however often other programs change them. An immutable value. Pure.

/** Share of the time that looks may take in the long run. */
const share = 0.05
/**
 * This many looks may follow each other without a pause. The look that finds a drift must not wait because there was another look just before it,
 * as there is after a write.
 */
const looksInRow = 3

export class LookBudget {
  /** Time that looks took and that has not been made up for at `#atMs`. */
  readonly #debtMs: number
  readonly #atMs: number
  readonly #lastLookMs: number

  constructor(debtMs = 0, atMs = 0, lastLookMs = 0) {
    this.#debtMs = debtMs
    this.#atMs = atMs
    this.#lastLookMs = lastLookMs
  }

  /** Time until the next look may begin; 0 or less if it may begin now. */
  waitMs(nowMs: number): number {
    return (this.#debtAt(nowMs) - (looksInRow - 1) * this.#lastLookMs) / share
  }

  /** The budget after a look that began at `begunMs` and took `tookMs`. */
  spend(begunMs: number, tookMs: number): LookBudget {
    return new LookBudget(this.#debtAt(begunMs) + tookMs, begunMs, tookMs)
  }

  #debtAt(nowMs: number): number {
    return Math.max(0, this.#debtMs - (nowMs - this.#atMs) * share)
  }
}
