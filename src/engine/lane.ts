// One backend in one family: plan what is dirty, diff, apply, and recover. Any failure leads to observe-and-diff, never to guessing.

import type { Applied, Backend, Changes, Held, Target } from '../backend/backend.ts'
import { Ledger } from '../backend/ledger.ts'
import { describeError, ProxyError } from '../lib/errors.ts'
import { type Family, familyName } from '../lib/ip.ts'
import type { Logger } from '../lib/log.ts'
import type { Clock, Timer } from '../lib/time.ts'
import { runSliced, type Steps, stride, TimeSlice } from '../lib/yielding.ts'
import { critical } from '../model/critical.ts'
import type { NodeView, ServicePort } from '../model/types.ts'
import type { Conflict, RefusedService, SyncJournal, SyncReport } from './journal.ts'
import { Planner, type Resolve } from './planner.ts'
import { Quarantine, type Quarantined } from './quarantine.ts'
import type { PendingChanges, Store } from './store.ts'
import { impactOf } from './view-impact.ts'

export interface LaneOptions {
  readonly backend: Backend<Held>
  readonly family: Family
  readonly view: NodeView
  readonly store: Store
  readonly journal: SyncJournal
  readonly resolve: Resolve
  readonly clock: Clock
  readonly log: Logger
  /** Lets everybody else of the process have a turn. */
  readonly breathe: () => Promise<void>
  /** Asks for a sync: something is due that is no event of the store. */
  readonly onDue: (urgent?: boolean) => void
}

/** What a service has in one family. */
export interface FamilyStatus {
  readonly family: Family
  /** Changes wait for a sync, or for its end. */
  readonly pending: boolean
  readonly ports: readonly ServicePort[]
  /** Addresses that an older service holds. */
  readonly lost: readonly Conflict[]
  readonly quarantine: Quarantined | undefined
  /** What the data plane holds, or is to hold, for it. */
  readonly entries: readonly Held[]
}

/** The owner of the base in the ledger, smaller than any service. */
const base = ''

interface Round {
  readonly stint: TimeSlice
  full: boolean
  put: number
  dropped: number
  figures: Readonly<Record<string, number>>
  readonly refused: RefusedService[]
  /** Services whose fate in this round decides whether they stay in quarantine. */
  readonly tried: Set<string>
}

