// Chooses the endpoint that a relayed client gets: round robin over a shuffled list, with ClientIP affinity.
//
// Plain round robin with retries would send half of all clients to a dead endpoint first: with two endpoints, one of them dead, every
// second client waits for a timeout before the other one answers. So the balancer skips an endpoint that did not answer for a while.

interface Affinity {
  readonly endpoint: string
  usedAt: number
}

/** With more clients than this the balancer forgets the longest unused: memory must not grow with the number of clients. */
const maxClients = 65_536

/** How long the balancer skips an endpoint that did not answer, if there are others; then one client tries it again. */
const skipMs = 10_000

export class Balancer {
  readonly #random: () => number
  readonly #now: () => number
  #endpoints: readonly string[] = []
  #next = 0
  #affinityMs = 0
  readonly #clients = new Map<string, Affinity>()
  /** Endpoints that did not answer, and until when they are skipped. */
  readonly #skippedUntil = new Map<string, number>()

  /** `random` in [0, 1), `now` in ms. */
  constructor(random: () => number, now: () => number) {
    this.#random = random
    this.#now = now
  }

  /** Endpoints are `ip:port`. Shuffles them again only if the set changed, and forgets clients of removed endpoints. */
  update(endpoints: readonly string[], affinitySeconds: number): void {
    this.#affinityMs = affinitySeconds * 1000
    if (this.#affinityMs === 0) this.#clients.clear()
    const wanted = new Set(endpoints)
    if (wanted.size === this.#endpoints.length && this.#endpoints.every((endpoint) => wanted.has(endpoint))) return
    this.#endpoints = shuffle([...wanted], this.#random)
    this.#next = 0
    for (const [client, { endpoint }] of this.#clients) if (!wanted.has(endpoint)) this.#clients.delete(client)
    for (const endpoint of this.#skippedUntil.keys()) if (!wanted.has(endpoint)) this.#skippedUntil.delete(endpoint)
  }

  /** Undefined if there is no endpoint, or none but those in `failed`, which have just failed this client. */
  pick(client: string, failed: ReadonlySet<string> = new Set()): string | undefined {
    if (this.#affinityMs === 0) return this.#pickNext(failed)
    const now = this.#now()
    const known = this.#clients.get(client)
    if (known !== undefined && now - known.usedAt < this.#affinityMs && !failed.has(known.endpoint)) {
      this.#remember(client, known.endpoint, now)
      return known.endpoint
    }
    const endpoint = this.#pickNext(failed)
    if (endpoint !== undefined) this.#remember(client, endpoint, now)
    return endpoint
  }

  /** Called when the endpoint failed this client: the next pick is another endpoint if there is one. */
  forgetAffinity(client: string, endpoint: string): void {
    if (this.#clients.get(client)?.endpoint === endpoint) this.#clients.delete(client)
  }

  /** Called when the endpoint did not answer in time: clients try all others first. Clients with affinity to it stay with it. */
  markUnresponsive(endpoint: string): void {
    this.#skippedUntil.set(endpoint, this.#now() + skipMs)
  }

  markResponsive(endpoint: string): void {
    this.#skippedUntil.delete(endpoint)
  }

  #pickNext(failed: ReadonlySet<string>): string | undefined {
    const count = this.#endpoints.length
    let firstSkipped: number | undefined
    for (let tries = 0; tries < count; tries++) {
      const index = (this.#next + tries) % count
      const endpoint = this.#endpoints[index] as string
      if (failed.has(endpoint)) continue
      if (!this.#isSkipped(endpoint)) return this.#choose(index)
      firstSkipped ??= index
    }
    return firstSkipped === undefined ? undefined : this.#choose(firstSkipped)
  }

  #choose(index: number): string {
    this.#next = (index + 1) % this.#endpoints.length
    return this.#endpoints[index] as string
  }

  /** The first client after the time is over tries the endpoint; the others skip it until that client knows the result. */
  #isSkipped(endpoint: string): boolean {
    const until = this.#skippedUntil.get(endpoint)
    if (until === undefined) return false
    if (this.#now() < until) return true
    this.markUnresponsive(endpoint)
    return false
  }

  /** Inserting again keeps the map in order of use, so the first client is the longest unused. */
  #remember(client: string, endpoint: string, now: number): void {
    this.#clients.delete(client)
    this.#clients.set(client, { endpoint, usedAt: now })
    for (const [oldest, { usedAt }] of this.#clients) {
      if (this.#clients.size <= maxClients && now - usedAt < this.#affinityMs) break
      this.#clients.delete(oldest)
    }
  }
}

function shuffle(list: string[], random: () => number): string[] {
  for (let i = list.length - 1; i > 0; i--) {
    const j = Math.floor(random() * (i + 1))
    const swapped = list[i] as string
    list[i] = list[j] as string
    list[j] = swapped
  }
  return list
}
