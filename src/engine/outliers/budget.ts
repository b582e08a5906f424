// A budget that is refilled as time passes. The caller passes the time in milliseconds, and may overdraw once. Pure.

/** Read at each use, since they may change. */
interface BudgetSettings {
  readonly perSecond: number
  readonly burst: number
}

export class Budget {
  readonly #settings: BudgetSettings
  #tokens: number
  #at = Number.NEGATIVE_INFINITY

  constructor(settings: BudgetSettings) {
    this.#settings = settings
    this.#tokens = settings.burst
  }

  /** True if something is left. */
  has(now: number): boolean {
    if (now > this.#at) {
      if (this.#at !== Number.NEGATIVE_INFINITY) {
        const { perSecond, burst } = this.#settings
        this.#tokens = Math.min(burst, this.#tokens + ((now - this.#at) / 1000) * perSecond)
      }
      this.#at = now
    }
    return this.#tokens > 0
  }

  /** Takes tokens, also more than are left: the next ones follow when the debt is paid. */
  take(count: number): void {
    this.#tokens -= count
  }

  /** Milliseconds from the last `has` until something is left. */
  waitMs(): number {
    return this.#tokens > 0 ? 0 : Math.ceil(((1 - this.#tokens) / this.#settings.perSecond) * 1000)
  }
}
