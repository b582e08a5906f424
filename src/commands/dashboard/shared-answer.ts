// Reads one answer of a proxy for all viewers together, and no more often than the proxy can afford.

/** How an answer is paced. */
export interface Pace {
  /** The answer is kept for at least this time. */
  readonly leastMs: number
  /** The answer is kept for this many times the duration that it took to read: 200 allows 0.5 % of the proxy's time. */
  readonly restFactor: number
}

export class SharedAnswer<T> {
  readonly #read: () => Promise<T>
  readonly #pace: Pace
  #last: { readonly answer: T; readonly revision: string; readonly dueAt: number } | undefined
  #reading: Promise<T> | undefined

  constructor(read: () => Promise<T>, pace: Pace) {
    this.#read = read
    this.#pace = pace
  }

  /** Returns the last answer if the revision is the same or the time is not over, and otherwise reads the answer again. */
  get(revision: string): Promise<T> {
    const last = this.#last
    if (last !== undefined && (last.revision === revision || performance.now() < last.dueAt)) {
      return Promise.resolve(last.answer)
    }
    this.#reading ??= this.#readAgain(revision).finally(() => {
      this.#reading = undefined
    })
    return this.#reading
  }

  async #readAgain(revision: string): Promise<T> {
    const startedAt = performance.now()
    const answer = await this.#read()
    const endedAt = performance.now()
    const restMs = Math.max(this.#pace.leastMs, (endedAt - startedAt) * this.#pace.restFactor)
    this.#last = { answer, revision, dueAt: endedAt + restMs }
    return answer
  }
}

/** More services than these are not on the screens of all viewers together. */
const maxAnswers = 32

/** One shared answer per name, for those that were asked for last. */
export class SharedAnswers<T> {
  readonly #read: (name: string) => Promise<T>
  readonly #pace: Pace
  readonly #answers = new Map<string, SharedAnswer<T>>()

  constructor(read: (name: string) => Promise<T>, pace: Pace) {
    this.#read = read
    this.#pace = pace
  }

  of(name: string): SharedAnswer<T> {
    const answer = this.#answers.get(name) ?? new SharedAnswer(() => this.#read(name), this.#pace)
    this.#answers.delete(name)
    this.#answers.set(name, answer)
    const [oldest] = this.#answers.keys()
    if (this.#answers.size > maxAnswers && oldest !== undefined) this.#answers.delete(oldest)
    return answer
  }
}
