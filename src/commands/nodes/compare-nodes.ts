// Compares the reports of all nodes: which nodes have programmed other objects than most, and for which services. Pure.

import type { NodeReport, ObjectsSnapshot } from '../../inspect/node-report.ts'
import { SetSketch, type SketchElement } from '../../lib/set-sketch.ts'

/** How a node's objects of one service differ from those that most nodes have. */
export interface DigestDifference {
  /** Identifies the service; see `serviceKeyHash`. */
  readonly key: number
  /** `other`: another version of its objects; `missing`: the node does not know it; `extra`: only this node knows it. */
  readonly how: 'other' | 'missing' | 'extra'
}

export interface NodeComparison {
  readonly node: string
  /** `same` as most nodes, `differs` from them, or `alone` if there is no other node to compare with. */
  readonly result: 'same' | 'differs' | 'alone'
  /** RFC 3339: when the node looked at its objects. */
  readonly at: string
  /** True if most nodes looked at another time, so that a difference may be a change in between. */
  readonly isOtherTime: boolean
  readonly differences: readonly DigestDifference[]
  /** False if there are more differences than could be read. */
  readonly isComplete: boolean
}

interface Candidate {
  readonly node: string
  readonly isSilent: boolean
  /** Unix ms of the last sync. */
  readonly syncedAt: number
  readonly snapshot: ObjectsSnapshot
  readonly isOtherTime: boolean
}

/** Compares nodes that have the same IP families and digest format. `isSilent` says which reports are old: their nodes have no vote. */
export function compareNodes(
  reports: readonly NodeReport[],
  isSilent: (report: NodeReport) => boolean,
): ReadonlyMap<string, NodeComparison> {
  const groups = groupBy(
    reports.filter(({ snapshots }) => snapshots.length > 0),
    ({ families, digestFormat }) => `${digestFormat} ${families.map(({ family }) => family).join()}`,
  )
  const comparisons = groups.flatMap((group) => compareGroup(group, isSilent))
  return new Map(comparisons.map((one) => [one.node, one]))
}

function compareGroup(
  reports: readonly NodeReport[],
  isSilent: (report: NodeReport) => boolean,
): readonly NodeComparison[] {
  const time = findCommonTime(reports.filter((report) => !isSilent(report)))
  const candidates = reports.map((report): Candidate => {
    const common = report.snapshots.find(({ at }) => at === time)
    return {
      node: report.node,
      isSilent: isSilent(report),
      syncedAt: Math.max(0, ...report.families.map(({ lastSync }) => Date.parse(lastSync) || 0)),
      snapshot: common ?? (report.snapshots[0] as ObjectsSnapshot),
      isOtherTime: common === undefined,
    }
  })
  const majority = findMajority(candidates)
  return candidates.map((candidate) => compareWith(majority, candidate, candidates.length))
}

/** The time at which most nodes looked at their objects; the newest one of several. */
function findCommonTime(reports: readonly NodeReport[]): string {
  const counts = new Map<string, number>()
  for (const { at } of reports.flatMap(({ snapshots }) => snapshots)) counts.set(at, (counts.get(at) ?? 0) + 1)
  const best = [...counts].sort(([a, n], [b, m]) => m - n || Date.parse(b) - Date.parse(a))[0]
  return best?.[0] ?? ''
}

/** The snapshot that most nodes have. Of several, that of the node that synced last: a node that lags behind has not synced since. */
function findMajority(candidates: readonly Candidate[]): ObjectsSnapshot {
  const voters = candidates.filter(({ isSilent, isOtherTime }) => !isSilent && !isOtherTime)
  const groups = groupBy(voters.length > 0 ? voters : candidates, ({ snapshot }) => snapshot.hash)
  const newest = (group: readonly Candidate[]) => Math.max(...group.map(({ syncedAt }) => syncedAt))
  const [largest = []] = groups.sort((a, b) => b.length - a.length || newest(b) - newest(a))
  return (largest[0] as Candidate).snapshot
}

function compareWith(majority: ObjectsSnapshot, candidate: Candidate, nodes: number): NodeComparison {
  const { node, snapshot, isOtherTime } = candidate
  const base = { node, at: snapshot.at, isOtherTime }
  if (nodes === 1) return { ...base, result: 'alone', differences: [], isComplete: true }
  if (snapshot.hash === majority.hash) return { ...base, result: 'same', differences: [], isComplete: true }
  return { ...base, result: 'differs', ...readDifferences(majority, snapshot) }
}

function readDifferences(
  majority: ObjectsSnapshot,
  snapshot: ObjectsSnapshot,
): Pick<NodeComparison, 'differences' | 'isComplete'> {
  const [theirs, own] = [SetSketch.parse(majority.sketch), SetSketch.parse(snapshot.sketch)]
  if (theirs === undefined || own === undefined) return { differences: [], isComplete: false }
  const { onlyFirst, onlySecond, isComplete } = theirs.compare(own)
  const ownKeys = keysOf(onlySecond)
  const theirKeys = keysOf(onlyFirst)
  const differences = [
    ...[...theirKeys].map((key): DigestDifference => ({ key, how: ownKeys.has(key) ? 'other' : 'missing' })),
    ...[...ownKeys].filter((key) => !theirKeys.has(key)).map((key): DigestDifference => ({ key, how: 'extra' })),
  ]
  return { differences, isComplete }
}

const keysOf = (elements: readonly SketchElement[]): ReadonlySet<number> => new Set(elements.map(({ key }) => key))

function groupBy<T>(values: readonly T[], keyOf: (value: T) => string): T[][] {
  const groups = new Map<string, T[]>()
  for (const value of values) {
    const key = keyOf(value)
    const group = groups.get(key)
    if (group === undefined) groups.set(key, [value])
    else group.push(value)
  }
  return [...groups.values()]
}
