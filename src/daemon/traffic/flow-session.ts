// Reads flows from the kernel. While someone looks it listens, samples a flood, and passes what begins and ends to the watchers.

import { FlowLog, type LoggedFlow, type RefusedPacket } from '../../engine/flows/flow-log.ts'
import { FlowSampler } from '../../engine/flows/flow-sampler.ts'
import type { FrontendIndex } from '../../engine/flows/frontend-index.ts'
import { describeError, ProxyError } from '../../lib/errors.ts'
import type { Family } from '../../lib/ip.ts'
import type { Logger } from '../../lib/log.ts'
import { type Clock, sleep } from '../../lib/time.ts'
import type { ServicePort } from '../../model/types.ts'
import type { ObservedFlow } from '../../sys/flows/flow-codec.ts'
import { type FlowSubscription, isSampled, watchFlows } from '../../sys/flows/flow-events.ts'
import { readSysctl } from '../../sys/sysctl.ts'
import { type FollowedFrontends, followFrontends, indexFrontends, openRefusals } from './flow-frontends.ts'
import { type FrontendSources, listFlows } from './frontend-sources.ts'

/** What flows are read with, wherever they are read from. */
export interface FlowSources extends FrontendSources {
  readonly ports: (family: Family) => Iterable<ServicePort>
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

/** How often all flows are listed again: a flow that began before anyone looked sends no notification when it ends. */
const listMs = 5_000
const tickMs = 1_000
const defaultReplyTimeoutMs = 120_000

/** What runs while someone follows flows. */
export interface FlowSession {
  /** One in so many flows is followed. */
  readonly sampled: number
  readonly lost: number
  readonly skipped: number
  /** Why some flows are not shown; '' if all are. */
  readonly remark: string
  /** The open flows, and then those that ended lately. */
  list(): readonly LoggedFlow[]
  close(): void
}

/** Where flows are read from. */
export interface FlowReading {
  /** The flows that are there now, without listening to anything. */
  list(signal: AbortSignal): Promise<{ readonly flows: readonly LoggedFlow[]; readonly skipped: number }>
  open(events: SessionEvents): FlowSession
  /** Corrects the destinations of flows, where reading them costs something: it is called only for flows that are shown. */
  locate?(flows: readonly LoggedFlow[]): Promise<readonly LoggedFlow[]>
  /** What cannot be told, as sentences. */
  remarks(): readonly string[]
}

/** Throws, at the first question, if the kernel does not track connections. */
export function readKernelFlows(sources: FlowSources, isTracked: boolean): FlowReading {
  const checkTracked = () => {
    if (isTracked) return
    throw new ProxyError('question', 'the kernel tracks no connections here')
  }
  return {
    async list(signal) {
      checkTracked()
      const log = await listOnce(sources, signal)
      return { flows: log.list(), skipped: log.skipped }
    },
    open(events) {
      checkTracked()
      return new KernelFlowSession(sources, events)
    },
    remarks() {
      const isCounted = readSysctl('net/netfilter/nf_conntrack_acct') === '1'
      return isCounted ? [] : ['The kernel does not count packets and bytes (net.netfilter.nf_conntrack_acct is 0).']
    },
  }
}

class KernelFlowSession implements FlowSession {
  readonly #sources: FlowSources
  readonly #events: SessionEvents
  readonly #frontends: FollowedFrontends
  readonly #sampler = new FlowSampler()
  readonly #log: FlowLog
  readonly #abort = new AbortController()
  readonly #subscription: FlowSubscription
  #lost = 0
  /** Why some flows are not shown. */
  #remark = ''

  /** Throws if the kernel does not track connections, or does not allow to watch them. */
  constructor(sources: FlowSources, events: SessionEvents) {
    const { clock } = sources
    this.#sources = sources
    this.#events = events
    this.#frontends = followFrontends(sources)
    const { index } = this.#frontends
    const replyTimeoutMs = readReplyTimeout()
    this.#log = new FlowLog({
      find: (destination) => index.find(destination),
      replyTimeoutMs: () => replyTimeoutMs,
      emit: (flow) => events.flow(flow),
    })
    this.#subscription = watchFlows(
      { event: (kind, flow) => this.#note(kind, flow), lost: () => this.#noteLoss() },
      (port) => index.hasNumber(port),
      clock,
    )
    this.#run().catch((error: unknown) => this.#fail(error))
    const refusals = {
      refused: (packet: RefusedPacket) => this.#log.refuse(packet, clock.now()),
      lost: () => this.#noteLoss(),
    }
    openRefusals(sources, index, refusals, this.#abort.signal).catch((error: unknown) => this.#fail(error))
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
    this.#frontends.stop()
    this.#subscription.close()
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
    await listFlows(this.#frontends.index, this.#sources.families, visit, this.#abort.signal)
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
async function listOnce(sources: FlowSources, signal: AbortSignal): Promise<FlowLog> {
  const index = indexFrontends(sources)
  const log = new FlowLog({ find: (to) => index.find(to), replyTimeoutMs: () => defaultReplyTimeoutMs })
  await listFlows(index, sources.families, (flow) => log.add(flow), signal)
  return log
}

function readReplyTimeout(): number {
  const seconds = Number(readSysctl('net/netfilter/nf_conntrack_tcp_timeout_syn_sent') ?? Number.NaN)
  return Number.isFinite(seconds) && seconds > 0 ? seconds * 1000 : defaultReplyTimeoutMs
}
