// The relays of userspace mode in one family: opens them, updates their endpoints, closes them. Open connections outlive a closed relay.

import { ProxyError } from '../../lib/errors.ts'
import type { Family } from '../../lib/ip.ts'
import type { Logger } from '../../lib/log.ts'
import { type Clock, sleep } from '../../lib/time.ts'
import type { Held, PortCounters, RefusedEntry } from '../backend.ts'
import { Balancer } from '../relay/balancer.ts'
import type { DialReports } from '../relay/dial-reports.ts'
import type { FlowReporter, FlowReports } from '../relay/flow-reports.ts'
import type { DescriptorBudget, Relay, RelayedTraffic, RelayOptions, ShedReason } from '../relay/relay.ts'
import { relayTcp } from '../relay/tcp.ts'
import { relayUdp } from '../relay/udp.ts'
import type { ListenerPlan, RelayListenerEntry } from './entries.ts'
import { openAnyPort, type ProxyPortRange } from './proxy-ports.ts'
import { RelayCounts } from './relay-counts.ts'
import type { OpenedListener } from './restore.ts'

export interface RelayListenersOptions {
  readonly portRange: ProxyPortRange | undefined
  readonly udpIdleMs: number
  readonly budget: DescriptorBudget
  readonly dials?: DialReports
  readonly flows?: { readonly reports: FlowReports; readonly family: Family }
  readonly clock: Clock
  readonly log: Logger
  readonly random?: () => number
}

interface OpenRelay {
  readonly relay: Relay
  readonly host: string
  readonly balancer: Balancer
  readonly protocol: 'tcp' | 'udp'
  digest: string
  endpoints: readonly string[]
}

/** How often `drain` looks. */
const drainStepMs = 20

/** Where listeners are opened. */
interface ListenPlace {
  readonly host: string
  /** True for a port that must stay free. */
  readonly avoid: (opened: OpenedListener) => boolean
}

export class RelayListeners {
  readonly #options: RelayListenersOptions
  readonly #open = new Map<string, OpenRelay>()
  /** Closed relays that still have connections. */
  readonly #closing = new Set<Relay>()
  readonly #shed: Record<ShedReason, number> = { files: 0, dial: 0, ports: 0, flows: 0 }
  readonly #counts = new RelayCounts()
  #failures = 0
  #openedCount = 0

  constructor(options: RelayListenersOptions) {
    this.#options = options
  }

  /** The number of sockets that were opened so far, for a caller that must know whether one was. */
  get openedCount(): number {
    return this.#openedCount
  }

  listHeld(): readonly Held[] {
    return [...this.#open].map(([id, { digest }]) => ({ id, kind: 'listener', digest }))
  }

  findOpened(id: string): OpenedListener | undefined {
    const open = this.#open.get(id)
    return open === undefined ? undefined : { protocol: open.protocol, port: open.relay.port }
  }

  /** The endpoints of an open listener, as `ip:port`. */
  listEndpoints(id: string): readonly string[] {
    return this.#open.get(id)?.endpoints ?? []
  }

  /** Opens the listeners that are not open at this address. The others only get new endpoints. */
  async put(entries: Iterable<RelayListenerEntry>, place: ListenPlace): Promise<readonly RefusedEntry[]> {
    const refused: RefusedEntry[] = []
    for (const entry of entries) {
      const open = this.#open.get(entry.id)
      if (open !== undefined && open.host === place.host && open.protocol === entry.listener.protocol) {
        updateEndpoints(open, entry.listener)
        open.digest = entry.digest
        open.endpoints = entry.listener.endpoints
        continue
      }
      try {
        const opened = await this.#listen(entry, place)
        await this.#closeOne(entry.id)
        this.#open.set(entry.id, opened)
        this.#openedCount++
      } catch (error) {
        this.#failures++
        refused.push({ id: entry.id, error: toListenError(error) })
      }
    }
    return refused
  }

  /** Open TCP connections go on. UDP flows end, and their clients come to the next listener of the service. */
  async close(ids: Iterable<string>): Promise<void> {
    for (const id of ids) {
      await this.#closeOne(id)
      this.#counts.forget(id)
    }
  }

  async #closeOne(id: string): Promise<void> {
    const open = this.#open.get(id)
    if (open === undefined) return
    this.#open.delete(id)
    await open.relay.close()
    if (open.relay.active > 0) this.#closing.add(open.relay)
  }

  /** What the relays counted, by service port. */
  readCounters(family: Family): readonly PortCounters[] {
    return this.#counts.report(family, (id) => this.listEndpoints(id))
  }

