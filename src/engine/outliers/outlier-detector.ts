// Decides which endpoints get no new connections for a while, because connections to them fail while others answer. No I/O, and no clock:
// the caller passes the time in milliseconds.
//
// 1. An endpoint fails when a number of connections in a row were refused or not answered, and none was answered for a second. Single
//    failures between answers, such as resets under load, never add up.
// 2. A node fails when at least two of its endpoints fail to answer and none of its endpoints answers: their failures count together, so a
//    dead node is found by fewer connections than each of its endpoints would need.
// 3. An endpoint is ejected only from groups in which others answer. A group never loses more than a share of its endpoints, and never
//    its last one; if more of them fail, all are used again, since then the failures say little about single endpoints.
// 4. An ejected endpoint comes back on trial after an interval. Its first failure then ejects it again, for twice as long; an answer ends
//    the trial.

export interface OutlierSettings {
  /** Connections in a row that must fail. */
  readonly failures: number
  /** The share of a group that may be ejected, from 0 to 1. */
  readonly maxShare: number
  readonly intervalMs: number
  readonly maxIntervalMs: number
}

export interface WatchedEndpoint {
  /** `ip:port`. */
  readonly key: string
  /** '' if unknown. */
  readonly node: string
}

export type Failure = 'refused' | 'unanswered'

export interface Ejection {
  readonly why: string
  readonly until: number
}

/** An endpoint without an answer for this long may be dead; one that has answered since is not. */
const quietMs = 1_000
/** Answers of others count for this long. */
const windowMs = 10_000

interface EndpointState {
  readonly node: string
  /** The number of groups that have the endpoint. */
  groups: number
  failures: number
  failingSince: number
  lastFailure: Failure
  answeredAt: number
  /** Undefined if the endpoint is not ejected. */
  ejection: Ejection | undefined
  isOnTrial: boolean
  /** How often it was ejected in a row. */
  times: number
  interval: number
}

interface Group {
  readonly endpoints: readonly WatchedEndpoint[]
  ejected: ReadonlyMap<string, Ejection>
}

const none: ReadonlyMap<string, Ejection> = new Map()

export class OutlierDetector {
  readonly #settings: OutlierSettings
  readonly #endpoints = new Map<string, EndpointState>()
  readonly #groups = new Map<string, Group>()

  constructor(settings: OutlierSettings) {
    this.#settings = settings
  }

  get isIdle(): boolean {
    return this.#groups.size === 0
  }

  /** The number of endpoints that are ejected from a group now. */
  countEjected(): number {
    let count = 0
    for (const { ejected } of this.#groups.values()) count += ejected.size
    return count
  }

  has(key: string): boolean {
    return this.#endpoints.has(key)
  }

  /** Sets the endpoints of a group, which share the connections to one service port. */
  setGroup(id: string, endpoints: readonly WatchedEndpoint[]): void {
    const before = this.#groups.get(id)
    if (before !== undefined && isSame(before.endpoints, endpoints)) return
    for (const { key, node } of endpoints) this.#add(key, node)
    for (const { key } of before?.endpoints ?? []) this.#remove(key)
    this.#groups.set(id, { endpoints, ejected: before?.ejected ?? none })
  }

  dropGroup(id: string): void {
    for (const { key } of this.#groups.get(id)?.endpoints ?? []) this.#remove(key)
    this.#groups.delete(id)
  }

  /** The ejected endpoints of a group, as of the last decision. */
  ejected(id: string): ReadonlyMap<string, Ejection> {
    return this.#groups.get(id)?.ejected ?? none
  }

  answered(key: string, now: number): void {
    const state = this.#endpoints.get(key)
    if (state === undefined) return
    state.failures = 0
    state.answeredAt = now
    if (state.ejection !== undefined) return
    state.isOnTrial = false
  }

  failed(key: string, failure: Failure, now: number): void {
    const state = this.#endpoints.get(key)
    if (state === undefined) return
    if (state.failures === 0) state.failingSince = now
    state.failures++
    state.lastFailure = failure
  }

  /** Returns the groups whose ejected endpoints change. */
  decide(now: number): readonly string[] {
    this.#endEjections(now)
    const failing = this.#findFailing(now)
    const changed: string[] = []
    for (const [id, group] of this.#groups) {
      const ejected = this.#choose(group, failing, now)
      if (sameKeys(ejected, group.ejected)) continue
      group.ejected = ejected
      changed.push(id)
    }
    return changed
  }

  #add(key: string, node: string): void {
    const state = this.#endpoints.get(key)
    if (state === undefined) this.#endpoints.set(key, makeState(node))
    else state.groups++
  }

  #remove(key: string): void {
    const state = this.#endpoints.get(key)
    if (state !== undefined && --state.groups === 0) this.#endpoints.delete(key)
  }

