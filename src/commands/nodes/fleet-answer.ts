// Judges every node of a fleet by its report, its pod and the comparison with the others. Pure.

import { serviceKeyHash } from '../../engine/service-digests.ts'
import type { FamilyReport, NodeReport } from '../../inspect/node-report.ts'
import { count } from '../../lib/plural.ts'
import { compareNodes, type NodeComparison } from './compare-nodes.ts'
import type { Fleet, FleetNode } from './fleet-reader.ts'

/** The answer of `sluice nodes -o json`. */
export interface FleetAnswer {
  readonly apiVersion: 'sluice/v1'
  readonly kind: 'Fleet'
  readonly nodes: readonly NodeAnswer[]
  /** Sentences about what could not be read. */
  readonly remarks: readonly string[]
}

export interface NodeAnswer {
  readonly node: string
  readonly program: 'sluice' | 'kube-proxy' | 'unknown'
  /** '' if it is not known. */
  readonly version: string
  readonly mode: string
  readonly families: readonly FamilyReport[]
  /** RFC 3339, '' if it is not known. */
  readonly lastSync: string
  readonly reportedAt: string
  readonly services: number
  readonly counts: Readonly<Record<'failedSyncs' | 'quarantined' | 'conflicts' | 'drifts' | 'invalidManifests', number>>
  /**
   * `ok`; `differs` from most nodes; `failing`: the last sync failed; `silent`: no report for three intervals; `unreported`: Sluice runs and
   * does not report; `uncompared`: another proxy runs; `absent`: no proxy was found.
   */
  readonly state: 'ok' | 'differs' | 'failing' | 'silent' | 'unreported' | 'uncompared' | 'absent'
  /** True if most nodes looked at their objects at another time, so that a difference may be a change in between. */
  readonly comparedAtOtherTime: boolean
  readonly differences: readonly NamedDifference[]
  /** False if there are more differences than these. */
  readonly differencesComplete: boolean
  /** One sentence per thing that is wrong. */
  readonly problems: readonly string[]
}

export interface NamedDifference {
  /** `namespace/name`; '' if the name is not known. */
  readonly service: string
  readonly how: 'other' | 'missing' | 'extra'
}

/** `now` is in Unix ms. `names` are the services of the API server; undefined if they could not be listed. */
export function judgeFleet({ nodes, remarks }: Fleet, names: readonly string[] | undefined, now: number): FleetAnswer {
  const isSilent = (report: NodeReport) => silentMs(report, now) > 0
  const reports = nodes.flatMap(({ report }) => report ?? [])
  const comparisons = compareNodes(reports, isSilent)
  const nameOf = indexNames(names ?? [])
  return {
    apiVersion: 'sluice/v1',
    kind: 'Fleet',
    nodes: nodes.map((node) => judgeNode(node, comparisons.get(node.name), { now, nameOf })),
    remarks,
  }
}

/** Returns whether any comparison found a difference, so that the names of services are needed. */
export const hasDifferences = ({ nodes }: FleetAnswer): boolean =>
  nodes.some(({ differences }) => differences.length > 0)

/** How much older than three intervals a report is; 0 if it is younger. */
function silentMs({ reportedAt, intervalSeconds }: NodeReport, now: number): number {
  const age = now - (Date.parse(reportedAt) || 0)
  return age > 3_000 * Math.max(intervalSeconds, 1) ? age : 0
}

interface JudgeContext {
  readonly now: number
  readonly nameOf: (key: number) => string
}

const noCounts: NodeAnswer['counts'] = { failedSyncs: 0, quarantined: 0, conflicts: 0, drifts: 0, invalidManifests: 0 }

function judgeNode(node: FleetNode, comparison: NodeComparison | undefined, context: JudgeContext): NodeAnswer {
  const { report } = node
  if (report === undefined) return judgeByPod(node)
  const differences = (comparison?.differences ?? []).map(({ key, how }) => ({ service: context.nameOf(key), how }))
  const { failedSyncs, quarantined, conflicts, drifts, invalidManifests } = report
  return {
    node: node.name,
    program: 'sluice',
    version: report.version,
    mode: report.mode,
    families: report.families,
    lastSync:
      report.families
        .map(({ lastSync }) => lastSync)
        .sort()
        .at(-1) ?? '',
    reportedAt: report.reportedAt,
    services: report.services,
    counts: { failedSyncs, quarantined, conflicts, drifts, invalidManifests },
    state: stateOf(report, comparison, context.now),
    comparedAtOtherTime: comparison?.isOtherTime ?? false,
    differences: differences.sort((a, b) => (a.service < b.service ? -1 : 1)),
    differencesComplete: comparison?.isComplete ?? true,
    problems: listProblems(report),
  }
}

function stateOf(report: NodeReport, comparison: NodeComparison | undefined, now: number): NodeAnswer['state'] {
  if (silentMs(report, now) > 0) return 'silent'
  if (report.families.some(({ error }) => error !== '')) return 'failing'
  return comparison?.result === 'differs' ? 'differs' : 'ok'
}

function listProblems({ families, quarantined, conflicts, invalidManifests }: NodeReport): readonly string[] {
  return [
    ...families.flatMap(({ family, error }) =>
      error === '' ? [] : [`the last sync of IPv${family} failed: ${error}`],
    ),
    ...(quarantined > 0 ? [`${count(quarantined, 'service')} in quarantine`] : []),
    ...(conflicts > 0 ? [`${count(conflicts, 'address conflict')}`] : []),
    ...(invalidManifests > 0 ? [`${count(invalidManifests, 'invalid manifest')}`] : []),
  ]
}

/** Only the image of the pod says what runs there. */
function judgeByPod({ name, pod }: FleetNode): NodeAnswer {
  const [path = '', tag = ''] = (pod?.image ?? '').split('@')[0]?.split(/:(?=[^/]*$)/) ?? []
  const image = path.split('/').at(-1) ?? ''
  const isSluice = image.includes('sluice')
  const program = isSluice ? 'sluice' : 'kube-proxy'
  const runningState = isSluice ? 'unreported' : 'uncompared'
  return {
    node: name,
    program: pod === undefined ? 'unknown' : program,
    version: tag,
    mode: '',
    families: [],
    lastSync: '',
    reportedAt: '',
    services: 0,
    counts: noCounts,
    state: pod === undefined ? 'absent' : runningState,
    comparedAtOtherTime: false,
    differences: [],
    differencesComplete: true,
    problems: pod !== undefined && !pod.isRunning ? [`pod ${pod.name} does not run`] : [],
  }
}

/** Two names with one hash are both named. */
function indexNames(names: readonly string[]): (key: number) => string {
  const byKey = new Map<number, string>()
  for (const name of names) {
    const key = serviceKeyHash(name)
    const other = byKey.get(key)
    byKey.set(key, other === undefined ? name : `${other} or ${name}`)
  }
  return (key) => byKey.get(key) ?? ''
}
