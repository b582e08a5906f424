// Sums by service port and endpoint. The endpoint '' stands for all endpoints that are gone. Pure.

export class CarriedCounts {
  readonly #ports = new Map<string, Map<string, number>>()

  get size(): number {
    return this.#ports.size
  }

  get(port: string, endpoint: string): number {
    return this.#ports.get(port)?.get(endpoint) ?? 0
  }

  set(port: string, endpoint: string, count: number): void {
    const endpoints = this.#ports.get(port)
    if (endpoints === undefined) this.#ports.set(port, new Map([[endpoint, count]]))
    else endpoints.set(endpoint, count)
  }

  add(port: string, endpoint: string, count: number): void {
    if (count > 0) this.set(port, endpoint, this.get(port, endpoint) + count)
  }

  addAll(more: CarriedCounts): void {
    for (const [port, endpoint, count] of more.entries()) this.add(port, endpoint, count)
  }

  /** Removes a sum and returns it. */
  take(port: string, endpoint: string): number {
    const endpoints = this.#ports.get(port)
    const count = endpoints?.get(endpoint) ?? 0
    endpoints?.delete(endpoint)
    if (endpoints?.size === 0) this.#ports.delete(port)
    return count
  }

  delete(port: string): void {
    this.#ports.delete(port)
  }

  endpointsOf(port: string): readonly string[] {
    return [...(this.#ports.get(port)?.keys() ?? [])]
  }

  *entries(): Generator<readonly [port: string, endpoint: string, count: number]> {
    for (const [port, endpoints] of this.#ports) {
      for (const [endpoint, count] of endpoints) yield [port, endpoint, count]
    }
  }

  copy(): CarriedCounts {
    const copied = new CarriedCounts()
    copied.addAll(this)
    return copied
  }
}
