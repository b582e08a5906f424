// Decides which endpoints get no new connections for a while, because connections to them or probes of them fail while others answer. No I/O,
// and no clock: the caller passes the time in milliseconds.
//
// 1. An endpoint fails when a number of connections in a row were refused or not answered, and none was answered for a second. Single
//    failures between answers, such as resets under load, never add up.
// 2. A node fails when at least two of its endpoints fail to answer and none of its endpoints answers: their failures count together, so a
//    dead node is found by fewer connections than each of its endpoints would need.
// 3. An endpoint is ejected only from groups in which others answer. A group never loses more than a share of its endpoints, and never
//    its last one; if more of them fail, all are used again, since then the failures say little about single endpoints.
// 4. An ejected endpoint comes back on trial after an interval. Its first failure then ejects it again, for twice as long; an answer ends
//    the trial. If the caller can dial, it does so before the trial: an endpoint that does not answer stays out for twice as long. At the
//    longest interval clients decide alone, since an endpoint may answer them and not the node.
// 5. A verdict of the probes leaves an endpoint out of its group, within the same bounds, until the probes say otherwise.
//
// A decision looks only at endpoints that fail, are ejected or were ejected, and at their groups. What it looks at and what it changes has
// a budget: a storm of failures delays decisions and costs no more.

import { Budget } from './budget.ts'
import { EndpointPorts } from './endpoint-ports.ts'
import { type Ejection, type EndpointState, makeState, type OutlierSettings } from './endpoint-state.ts'
import { describeStreak, type Failure, findDeadNodes, type NodeState, quietMs } from './failing-nodes.ts'

export interface WatchedEndpoint {
  /** `ip:port`. */
  readonly key: string
  /** '' if unknown. */
  readonly node: string
}

/** Answers of others count for this long. */
const windowMs = 10_000
/** Endpoints that decisions may look at per second. */
const looksPerSecond = 20_000
const glancesPerLook = 10
/** Groups that decisions may change per second, and at once: a dead node may be in many groups. */
const changesPerSecond = 100
const changesAtOnce = 1_000

interface Group {
  endpoints: readonly WatchedEndpoint[]
  /** True if failures of connections count. */
  isPassive: boolean
  /** What the probes say about endpoints that fail. */
  readonly verdicts: Map<string, Ejection>
  ejected: ReadonlyMap<string, Ejection>
  /** True if too many endpoints fail, so that all are used. */
  isCrowded: boolean
}

const none: ReadonlyMap<string, Ejection> = new Map()

export class OutlierDetector {
  readonly #settings: OutlierSettings
  readonly #asksFirst: boolean
  readonly #endpoints = new Map<string, EndpointState>()
  readonly #ports = new EndpointPorts()
  readonly #groups = new Map<string, Group>()
  readonly #nodes = new Map<string, NodeState>()
  /** Endpoints with failures that are not ejected. */
  readonly #suspects = new Set<string>()
  readonly #ejectedKeys = new Set<string>()
  /** Endpoints that were ejected and whose past is not forgotten. */
  readonly #recovering = new Set<string>()
  /** Ejected endpoints that the caller is to dial before their trial. */
  readonly #toAsk = new Set<string>()
  /** Groups whose ejected endpoints may change. */
  readonly #dirty = new Set<string>()
  readonly #looks = new Budget({ perSecond: looksPerSecond, burst: looksPerSecond })
  readonly #changes = new Budget({ perSecond: changesPerSecond, burst: changesAtOnce })
  #looked = 0
  #ejectedCount = 0

  /** `asksFirst`: the caller dials endpoints before their trials. */
  constructor(settings: OutlierSettings, { asksFirst = false }: { readonly asksFirst?: boolean } = {}) {
    this.#settings = settings
    this.#asksFirst = asksFirst
  }

  get isIdle(): boolean {
    return this.#groups.size === 0
  }

  /** The number of endpoints that are ejected from a group now. */
  get ejectedCount(): number {
    return this.#ejectedCount
  }

  /** The number of endpoints that all decisions together have looked at. */
  get looked(): number {
    return this.#looked
  }

  /** The ports of all endpoints. After a change it is another set. */
  get ports(): ReadonlySet<number> {
    return this.#ports.numbers
  }

  has(key: string): boolean {
    return this.#endpoints.has(key)
  }

  /** The groups that have an endpoint. */
  groupsOf(key: string): Iterable<string> {
    return this.#endpoints.get(key)?.groups ?? []
  }

  /** Sets the endpoints of a group, which share the connections to one service port. */
  setGroup(id: string, endpoints: readonly WatchedEndpoint[], isPassive = true): void {
    const before = this.#groups.get(id)
    if (before !== undefined && before.isPassive === isPassive && isSame(before.endpoints, endpoints)) return
    const group = before ?? makeGroup()
    const gone = new Set(group.endpoints.map(({ key }) => key))
    for (const { key, node } of endpoints) {
      this.#add(key, node, id)
      gone.delete(key)
    }
    for (const key of gone) {
      this.#remove(key, id)
      group.verdicts.delete(key)
    }
    group.endpoints = endpoints
    group.isPassive = isPassive
    this.#groups.set(id, group)
    this.#dirty.add(id)
  }

