// Which endpoint a client gets when we copy the bytes ourselves: round robin over a shuffled list, ClientIP affinity.
//
// Round robin and retries together would lead every client to a dead endpoint first: of two, one dead, each takes its turn at the
// dead one and answers come from the other. So an endpoint that did not answer is passed over for a while.

interface Remembered {
  readonly endpoint: string
  usedAt: number
}

/** More clients than this and the longest unused are forgotten: memory must not follow the number of clients. */
const mostClients = 65_536

/** How long an endpoint that did not answer is passed over, if there are others; then one client tries it again. */
const restMs = 10_000

export class Balancer {
  readonly #random: () => number
  readonly #now: () => number
  #endpoints: readonly string[] = []
  #next = 0
  #affinityMs = 0
  readonly #clients = new Map<string, Remembered>()
  /** Endpoints that did not answer, and until when they are passed over. */
  readonly #resting = new Map<string, number>()

  /** `random` in [0, 1), `now` in ms. */
  constructor(random: () => number, now: () => number) {
    this.#random = random
    this.#now = now
  }

  get size(): number {
    return this.#endpoints.length
  }

  /** Endpoints as `ip:port`. The order is drawn anew only if the set changed; clients of removed endpoints are forgotten. */
  update(endpoints: readonly string[], affinitySeconds: number): void {
    this.#affinityMs = affinitySeconds * 1000
    if (this.#affinityMs === 0) this.#clients.clear()
    const wanted = new Set(endpoints)
    if (wanted.size === this.#endpoints.length && this.#endpoints.every((endpoint) => wanted.has(endpoint))) return
    this.#endpoints = shuffle([...wanted], this.#random)
    this.#next = 0
    for (const [client, { endpoint }] of this.#clients) if (!wanted.has(endpoint)) this.#clients.delete(client)
    for (const endpoint of this.#resting.keys()) if (!wanted.has(endpoint)) this.#resting.delete(endpoint)
  }

  /** Undefined if there is none, or none but those that failed for this client just now. */
  pick(client: string, failed: ReadonlySet<string> = new Set()): string | undefined {
    if (this.#affinityMs === 0) return this.#roundRobin(failed)
    const now = this.#now()
    const remembered = this.#clients.get(client)
    if (remembered !== undefined && now - remembered.usedAt < this.#affinityMs && !failed.has(remembered.endpoint)) {
      this.#remember(client, remembered.endpoint, now)
      return remembered.endpoint
    }
    const endpoint = this.#roundRobin(failed)
    if (endpoint !== undefined) this.#remember(client, endpoint, now)
    return endpoint
  }

  /** The endpoint failed this client: its next pick is another one, if there is another. */
  forgetAffinity(client: string, endpoint: string): void {
    if (this.#clients.get(client)?.endpoint === endpoint) this.#clients.delete(client)
  }

  /** It did not answer in time: others are asked before it. Clients that are bound to it still are. */
  markUnresponsive(endpoint: string): void {
    this.#resting.set(endpoint, this.#now() + restMs)
  }

  /** It answers. */
  markResponsive(endpoint: string): void {
    this.#resting.delete(endpoint)
  }

  #roundRobin(failed: ReadonlySet<string>): string | undefined {
    const count = this.#endpoints.length
    let resting: number | undefined
    for (let tries = 0; tries < count; tries++) {
      const at = (this.#next + tries) % count
      const endpoint = this.#endpoints[at] as string
      if (failed.has(endpoint)) continue
      if (!this.#rests(endpoint)) return this.#take(at)
      resting ??= at
    }
    return resting === undefined ? undefined : this.#take(resting)
  }

  #take(at: number): string {
    this.#next = (at + 1) % this.#endpoints.length
    return this.#endpoints[at] as string
  }

  /** Whoever comes when the time is over tries it; the others pass it over until that one knows. */
  #rests(endpoint: string): boolean {
    const until = this.#resting.get(endpoint)
    if (until === undefined) return false
    if (this.#now() < until) return true
    this.markUnresponsive(endpoint)
    return false
  }

  /** Re-inserting keeps the map in order of use, so the first is the longest unused. */
  #remember(client: string, endpoint: string, now: number): void {
    this.#clients.delete(client)
    this.#clients.set(client, { endpoint, usedAt: now })
    for (const [oldest, { usedAt }] of this.#clients) {
      if (this.#clients.size <= mostClients && now - usedAt < this.#affinityMs) break
      this.#clients.delete(oldest)
    }
  }
}

function shuffle(list: string[], random: () => number): string[] {
  for (let i = list.length - 1; i > 0; i--) {
    const j = Math.floor(random() * (i + 1))
    const kept = list[i] as string
    list[i] = list[j] as string
    list[j] = kept
  }
  return list
}
