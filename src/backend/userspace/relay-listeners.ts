// The sockets of userspace mode in one family: opened, fed with endpoints, closed; what they carry lives on when they close.

import { ProxyError } from '../../lib/errors.ts'
import type { Logger } from '../../lib/log.ts'
import type { Clock } from '../../lib/time.ts'
import type { Held, RefusedEntry } from '../backend.ts'
import { Balancer } from '../relay/balancer.ts'
import type { DescriptorBudget, Relay, RelayOptions, ShedReason } from '../relay/relay.ts'
import { relayTcp } from '../relay/tcp.ts'
import { relayUdp } from '../relay/udp.ts'
import type { ListenerPlan, RelayListenerEntry } from './entries.ts'
import type { OpenedListener } from './portal-chains.ts'
import { openAnyPort, type ProxyPortRange } from './proxy-ports.ts'

export interface ListenersOptions {
  readonly portRange: ProxyPortRange | undefined
  readonly udpIdleMs: number
  readonly budget: DescriptorBudget
  readonly clock: Clock
  readonly log: Logger
  readonly random?: () => number
}

interface Open {
  readonly relay: Relay
  readonly host: string
  readonly balancer: Balancer
  readonly protocol: 'tcp' | 'udp'
  digest: string
}

export class RelayListeners {
  readonly #options: ListenersOptions
  readonly #open = new Map<string, Open>()
  /** Closed, but with connections that go on. */
  readonly #retired = new Set<Relay>()
  readonly #shed: Record<ShedReason, number> = { files: 0, dial: 0, ports: 0, flows: 0 }
  #failures = 0
  /** Changes with every socket that is opened. */
  version = 0

  constructor(options: ListenersOptions) {
    this.#options = options
  }

  held(): readonly Held[] {
    return [...this.#open].map(([id, { digest }]) => ({ id, kind: 'listener', digest }))
  }

  opened(id: string): OpenedListener | undefined {
    const open = this.#open.get(id)
    return open === undefined ? undefined : { protocol: open.protocol, port: open.relay.port }
  }

  /** Those that are open elsewhere, or not at all, are opened; the others only learn of their endpoints. */
  async put(
    entries: Iterable<RelayListenerEntry>,
    { host, avoid }: { readonly host: string; readonly avoid: (opened: OpenedListener) => boolean },
  ): Promise<readonly RefusedEntry[]> {
    const refused: RefusedEntry[] = []
    for (const entry of entries) {
      const open = this.#open.get(entry.id)
      if (open !== undefined && open.host === host && open.protocol === entry.listener.protocol) {
        feed(open, entry.listener)
        open.digest = entry.digest
        continue
      }
      try {
        const fresh = await this.#listen(entry, host, avoid)
        await this.drop([entry.id])
        this.#open.set(entry.id, fresh)
        this.version++
      } catch (error) {
        this.#failures++
        refused.push({ id: entry.id, error: asProxyError(error) })
      }
    }
    return refused
  }

  /** Connections under way are not cut. UDP has none: its clients come back to whoever listens then. */
  async drop(ids: Iterable<string>): Promise<void> {
    for (const id of ids) {
      const open = this.#open.get(id)
      if (open === undefined) continue
      this.#open.delete(id)
      await open.relay.close()
      if (open.relay.active > 0) this.#retired.add(open.relay)
    }
  }

  /** On that port of one of these addresses. */
  listens(id: string, hosts: readonly string[], port: number): boolean {
    const open = this.#open.get(id)
    return open !== undefined && open.relay.port === port && hosts.includes(open.host)
  }

  /** Listeners that are elsewhere than they should be. */
  misplaced(host: string): readonly string[] {
    return [...this.#open].filter(([, open]) => open.host !== host).map(([id]) => id)
  }

  figures(): Readonly<Record<string, number>> {
    const active = { tcp: 0, udp: 0 }
    for (const { protocol, relay } of this.#open.values()) active[protocol] += relay.active
    let retired = 0
    for (const relay of this.#retired) {
      if (relay.active === 0) this.#retired.delete(relay)
      retired += relay.active
    }
    return {
      'relay_active{tcp}': active.tcp + retired,
      'relay_active{udp}': active.udp,
      relay_listeners: this.#open.size,
      relay_listen_failures: this.#failures,
      'relay_shed{files}': this.#shed.files,
      'relay_shed{dial}': this.#shed.dial,
      'relay_shed{ports}': this.#shed.ports,
      'relay_shed{flows}': this.#shed.flows,
    }
  }

  async #listen(
    { id, digest, listener }: RelayListenerEntry,
    host: string,
    avoid: (opened: OpenedListener) => boolean,
  ) {
    const { clock, log, budget, portRange, random = Math.random, udpIdleMs: idleMs } = this.#options
    const { protocol } = listener
    if (protocol === 'sctp') throw new ProxyError('sctp', 'SCTP cannot be relayed in userspace mode: use another mode')
    const balancer = new Balancer(random, () => clock.monotonic())
    const onShed = (why: ShedReason) => this.#onShed(id, why)
    const open = (port: number): Promise<Relay> => {
      const options: RelayOptions = { host, port, balancer, log, budget, onShed }
      return protocol === 'udp' ? relayUdp({ ...options, idleMs }) : relayTcp(options)
    }
    const relay = await openAnyPort(open, portRange, { random, avoid: (port) => avoid({ protocol, port }) })
    const fresh: Open = { relay, host, balancer, protocol, digest }
    feed(fresh, listener)
    return fresh
  }

  /** Said once per reason in a row; the figures count. */
  #onShed(id: string, why: ShedReason): void {
    this.#shed[why]++
    const log = this.#options.log
    if (why === 'dial') log.v(2, 'no endpoint answered', { listener: id })
    else if (Number.isInteger(Math.log10(this.#shed[why]))) {
      log.warn('turned clients away', { why: reasons[why], listener: id, so_far: this.#shed[why] })
    }
  }
}

const reasons: Readonly<Record<ShedReason, string>> = {
  files: 'too many open files',
  dial: 'no endpoint answered',
  ports: 'no local port left to reach an endpoint from',
  flows: 'too many UDP clients at once',
}

export function feed({ balancer, relay }: Pick<Open, 'balancer' | 'relay'>, listener: ListenerPlan): void {
  balancer.update(listener.endpoints, listener.affinitySeconds)
  relay.keepOnly(new Set([...listener.endpoints, ...listener.serving]))
}

export const asProxyError = (error: unknown): ProxyError =>
  error instanceof ProxyError ? error : new ProxyError('listen', String(error), { cause: error })
