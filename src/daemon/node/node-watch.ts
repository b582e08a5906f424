// Watches this node's own Node object: waits for it at start, and reacts to its later changes.

import { ProxyError } from '../../lib/errors.ts'
import type { Logger } from '../../lib/log.ts'
import { type Clock, sleep } from '../../lib/time.ts'
import type { NodeRecord, Problem } from '../../model/types.ts'

export interface NodeWatchOptions {
  readonly name: string
  /** True in the mode NodeCIDR, which cannot detect local traffic without spec.podCIDRs. */
  readonly needsPodCidrs: boolean
  readonly clock: Clock
  readonly log: Logger
  readonly onProblem: (problem: Problem) => void
  /** Called when the Node changes in a way that only a restart can apply. */
  readonly onFatal: (error: ProxyError) => void
}

const pollMs = 1_000
const addressWaitMs = 30_000
const podCidrWaitMs = 300_000

/** Receives the Node from a reflector. Keeps the last object even when the Node is deleted. */
export class NodeWatch {
  readonly #options: NodeWatchOptions
  readonly #listeners: ((node: NodeRecord) => void)[] = []
  #node: NodeRecord | undefined
  #synced = false
  /** The values that the proxy has used since its start; undefined before. */
  #frozenPodCidrs: string | undefined
  #frozenAddresses: string | undefined

  constructor(options: NodeWatchOptions) {
    this.#options = options
  }

  /** True if the API server has answered. */
  get isSynced(): boolean {
    return this.#synced
  }

  /** Uses a saved Node until the API server answers. */
  adopt(node: NodeRecord): void {
    if (this.#synced) return
    this.#node = node
    this.#synced = true
  }

  get node(): NodeRecord | undefined {
    return this.#node
  }

  /** Calls the listener with the current node, if there is one, and at each later change. */
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
    this.#options.log.error('Our Node was deleted; the proxy keeps using the last object', { node: key })
  }

  synced(): void {
    this.#synced = true
  }

  problem(problem: Problem): void {
    this.#options.onProblem(problem)
  }

  /** Waits until the API server answers, then for a limited time for addresses and, if needed, for pod CIDRs. Freezes both. */
  async waitUntilReady(signal: AbortSignal): Promise<void> {
    const { clock, log, name } = this.#options
    while (!this.#synced) await sleep(clock, 50, signal)
    await this.#wait(addressWaitMs, () => (this.#node?.addresses.length ?? 0) > 0, signal)
    if (this.#node === undefined) log.error('Our Node does not exist; no endpoint will be local', { node: name })
    else if (this.#node.addresses.length === 0) log.error('Our Node has no addresses', { node: name })
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

  async #wait(limitMs: number, isMet: () => boolean, signal: AbortSignal): Promise<void> {
    const { clock } = this.#options
    const end = clock.monotonic() + limitMs
    while (!isMet() && clock.monotonic() < end) await sleep(clock, pollMs, signal)
  }

  /** The detectors are built from the frozen pod CIDRs. Addresses matter less, so kube-proxy 1.36 only logs their changes. */
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
      log.error('The addresses of our Node changed; they take effect at the next start', {
        node: name,
        before: this.#frozenAddresses,
        now: addresses,
      })
      this.#frozenAddresses = addresses
    }
  }
}
