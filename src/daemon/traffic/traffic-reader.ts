// Reads what the data plane counted, when a client asks and at most every two seconds, for metrics and for the admin socket.

import type { Backend, Held, PortCounters, TrafficCounts } from '../../backend/backend.ts'
import { type FlowTotals, nothing } from '../../engine/flows/flow-totals.ts'
import type { EndpointTraffic, PortTraffic, Traffic, TrafficAnswers, TrafficFigures } from '../../http/admin-traffic.ts'
import { type Clock, formatTime } from '../../lib/time.ts'
import { stride, TimeSlice } from '../../lib/yielding.ts'
import type { FlowAccounting } from './flow-accounting.ts'

export interface TrafficReaderOptions {
  readonly backend: Pick<Backend<Held>, 'counters' | 'name'>
  /** The setting `traffic.counters`. */
  readonly enabled: boolean
  /** True if the data plane counts packets and bytes by itself. */
  readonly countsBytes: boolean
  readonly clock: Clock
}

/** Counts packets and bytes where the data plane does not. */
type Accounting = Pick<FlowAccounting, 'read' | 'of' | 'isCounting' | 'remark'>

/** Counters are not read more often: a table with 100,000 endpoints takes some hundred milliseconds. */
const restMs = 2_000
/** Readings take a twentieth of the time at most: legacy iptables copies whole tables. */
const restPerWork = 20

interface Reading {
  /** Unix ms. */
  readonly at: number
  readonly monotonic: number
  /** How long it took. */
  readonly tookMs: number
  /** By `family port`. */
  readonly ports: ReadonlyMap<string, PortCounters>
}

export class TrafficReader implements TrafficAnswers {
  readonly #options: TrafficReaderOptions
  #last: Reading | undefined
  /** The reading before the last one, for rates. */
  #before: Reading | undefined
  #reading: Promise<Reading> | undefined
  /** What was lost when another program removed counters; it is added, so that no sum ever decreases. */
  readonly #lost = new Map<string, number>()

  #accounting: Accounting | undefined

  constructor(options: TrafficReaderOptions) {
    this.#options = options
  }

  setAccounting(accounting: Accounting): void {
    this.#accounting = accounting
  }

  get isCounting(): boolean {
    return this.#options.backend.counters !== undefined
  }

