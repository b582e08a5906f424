// Removes the connections of clients that dialled too early: before the rules for an address were there.
//
// The kernel decides about translation when it sees the first packet of a connection, and never again. A client that sends its SYN before
// the frontend is programmed leaves an untranslated entry: all its retransmissions, and later connections from the same source port, go
// untranslated for two minutes and are refused by our own rules. So when a frontend goes live, the entries to it that are untranslated and
// have seen no reply are removed, and the next retransmission is translated. Decisions:
// 1. An untranslated entry without a reply carries no connection: removing it breaks nothing, whichever program made it.
// 2. For node ports, only connections to this node's own addresses count.
// 3. There is a look before the frontends are written, looks while that takes long, and one afterwards. A client sends again after a
//    second at the earliest, so no retransmission meets our rules with an old entry and is refused.
// 4. A look takes the kernel as long as its table is large. Looks follow frontends that went live, never a period; a tenth of the time is
//    the most that they take; and a large table is not looked at before the frontends are written, which would keep them waiting.
// 5. A look that finds no untranslated connection without a reply, whatever its destination, counts for all writes that follow soon: the
//    look after them comes before a client that dialled meanwhile sends again.
// 6. An empty table is not walked: the kernel visits all its buckets, which takes milliseconds.

import { type Family, isLoopback } from '../../lib/ip.ts'
import type { Logger } from '../../lib/log.ts'
import { type Clock, sleep, type Timer } from '../../lib/time.ts'
import { runSliced, type Steps, TimeSlice } from '../../lib/yielding.ts'
import type { ServicePort, ServiceRecord } from '../../model/types.ts'
import { type Flow, type FlowTable, removeFlows } from './flow-table.ts'

const protocols = { tcp: 6, udp: 17, sctp: 132 } as const

export interface EarlyRule {
  /** The destination ports of frontends, by the numbers of those protocols that have any. */
  readonly ports: ReadonlyMap<number, ReadonlySet<number>>
  /** True for an untranslated flow to a frontend. The caller knows that it is unreplied. */
  isEarly(flow: Flow): boolean
}

/** True if connections to the service port are translated. */
export const isLive = (port: ServicePort): boolean => port.cluster.length + port.local.length > 0

const isTranslated = (flow: Flow): boolean =>
  flow.replySource !== flow.destination || flow.replySourcePort !== flow.destinationPort

/** Stands for the address of a node port; no address is empty. */
const anyOwn = ''

/** Makes the rule for one family. `nodeAddresses` are all addresses of this machine's interfaces. */
export function* earlyRule(ports: Iterable<ServicePort>, nodeAddresses: Iterable<string>): Steps<EarlyRule> {
  const frontends = new Map<number, Map<number, Set<string>>>()
  for (const port of ports) {
    yield
    if (!isLive(port)) continue
    const byPort = getOrMake(frontends, protocols[port.protocol], () => new Map<number, Set<string>>())
    for (const { kind, ip, port: number } of port.frontends) {
      getOrMake(byPort, number, () => new Set<string>()).add(kind === 'node-port' ? anyOwn : ip)
    }
  }
  const own = new Set(nodeAddresses)
  return {
    ports: new Map([...frontends].map(([protocol, byPort]) => [protocol, new Set(byPort.keys())])),
    isEarly(flow) {
      const { protocol, destination, destinationPort } = flow
      if (isTranslated(flow)) return false
      const ips = frontends.get(protocol)?.get(destinationPort)
      if (ips === undefined) return false
      return ips.has(destination) || (ips.has(anyOwn) && (own.has(destination) || isLoopback(destination)))
    },
  }
}

/** The destinations of untranslated flows without a reply: what a rule is needed for. */
interface Candidates {
  readonly protocols: ReadonlySet<number>
  /** Addresses by port. */
  readonly destinations: ReadonlyMap<number, ReadonlySet<string>>
}

/** False if no frontend of the service can be one of the destinations. Much cheaper than its service ports. */
function mayHaveEarly(record: ServiceRecord, { destinations }: Candidates): boolean {
  return record.ports.some(({ port, nodePort }) => {
    if (nodePort !== 0 && destinations.has(nodePort)) return true
    const dialled = destinations.get(port)
    if (dialled === undefined) return false
    const isDialled = (ip: string) => dialled.has(ip)
    return (
      record.clusterIps.some(isDialled) || record.externalIps.some(isDialled) || record.loadBalancerIps.some(isDialled)
    )
  })
}

export interface EarlyCleanerOptions<F extends Flow> {
  readonly table: FlowTable<F>
  /** Undefined if the service is gone. */
  readonly recordOf: (service: string) => ServiceRecord | undefined
  /** The current service ports of a service, read when a look starts. */
  readonly portsOf: (service: string, family: Family) => readonly ServicePort[]
  readonly nodeAddresses: (family: Family) => Iterable<string>
  /** The number of flows in the table, of all families; undefined if it is not known. */
  readonly countFlows: () => number | undefined
  /** Called after each look. */
  readonly onRemoved: (family: Family, removed: number) => void
  readonly clock: Clock
  readonly log: Logger
}

/** A look may take one part in so many of the time. */
const share = 10
const maxPauseMs = 5_000
/** A table with more flows takes the kernel tens of milliseconds. */
const largeTable = 100_000
/** How often the flows are listed if the kernel's table changes meanwhile. */
const walks = 5
/** Distance of looks while frontends are written: less than the time after which a client sends again. */
const repeatMs = 400
/** A look that found nothing counts for this time. The next one follows within `repeatMs`: both together are less than a second. */
const clearMs = 300

