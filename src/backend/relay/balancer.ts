// Chooses the endpoint that a relayed client gets: round robin over a shuffled list, at random or by a hash, with ClientIP affinity.
//
// Plain round robin with retries would send half of all clients to a dead endpoint first: with two endpoints, one of them dead, every
// second client waits for a timeout before the other one answers. So the balancer skips an endpoint that did not answer for a while.

import { slotOfClient } from '../../model/consistent-hash.ts'
import { tabulate } from '../../model/endpoint-slots.ts'
import type { BalancerChoice } from './balancer-choice.ts'

interface Affinity {
  readonly endpoint: string
  usedAt: number
}

/** With more clients than this the balancer forgets the longest unused: memory must not grow with the number of clients. */
const maxClients = 65_536

/** How long the balancer skips an endpoint that did not answer, if there are others; then one client tries it again. */
export const skipMs = 10_000

export class Balancer {
  readonly #random: () => number
  readonly #now: () => number
  /** An endpoint is there as often as its weight wants; with a hash, once for each of its slots, in order. */
  #endpoints: readonly string[] = []
  #choice: BalancerChoice | undefined
  /** What `#endpoints` was made from. */
  #made = ''
  #next = 0
  #affinityMs = 0
  readonly #clients = new Map<string, Affinity>()
  /** Endpoints that did not answer, until when they are skipped, and for how long at a time. */
  readonly #skipped = new Map<string, { readonly until: number; readonly ms: number }>()

  /** `random` in [0, 1), `now` in ms. */
  constructor(random: () => number, now: () => number) {
    this.#random = random
    this.#now = now
  }

  /**
   * Endpoints are `ip:port`, each as often as its weight wants. Shuffles them again only if they changed, and forgets clients of removed
   * endpoints.
   */
  update(endpoints: readonly string[], affinitySeconds: number, choice?: BalancerChoice): void {
    this.#affinityMs = affinitySeconds * 1000
    if (this.#affinityMs === 0) this.#clients.clear()
    const made = [JSON.stringify(choice), ...[...endpoints].sort()].join(',')
    if (made === this.#made) return
    this.#made = made
    this.#choice = choice
    const wanted = new Set(endpoints)
    this.#endpoints = choice?.by === 'hash' ? tabulate(endpoints, choice.size) : shuffle([...endpoints], this.#random)
    this.#next = 0
    for (const [client, { endpoint }] of this.#clients) if (!wanted.has(endpoint)) this.#clients.delete(client)
    for (const endpoint of this.#skipped.keys()) if (!wanted.has(endpoint)) this.#skipped.delete(endpoint)
  }

  /** Undefined if there is no endpoint, or none but those in `failed`, which have just failed this client. */
  pick(client: string, failed: ReadonlySet<string> = new Set()): string | undefined {
    if (this.#affinityMs === 0) return this.#pickNext(client, failed)
    const now = this.#now()
    const known = this.#clients.get(client)
    if (known !== undefined && now - known.usedAt < this.#affinityMs && !failed.has(known.endpoint)) {
      this.#remember(client, known.endpoint, now)
      return known.endpoint
    }
    const endpoint = this.#pickNext(client, failed)
    if (endpoint !== undefined) this.#remember(client, endpoint, now)
    return endpoint
  }

  /** Called when the endpoint failed this client: the next pick is another endpoint if there is one. */
  forgetAffinity(client: string, endpoint: string): void {
    if (this.#clients.get(client)?.endpoint === endpoint) this.#clients.delete(client)
  }

  /** Called when the endpoint did not answer in time: clients try all others first. Clients with affinity to it stay with it. */
  markUnresponsive(endpoint: string, ms = skipMs): void {
    this.#skipped.set(endpoint, { until: this.#now() + ms, ms })
  }

  markResponsive(endpoint: string): void {
    this.#skipped.delete(endpoint)
  }

  #pickNext(client: string, failed: ReadonlySet<string>): string | undefined {
    const count = this.#endpoints.length
    const first = this.#firstIndex(client)
    let firstSkipped: number | undefined
    for (let tries = 0; tries < count; tries++) {
      const index = (first + tries) % count
      const endpoint = this.#endpoints[index] as string
      if (failed.has(endpoint)) continue
      if (!this.#isSkipped(endpoint)) return this.#choose(index)
      firstSkipped ??= index
    }
    return firstSkipped === undefined ? undefined : this.#choose(firstSkipped)
  }

  #firstIndex(client: string): number {
    if (this.#choice === undefined) return this.#next
    if (this.#choice.by === 'hash') return slotOfClient(client, this.#choice.size)
    return Math.floor(this.#random() * this.#endpoints.length)
  }

  #choose(index: number): string {
    this.#next = (index + 1) % this.#endpoints.length
    return this.#endpoints[index] as string
  }

  /** The first client after the time is over tries the endpoint; the others skip it until that client knows the result. */
  #isSkipped(endpoint: string): boolean {
    const skipped = this.#skipped.get(endpoint)
    if (skipped === undefined) return false
    if (this.#now() < skipped.until) return true
    this.markUnresponsive(endpoint, skipped.ms)
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
