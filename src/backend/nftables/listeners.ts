// Serves node ports on loopback with our own sockets, because the kernel drops translated answers to 127.0.0.1 and ::1 as martians.

import { ProxyError } from '../../lib/errors.ts'
import type { Changes, Held, OpenContext, RefusedEntry } from '../backend.ts'
import { Balancer } from '../relay/balancer.ts'
import type { Relay } from '../relay/relay.ts'
import { relayTcp } from '../relay/tcp.ts'
import { relayUdp } from '../relay/udp.ts'
import type { LoopbackListenerEntry, NftEntry } from './entries.ts'

/** The kernel keeps a UDP flow with traffic in one direction for the same time. */
const udpIdleMs = 30_000

interface OpenListener {
  readonly relay: Relay
  readonly balancer: Balancer
  digest: string
}

export class LoopbackListeners {
  readonly #context: OpenContext
  readonly #open = new Map<string, OpenListener>()

  constructor(context: OpenContext) {
    this.#context = context
  }

  held(): readonly Held[] {
    return [...this.#open].map(([id, { digest }]) => ({ id, kind: 'listener', digest }))
  }

  async apply({ put, drop }: Changes<NftEntry>): Promise<readonly RefusedEntry[]> {
    const refused: RefusedEntry[] = []
    for (const held of drop) {
      if (held.kind === 'listener') await this.#close(held.id)
    }
    for (const entry of put) {
      if (entry.kind !== 'listener') continue
      try {
        await this.#put(entry)
      } catch (error) {
        refused.push({
          id: entry.id,
          error: error instanceof ProxyError ? error : new ProxyError('listen', String(error)),
        })
      }
    }
    return refused
  }

  async close(): Promise<void> {
    for (const id of [...this.#open.keys()]) await this.#close(id)
  }

  /** Changes the endpoints of an open listener in place, so that its connections continue. */
  async #put({ id, digest, listener }: LoopbackListenerEntry): Promise<void> {
    const { clock, log } = this.#context
    const open = this.#open.get(id)
    if (open !== undefined) {
      open.balancer.update(listener.endpoints, listener.affinitySeconds, listener.choice)
      open.relay.keepOnly(new Set(listener.endpoints))
      open.digest = digest
      return
    }
    const balancer = new Balancer(Math.random, () => clock.monotonic())
    balancer.update(listener.endpoints, listener.affinitySeconds, listener.choice)
    const options = { host: listener.ip, port: listener.port, balancer, log }
    const relay = await (listener.protocol === 'udp' ? relayUdp({ ...options, idleMs: udpIdleMs }) : relayTcp(options))
    this.#open.set(id, { relay, balancer, digest })
  }

  async #close(id: string): Promise<void> {
    const open = this.#open.get(id)
    this.#open.delete(id)
    await open?.relay.close()
  }
}
