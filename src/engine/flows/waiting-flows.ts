// Gives clients that wait for an ejected endpoint another one.
//
// The kernel decides about translation when it sees the first packet of a connection: all retransmissions of a SYN go to the endpoint that did
// not answer the first. When that endpoint is ejected, its entries without a reply are removed, and the next retransmission is translated to
// an endpoint that answers. Decisions:
// 1. Entries are removed after the sync that took the endpoint out of the choice, never before: the next endpoint could be the same.
// 2. An entry without a reply carries no connection, so nothing breaks. Connections to the pod itself are left alone.
// 3. One look serves all endpoints that are ejected meanwhile, and looks take a tenth of the time at most.

import { type Family, hostPort } from '../../lib/ip.ts'
import type { Logger } from '../../lib/log.ts'
import { type Clock, sleep } from '../../lib/time.ts'
import { type Flow, type FlowTable, removeFlows } from './flow-table.ts'

const TCP = 6
/** A look may take one part in so many of the time. */
const share = 10
const maxPauseMs = 5_000

export interface WaitingFlowsOptions<F extends Flow> {
  readonly table: FlowTable<F>
  readonly clock: Clock
  readonly log: Logger
}

export class WaitingFlows<F extends Flow> {
  readonly #options: WaitingFlowsOptions<F>
  readonly #abort = new AbortController()
  /** The ejected endpoints of services whose sync is to come, by family and service. */
  readonly #planned = new Map<string, Set<string>>()
  /** The endpoints that are out of the choice, and whose flows wait for a look. */
  readonly #due: Readonly<Record<Family, Set<string>>> = { 4: new Set(), 6: new Set() }
  #isRunning = false

  constructor(options: WaitingFlowsOptions<F>) {
    this.#options = options
  }

  /** Called when endpoints (`ip:port`) of a service are ejected, before the sync. */
  note(family: Family, service: string, endpoints: Iterable<string>): void {
    const key = `${family} ${service}`
    const known = this.#planned.get(key) ?? new Set()
    for (const endpoint of endpoints) known.add(endpoint)
    if (known.size > 0) this.#planned.set(key, known)
  }

  /** Called after each successful sync, with the services that it wrote. */
  release(family: Family, services: readonly string[]): void {
    if (this.#planned.size === 0) return
    for (const service of services) {
      const key = `${family} ${service}`
      for (const endpoint of this.#planned.get(key) ?? []) this.#due[family].add(endpoint)
      this.#planned.delete(key)
    }
    if (!this.#isRunning) void this.#run()
  }

  close(): void {
    this.#abort.abort()
  }

  async #run(): Promise<void> {
    const { clock, log } = this.#options
    const { signal } = this.#abort
    this.#isRunning = true
    try {
      for (let family = this.#next(); family !== undefined; family = this.#next()) {
        const started = clock.monotonic()
        await this.#look(family)
        await sleep(clock, Math.min(maxPauseMs, (share - 1) * (clock.monotonic() - started)), signal)
      }
    } catch (error) {
      if (!signal.aborted) log.error('Clients that wait for ejected endpoints got no other endpoint', { error })
    } finally {
      this.#isRunning = false
    }
  }

  #next(): Family | undefined {
    return ([4, 6] as const).find((family) => this.#due[family].size > 0)
  }

  async #look(family: Family): Promise<void> {
    const { table, log } = this.#options
    const endpoints = new Set(this.#due[family])
    this.#due[family].clear()
    const isWrong = ({ destination, destinationPort, replySource, replySourcePort }: Flow) =>
      (destination !== replySource || destinationPort !== replySourcePort) &&
      endpoints.has(hostPort(replySource, replySourcePort))
    let removed = 0
    const count = (some: number) => {
      removed += some
    }
    await removeFlows(table, { filter: { family, protocol: TCP, unreplied: true }, isWrong, count }, this.#abort.signal)
    if (removed > 0) log.v(2, 'Clients that waited for ejected endpoints get another one', { family, count: removed })
  }
}
