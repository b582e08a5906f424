// The endpoints that are probed: those of service ports that want it, while this node uses them. No I/O, and no clock: the caller passes the
// time in milliseconds.

import { deepEqual } from '../../lib/equal.ts'
import type { ProbeRecord } from '../../model/types.ts'
import { ProbeJudge } from './probe-judge.ts'
import { ProbeSchedule, type ScheduleSettings } from './probe-schedule.ts'

export interface ProbeSettings extends ScheduleSettings {
  readonly intervalMs: number
  readonly timeoutMs: number
  readonly failures: number
  readonly successes: number
  /** True if this node probes also what it does not use. */
  readonly always: boolean
}

/** How an endpoint is probed, with every setting decided. */
export interface ProbePlan extends Pick<ProbeRecord, 'kind' | 'target'> {
  readonly intervalMs: number
  readonly timeoutMs: number
  readonly failures: number
  readonly successes: number
}

export interface ProbeTask {
  readonly id: string
  /** `ip:port`. */
  readonly endpoint: string
  readonly plan: ProbePlan
}

export type SetVerdict = (group: string, endpoint: string, why: string | undefined) => void

/** A group without new connections for this long is not in use. */
export const unusedMs = 5 * 60_000

interface ProbeGroup {
  plan: ProbePlan
  endpoints: readonly string[]
  usedAt: number
  isActive: boolean
}

interface Probed extends ProbeTask {
  readonly group: string
  readonly judge: ProbeJudge
}

export class ProbeGroups {
  readonly #settings: ProbeSettings
  readonly #setVerdict: SetVerdict
  readonly #schedule: ProbeSchedule
  readonly #groups = new Map<string, ProbeGroup>()
  readonly #active = new Set<string>()
  readonly #probed = new Map<string, Probed>()

  constructor(settings: ProbeSettings, setVerdict: SetVerdict) {
    this.#settings = settings
    this.#setVerdict = setVerdict
    this.#schedule = new ProbeSchedule(settings)
  }

  get isIdle(): boolean {
    return this.#groups.size === 0
  }

  /** The number of endpoints that are probed now. */
  get size(): number {
    return this.#schedule.size
  }

  get delayed(): number {
    return this.#schedule.delayed
  }

  /** Sets the endpoints of a service port, `ip:port`, and how they are probed. */
  set(id: string, record: ProbeRecord, endpoints: readonly string[], now: number): void {
    const plan = makePlan(record, this.#settings)
    const before = this.#groups.get(id)
    const isActive = before?.isActive === true || this.#settings.always
    const isSame = before !== undefined && deepEqual(before.plan, plan) && deepEqual(before.endpoints, endpoints)
    if (isSame && before.isActive === isActive) return
    this.#groups.set(id, { plan, endpoints, usedAt: before?.usedAt ?? Number.NEGATIVE_INFINITY, isActive })
    const kept = new Set(before !== undefined && deepEqual(before.plan, plan) ? endpoints : [])
    for (const endpoint of before?.endpoints ?? []) if (!kept.has(endpoint)) this.#stop(id, endpoint)
    if (isActive) this.#begin(id, now)
  }

  drop(id: string): void {
    this.#rest(id)
    this.#groups.delete(id)
  }

  /** Called when this node has a new connection to the service port. */
  use(id: string, now: number): void {
    const group = this.#groups.get(id)
    if (group === undefined) return
    group.usedAt = now
    if (!group.isActive) this.#begin(id, now)
  }

  /** Stops to probe what is no longer in use. */
  expire(now: number): void {
    if (this.#settings.always) return
    for (const id of this.#active) {
      if (now - (this.#groups.get(id)?.usedAt ?? Number.NEGATIVE_INFINITY) >= unusedMs) this.#rest(id)
    }
  }

  /** Returns the probes that start now. */
  start(now: number): readonly ProbeTask[] {
    return this.#schedule.start(now).flatMap((id) => this.#probed.get(id) ?? [])
  }

  /** Called with the result of a probe: why it failed, undefined if it succeeded, or that nothing is known. */
  end(id: string, result: { readonly failure: string | undefined } | 'unknown', now: number): void {
    this.#schedule.end(id, now)
    const probed = this.#probed.get(id)
    if (probed === undefined || result === 'unknown') return
    probed.judge.note(result.failure)
    this.#setVerdict(probed.group, probed.endpoint, probed.judge.verdict)
  }

  /** Milliseconds until the next probe may start; undefined if none can. */
  waitMs(now: number): number | undefined {
    return this.#schedule.waitMs(now)
  }

  #begin(id: string, now: number): void {
    const group = this.#groups.get(id) as ProbeGroup
    group.isActive = true
    this.#active.add(id)
    for (const endpoint of group.endpoints) {
      const task = makeId(id, endpoint)
      if (this.#probed.has(task)) continue
      const { plan } = group
      this.#probed.set(task, { id: task, endpoint, plan, group: id, judge: new ProbeJudge(plan) })
      this.#schedule.add(task, plan.intervalMs, now)
    }
  }

  #rest(id: string): void {
    const group = this.#groups.get(id)
    this.#active.delete(id)
    if (group === undefined) return
    group.isActive = false
    for (const endpoint of group.endpoints) this.#stop(id, endpoint)
  }

  #stop(id: string, endpoint: string): void {
    const task = makeId(id, endpoint)
    if (!this.#probed.delete(task)) return
    this.#schedule.drop(task)
    this.#setVerdict(id, endpoint, undefined)
  }
}

const makeId = (group: string, endpoint: string): string => `${group} ${endpoint}`

/** A probe ends before the next one of the same endpoint is due. */
function makePlan(record: ProbeRecord, settings: ProbeSettings): ProbePlan {
  const intervalMs = Math.max(1_000, record.intervalMs ?? settings.intervalMs)
  return {
    kind: record.kind,
    target: record.target,
    intervalMs,
    timeoutMs: Math.min(intervalMs, Math.max(10, record.timeoutMs ?? settings.timeoutMs)),
    failures: Math.max(1, record.failures ?? settings.failures),
    successes: Math.max(1, record.successes ?? settings.successes),
  }
}
