// A stack of closers: each part of a program pushes its closer when it opens, and closing goes in reverse order.

export type Close = () => unknown

export class Closers {
  readonly #stack: Close[] = []

  push(close: Close): void {
    this.#stack.push(close)
  }

  /** Runs every closer, the last pushed first, one after the other. If some of them fail, throws the first failure at the end. */
  async closeAll(): Promise<void> {
    const failures: unknown[] = []
    for (let close = this.#stack.pop(); close !== undefined; close = this.#stack.pop()) {
      try {
        await close()
      } catch (error) {
        failures.push(error)
      }
    }
    if (failures.length > 0) throw failures[0]
  }
}