  dropGroup(id: string): void {
    const group = this.#groups.get(id)
    if (group === undefined) return
    for (const { key } of group.endpoints) this.#remove(key, id)
    this.#ejectedCount -= group.ejected.size
    this.#groups.delete(id)
    this.#dirty.delete(id)
  }

  /** The ejected endpoints of a group, as of the last decision. */
  ejected(id: string): ReadonlyMap<string, Ejection> {
    return this.#groups.get(id)?.ejected ?? none
  }

  answered(key: string, now: number): void {
    const state = this.#endpoints.get(key)
    if (state === undefined) return
    const node = this.#nodes.get(state.node)
    if (node !== undefined) node.answeredAt = now
    state.answeredAt = now
    if (state.failures > 0) this.#endStreak(key, state)
    if (state.ejection === undefined) state.isOnTrial = false
  }

  failed(key: string, failure: Failure, now: number): void {
    const state = this.#endpoints.get(key)
    if (state === undefined) return
    if (state.failures === 0) state.failingSince = now
    state.failures++
    state.lastFailure = failure
    if (state.ejection === undefined) this.#suspects.add(key)
  }

  /** Sets what the probes of a group say about an endpoint: why it fails, or undefined if it does not. */
  setVerdict(id: string, key: string, why: string | undefined): void {
    const group = this.#groups.get(id)
    if (group === undefined || group.verdicts.get(key)?.why === why) return
    if (why === undefined) group.verdicts.delete(key)
    else if (this.#endpoints.get(key)?.groups.has(id)) group.verdicts.set(key, { why, until: Number.POSITIVE_INFINITY })
    this.#dirty.add(id)
  }

  /** Returns ejected endpoints to dial, at most so many. `tried` is to be called for each. */
  takeTrials(most: number): readonly string[] {
    const taken = [...this.#toAsk].slice(0, Math.max(0, most))
    for (const key of taken) this.#toAsk.delete(key)
    return taken
  }

  /** The result of a dial before a trial. */
  tried(key: string, answers: boolean, now: number): void {
    const state = this.#endpoints.get(key)
    if (state?.ejection === undefined || !state.isAsked) return
    state.isAsked = false
    if (answers) this.#beginTrial(key, state)
    else state.ejection.until = now + this.#lengthen(state)
  }

  /** Returns the groups whose ejected endpoints change. */
  decide(now: number): readonly string[] {
    if (!this.#looks.has(now)) return []
    this.#endEjections(now)
    const failing = this.#findFailing(now)
    for (const key of failing.keys()) this.#markGroups(key)
    const changed: string[] = []
    for (const [i, id] of [...this.#dirty].entries()) {
      // At least one group has its turn, however many endpoints fail. The others keep their places before those that come back.
      if (i > 0 && !(this.#looks.has(now) && this.#changes.has(now))) break
      this.#dirty.delete(id)
      if (!this.#update(id, failing, now)) continue
      this.#changes.take(1)
      changed.push(id)
    }
    return changed
  }

  #look(count: number, cost = count): void {
    this.#looks.take(cost)
    this.#looked += count
  }

  /** A glance at single endpoints costs much less than a choice among those of a group. */
  #glance(count: number): void {
    this.#look(count, count / glancesPerLook)
  }

  #add(key: string, node: string, group: string): void {
    const state = this.#endpoints.get(key)
    if (state !== undefined) {
      state.groups.add(group)
      return
    }
    this.#endpoints.set(key, makeState(node, group))
    this.#ports.add(key)
    if (node === '') return
    const known = this.#nodes.get(node)
    if (known === undefined) this.#nodes.set(node, { keys: new Set([key]), answeredAt: Number.NEGATIVE_INFINITY })
    else known.keys.add(key)
  }

  #remove(key: string, group: string): void {
    const state = this.#endpoints.get(key)
    if (state === undefined || !state.groups.delete(group) || state.groups.size > 0) return
    this.#endpoints.delete(key)
    this.#ports.remove(key)
    for (const set of [this.#suspects, this.#ejectedKeys, this.#recovering, this.#toAsk]) set.delete(key)
    const node = this.#nodes.get(state.node)
    node?.keys.delete(key)
    if (node?.keys.size === 0) this.#nodes.delete(state.node)
  }

  #markGroups(key: string): void {
    for (const id of this.#endpoints.get(key)?.groups ?? []) this.#dirty.add(id)
  }

  /** An answer ends a row of failures. In a group with too many of them, the others may now be ejected. */
  #endStreak(key: string, state: EndpointState): void {
    state.failures = 0
    this.#suspects.delete(key)
    for (const id of state.groups) if (this.#groups.get(id)?.isCrowded === true) this.#dirty.add(id)
  }

  #endEjections(now: number): void {
    this.#glance(this.#ejectedKeys.size + this.#recovering.size)
    for (const key of this.#ejectedKeys) {
      const state = this.#endpoints.get(key)
      if (state?.ejection === undefined || state.isAsked || now < state.ejection.until) continue
      if (this.#asksFirst && state.interval < this.#settings.maxIntervalMs) {
        state.isAsked = true
        this.#toAsk.add(key)
      } else this.#beginTrial(key, state)
    }
    for (const key of this.#recovering) {
      const state = this.#endpoints.get(key)
      if (state === undefined || state.isOnTrial || state.failures > 0) continue
      // It has answered since its trial. After another interval its past is forgotten.
      if (now - state.answeredAt >= quietMs || now - state.failingSince <= 2 * state.interval) continue
      state.times = 0
      this.#recovering.delete(key)
    }
  }

  #beginTrial(key: string, state: EndpointState): void {
    state.ejection = undefined
    state.isOnTrial = true
    state.failures = 0
    this.#ejectedKeys.delete(key)
    this.#recovering.add(key)
    this.#markGroups(key)
  }

  /** Returns the next interval, which is twice as long as the last one. */
  #lengthen(state: EndpointState): number {
    const { intervalMs, maxIntervalMs } = this.#settings
    state.interval = Math.min(maxIntervalMs, intervalMs * 2 ** Math.min(state.times, 20))
    state.times++
    return state.interval
  }

  /** The reasons of those endpoints that fail and are not ejected. */
  #findFailing(now: number): ReadonlyMap<string, string> {
    const found = new Map<string, string>()
    this.#glance(this.#suspects.size)
    const suspects = [...this.#suspects].flatMap((key) => this.#endpoints.get(key) ?? [])
    for (const key of this.#suspects) {
      const state = this.#endpoints.get(key)
      if (state === undefined) continue
      const enough = state.isOnTrial ? 1 : this.#settings.failures
      if (state.failures >= enough && now - state.answeredAt >= quietMs) found.set(key, describeStreak(state))
    }
    // After the endpoints: a dead node explains their failures.
    for (const node of findDeadNodes(suspects, this.#nodes, { failures: this.#settings.failures, now })) {
      for (const key of this.#nodes.get(node)?.keys ?? []) {
        const isOut = this.#endpoints.get(key)?.ejection !== undefined
        if (!isOut) found.set(key, `no endpoint on node ${node} answers`)
      }
    }
    return found
  }

  #update(id: string, failing: ReadonlyMap<string, string>, now: number): boolean {
    const group = this.#groups.get(id)
    if (group === undefined) return false
    this.#look(group.endpoints.length)
    const ejected = this.#choose(group, failing, now)
    if (sameKeys(ejected, group.ejected)) return false
    this.#ejectedCount += ejected.size - group.ejected.size
    group.ejected = ejected
    return true
  }

  #choose(group: Group, failing: ReadonlyMap<string, string>, now: number): ReadonlyMap<string, Ejection> {
    const { endpoints, isPassive, verdicts } = group
    const isOut = ({ key }: WatchedEndpoint) =>
      verdicts.has(key) || (isPassive && (failing.has(key) || this.#endpoints.get(key)?.ejection !== undefined))
    const out = endpoints.filter(isOut)
    const most = Math.min(Math.floor(this.#settings.maxShare * endpoints.length), endpoints.length - 1)
    group.isCrowded = out.length > most
    if (out.length === 0 || group.isCrowded) return none
    const doOthersAnswer = endpoints.some(
      (one) => now - (this.#endpoints.get(one.key)?.answeredAt ?? Number.NEGATIVE_INFINITY) < windowMs && !isOut(one),
    )
    const ejected = new Map<string, Ejection>()
    for (const { key } of out) {
      const state = this.#endpoints.get(key) as EndpointState
      const reason = failing.get(key)
      if (isPassive && state.ejection === undefined && reason !== undefined && doOthersAnswer) {
        this.#eject(key, reason, now)
      }
      const ejection = (isPassive ? state.ejection : undefined) ?? verdicts.get(key)
      if (ejection !== undefined) ejected.set(key, ejection)
    }
    return ejected
  }

  #eject(key: string, why: string, now: number): void {
    const state = this.#endpoints.get(key) as EndpointState
    state.isOnTrial = false
    state.ejection = { why, until: now + this.#lengthen(state) }
    this.#suspects.delete(key)
    this.#recovering.delete(key)
    this.#ejectedKeys.add(key)
    this.#markGroups(key)
  }
}

const makeGroup = (): Group => ({
  endpoints: [],
  isPassive: true,
  verdicts: new Map(),
  ejected: none,
  isCrowded: false,
})

const isSame = (a: readonly WatchedEndpoint[], b: readonly WatchedEndpoint[]): boolean =>
  a.length === b.length && a.every(({ key, node }, i) => key === b[i]?.key && node === b[i]?.node)

const sameKeys = (a: ReadonlyMap<string, Ejection>, b: ReadonlyMap<string, Ejection>): boolean =>
  a.size === b.size && [...a].every(([key, ejection]) => b.get(key) === ejection)
