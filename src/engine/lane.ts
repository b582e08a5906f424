// One backend in one family: plans changed services, compares, applies and recovers. Any failure leads to observe and compare, never to
// a guess. The order of a sync is in `#planAndApply`.

import type { Backend, Changes, DriftReason, Held, Target } from '../backend/backend.ts'
import { Ledger } from '../backend/ledger.ts'
import { describeError, ProxyError } from '../lib/errors.ts'
import { type Family, familyName } from '../lib/ip.ts'
import type { Logger } from '../lib/log.ts'
import type { Clock, Timer } from '../lib/time.ts'
import { runSliced, type Steps, stride, TimeSlice } from '../lib/yielding.ts'
import type { Precedence } from '../model/conflicts.ts'
import { isCritical } from '../model/critical.ts'
import type { ServiceLimits } from '../model/limits.ts'
import type { NodeView, ServicePort } from '../model/types.ts'
import { reportConflicts } from './conflict-report.ts'
import { DeferredEntries, omitUnwritten } from './deferred-entries.ts'
import type { Conflict, RefusedService, SyncCause, SyncJournal, SyncReport } from './journal.ts'
import { Planner, type Resolve } from './planner.ts'
import { Quarantine, type Quarantined } from './quarantine.ts'
import { baseOwner, findRefused, groupByService } from './refused-services.ts'
import type { PendingChanges, Store } from './store.ts'
import { impactOf } from './view-impact.ts'
import { WorkList } from './work-list.ts'

export interface LaneOptions {
  readonly backend: Backend<Held>
  readonly family: Family
  readonly view: NodeView
  readonly store: Store
  readonly journal: SyncJournal
  readonly resolve: Resolve
  readonly precedence?: Precedence
  readonly limits?: ServiceLimits | undefined
  readonly clock: Clock
  readonly log: Logger
  /** Lets the event loop run other tasks of the process. */
  readonly waitForTurn: () => Promise<void>
  /** Asks for a sync for a reason other than a change in the store. */
  readonly onDue: (cause: 'drift' | 'retry') => void
}

/** What a service has in one family. */
export interface FamilyStatus {
  readonly family: Family
  /** True if changes wait for a sync, or for the end of the current one. */
  readonly pending: boolean
  readonly ports: readonly ServicePort[]
  /** Addresses that another service holds by a better right, or that are reserved. */
  readonly lost: readonly Conflict[]
  readonly quarantine: Quarantined | undefined
  /** What the data plane holds for the service, or will hold. */
  readonly entries: readonly Held[]
}

/** The state of one sync while it runs. */
interface SyncRun {
  readonly slice: TimeSlice
  readonly signal: AbortSignal
  full: boolean
  unfinished: boolean
  put: number
  dropped: number
  figures: Readonly<Record<string, number>>
  readonly refused: RefusedService[]
  /** Quarantined services that this sync tries again: they leave the quarantine unless they are refused again. */
  readonly retried: Set<string>
}

export class Lane {
  readonly planner: Planner
  readonly quarantine: Quarantine
  readonly ledger = new Ledger<Held>()
  readonly #options: LaneOptions
  readonly #log: Logger
  #target: Target<Held> | undefined
  /** True if the ledger knows what the data plane holds. */
  #trusted = false
  /** Counts reported drifts: a drift that is reported during a sync must not be forgotten at its end. */
  #drifts = 0
  #everSynced = false
  #baseDue = true
  #timer: Timer | undefined
  /** Changes that are drained from the store and not yet all in the lists below. */
  #draining: PendingChanges | undefined
  /** Services to plan; kept over failures. */
  readonly #toPlan = new WorkList()
  /** What large services have to write. */
  readonly #deferred = new DeferredEntries()
  #isWritingDeferred = false
  /** What the next successful report covers. */
  #changed = new Set<string>()
  #triggers: number[] = []
  #udpChanged = false

  constructor(options: LaneOptions) {
    this.#options = options
    this.#log = options.log.named('lane')
    this.planner = new Planner(options)
    this.quarantine = new Quarantine(options.clock)
  }

