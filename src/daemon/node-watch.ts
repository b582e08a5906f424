// This node's own Node object: waiting for it at start, and what its later changes mean (spec 3.4).

import { ProxyError } from '../lib/errors.ts'
import type { Logger } from '../lib/log.ts'
import { type Clock, sleep } from '../lib/time.ts'
import type { NodeRecord, Problem } from '../model/types.ts'

export interface NodeWatchOptions {
  readonly name: string
  /** The NodeCIDR detector cannot work without spec.podCIDRs. */
  readonly needsPodCidrs: boolean
  readonly clock: Clock
  readonly log: Logger
  readonly onProblem: (problem: Problem) => void
  /** Something that only a restart can follow. */
  readonly onFatal: (error: ProxyError) => void
}

const pollMs = 1_000
const addressWaitMs = 30_000
const podCidrWaitMs = 300_000

/** A reflector's sink for the one Node; keeps the last object even when the Node is deleted. */
export class NodeWatch {
  readonly #options: NodeWatchOptions
  readonly #listeners: ((node: NodeRecord) => void)[] = []
  #node: NodeRecord | undefined
  #synced = false
  #frozenPodCidrs: string | undefined
  #frozenAddresses: string | undefined

  constructor(options: NodeWatchOptions) {
    this.#options = options
  }

  get node(): NodeRecord | undefined {
    return this.#node
  }

  /** Called with the present node, if there is one, and at each later change. */
  subscribe(listener: (node: NodeRecord) => void): void {
    this.#listeners.push(listener)
    if (this.#node !== undefined) listener(this.#node)
  }

  put(_key: string, node: NodeRecord): void {
    this.#node = node
    this.#compare(node)
    for (const listener of this.#listeners) listener(node)
  }

  drop(key: string): void {
    this.#options.log.error('our Node was deleted; going on with what was known of it', { node: key })
  }

  synced(): void {
    this.#synced = true
  }

  problem(problem: Problem): void {
    this.#options.onProblem(problem)
  }

  /** Waits for the API server to answer, then a while for addresses and, if needed, pod CIDRs; both are frozen from then on. */
  async ready(signal: AbortSignal): Promise<void> {
    const { clock, log, name } = this.#options
    while (!this.#synced) await sleep(clock, 50, signal)
    await this.#wait(addressWaitMs, () => (this.#node?.addresses.length ?? 0) > 0, signal)
    if (this.#node === undefined) log.error('our Node does not exist; nothing will be local', { node: name })
    else if (this.#node.addresses.length === 0) log.error('our Node has no addresses', { node: name })
    if (this.#options.needsPodCidrs) await this.#waitForPodCidrs(signal)
    this.#frozenPodCidrs = this.#node?.podCidrs.join(',') ?? ''
    this.#frozenAddresses = this.#node?.addresses.join(',') ?? ''
  }

  async #waitForPodCidrs(signal: AbortSignal): Promise<void> {
    const { name } = this.#options
    await this.#wait(podCidrWaitMs, () => (this.#node?.podCidrs.length ?? 0) > 0, signal)
    if (this.#node === undefined) {
      throw new ProxyError('node', `detectLocalMode NodeCIDR needs the Node "${name}", which does not exist`)
    }
    if (this.#node.podCidrs.length === 0) {
      throw new ProxyError('node', `detectLocalMode NodeCIDR needs spec.podCIDRs, which Node "${name}" does not have`)
    }
  }

  async #wait(limitMs: number, met: () => boolean, signal: AbortSignal): Promise<void> {
    const { clock } = this.#options
    const end = clock.monotonic() + limitMs
    while (!met() && clock.monotonic() < end) await sleep(clock, pollMs, signal)
  }

  /** Detectors were built from the frozen pod CIDRs; addresses shape less, so upstream 1.36 only logs those. */
  #compare(node: NodeRecord): void {
    const { log, needsPodCidrs, name } = this.#options
    const podCidrs = node.podCidrs.join(',')
    if (needsPodCidrs && this.#frozenPodCidrs !== undefined && podCidrs !== this.#frozenPodCidrs) {
      this.#options.onFatal(
        new ProxyError('node', `podCIDRs of Node "${name}" changed from ${this.#frozenPodCidrs} to ${podCidrs}`),
      )
    }
    const addresses = node.addresses.join(',')
    if (this.#frozenAddresses !== undefined && addresses !== this.#frozenAddresses) {
      log.error('addresses of our Node changed; they take effect at the next start', {
        node: name,
        before: this.#frozenAddresses,
        now: addresses,
      })
      this.#frozenAddresses = addresses
    }
  }
}
