// Counts the packets and bytes of flows to services, for modes whose data plane does not: listens to the ends of flows, and lists the open ones
// when someone asks.

import type { FrontendIndex } from '../../engine/flows/frontend-index.ts'
import { type PortFlowTotals, TrafficSums } from '../../engine/flows/traffic-sums.ts'
import { describeError } from '../../lib/errors.ts'
import type { Family } from '../../lib/ip.ts'
import type { Logger } from '../../lib/log.ts'
import { type Clock, nextTurn, sleep, type Timer } from '../../lib/time.ts'
import { stride, TimeSlice } from '../../lib/yielding.ts'
import { type EndedFlowSubscription, watchEndedFlows } from '../../sys/flows/ended-flows.ts'
import type { ObservedFlow } from '../../sys/flows/flow-codec.ts'
import { readSysctl } from '../../sys/sysctl.ts'
import type { AccountingFile } from './accounting-file.ts'
import { type FrontendSources, listTranslated, openIndex } from './frontend-sources.ts'

export interface FlowAccountingOptions extends FrontendSources {
  /** Where the sums outlive the process; absent if nothing is kept on disk. */
  readonly file?: AccountingFile | undefined
  readonly metrics: { lost(): void }
  readonly clock: Clock
  readonly log: Logger
}

export const accountingSysctl = 'net/netfilter/nf_conntrack_acct'

/** A process that is killed loses what ended since the last save. */
const saveMs = 60_000
/** Saving takes a thousandth of the time at most. */
const restPerSave = 1_000
/** How long a stop waits for the last list. */
const lastListMs = 1_000
const listLimitMs = 30_000
/** Ended flows that wait until the frontends are known. */
const maxWaiting = 20_000
/** Batches of notifications that a list waits for. */
const maxBatches = 1_000

export class FlowAccounting {
  readonly #options: FlowAccountingOptions
  readonly #index: FrontendIndex
  readonly #sums: TrafficSums
  readonly #abort = new AbortController()
  #subscription: EndedFlowSubscription | undefined
  #stopJournal: () => void = () => {}
  /** Services whose frontends must be indexed again, by `family service`. */
  readonly #pending = new Map<string, readonly [service: string, family: Family]>()
  #indexing: Promise<void> | undefined
  /** The families that have not synced yet. */
  readonly #unsynced: Set<Family>
  /** What ended before the frontends were known; undefined once they are. */
  #waiting: ObservedFlow[] | undefined = []
  #reading: Promise<void> | undefined
  #saveTimer: Timer | undefined
  #isDirty = false
  /** True if the kernel counts, or did since the start. */
  #hasCounted = false
  #lost = 0
  #problem = ''

  constructor(options: FlowAccountingOptions) {
    this.#options = options
    this.#index = openIndex(options)
    this.#unsynced = new Set(options.families)
    this.#sums = new TrafficSums({ find: (destination) => this.#index.find(destination) })
  }

