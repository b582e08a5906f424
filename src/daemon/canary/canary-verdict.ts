// Decides from checks in a row whether the data path of a family is broken. Pure.

export class CanaryVerdict {
  readonly #failures: () => number
  #inRow = 0
  #reason: string | undefined

  constructor(failures: () => number) {
    this.#failures = failures
  }

  /** Why the data path is broken; undefined while it is not. */
  get reason(): string | undefined {
    return this.#reason
  }

  /** `failure` says why a check failed; undefined if it succeeded. Returns true if the verdict changed. */
  note(failure: string | undefined): boolean {
    const before = this.#reason
    if (failure === undefined) {
      this.#inRow = 0
      this.#reason = undefined
    } else if (++this.#inRow >= this.#failures()) this.#reason = failure
    return (before === undefined) !== (this.#reason === undefined)
  }
}
