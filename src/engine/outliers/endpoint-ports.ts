// Counts the ports of endpoints, so that only connections to these ports are watched. Pure.

export class EndpointPorts {
  readonly #counts = new Map<number, number>()
  /** Undefined after a change. */
  #numbers: ReadonlySet<number> | undefined

  /** The ports. After a change it is another set. */
  get numbers(): ReadonlySet<number> {
    this.#numbers ??= new Set(this.#counts.keys())
    return this.#numbers
  }

  /** `endpoint` is `ip:port`. */
  add(endpoint: string): void {
    const port = portOf(endpoint)
    const count = this.#counts.get(port) ?? 0
    this.#counts.set(port, count + 1)
    if (count === 0) this.#numbers = undefined
  }

  remove(endpoint: string): void {
    const port = portOf(endpoint)
    const count = this.#counts.get(port) ?? 0
    if (count > 1) this.#counts.set(port, count - 1)
    else if (this.#counts.delete(port)) this.#numbers = undefined
  }
}

const portOf = (endpoint: string): number => Number(endpoint.slice(endpoint.lastIndexOf(':') + 1))