  async counters(): Promise<readonly PortCounters[]> {
    return this.isCounting ? [...(await this.#read()).ports.values()] : []
  }

  /**
   * The connections to all service ports since they were created; undefined if the data plane does not count. A reading that nobody else
   * wants is not kept: with 10,000 services it takes some 10 MB.
   */
  async sumConnections(): Promise<number | undefined> {
    if (!this.isCounting) return undefined
    const ports = this.#isFresh(this.#last)
      ? this.#last.ports.values()
      : ((await this.#options.backend.counters?.()) ?? [])
    let sum = 0
    for (const { connections } of ports) sum += connections
    return sum
  }

  async traffic(service: string): Promise<Traffic> {
    if (!this.isCounting)
      return { readAt: '', uncounted: this.#explainOff(), accounting: false, unaccounted: '', ports: [] }
    const reading = await this.#read()
    const slice = new TimeSlice(this.#options.clock)
    const ports: PortTraffic[] = []
    let seen = 0
    for (const [key, counters] of reading.ports) {
      if (++seen % stride === 0 && slice.over) await slice.yieldLoop()
      if (service === '' || serviceOf(counters.port) === service)
        ports.push(this.#describePort(key, counters, service !== ''))
    }
    ports.sort((a, b) => b.connections - a.connections || (a.service < b.service ? -1 : 1))
    const accounting = ports.some(({ bytesIn }) => bytesIn !== null)
    const unaccounted = this.#accounting?.remark ?? (this.#options.countsBytes ? '' : switchedOff)
    return { readAt: formatTime(reading.at), uncounted: '', accounting, unaccounted, ports }
  }

  #explainOff(): string {
    const { enabled, backend } = this.#options
    if (!enabled) return 'Counters are switched off: traffic.counters is false.'
    return `Mode ${backend.name} has no counters here.`
  }

  async #read(): Promise<Reading> {
    if (this.#isFresh(this.#last)) return this.#last
    this.#reading ??= this.#readAgain().finally(() => {
      this.#reading = undefined
    })
    return this.#reading
  }

  #isFresh(reading: Reading | undefined): reading is Reading {
    if (reading === undefined) return false
    const rest = Math.max(restMs, restPerWork * reading.tookMs)
    return this.#options.clock.monotonic() - reading.monotonic < rest
  }

  async #readAgain(): Promise<Reading> {
    const { backend, clock } = this.#options
    const begun = clock.monotonic()
    const list = (await backend.counters?.()) ?? []
    await this.#accounting?.read()
    const ports = new Map<string, PortCounters>()
    const slice = new TimeSlice(clock)
    for (const counters of list) {
      if (ports.size % stride === 0 && slice.over) await slice.yieldLoop()
      const key = `${counters.family} ${counters.port}`
      ports.set(key, this.#addBytes(this.#keepGrowing(key, counters)))
    }
    for (const key of this.#lost.keys()) if (!ports.has(key)) this.#lost.delete(key)
    this.#before = this.#last
    const ended = clock.monotonic()
    this.#last = { at: clock.now(), monotonic: ended, tookMs: ended - begun, ports }
    return this.#last
  }

  #keepGrowing(key: string, counters: PortCounters): PortCounters {
    const before = this.#last?.ports.get(key)?.connections ?? 0
    const lost = this.#lost.get(key) ?? 0
    const missing = before - counters.connections - lost
    if (missing > 0) this.#lost.set(key, lost + missing)
    const more = Math.max(missing, 0) + lost
    return more === 0 ? counters : { ...counters, connections: counters.connections + more }
  }

  #addBytes(counters: PortCounters): PortCounters {
    const accounting = this.#accounting
    if (accounting?.isCounting !== true) return counters
    const totals = accounting.of(counters.family, counters.port)
    const endpoints = [...counters.endpoints].map(
      ([address, counts]) => [address, { ...counts, ...pickTotals(totals?.endpoints.get(address)) }] as const,
    )
    return { ...counters, ...pickTotals(totals), endpoints: new Map(endpoints) }
  }

  #describePort(key: string, counters: PortCounters, withEndpoints: boolean): PortTraffic {
    const { family, protocol, port } = counters
    const before = this.#before?.ports.get(key)
    const service = serviceOf(port)
    return {
      service,
      port: port.slice(service.length + 1),
      protocol,
      family,
      ...this.#figures(counters, before),
      ...(withEndpoints ? { endpoints: this.#describeEndpoints(counters, before) } : {}),
    }
  }

  #describeEndpoints({ endpoints }: PortCounters, before: PortCounters | undefined): readonly EndpointTraffic[] {
    return [...endpoints]
      .map(([address, counts]) => ({ address, ...this.#figures(counts, before?.endpoints.get(address)) }))
      .sort((a, b) => b.connections - a.connections || (a.address < b.address ? -1 : 1))
  }

  /** An endpoint or service port that the reading before did not have is new: it had no connections then. */
  #figures(counts: TrafficCounts, before: TrafficCounts | undefined): TrafficFigures {
    const [last, earlier] = [this.#last, this.#before]
    const seconds = last === undefined || earlier === undefined ? 0 : (last.monotonic - earlier.monotonic) / 1000
    const more = Math.max(0, counts.connections - (before?.connections ?? 0))
    return {
      connections: counts.connections,
      connectionsPerSecond: seconds === 0 ? null : Math.round((more / seconds) * 10) / 10,
      packetsIn: counts.packetsIn ?? null,
      bytesIn: counts.bytesIn ?? null,
      packetsOut: counts.packetsOut ?? null,
      bytesOut: counts.bytesOut ?? null,
    }
  }
}

const switchedOff = 'Packets and bytes are not counted: traffic.accounting is off.'

const pickTotals = ({ packetsIn, bytesIn, packetsOut, bytesOut }: FlowTotals = nothing): FlowTotals => ({
  packetsIn,
  bytesIn,
  packetsOut,
  bytesOut,
})

/** `ns/name` of `ns/name:port`. */
function serviceOf(port: string): string {
  const colon = port.indexOf(':')
  return colon < 0 ? port : port.slice(0, colon)
}