export class Lane {
  readonly planner: Planner
  readonly quarantine: Quarantine
  readonly ledger = new Ledger<Held>()
  readonly #options: LaneOptions
  readonly #log: Logger
  #target: Target<Held> | undefined
  #trusted = false
  /** How often we were told of a drift: one that comes during a sync must not be forgotten at its end. */
  #drifts = 0
  #everSynced = false
  #baseDue = true
  #timer: Timer | undefined
  /** Taken from the store, and on its way into what follows. */
  #dirt: PendingChanges | undefined
  /** To be planned; kept over failures. */
  readonly #queue = new Set<string>()
  /** What the next report that says ok is about. */
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
    const onDrift = (culprit: string) => {
      this.distrust()
      this.#log.warn('somebody else changed our rules', { family: familyName(family), culprit })
      journal.drift(family, culprit)
      onDue(true)
    }
    const { view } = this.planner
    this.#target = await backend.open({ family, node: view, log, clock, onDrift, onDue: () => onDue() })
  }

  async close(): Promise<void> {
    this.#timer?.cancel()
    await this.#target?.close()
  }

  /** The next sync observes the data plane first. */
  distrust(): void {
    this.#trusted = false
    this.#drifts++
  }

  status(service: string): FamilyStatus {
    const { store, family, backend } = this.#options
    const claims = this.ledger.claims(service)
    return {
      family,
      pending: store.dirty(service, family) || this.#changed.has(service) || this.#dirt?.has(service) === true,
      ports: this.planner.portsOf(service),
      lost: this.planner.contest.conflicts().filter(({ loser }) => loser === service),
      quarantine: this.quarantine.one(service),
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
      if (affects(record, store.slicesOf(record.key, family))) this.#queue.add(record.key)
    }
  }

  async sync(signal: AbortSignal): Promise<SyncReport> {
    const { clock, backend, family, breathe } = this.#options
    const startedAt = clock.now()
    const started = clock.monotonic()
    const stint = new TimeSlice(clock, async () => {
      await breathe()
      signal.throwIfAborted()
    })
    const round: Round = { stint, full: false, put: 0, dropped: 0, figures: {}, refused: [], tried: new Set() }
    let error: ProxyError | undefined
    try {
      await this.#sync(round, signal)
    } catch (cause) {
      error = cause instanceof ProxyError ? cause : new ProxyError('sync', describeError(cause), { cause })
    }
    const noLocal = this.planner.noLocal()
    const report: SyncReport = {
      backend: backend.name,
      family,
      startedAt,
      durationMs: clock.monotonic() - started,
      full: round.full,
      ok: error === undefined,
      ...(error === undefined ? {} : { error }),
      put: round.put,
      dropped: round.dropped,
      held: this.ledger.wanted().size,
      services: [...this.#changed],
      refused: round.refused,
      triggers: this.#triggers,
      noLocal: noLocal.ports,
      noLocalServices: noLocal.services,
      udpChanged: this.#udpChanged,
      figures: round.figures,
    }
    if (report.ok) this.#startAnew()
    if (!signal.aborted) this.#armRetry()
    return report
  }

  async #sync(round: Round, signal: AbortSignal): Promise<void> {
    const target = this.#target as Target<Held>
    round.full = !this.#trusted || target.drifted()
    this.#trusted = false // until this sync has succeeded
    const drifts = this.#drifts
    // Everything is new to the engine: not in the same turn as the other family's.
    if (!this.#everSynced) await round.stint.yieldLoop()
    const gathering = runSliced(this.#gathering(), round.stint)
    if (gathering !== undefined) await gathering
    for (const service of this.quarantine.due()) this.#retry(service, round)
    if (this.#baseDue) {
      this.ledger.want(base, this.#options.backend.base(this.planner.view))
      this.#baseDue = false
    }
    let observed = false
    if (!this.#everSynced) {
      await this.#plan(round, (service) => this.#critical(service))
      const held = await target.observe(signal)
      round.stint.restart()
      await runSliced(this.ledger.reset(held), round.stint)
      observed = true
      // Only when nothing but the base is there: what a predecessor left must stay until all of its successor is known.
      if (held.every(({ id }) => this.ledger.owners(id)[0] === base)) await this.#apply(round, signal)
    }
    await this.#plan(round, () => true)
    if (round.full && !observed) await runSliced(this.ledger.reset(await target.observe(signal)), round.stint)
    await this.#apply(round, signal)
    for (const service of round.tried) {
      if (!round.refused.some((one) => one.service === service)) this.quarantine.clear(service)
    }
    this.#trusted = drifts === this.#drifts
    this.#everSynced = true
  }

  /** Takes up what is dirty. */
  *#gathering(): Steps<void> {
    const { store, family } = this.#options
    const dirt = store.drainPending(family)
    this.#dirt = dirt
    this.#triggers.push(...dirt.triggers)
    this.#udpChanged ||= dirt.udpChanged
    let seen = 0
    for (const service of dirt.services()) {
      if (++seen % stride === 0) yield
      this.#queue.add(service)
      this.#changed.add(service)
      this.quarantine.forgive(service)
    }
    this.#dirt = undefined
  }

  #retry(service: string, round: Round): void {
    round.tried.add(service)
    for (const id of this.quarantine.takeIds(service)) this.ledger.retry(id)
    if (service !== '') this.#queue.add(service)
  }

  async #plan(round: Round, which: (service: string) => boolean): Promise<void> {
    const { journal } = this.#options
    const { stint } = round
    for (const service of this.#queue) {
      if (which(service)) this.#planOne(service, round)
      if (stint.over) await stint.yieldLoop()
    }
    const { began, ended } = this.planner.contest.changes()
    for (const conflict of ended) journal.resolved(conflict)
    for (const conflict of began) {
      this.#log.warn('two services claim one address; the older one has it', { ...conflict })
      journal.conflict(conflict)
    }
  }

  #planOne(service: string, round: Round): void {
    if (this.quarantine.has(service)) this.#retry(service, round)
    // Before planning: what another service's plan finds out about this one comes after it.
    this.#queue.delete(service)
    const { entries, affected, error } = this.planner.plan(service)
    this.ledger.want(service, entries)
    for (const other of affected) {
      this.#queue.add(other)
      this.#changed.add(other)
    }
    if (error !== undefined) this.#refuse(round, [{ service, id: '', error }])
  }

  async #apply(round: Round, signal: AbortSignal): Promise<void> {
    const changes = await runSliced(this.ledger.diff(), round.stint)
    const applied = await (this.#target as Target<Held>).apply(changes, signal, this.ledger.wanted())
    round.stint.restart()
    const refused = this.#blame(applied, changes)
    const out = applied.refused.map((refusal) => refusal.id)
    await runSliced(this.ledger.settle(changes, out), round.stint)
    this.#refuse(round, refused)
    round.put += changes.put.length
    round.dropped += changes.drop.length
    if (applied.figures !== undefined) round.figures = applied.figures
  }

  /** Whose the refused entries are. Without the base nothing works, so its refusal fails the whole sync. */
  #blame(applied: Applied, changes: Changes<Held>): readonly RefusedService[] {
    if (applied.refused.length === 0) return []
    const asked = new Set([...changes.put, ...changes.drop].map((one) => one.id))
    return applied.refused
      .filter(({ id }) => asked.has(id))
      .flatMap(({ id, error }) => {
        const owners = this.ledger.owners(id)
        if (owners[0] === base) {
          throw new ProxyError('base-refused', `the kernel refused ${id}: ${error.message}`, { cause: error })
        }
        return (owners.length === 0 ? [''] : owners).map((service) => ({ service, id, error }))
      })
  }

  #refuse(round: Round, refused: readonly RefusedService[]): void {
    round.refused.push(...refused)
    const byService = new Map<string, RefusedService[]>()
    for (const one of refused) {
      const own = byService.get(one.service)
      if (own === undefined) byService.set(one.service, [one])
      else own.push(one)
    }
    for (const [service, own] of byService) {
      const { error } = own[0] as RefusedService
      if (this.quarantine.one(service)?.error.message !== error.message) {
        this.#log.error('a service cannot be programmed; all others go on', { service, error })
      }
      const ids = own.map((one) => one.id).filter((id) => id !== '')
      this.quarantine.strike(service, ids, error)
    }
  }

  #critical(service: string): boolean {
    const record = this.#options.store.service(service)
    return record !== undefined && critical(record)
  }

  #startAnew(): void {
    this.#changed = new Set()
    this.#triggers = []
    this.#udpChanged = false
  }

  #armRetry(): void {
    this.#timer?.cancel()
    const { clock, onDue } = this.#options
    const ms = this.quarantine.nextMs()
    this.#timer = ms === undefined ? undefined : clock.after(ms, () => onDue())
  }
}
