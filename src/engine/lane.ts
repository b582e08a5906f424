// One backend in one family: plans changed services, compares, applies and recovers. Any failure leads to observe and compare, never to
// a guess. The order of a sync is in `#planAndApply`.

import type { Applied, Changes, DriftReason, Held, Target } from '../backend/backend.ts'
import { Ledger } from '../backend/ledger.ts'
import { describeError, ProxyError } from '../lib/errors.ts'
import { type Family, familyName } from '../lib/ip.ts'
import type { Logger } from '../lib/log.ts'
import type { Clock, Timer } from '../lib/time.ts'
import { runSliced, type Steps, stride } from '../lib/yielding.ts'
import type { NodeView, ServicePort } from '../model/types.ts'
import { reportConflicts } from './conflict-report.ts'
import type { Conflict, RefusedService, SyncCause, SyncJournal, SyncReport } from './journal.ts'
import { DeferredEntries, LargePlans } from './large-services.ts'
import { Planner, type PlannerOptions } from './planner.ts'
import { baseOwner, findRefused, Quarantine, type Quarantined } from './quarantine.ts'
import type { PendingChanges } from './store.ts'
import { beginRun, isNothingToWrite, type LaneFigures, makeReport, noteWritten, type SyncRun } from './sync-run.ts'
import { impactOf } from './view-impact.ts'
import { type DrainBounds, WorkList } from './work-list.ts'

export interface LaneOptions extends PlannerOptions {
  readonly journal: SyncJournal
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

/** Services that a sync plans before it writes. The next sync follows at once, so that namespaces with few changes do not wait long. */
const plannedAtOnce = 100
/** Planning takes no longer than this, or than the last write did: code that is new to V8 takes ten times as long as later. */
const planMs = 15

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
  /** Large services to plan. */
  readonly #largePlans = new LargePlans((service) => this.#planService(service))
  /** What large services have to write. */
  readonly #deferred = new DeferredEntries()
  /** Writes the rest of what large services have to write, if nothing changed it. */
  #resume: Applied['resume']
  #isWritingDeferred = false
  /** How long the last write took. */
  #writeMs = 0
  /** The sync that runs, or the last one. */
  #run: SyncRun | undefined
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
    const shouldPause = () => this.#isWritingDeferred && this.#doOthersWait()
    const context = { family, node: view, log, clock, onDrift, shouldPause }
    this.#target = await backend.open({ ...context, onDue: () => onDue('retry') })
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
    const run = beginRun(clock, signal, causes, waitForTurn)
    this.#run = run
    let error: ProxyError | undefined
    try {
      await this.#planAndApply(run)
    } catch (cause) {
      error = cause instanceof ProxyError ? cause : new ProxyError('sync', describeError(cause), { cause })
    }
    const durationMs = clock.monotonic() - started
    const report = makeReport(run, { startedAt, durationMs }, this.#figures(error))
    if (report.ok) this.#forgetReported(run.unfinished)
    if (!signal.aborted) this.#setRetryTimer()
    return report
  }