  async open(): Promise<void> {
    const { backend, family, log, clock, journal, onDue } = this.#options
    const onDrift = (culprit: string, reason: DriftReason) => {
      this.distrust()
      this.#log.warn('Another program changed our rules', { family: familyName(family), culprit })
      journal.drift({ family, culprit, reason, at: clock.now() })
      onDue('drift')
    }
    const { view } = this.planner
    const { store } = this.#options
    const shouldPause = () => this.#isWritingDeferred && store.hasPendingBesides(family, this.#deferred)
    this.#target = await backend.open({
      family,
      node: view,
      log,
      clock,
      onDrift,
      onDue: () => onDue('retry'),
      shouldPause,
    })
  }

  async close(): Promise<void> {
    this.#timer?.cancel()
    await this.#target?.close()
  }

  /** Makes the next sync observe the data plane first. */
  distrust(): void {
    this.#trusted = false
    this.#drifts++
  }

  status(service: string): FamilyStatus {
    const { store, family, backend } = this.#options
    const claims = this.ledger.claims(service)
    return {
      family,
      pending: store.isPending(service, family) || this.#changed.has(service) || this.#draining?.has(service) === true,
      ports: this.planner.portsOf(service),
      lost: this.planner.conflicts.list().filter(({ loser }) => loser === service),
      quarantine: this.quarantine.find(service),
      entries: backend.parts === undefined ? claims : claims.flatMap((entry) => backend.parts?.(entry) ?? []),
    }
  }

  setView(view: NodeView): void {
    const { store, family } = this.#options
    const affects = impactOf(this.planner.view, view)
    this.planner.view = view
    this.#baseDue = true
    if (affects === undefined) return
    for (const record of store.records()) {
      if (affects(record, store.slicesOf(record.key, family))) this.#toPlan.add(record.key)
    }
  }

  /** Brings the data plane up to date. Never rejects: the report holds the error. `causes` are for the report. */
  async sync(signal: AbortSignal, causes: readonly SyncCause[] = []): Promise<SyncReport> {
    const { clock, waitForTurn } = this.#options
    const startedAt = clock.now()
    const started = clock.monotonic()
    const slice = new TimeSlice(clock, async () => {
      await waitForTurn()
      signal.throwIfAborted()
    })
    const run: SyncRun = {
      slice,
      signal,
      full: false,
      unfinished: false,
      put: 0,
      dropped: 0,
      figures: {},
      refused: [],
      retried: new Set(),
    }
    let error: ProxyError | undefined
    try {
      await this.#planAndApply(run)
    } catch (cause) {
      error = cause instanceof ProxyError ? cause : new ProxyError('sync', describeError(cause), { cause })
    }
    const report = this.#report(run, { startedAt, durationMs: clock.monotonic() - started, causes }, error)
    if (report.ok) this.#forgetReported(run.unfinished)
    if (!signal.aborted) this.#setRetryTimer()
    return report
  }

  #report(
    run: SyncRun,
    begun: Pick<SyncReport, 'startedAt' | 'durationMs' | 'causes'>,
    error: ProxyError | undefined,
  ): SyncReport {
    const { backend, family } = this.#options
    const noLocal = this.planner.noLocal()
    return {
      backend: backend.name,
      family,
      ...begun,
      full: run.full,
      ...(run.unfinished ? { unfinished: true } : {}),
      ok: error === undefined,
      ...(error === undefined ? {} : { error }),
      put: run.put,
      dropped: run.dropped,
      held: this.ledger.wanted().size,
      services: [...this.#changed].filter((service) => !run.unfinished || !this.#deferred.has(service)),
      refused: run.refused,
      triggers: this.#triggers,
      noLocal: noLocal.ports,
      noLocalServices: noLocal.services,
      udpChanged: this.#udpChanged,
      figures: run.figures,
    }
  }

  async #planAndApply(run: SyncRun): Promise<void> {
    const target = this.#target as Target<Held>
    run.full = !this.#trusted || target.drifted()
    this.#trusted = false // until this sync has succeeded
    const drifts = this.#drifts
    // All code runs for the first time here: the first syncs of both families must not share a turn of the event loop.
    if (!this.#everSynced) await run.slice.yieldLoop()
    // Without a promise if it is short: most syncs have one change.
    const draining = runSliced(this.#drainStore(), run.slice)
    if (draining !== undefined) await draining
    for (const service of this.quarantine.due()) {
      this.#retry(service, run)
      if (service !== '') this.#toPlan.add(service)
    }
    if (this.#baseDue) {
      this.ledger.want(baseOwner, this.#options.backend.base(this.planner.view))
      this.#baseDue = false
    }
    const observed = !this.#everSynced
    if (observed) await this.#applyCritical(run, target)
    if (run.full) {
      await this.#plan(run, () => true)
      if (!observed) await this.#observe(run, target)
      await this.#apply(run)
      this.#deferred.clear()
    } else await this.#planAndApplyInOrder(run)
    for (const service of run.retried) {
      if (!run.refused.some((one) => one.service === service)) this.quarantine.clear(service)
    }
    this.#trusted = drifts === this.#drifts
    this.#everSynced = true
  }

  /** Large services are planned and written after all others, and their writing pauses when other services have changes. */
  async #planAndApplyInOrder(run: SyncRun): Promise<void> {
    await this.#plan(run, (service) => !this.#deferred.wasLarge(service) && !this.planner.isLarge(service))
    if (this.#toPlan.isEmpty && this.#deferred.isEmpty) return this.#apply(run)
    let deferred = await this.#applyFirst(run)
    if (!this.#toPlan.isEmpty) {
      await this.#plan(run, () => true)
      // Others may have won or lost an address by the plan of a large service.
      deferred = await this.#applyFirst(run)
    }
    this.#isWritingDeferred = true
    try {
      run.unfinished = !(await this.#applyChanges(run, deferred))
    } finally {
      this.#isWritingDeferred = false
    }
    if (!run.unfinished) this.#deferred.clear()
  }

  /** Applies the changes that are not deferred. Returns the deferred ones. */
  async #applyFirst(run: SyncRun): Promise<Changes<Held>> {
    const changes = await runSliced(this.ledger.diff(), run.slice)
    const { first, deferred } = await runSliced(this.#deferred.split(changes), run.slice)
    if (first.put.length + first.drop.length > 0) await this.#applyChanges(run, first)
    return deferred
  }

  /** At a cold start, programs the base and the critical services first. */
  async #applyCritical(run: SyncRun, target: Target<Held>): Promise<void> {
    await this.#plan(run, (service) => this.#isCritical(service))
    const held = await this.#observe(run, target)
    // Not if a previous process left entries: they must stay until all of their successors are planned.
    if (held.every(({ id }) => this.ledger.owners(id)[0] === baseOwner)) await this.#apply(run)
  }

  async #observe({ slice, signal }: SyncRun, target: Target<Held>): Promise<readonly Held[]> {
    const held = await target.observe(signal)
    slice.restart()
    await runSliced(this.ledger.reset(held), slice)
    return held
  }

  /** Moves pending changes from the store to the lists of this lane. */
  *#drainStore(): Steps<void> {
    const { store, family } = this.#options
    const pending = store.drainPending(family)
    this.#draining = pending
    this.#triggers.push(...pending.triggers)
    this.#udpChanged ||= pending.udpChanged
    let seen = 0
    for (const service of pending.services()) {
      if (++seen % stride === 0) yield
      this.#toPlan.add(service)
      this.#changed.add(service)
      this.quarantine.resetBackoff(service)
    }
    this.#draining = undefined
  }

  /** Offers the refused entries of a quarantined service again. */
  #retry(service: string, run: SyncRun): void {
    run.retried.add(service)
    for (const id of this.quarantine.drainIds(service)) this.ledger.retry(id)
  }

  async #plan(run: SyncRun, accepts: (service: string) => boolean): Promise<void> {
    const { journal } = this.#options
    const drain = () => this.#toPlan.drain(accepts, (service) => this.#planService(service, run))
    await runSliced(drain(), run.slice)
    const displaced = await runSliced(this.planner.findDisplaced(), run.slice)
    this.#addAffected(displaced)
    if (displaced.length > 0) await runSliced(drain(), run.slice)
    reportConflicts(this.planner.conflicts.drainChanges(), journal, this.#log)
  }

  *#planService(service: string, run: SyncRun): Steps<void> {
    if (this.quarantine.has(service)) this.#retry(service, run)
    const { entries, affected, error } = yield* this.planner.plan(service)
    if (entries !== undefined) {
      yield* this.#deferred.note(service, this.planner.isLarge(service), [this.ledger.claims(service), entries])
      yield* this.ledger.replaceClaims(service, entries)
    }
    this.#addAffected(affected)
    if (error !== undefined) this.#quarantine(run, [{ service, id: '', error }])
  }

  #addAffected(services: readonly string[]): void {
    for (const service of services) {
      this.#toPlan.add(service)
      this.#changed.add(service)
    }
  }

  async #apply(run: SyncRun): Promise<void> {
    await this.#applyChanges(run, await runSliced(this.ledger.diff(), run.slice))
  }

  /** Returns false if the target paused before it had written everything. */
  async #applyChanges(run: SyncRun, changes: Changes<Held>): Promise<boolean> {
    const { slice, signal } = run
    const applied = await (this.#target as Target<Held>).apply(changes, signal, this.ledger.wanted())
    slice.restart()
    const { unwritten } = applied
    const written = unwritten === undefined ? changes : await runSliced(omitUnwritten(changes, unwritten), slice)
    const refused = findRefused(this.ledger, applied, written)
    const refusedIds = applied.refused.map(({ id }) => id)
    await runSliced(this.ledger.settle(written, refusedIds), slice)
    this.#quarantine(run, refused)
    run.put += written.put.length
    run.dropped += written.drop.length
    if (applied.figures !== undefined) run.figures = applied.figures
    return unwritten === undefined
  }

  #quarantine(run: SyncRun, refused: readonly RefusedService[]): void {
    run.refused.push(...refused)
    for (const [service, own] of groupByService(refused)) {
      const { error } = own[0] as RefusedService
      if (this.quarantine.find(service)?.error.message !== error.message) {
        this.#log.error('A service cannot be programmed; other services are not affected', { service, error })
      }
      const ids = own.map((one) => one.id).filter((id) => id !== '')
      this.quarantine.recordFailure(service, ids, error)
    }
  }

  #isCritical(service: string): boolean {
    const record = this.#options.store.service(service)
    return record !== undefined && isCritical(record)
  }

  /** Changes of large services that are not written yet belong to the next report. */
  #forgetReported(isUnfinished: boolean): void {
    const kept = isUnfinished ? [...this.#changed].filter((service) => this.#deferred.has(service)) : []
    this.#changed = new Set(kept)
    this.#triggers = []
    this.#udpChanged = false
  }

  #setRetryTimer(): void {
    this.#timer?.cancel()
    const { clock, onDue } = this.#options
    const ms = this.quarantine.msUntilNext()
    this.#timer = ms === undefined ? undefined : clock.after(ms, () => onDue('retry'))
  }
}
