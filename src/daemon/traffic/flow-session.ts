// Follows flows while someone looks: listens to the kernel, samples a flood, and passes what begins and ends to the watchers.

import { FlowLog, type LoggedFlow, type RefusedPacket } from '../../engine/flows/flow-log.ts'
import { FlowSampler } from '../../engine/flows/flow-sampler.ts'
import { FrontendIndex } from '../../engine/flows/frontend-index.ts'
import type { JournalListener } from '../../engine/journal.ts'
import { describeError } from '../../lib/errors.ts'
import type { Family } from '../../lib/ip.ts'
import type { Logger } from '../../lib/log.ts'
import { type Clock, sleep } from '../../lib/time.ts'
import type { Protocol, ServicePort } from '../../model/types.ts'
import { type FlowSubscription, isSampled, type ObservedFlow, visitFlows, watchFlows } from '../../sys/flow-events.ts'
import { ConntrackTable } from '../../sys/netlink/conntrack.ts'
import { readSysctl } from '../../sys/sysctl.ts'

/** What flows are read with. */
export interface FlowSources {
  readonly ports: (family: Family) => Iterable<ServicePort>
  readonly portsOf: (service: string, family: Family) => readonly ServicePort[]
  readonly journal: { subscribe(listener: JournalListener): () => void }
  readonly families: readonly Family[]
  readonly nodeAddresses: () => readonly string[]
  /** Reports packets that rules reject or drop; resolves with what ends that. Absent if this mode cannot tell. */
  readonly openRefusals?: RefusalSource
  readonly clock: Clock
  readonly log: Logger
}

export type RefusalSource = (listener: RefusalListener, index: FrontendIndex) => Promise<{ close(): void }>

export interface RefusalListener {
  refused(packet: RefusedPacket): void
  lost(): void
}

export interface SessionEvents {
  flow(flow: LoggedFlow): void
  /** The share of sampled flows changed, or notifications were lost. */
  coverageChanged(): void
  lost(): void
}

const protocols: readonly Protocol[] = ['tcp', 'udp', 'sctp']
/** How often all flows are listed again: a flow that began before anyone looked sends no notification when it ends. */
const listMs = 5_000
const tickMs = 1_000
const defaultReplyTimeoutMs = 120_000

export class FlowSession {
  readonly #sources: FlowSources
  readonly #events: SessionEvents
  readonly #index: FrontendIndex
  readonly #sampler = new FlowSampler()
  readonly #log: FlowLog
  readonly #abort = new AbortController()
  readonly #subscription: FlowSubscription
  readonly #stopJournal: () => void
  #refusals: { close(): void } | undefined
  #lost = 0
  /** Why some flows are not shown. */
  #remark = ''

