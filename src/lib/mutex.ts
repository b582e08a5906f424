// A mutex for asynchronous operations: each starts when all operations before it have ended, whether they succeeded or not.

export class Mutex {
  readonly #waiting: (() => void)[] = []
  #open = 0

  /** The number of operations that run or wait. */
  get open(): number {
    return this.#open
  }

  /** Runs the operation at once if no other operation runs or waits. */
  run<T>(operation: () => Promise<T>): Promise<T> {
    // Counted before it starts: an operation that queues another one must count as running.
    if (this.#open++ === 0) return this.#start(operation)
    return new Promise((resolve) => this.#waiting.push(() => resolve(this.#start(operation))))
  }

  #start<T>(operation: () => Promise<T>): Promise<T> {
    const running = call(operation)
    running.then(this.#startNext, this.#startNext)
    return running
  }

  readonly #startNext = (): void => {
    this.#open--
    this.#waiting.shift()?.()
  }
}

/** Turns an exception into a rejection, so that the mutex is released after it as well. */
function call<T>(operation: () => Promise<T>): Promise<T> {
  try {
    return operation()
  } catch (error) {
    return Promise.reject(error)
  }
}