/** Looks once at a time. Services that go live during a look, or in the pause after a long one, wait for the next. */
export class EarlyFlowCleaner<F extends Flow> {
  readonly #options: EarlyCleanerOptions<F>
  readonly #abort = new AbortController()
  readonly #waiting = new Map<Family, Set<string>>()
  /** When the last look began that found nothing, by family. */
  readonly #clearSince = new Map<Family, number>()
  #running: Promise<void> | undefined

  constructor(options: EarlyCleanerOptions<F>) {
    this.#options = options
  }

  /** Called when frontends of these services have been programmed. */
  clean(family: Family, services: readonly string[]): void {
    if (services.length === 0 || this.#abort.signal.aborted) return
    const waiting = getOrMake(this.#waiting, family, () => new Set<string>())
    for (const service of services) waiting.add(service)
    this.#running ??= this.#run().finally(() => {
      this.#running = undefined
    })
  }

  /** Runs `write`, which makes frontends of these services live. */
  async around<T>(family: Family, services: readonly string[], write: () => Promise<T>): Promise<T> {
    if (services.length === 0 || (this.#options.countFlows() ?? 0) > largeTable) return write()
    const { clock, log } = this.#options
    const named = new Set(services)
    if (!this.#isClear(family)) {
      await this.#look(family, named).catch((error: unknown) => log.v(2, 'Cannot look for early clients', { error }))
    }
    const repeat = (): Timer =>
      clock.after(repeatMs, () => {
        this.clean(family, services)
        timer = repeat()
      })
    let timer = repeat()
    try {
      return await write()
    } finally {
      timer.cancel()
    }
  }

  /** Ends the current look and forgets all that wait. */
  async stop(): Promise<void> {
    this.#abort.abort()
    await this.#running
  }

  async #run(): Promise<void> {
    const { clock, log } = this.#options
    const { signal } = this.#abort
    for (let next = this.#take(); next !== undefined && !signal.aborted; next = this.#take()) {
      const started = clock.monotonic()
      await this.#look(...next).catch((error: unknown) => {
        if (!signal.aborted) log.error('Removing the connections of early clients failed', { error })
      })
      const pauseMs = Math.min(maxPauseMs, (share - 1) * (clock.monotonic() - started))
      await sleep(clock, pauseMs, signal).catch(() => {})
    }
  }

  #isClear(family: Family): boolean {
    const since = this.#clearSince.get(family)
    return since !== undefined && this.#options.clock.monotonic() - since < clearMs
  }

  #take(): [Family, ReadonlySet<string>] | undefined {
    for (const next of this.#waiting) {
      this.#waiting.delete(next[0])
      return next
    }
    return undefined
  }

  async #look(family: Family, services: ReadonlySet<string>): Promise<void> {
    const { table, onRemoved, log } = this.#options
    const { signal } = this.#abort
    let removed = 0
    const count = (some: number) => {
      removed += some
    }
    // Most tables have no such flow, and the ports of thousands of services take long to resolve.
    let rule: EarlyRule | undefined
    const candidates = await this.#findCandidates(family)
    for (const protocol of candidates.protocols) {
      rule ??= await this.#makeRule(family, services, candidates)
      const destinationPorts = rule.ports.get(protocol)
      if (destinationPorts === undefined) continue
      const filter = { family, protocol, destinationPorts, unreplied: true }
      await removeFlows(table, { filter, isWrong: rule.isEarly, count }, signal)
    }
    onRemoved(family, removed)
    if (removed > 0)
      log.v(2, 'Removed connections that clients dialled before the frontend was there', { family, removed })
  }

  /** One walk for all protocols: the kernel needs as long for one as for all. An interrupted walk is repeated, since flows may be missing. */
  async #findCandidates(family: Family): Promise<Candidates> {
    const found = { protocols: new Set<number>(), destinations: new Map<number, Set<string>>() }
    const visit = (flows: readonly F[]) => {
      for (const flow of flows) {
        if (isTranslated(flow)) continue
        found.protocols.add(flow.protocol)
        getOrMake(found.destinations, flow.destinationPort, () => new Set()).add(flow.destination)
      }
    }
    const { table, countFlows, clock } = this.#options
    const began = clock.monotonic()
    this.#clearSince.delete(family)
    let isComplete = countFlows() === 0
    for (let attempt = 1; attempt <= walks && !isComplete; attempt++) {
      const { interrupted } = await table.list({ family, unreplied: true }, visit, this.#abort)
      isComplete = !interrupted
    }
    if (isComplete && found.protocols.size === 0) this.#clearSince.set(family, began)
    return found
  }

  #makeRule(family: Family, services: ReadonlySet<string>, candidates: Candidates): Promise<EarlyRule> | EarlyRule {
    const { nodeAddresses, clock } = this.#options
    const ports = this.#ports(family, services, candidates)
    return runSliced(earlyRule(ports, nodeAddresses(family)), new TimeSlice(clock))
  }

  *#ports(family: Family, services: ReadonlySet<string>, candidates: Candidates): Iterable<ServicePort> {
    for (const service of services) {
      const record = this.#options.recordOf(service)
      if (record !== undefined && mayHaveEarly(record, candidates)) yield* this.#options.portsOf(service, family)
    }
  }
}

function getOrMake<K, V>(map: Map<K, V>, key: K, make: () => V): V {
  let value = map.get(key)
  if (value === undefined) {
    value = make()
    map.set(key, value)
  }
  return value
}
