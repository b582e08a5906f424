// What the chains of endpoints have counted, and what chains that are gone had counted, per service port. Pure.
//
// The kernel's counter of a chain is the truth while the chain exists. `before` is what has to be added to it: other programs may reset
// counters, and a chain that could not be deleted must not be counted twice.

interface ChainCount {
  /** The kernel's counter when it was last read or written. */
  seen: number
  before: number
}

export class EndpointCounts {
  readonly #chains = new Map<string, ChainCount>()
  /** By id of the port, `ns/name:port/tcp`. */
  readonly #carried = new Map<string, number>()

  /** Connections that the chain has counted, as far as is known. */
  of(chain: string): number {
    const count = this.#chains.get(chain)
    return count === undefined ? 0 : count.seen + count.before
  }

  /** Notes what the kernel's counter says. A counter that has decreased was reset, and counts on from the sum. */
  observe(chain: string, packets: number): void {
    const count = this.#chains.get(chain)
    if (count === undefined) {
      this.#chains.set(chain, { seen: packets, before: 0 })
      return
    }
    if (packets < count.seen) count.before += count.seen
    count.seen = packets
  }

  /** Call it before a chain is written with its count: from then on the kernel's counter includes everything. */
  beginAgain(chain: string): void {
    const seen = this.of(chain)
    if (seen === 0) this.#chains.delete(chain)
    else this.#chains.set(chain, { seen, before: 0 })
  }

  /** Moves the count of a chain to the sum of its port. `isGone`: the chain is deleted; if not, only what it counts from now on is new. */
  carry(chain: string, port: string, isGone: boolean): void {
    const count = this.of(chain)
    this.addCarried(port, count)
    const known = this.#chains.get(chain)
    if (isGone || known === undefined) this.#chains.delete(chain)
    else known.before = -known.seen
  }

  /** Chains that may have counted something. */
  chains(): readonly string[] {
    return [...this.#chains.keys()]
  }

  forget(chain: string): void {
    this.#chains.delete(chain)
  }

  addCarried(port: string, count: number): void {
    if (count > 0) this.#carried.set(port, this.carriedOf(port) + count)
  }

  /** Connections to endpoints of the port that are gone. */
  carriedOf(port: string): number {
    return this.#carried.get(port) ?? 0
  }

  /** Sums of ports that have any. */
  carried(): Iterable<readonly [port: string, count: number]> {
    return this.#carried
  }

  forgetPort(port: string): void {
    this.#carried.delete(port)
  }
}