  #endEjections(now: number): void {
    for (const state of this.#endpoints.values()) {
      if (state.ejection !== undefined && now >= state.ejection.until) {
        state.ejection = undefined
        state.isOnTrial = true
        state.failures = 0
      } else if (state.times > 0 && state.ejection === undefined && !state.isOnTrial && state.failures === 0) {
        // It has answered since its trial. After another interval its past is forgotten.
        if (now - state.answeredAt < quietMs && now - state.failingSince > 2 * state.interval) state.times = 0
      }
    }
  }

  /** The reasons of those endpoints that fail and are not ejected. */
  #findFailing(now: number): ReadonlyMap<string, string> {
    const found = new Map<string, string>()
    const nodes = this.#findFailingNodes(now)
    for (const [key, state] of this.#endpoints) {
      if (state.ejection !== undefined) continue
      const enough = state.isOnTrial ? 1 : this.#settings.failures
      if (state.failures >= enough && now - state.answeredAt >= quietMs) found.set(key, describeStreak(state))
      else if (nodes.has(state.node)) found.set(key, `no endpoint on node ${state.node} answers`)
    }
    return found
  }

  #findFailingNodes(now: number): ReadonlySet<string> {
    const nodes = new Map<string, { failures: number; endpoints: number; since: number; answeredAt: number }>()
    for (const { node, failures, failingSince, answeredAt, lastFailure } of this.#endpoints.values()) {
      if (node === '') continue
      const seen = nodes.get(node) ?? { failures: 0, endpoints: 0, since: now, answeredAt: Number.NEGATIVE_INFINITY }
      seen.answeredAt = Math.max(seen.answeredAt, answeredAt)
      // A dead node does not refuse connections.
      if (failures > 0 && lastFailure === 'unanswered') {
        seen.failures += failures
        seen.endpoints++
        seen.since = Math.min(seen.since, failingSince)
      }
      nodes.set(node, seen)
    }
    const isDead = ([, one]: readonly [
      string,
      { failures: number; endpoints: number; since: number; answeredAt: number },
    ]) =>
      one.endpoints >= 2 &&
      one.failures >= this.#settings.failures &&
      one.answeredAt < one.since &&
      now - one.answeredAt >= quietMs
    return new Set([...nodes].filter(isDead).map(([node]) => node))
  }

  #choose(group: Group, failing: ReadonlyMap<string, string>, now: number): ReadonlyMap<string, Ejection> {
    const { endpoints } = group
    const out = endpoints.filter(({ key }) => failing.has(key) || this.#endpoints.get(key)?.ejection !== undefined)
    const most = Math.min(Math.floor(this.#settings.maxShare * endpoints.length), endpoints.length - 1)
    if (out.length === 0 || out.length > most) return none
    const doOthersAnswer = endpoints.some(({ key }) => {
      const state = this.#endpoints.get(key)
      return state !== undefined && !out.some((one) => one.key === key) && now - state.answeredAt < windowMs
    })
    const ejected = new Map<string, Ejection>()
    for (const { key } of out) {
      const state = this.#endpoints.get(key) as EndpointState
      const reason = failing.get(key)
      if (state.ejection === undefined && reason !== undefined && doOthersAnswer) this.#eject(state, reason, now)
      if (state.ejection !== undefined) ejected.set(key, state.ejection)
    }
    return ejected
  }

  #eject(state: EndpointState, why: string, now: number): void {
    const { intervalMs, maxIntervalMs } = this.#settings
    state.interval = Math.min(maxIntervalMs, intervalMs * 2 ** Math.min(state.times, 20))
    state.times++
    state.isOnTrial = false
    state.ejection = { why, until: now + state.interval }
  }
}

const makeState = (node: string): EndpointState => ({
  node,
  groups: 1,
  failures: 0,
  failingSince: Number.NEGATIVE_INFINITY,
  lastFailure: 'unanswered',
  answeredAt: Number.NEGATIVE_INFINITY,
  ejection: undefined,
  isOnTrial: false,
  times: 0,
  interval: 0,
})

const describeStreak = ({ failures, lastFailure }: EndpointState): string => {
  const verb = lastFailure === 'refused' ? 'refused' : 'not answered'
  return failures === 1
    ? `its connection on trial was ${verb}`
    : `${failures} connections in a row failed, the last was ${verb}`
}

const isSame = (a: readonly WatchedEndpoint[], b: readonly WatchedEndpoint[]): boolean =>
  a.length === b.length && a.every(({ key, node }, i) => key === b[i]?.key && node === b[i]?.node)

const sameKeys = (a: ReadonlyMap<string, Ejection>, b: ReadonlyMap<string, Ejection>): boolean =>
  a.size === b.size && [...a].every(([key, ejection]) => b.get(key) === ejection)