  /** Resolves when the connections of closed listeners have ended, at the latest after `limitMs`. */
  async drain(limitMs: number): Promise<void> {
    const { clock } = this.#options
    const end = clock.monotonic() + limitMs
    while ([...this.#closing].some(({ active }) => active > 0) && clock.monotonic() < end)
      await sleep(clock, drainStepMs)
  }

  /** True if the listener has this port on one of these addresses. */
  isListening(id: string, hosts: readonly string[], port: number): boolean {
    const open = this.#open.get(id)
    return open !== undefined && open.relay.port === port && hosts.includes(open.host)
  }

  /** Ids of listeners that have another address. */
  listElsewhere(host: string): readonly string[] {
    return [...this.#open].filter(([, open]) => open.host !== host).map(([id]) => id)
  }

  figures(): Readonly<Record<string, number>> {
    const active = { tcp: 0, udp: 0 }
    for (const { protocol, relay } of this.#open.values()) active[protocol] += relay.active
    let closing = 0
    for (const relay of this.#closing) {
      if (relay.active === 0) this.#closing.delete(relay)
      closing += relay.active
    }
    return {
      'relay_active{tcp}': active.tcp + closing,
      'relay_active{udp}': active.udp,
      relay_listeners: this.#open.size,
      relay_listen_failures: this.#failures,
      'relay_shed{files}': this.#shed.files,
      'relay_shed{dial}': this.#shed.dial,
      'relay_shed{ports}': this.#shed.ports,
      'relay_shed{flows}': this.#shed.flows,
    }
  }

  async #listen({ id, digest, listener }: RelayListenerEntry, { host, avoid }: ListenPlace): Promise<OpenRelay> {
    const { clock, log, budget, dials, portRange, random = Math.random, udpIdleMs: idleMs } = this.#options
    const { protocol } = listener
    if (protocol === 'sctp') throw new ProxyError('sctp', 'SCTP cannot be relayed in userspace mode: use another mode')
    const balancer = new Balancer(random, () => clock.monotonic())
    const flows = this.#makeReporter(id, protocol)
    const onShed = (why: ShedReason) => this.#noteShed(id, why)
    const onServed = (endpoint: string) => this.#counts.countClient(id, endpoint)
    const onEnded = (endpoint: string, relayed: RelayedTraffic) => this.#counts.countRelayed(id, endpoint, relayed)
    const open = (port: number): Promise<Relay> => {
      const options: RelayOptions = { host, port, balancer, log, budget, onShed, onServed, onEnded, dials, flows }
      return protocol === 'udp' ? relayUdp({ ...options, idleMs }) : relayTcp(options)
    }
    const relay = await openAnyPort(open, portRange, { random, avoid: (port) => avoid({ protocol, port }) })
    const opened: OpenRelay = { relay, host, balancer, protocol, digest, endpoints: listener.endpoints }
    updateEndpoints(opened, listener)
    return opened
  }

  #makeReporter(id: string, protocol: 'tcp' | 'udp'): FlowReporter | undefined {
    const { flows } = this.#options
    if (flows === undefined) return undefined
    const port = id.slice(0, id.lastIndexOf('/'))
    return { reports: flows.reports, origin: { family: flows.family, protocol, port: () => port } }
  }

  /** Logs the 1st, 10th, 100th … client that is turned away for a reason; the figures count all. */
  #noteShed(id: string, why: ShedReason): void {
    this.#shed[why]++
    const log = this.#options.log
    if (why === 'dial') log.v(2, 'No endpoint answered', { listener: id })
    else if (Number.isInteger(Math.log10(this.#shed[why]))) {
      log.warn('Turned clients away', { why: reasons[why], listener: id, so_far: this.#shed[why] })
    }
  }
}

const reasons: Readonly<Record<ShedReason, string>> = {
  files: 'too many open files',
  dial: 'no endpoint answered',
  ports: 'no local port left to reach an endpoint from',
  flows: 'too many UDP clients at once',
}

function updateEndpoints({ balancer, relay }: Pick<OpenRelay, 'balancer' | 'relay'>, listener: ListenerPlan): void {
  balancer.update(listener.endpoints, listener.affinitySeconds, listener.choice)
  relay.keepOnly(new Set([...listener.endpoints, ...listener.serving]))
}

export const toListenError = (error: unknown): ProxyError =>
  error instanceof ProxyError ? error : new ProxyError('listen', String(error), { cause: error })
