// Runs upstream's e2e.test with ginkgo from the fabric, and reads its report. A spec that fails runs once more by itself.

import { existsSync, mkdirSync, readFileSync, rmSync } from 'node:fs'
import { program } from './cache.ts'
import type { RealCluster } from './real-cluster.ts'
import { escapeName } from './spec-lists.ts'

export type SpecState = 'passed' | 'failed' | 'skipped'

export interface SpecResult {
  readonly name: string
  readonly state: SpecState
  readonly seconds: number
  /** Why it failed or skipped itself. */
  readonly message: string
  /** Whether it failed the first time. */
  readonly retried: boolean
}

export interface Selection {
  /** Regular expressions, one of which the name of a spec must match. */
  readonly focus: readonly string[]
  readonly skip: readonly string[]
  readonly processes: number
}

export async function runSpecs(
  cluster: RealCluster,
  label: string,
  selection: Selection,
): Promise<readonly SpecResult[]> {
  const first = await runOnce(cluster, label, selection)
  const failed = first.filter(({ state }) => state === 'failed')
  if (failed.length === 0) return first
  console.log(`${failed.length} failed; they run once more: ${failed.map(({ name }) => name).join('; ')}`)
  const again = await runOnce(cluster, `${label}-again`, {
    focus: failed.map(({ name }) => escapeName(name)),
    skip: [],
    processes: Math.min(2, selection.processes),
  })
  const second = new Map(again.map((result) => [result.name, { ...result, retried: true }]))
  return first.map((result) => (result.state === 'failed' ? (second.get(result.name) ?? result) : result))
}

async function runOnce(cluster: RealCluster, label: string, selection: Selection): Promise<readonly SpecResult[]> {
  const { focus, skip, processes } = selection
  const folder = cluster.run.file(`specs-${label}`)
  mkdirSync(folder, { recursive: true })
  const report = `${folder}/report.json`
  rmSync(report, { force: true })
  const command = [
    program('ginkgo'),
    'run',
    `--nodes=${processes}`,
    '--no-color',
    '--timeout=2h',
    ...focus.map((pattern) => `--focus=${pattern}`),
    ...skip.map((pattern) => `--skip=${pattern}`),
    `--json-report=${report}`,
    program('e2e.test'),
    '--',
    `--kubeconfig=${cluster.plane.kubeconfig}`,
    '--provider=skeleton',
    `--kubectl-path=${program('kubectl')}`,
    `--num-nodes=${cluster.nodes.length}`,
    `--report-dir=${folder}`,
    '--disable-log-dump=true',
    '--dump-logs-on-failure=false',
    '--minStartupPods=0',
    '--prepull-images=false',
  ]
  const quoted = command.map((word) => `'${word.replaceAll("'", "'\\''")}'`).join(' ')
  const script = `cd ${folder} && HOME=${folder} PATH=${program('')}:$PATH ${quoted} >output.txt 2>&1`
  // Ginkgo's exit status says that something failed, which the report says better.
  const error = await cluster.fabric
    .run(['bash', '-c', script], { limitMs: 2 * 3600_000 })
    .catch((failure: Error) => failure)
  if (!existsSync(report))
    throw new Error(`ginkgo wrote no report: ${readFileSync(`${folder}/output.txt`, 'utf8').slice(-2000)}`, {
      cause: error,
    })
  return readReport(readFileSync(report, 'utf8'))
}

interface GinkgoSpec {
  readonly ContainerHierarchyTexts: readonly string[] | null
  readonly LeafNodeText: string
  readonly LeafNodeType: string
  readonly RunTime: number
  readonly State: string
  readonly Failure?: { readonly Message?: string }
}

/** Returns the specs that were chosen, in the order of their names. A spec that was not chosen is skipped without a message. */
export function readReport(text: string): readonly SpecResult[] {
  const reports = JSON.parse(text) as readonly { readonly SpecReports: readonly GinkgoSpec[] | null }[]
  const specs = reports.flatMap((report) => report.SpecReports ?? [])
  return specs
    .filter((spec) => spec.LeafNodeType === 'It' && (spec.State !== 'skipped' || spec.Failure?.Message !== undefined))
    .map((spec) => ({
      name: [...(spec.ContainerHierarchyTexts ?? []), spec.LeafNodeText].join(' ').replace(/^\[sig-network\] /, ''),
      state: stateOf(spec.State),
      seconds: Math.round(spec.RunTime / 1e9),
      message: spec.Failure?.Message ?? '',
      retried: false,
    }))
    .sort((a, b) => (a.name < b.name ? -1 : 1))
}

/** Also a spec that was interrupted or panicked has failed. */
function stateOf(state: string): SpecState {
  return state === 'passed' || state === 'skipped' ? state : 'failed'
}