  /** Throws if the kernel does not track connections, or does not allow to watch them. */
  constructor(sources: FlowSources, events: SessionEvents) {
    const { clock, journal, families } = sources
    this.#sources = sources
    this.#events = events
    this.#index = indexFrontends(sources)
    const replyTimeoutMs = readReplyTimeout()
    this.#log = new FlowLog({
      find: (destination) => this.#index.find(destination),
      replyTimeoutMs: () => replyTimeoutMs,
      emit: (flow) => events.flow(flow),
    })
    this.#subscription = watchFlows(
      { event: (kind, flow) => this.#note(kind, flow), lost: () => this.#noteLoss() },
      (port) => this.#index.hasNumber(port),
      clock,
    )
    this.#stopJournal = journal.subscribe({
      report: ({ services }) => {
        for (const service of services) this.#replan(service, families)
      },
    })
    this.#run().catch((error: unknown) => this.#fail(error))
    this.#openRefusals().catch((error: unknown) => this.#fail(error))
  }

  get sampled(): number {
    return this.#sampler.rate
  }

  get lost(): number {
    return this.#lost
  }

  get skipped(): number {
    return this.#log.skipped
  }

  get remark(): string {
    return this.#remark
  }

  list(): readonly LoggedFlow[] {
    return this.#log.list()
  }

  close(): void {
    this.#abort.abort()
    this.#stopJournal()
    this.#subscription.close()
    this.#refusals?.close()
  }

  async #openRefusals(): Promise<void> {
    const opened = await this.#sources.openRefusals?.(
      {
        refused: (packet) => this.#log.refuse(packet, this.#sources.clock.now()),
        lost: () => this.#noteLoss(),
      },
      this.#index,
    )
    if (this.#abort.signal.aborted) opened?.close()
    else this.#refusals = opened
  }

  #note(kind: 'new' | 'update' | 'destroy', flow: ObservedFlow): void {
    if (this.#log.note(kind, flow, this.#sources.clock.now()) && this.#sampler.count()) this.#resample()
  }

  #noteLoss(): void {
    this.#lost++
    this.#events.lost()
    if (this.#sampler.raise()) this.#resample()
    else this.#events.coverageChanged()
  }

  #resample(): void {
    const { rate } = this.#sampler
    this.#subscription.sample(rate)
    this.#log.forget(({ sourcePort }) => isSampled(sourcePort, rate))
    this.#events.coverageChanged()
  }

  #replan(service: string, families: readonly Family[]): void {
    for (const family of families) this.#index.set(service, family, this.#sources.portsOf(service, family))
  }

  async #run(): Promise<void> {
    const { clock } = this.#sources
    const { signal } = this.#abort
    for (let listAt = clock.monotonic(); !signal.aborted; ) {
      if (clock.monotonic() >= listAt) {
        await this.#listAll()
        listAt = clock.monotonic() + listMs
      }
      await sleep(clock, tickMs, signal)
      if (this.#sampler.tick()) this.#resample()
    }
  }

  async #listAll(): Promise<void> {
    const { clock } = this.#sources
    const since = clock.now()
    const { rate } = this.#sampler
    const found: ObservedFlow[] = []
    const visit = (flow: ObservedFlow) => void (isSampled(flow.sourcePort, rate) && found.push(flow))
    await listFlows(this.#sources, this.#index, visit, this.#abort.signal)
    if (rate === this.#sampler.rate) this.#log.merge(found, since, clock.now())
  }

  #fail(error: unknown): void {
    if (this.#abort.signal.aborted) return
    this.#remark = `Some flows are not shown: ${describeError(error)}.`
    this.#sources.log.warn('Flows cannot be followed completely', { error: describeError(error) })
    this.#events.coverageChanged()
  }
}

/** Lists what is there now, without listening to anything. */
export async function listOnce(sources: FlowSources, signal: AbortSignal): Promise<FlowLog> {
  const index = indexFrontends(sources)
  const log = new FlowLog({ find: (to) => index.find(to), replyTimeoutMs: () => defaultReplyTimeoutMs })
  await listFlows(sources, index, (flow) => log.add(flow), signal)
  return log
}

async function listFlows(
  { families }: FlowSources,
  index: FrontendIndex,
  visit: (flow: ObservedFlow) => void,
  signal: AbortSignal,
): Promise<void> {
  const table = new ConntrackTable()
  const selects = (port: number) => index.hasNumber(port)
  try {
    const all = families.flatMap((family) => protocols.map((protocol) => ({ family, protocol })))
    const served = all.filter(({ family, protocol }) => index.hasProtocol(family, protocol))
    for (const { family, protocol } of served) await visitFlows(table, { family, protocol, selects }, visit, { signal })
  } finally {
    table.close()
  }
}

function indexFrontends({ ports, families, nodeAddresses }: FlowSources): FrontendIndex {
  const index = new FrontendIndex((ip) => nodeAddresses().includes(ip))
  for (const family of families) {
    const byService = new Map<string, ServicePort[]>()
    for (const port of ports(family)) {
      const list = byService.get(port.service)
      if (list === undefined) byService.set(port.service, [port])
      else list.push(port)
    }
    for (const [service, list] of byService) index.set(service, family, list)
  }
  return index
}

function readReplyTimeout(): number {
  const seconds = Number(readSysctl('net/netfilter/nf_conntrack_tcp_timeout_syn_sent') ?? Number.NaN)
  return Number.isFinite(seconds) && seconds > 0 ? seconds * 1000 : defaultReplyTimeoutMs
}
