// Decides from the results of probes whether an endpoint fails: a number of failures in a row, until a number of successes in a row. Pure.

import { count } from '../../lib/plural.ts'

export interface ProbeThresholds {
  readonly failures: number
  readonly successes: number
}

export class ProbeJudge {
  readonly #thresholds: ProbeThresholds
  #failures = 0
  #successes = 0
  #verdict: string | undefined

  constructor(thresholds: ProbeThresholds) {
    this.#thresholds = thresholds
  }

  /** Why the endpoint fails; undefined while it does not. The words do not change until it succeeds. */
  get verdict(): string | undefined {
    return this.#verdict
  }

  /** `failure` says why a probe failed, as a part of a sentence; undefined if it succeeded. */
  note(failure: string | undefined): void {
    if (failure === undefined) {
      this.#failures = 0
      if (++this.#successes >= this.#thresholds.successes) this.#verdict = undefined
      return
    }
    this.#successes = 0
    if (++this.#failures < this.#thresholds.failures) return
    this.#verdict ??= `probe: ${failure} ${count(this.#failures, 'time')}`
  }
}