  /** What a report says about the lane. */
  #figures(error: ProxyError | undefined): LaneFigures {
    const { backend, family } = this.#options
    const services = [...this.#changed].filter((service) => !this.#isWaiting(service))
    const held = this.ledger.wanted().size
    const noLocal = this.planner.noLocal()
    const figures = { backend: backend.name, family, held, services, noLocal, error }
    return { ...figures, triggers: this.#triggers, udpChanged: this.#udpChanged }
  }

  async #planAndApply(run: SyncRun): Promise<void> {
    const target = this.#target as Target<Held>
    run.full = !this.#trusted || target.drifted()
    this.#trusted = false // until this sync has succeeded
    const drifts = this.#drifts
    // All code runs for the first time here: the first syncs of both families must not share a turn of the event loop.
    if (!this.#everSynced) await run.slice.yieldLoop()
    if (this.#baseDue) {
      this.ledger.want(baseOwner, this.#options.backend.base(this.planner.view))
      this.#baseDue = false
    }
    // Before the changes are drained: that takes as long as there are services.
    const observed = !this.#everSynced
    if (observed) await this.#applyCritical(run, target)
    // Without a promise if it is short: most syncs have one change.
    const draining = runSliced(this.#drainStore(), run.slice)
    if (draining !== undefined) await draining
    for (const service of this.quarantine.due()) {
      this.#retry(service)
      this.#options.journal.cause(this.#options.family, 'retry', service, 'a quarantined service is tried again')
      if (service !== '') this.#toPlan.add(service)
    }
    if (run.full) {
      await this.#largePlans.run(run.slice)
      await this.#plan(run)
      if (!observed) await this.#observe(run, target)
      await this.#apply(run)
      this.#resume = undefined
      this.#deferred.clear()
    } else await this.#planAndApplyInOrder(run)
    this.quarantine.endRetries(run.refused, (service) => this.#isWaiting(service))
    this.#trusted = drifts === this.#drifts
    this.#everSynced = true
  }

  /** Large services are planned and written after all others, and both pause when other services have changes. */
  async #planAndApplyInOrder(run: SyncRun): Promise<void> {
    const end = this.#options.clock.monotonic() + Math.max(planMs, this.#writeMs)
    await this.#planSmall(run, { most: plannedAtOnce, isOver: () => this.#options.clock.monotonic() >= end })
    if (this.#largePlans.isEmpty && this.#deferred.isEmpty) return this.#apply(run)
    let deferred = await this.#applyFirst(run)
    if (!this.#largePlans.isEmpty) {
      const shouldPause = () => !this.planner.isClaiming && this.#doOthersWait()
      if (!(await this.#largePlans.run(run.slice, shouldPause))) run.unfinished = true
      // Others may have won or lost an address by the plan of a large service.
      await this.#planSmall(run, { most: 0 })
      deferred = await this.#applyFirst(run)
    }
    if (this.#largePlans.isEmpty) await this.#writeDeferred(run, deferred)
    // A large service that has lost an address is planned again by the next sync.
    else run.unfinished = true
  }

  /** Plans services within bounds, and those that must not wait. Large services join their own list. */
  async #planSmall(run: SyncRun, bounds: DrainBounds): Promise<void> {
    await this.#plan(run, bounds)
    if (!this.#toPlan.isEmpty) run.unfinished = true
  }

  /** True if a service has changes that need not wait for a large one. */
  #doOthersWait(): boolean {
    const { store, family } = this.#options
    return !this.#toPlan.isEmpty || store.hasPendingBesides(family, { has: (service) => this.#isLarge(service) })
  }

  /** Applies the changes that are not deferred. Returns the deferred ones. */
  async #applyFirst(run: SyncRun): Promise<Changes<Held>> {
    const changes = await runSliced(this.ledger.diff(), run.slice)
    const { first, deferred } = await runSliced(this.#deferred.split(changes), run.slice)
    if (first.put.length + first.drop.length > 0) await this.#applyChanges(run, first)
    return deferred
  }

  /** Goes on to write what large services need, or begins again if that has changed. */
  async #writeDeferred(run: SyncRun, due: Changes<Held>): Promise<void> {
    const resume = this.#resume
    const isValid = resume !== undefined && !this.ledger.isDisturbed && due.put.length + due.drop.length === 0
    this.#resume = undefined
    this.#isWritingDeferred = true
    try {
      const applied = isValid
        ? await this.#settle(run, await resume(run.signal), { put: [], drop: [] })
        : await this.#beginDeferred(run)
      this.#resume = applied.resume
    } finally {
      this.#isWritingDeferred = false
    }
    if (this.#resume !== undefined) run.unfinished = true
    else this.#deferred.clear()
  }

  async #beginDeferred(run: SyncRun): Promise<Applied> {
    await runSliced(this.ledger.recall(), run.slice)
    const changes = await runSliced(this.ledger.diff(), run.slice)
    const isDeferred = (id: string) => this.#deferred.hasEntry(id)
    await runSliced(this.ledger.postpone(isDeferred), run.slice)
    return this.#applyChanges(run, changes)
  }

  /** At a cold start, programs the base and the critical services first, in one transaction. They are planned again with all others. */
  async #applyCritical(run: SyncRun, target: Target<Held>): Promise<void> {
    for (const service of this.planner.listCritical()) await runSliced(this.#planService(service), run.slice)
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
  #retry(service: string): void {
    for (const id of this.quarantine.beginRetry(service)) this.ledger.retry(id)
  }

  /** Without bounds, plans all services, and large ones in the same order. */
  async #plan(run: SyncRun, bounds?: DrainBounds): Promise<void> {
    const handle = (service: string) =>
      bounds !== undefined && this.#isLarge(service) ? this.#largePlans.add(service) : this.#planService(service)
    const drain = (within?: DrainBounds) =>
      runSliced(
        this.#toPlan.drain(() => true, handle, within),
        run.slice,
      )
    await drain(bounds)
    const displaced = await runSliced(this.planner.findDisplaced(), run.slice)
    this.#addAffected(displaced)
    if (displaced.length > 0) await drain({ most: 0 })
    reportConflicts(this.planner.conflicts.drainChanges(), this.#options.journal, this.#log)
  }

  /** True if changes of the service wait for those of others. */
  #isLarge(service: string): boolean {
    if (this.#largePlans.has(service) || this.#deferred.has(service)) return true
    return this.#deferred.wasLarge(service) || this.planner.isLarge(service)
  }

  /** True if changes of the service are not written, although a sync has drained them from the store. */
  #isWaiting(service: string): boolean {
    return this.#toPlan.has(service) || this.#largePlans.has(service) || this.#deferred.has(service)
  }

  *#planService(service: string): Steps<void> {
    if (this.quarantine.has(service)) this.#retry(service)
    const { entries, affected, error } = yield* this.planner.plan(service)
    if (entries !== undefined) {
      yield* this.#deferred.note(service, this.planner.isLarge(service), [this.ledger.claims(service), entries])
      yield* this.ledger.replaceClaims(service, entries)
    }
    this.#addAffected(affected)
    if (error !== undefined) this.#quarantine(this.#run as SyncRun, [{ service, id: '', error }])
  }

  #addAffected(services: readonly string[]): void {
    for (const service of services) {
      this.#toPlan.addUrgent(service)
      this.#changed.add(service)
    }
  }

  async #apply(run: SyncRun): Promise<void> {
    const changes = await runSliced(this.ledger.diff(), run.slice)
    if (!isNothingToWrite(run, changes)) await this.#applyChanges(run, changes)
  }

  async #applyChanges(run: SyncRun, changes: Changes<Held>): Promise<Applied> {
    const { clock } = this.#options
    const began = clock.monotonic()
    const applied = await (this.#target as Target<Held>).apply(changes, run.signal, this.ledger.wanted())
    this.#writeMs = clock.monotonic() - began
    return this.#settle(run, applied, changes)
  }

  /** Records what the target wrote: `changes`, unless it says otherwise. */
  async #settle(run: SyncRun, applied: Applied, changes: Changes<Held>): Promise<Applied> {
    run.slice.restart()
    const { written = changes } = applied
    const refused = findRefused(this.ledger, applied, written)
    const refusedIds = new Set(applied.refused.map(({ id }) => id))
    noteWritten(run, written, this.ledger, refusedIds)
    await runSliced(this.ledger.settle(written, refusedIds), run.slice)
    this.#quarantine(run, refused)
    if (applied.figures !== undefined) run.figures = applied.figures
    return applied
  }

  #quarantine(run: SyncRun, refused: readonly RefusedService[]): void {
    run.refused.push(...refused)
    for (const { service, error } of this.quarantine.addRefused(refused)) {
      this.#log.error('A service cannot be programmed; other services are not affected', { service, error })
    }
  }

  /** Changes that are not written yet belong to the next report. */
  #forgetReported(isUnfinished: boolean): void {
    this.#changed = new Set(isUnfinished ? [...this.#changed].filter((service) => this.#isWaiting(service)) : [])
    this.#triggers = []
    this.#udpChanged &&= isUnfinished
  }

  #setRetryTimer(): void {
    this.#timer?.cancel()
    const { clock, onDue } = this.#options
    const ms = this.quarantine.msUntilNext()
    this.#timer = ms === undefined ? undefined : clock.after(ms, () => onDue('retry'))
  }
}