  /** A kernel that refuses is logged and reported by `remark`: connections are still counted. */
  open(): void {
    const { clock, file, journal, log, metrics } = this.#options
    const saved = file?.read()
    if (saved !== undefined) this.#sums.load(saved, clock.monotonic())
    this.#hasCounted = saved !== undefined
    const lost = () => {
      this.#lost++
      metrics.lost()
    }
    try {
      this.#subscription = watchEndedFlows(
        { ended: (flow) => this.#end(flow), lost },
        // Before the frontends are known every flow may be one to a service.
        (port) => this.#waiting !== undefined || this.#index.hasNumber(port),
        clock,
      )
    } catch (error) {
      this.#problem = describeError(error)
      log.error('Packets and bytes cannot be counted', { error: this.#problem })
      return
    }
    this.#stopJournal = journal.subscribe({ report: ({ family, services, ok }) => this.#change(family, services, ok) })
    this.#saveLater(saveMs)
  }

  /** True if sums are known, so that a service port without a sum had no traffic. */
  get isCounting(): boolean {
    return this.#subscription !== undefined && this.#hasCounted
  }

  /** Why packets and bytes are not counted, or which are missing, as a sentence; '' if all are counted. */
  get remark(): string {
    if (this.#problem !== '') return `Packets and bytes are not counted: ${this.#problem}.`
    if (readSysctl(accountingSysctl) !== '1')
      return 'Packets and bytes of new connections are not counted: net.netfilter.nf_conntrack_acct is not 1.'
    if (this.#lost === 0) return ''
    return `Packets and bytes of some ended connections are missing: the kernel dropped notifications ${this.#lost} times.`
  }

  of(family: Family, port: string): PortFlowTotals | undefined {
    return this.#sums.of(family, port)
  }

  /** Adds what open flows have counted so far. Never rejects: a list that fails leaves the sums as they are. */
  read(): Promise<void> {
    this.#reading ??= this.#list().finally(() => {
      this.#reading = undefined
    })
    return this.#reading
  }

  async close(): Promise<void> {
    const { clock } = this.#options
    this.#saveTimer?.cancel()
    // What open flows have counted until now is saved, so that only the rest is lost if they end before the next start.
    const limit = new AbortController()
    if (this.#subscription !== undefined)
      await Promise.race([this.read(), sleep(clock, lastListMs, limit.signal).catch(() => {})])
    limit.abort()
    this.#abort.abort()
    this.#stopJournal()
    this.#subscription?.close()
    this.#save()
  }

  #end(flow: ObservedFlow): void {
    if (this.#waiting === undefined) {
      this.#sums.end(flow)
      this.#isDirty = true
    } else {
      this.#waiting.push(flow)
      if (this.#waiting.length >= maxWaiting) this.#stopWaiting()
    }
  }

  #stopWaiting(): void {
    const waiting = this.#waiting ?? []
    this.#waiting = undefined
    for (const flow of waiting) this.#end(flow)
  }

  #change(family: Family, services: readonly string[], ok: boolean): void {
    if (ok) this.#unsynced.delete(family)
    for (const service of services) this.#pending.set(`${family} ${service}`, [service, family])
    this.#indexing ??= this.#indexPending().finally(() => {
      this.#indexing = undefined
    })
  }

  /** At a start there are as many as the cluster has, so that this yields. */
  async #indexPending(): Promise<void> {
    const { clock, portsOf } = this.#options
    const slice = new TimeSlice(clock)
    for (const [key, [service, family]] of this.#pending) {
      this.#pending.delete(key)
      const ports = portsOf(service, family)
      this.#index.set(service, family, ports)
      this.#sums.setPorts(service, family, ports, clock.monotonic())
      if (slice.over) await slice.yieldLoop()
    }
    if (this.#unsynced.size === 0 && this.#waiting !== undefined) this.#stopWaiting()
  }

  async #list(): Promise<void> {
    const { clock, families, portsOf, log } = this.#options
    if (this.#subscription === undefined) return
    this.#hasCounted ||= readSysctl(accountingSysctl) === '1'
    const signal = AbortSignal.any([this.#abort.signal, AbortSignal.timeout(listLimitMs)])
    let isComplete = false
    try {
      await this.#indexing
      await this.#catchUp()
      this.#sums.beginList()
      await listTranslated(this.#index, families, (flow) => this.#sums.list(flow), signal)
      isComplete = this.#waiting === undefined && (await this.#catchUp())
    } catch (error) {
      if (!this.#abort.signal.aborted) log.warn('Open flows cannot be listed', { error: describeError(error) })
    } finally {
      this.#sums.endList(isComplete)
    }
    this.#sums.forget(portsOf, clock.monotonic())
    this.#isDirty = true
  }

  /** Reads the notifications that are queued now. Returns true if none is left. */
  async #catchUp(): Promise<boolean> {
    for (let i = 0; i < maxBatches && !this.#abort.signal.aborted; i++) {
      if (this.#subscription?.readQueued() !== false) return true
      if (i % stride === 0) await nextTurn()
    }
    return false
  }

  #saveLater(ms: number): void {
    if (this.#options.file === undefined) return
    this.#saveTimer = this.#options.clock.after(ms, () => this.#saveLater(Math.max(saveMs, restPerSave * this.#save())))
  }

  /** Returns how long it took, in ms. */
  #save(): number {
    const { clock, file } = this.#options
    if (!this.#isDirty || file === undefined) return 0
    this.#isDirty = false
    const begun = clock.monotonic()
    file.write(this.#sums.save())
    return clock.monotonic() - begun
  }
}
