// One operation at a time: each runs when all before it have ended, well or badly, and at once if there are none.

export class Mutex {
  readonly #waiting: (() => void)[] = []
  #open = 0

  /** Operations that run or wait. */
  get open(): number {
    return this.#open
  }

  run<T>(run: () => Promise<T>): Promise<T> {
    // Counted before it runs: one that asks for another must find itself under way.
    if (this.#open++ === 0) return this.#begin(run)
    return new Promise((resolve) => this.#waiting.push(() => resolve(this.#begin(run))))
  }

  #begin<T>(run: () => Promise<T>): Promise<T> {
    const running = started(run)
    running.then(this.#ended, this.#ended)
    return running
  }

  readonly #ended = (): void => {
    this.#open--
    this.#waiting.shift()?.()
  }
}

/** What throws instead of rejecting must be counted off as well. */
function started<T>(run: () => Promise<T>): Promise<T> {
  try {
    return run()
  } catch (error) {
    return Promise.reject(error)
  }
}
