// Keeps the results of upstream's specs per proxy and mode in the folder results, and writes docs/conformance.md from them.

import { existsSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs'
import { release } from 'node:os'
import { join } from 'node:path'
import { kubernetesVersion } from './cache.ts'
import { escapeCell, formatTable } from './markdown.ts'
import type { Mode, ProxyName } from './proxies.ts'
import type { SpecResult } from './run-specs.ts'
import { expectedFailures, findExpectedFailure, skips } from './spec-lists.ts'
import { renderStories } from './story-results.ts'

export interface Column {
  readonly proxy: ProxyName
  readonly mode: Mode
  /** The commit of Sluice, or the version of kube-proxy. */
  readonly version: string
  readonly date: string
  readonly nodes: number
  readonly minutes: number
  readonly specs: readonly SpecResult[]
  /** Names of specs that failed, and that kube-proxy then passed in the same cluster. */
  readonly worse: readonly string[]
  /** Names of specs that failed, and that kube-proxy then failed, too. */
  readonly compared?: readonly string[]
}

const folder = join(import.meta.dirname, 'results')
const columns: readonly (readonly [ProxyName, Mode])[] = [
  ['sluice', 'nftables'],
  ['kube-proxy', 'nftables'],
  ['sluice', 'iptables'],
  ['kube-proxy', 'iptables'],
  ['sluice', 'userspace'],
]

const pathOf = (proxy: ProxyName, mode: Mode): string => join(folder, `${proxy}-${mode}.json`)

export function readColumn(proxy: ProxyName, mode: Mode): Column | undefined {
  const path = pathOf(proxy, mode)
  return existsSync(path) ? (JSON.parse(readFileSync(path, 'utf8')) as Column) : undefined
}

/** A spec that ran again replaces its earlier result, but one that skipped itself replaces none. */
export function saveColumn(column: Column): void {
  const known = new Map(readColumn(column.proxy, column.mode)?.specs.map((spec) => [spec.name, spec]))
  for (const spec of column.specs) if (spec.state !== 'skipped' || !known.has(spec.name)) known.set(spec.name, spec)
  mkdirSync(folder, { recursive: true })
  const specs = [...known.values()].sort((a, b) => (a.name < b.name ? -1 : 1))
  const failed = new Set(specs.filter(({ state }) => state === 'failed').map(({ name }) => name))
  const found = [...(readColumn(column.proxy, column.mode)?.worse ?? []), ...column.worse]
  const worse = [...new Set(found)].filter((name) => failed.has(name))
  const compared = [
    ...new Set([...(readColumn(column.proxy, column.mode)?.compared ?? []), ...(column.compared ?? [])]),
  ]
  writeFileSync(
    pathOf(column.proxy, column.mode),
    JSON.stringify({ ...column, specs, worse, compared }, undefined, 1).concat('\n'),
  )
}

/** Specs that Sluice fails and kube-proxy does not. */
export function regressions(ours: readonly SpecResult[], theirs: readonly SpecResult[]): readonly SpecResult[] {
  const failed = new Set(theirs.filter(({ state }) => state === 'failed').map(({ name }) => name))
  return ours.filter(({ name, state }) => state === 'failed' && !failed.has(name))
}

export function writePage(): void {
  const found = columns.flatMap(([proxy, mode]) => readColumn(proxy, mode) ?? [])
  const page = join(import.meta.dirname, '../../docs/conformance.md')
  writeFileSync(page, renderPage(found))
}

function renderPage(found: readonly Column[]): string {
  const names = [...new Set(found.flatMap(({ specs }) => specs.map(({ name }) => name)))].sort()
  const cells = found.map(({ specs }) => new Map(specs.map((spec) => [spec.name, describe(spec)])))
  const title = ({ proxy, mode }: Column) => `${proxy === 'sluice' ? 'Sluice' : 'kube-proxy'} ${mode}`
  const heads = found.map(title)
  return `# Conformance

\`npm run test:cluster\` writes this page. It brings up a Kubernetes ${kubernetesVersion} cluster on one machine (control plane and nodes in network namespaces,
containerd, CoreDNS, dual stack, three zones), installs Sluice from its image by its chart, and runs upstream's own end-to-end tests of sig-network (\`e2e.test\`,
built from the same release). kube-proxy ${kubernetesVersion} runs in the same cluster as a DaemonSet, as kubeadm installs it. Kernel: Linux ${release()}.

${formatTable(
  ['', ...heads],
  [
    ['version', ...found.map(({ version }) => version)],
    ['date', ...found.map(({ date }) => date)],
    ['nodes', ...found.map(({ nodes }) => String(nodes))],
    ['passed', ...found.map((column) => String(count(column, 'passed')))],
    [
      'of these, [Conformance]',
      ...found.map(({ specs }) =>
        String(specs.filter(({ name, state }) => state === 'passed' && name.includes('[Conformance]')).length),
      ),
    ],
    [
      'of these, at the second try',
      ...found.map(({ specs }) => String(specs.filter(({ retried, state }) => retried && state === 'passed').length)),
    ],
    ['failed', ...found.map((column) => String(count(column, 'failed')))],
    ['skipped themselves', ...found.map((column) => String(count(column, 'skipped')))],
  ],
)}

${verdict(found)} A mode without a column has not been run yet. A spec that ran again replaces its earlier result; version, date and nodes are those of the last run. The ipvs mode was not run here: the kernel of the machine has no IPVS. Its own tests run in a VM (\`npm run test:ipvs\`).

## Specs that a mode cannot pass

${formatTable(
  ['mode', 'spec', 'reason'],
  expectedFailures.map(({ mode, pattern, reason }) => [mode, escapeCell(pattern), reason]),
)}

## Our own stories

${renderStories()}
## Specs that were not run

${formatTable(
  ['names that contain', 'reason'],
  skips.map(({ pattern, reason }) => [`\`${pattern.replaceAll('|', '`, `')}\``, reason]),
)}

## All specs

Seconds, or why a spec skipped itself. "2nd" means that it failed first and passed when it ran once more by itself; kube-proxy's failures show how much of that is the machine's.

${formatTable(
  ['spec', ...heads],
  names.map((name) => [escapeCell(name), ...cells.map((cell) => cell.get(name) ?? '')]),
)}
`
}

function verdict(found: readonly Column[]): string {
  const of = (proxy: ProxyName) => found.filter((column) => column.proxy === proxy)
  const theirs = of('kube-proxy')
  const worse = of('sluice').flatMap((ours) => {
    const same = theirs.find(({ mode }) => mode === ours.mode) ?? theirs[0]
    const ran = new Set(same?.specs.map(({ name }) => name))
    const compared = ours.specs.filter(({ name }) => ran.has(name))
    const names = [...ours.worse, ...regressions(compared, same?.specs ?? []).map(({ name }) => name)]
    const open = names.filter((name) => findExpectedFailure(ours.mode, name) === undefined)
    return [...new Set(open)].map((name) => `${ours.mode}: ${escapeCell(name)}`)
  })
  if (worse.length > 0) return `**Sluice fails what kube-proxy passes:** ${worse.join('; ')}.`
  const open = of('sluice').flatMap((ours) => listUncompared(ours, theirs))
  if (open.length === 0)
    return '**No spec that kube-proxy passes fails with Sluice**, apart from those that userspace mode cannot pass (below).'
  return `Failed with Sluice, and not compared with kube-proxy: ${open.join('; ')}.`
}

/** Failures of specs that kube-proxy has not run. */
function listUncompared({ mode, specs, compared }: Column, theirs: readonly Column[]): readonly string[] {
  const ran = new Set([...theirs.flatMap((column) => column.specs.map(({ name }) => name)), ...(compared ?? [])])
  const isOpen = (name: string) => !ran.has(name) && findExpectedFailure(mode, name) === undefined
  const failed = specs.filter(({ name, state }) => state === 'failed' && isOpen(name))
  return failed.map(({ name }) => `${mode}: ${escapeCell(name)}`)
}

const count = ({ specs }: Column, state: SpecResult['state']): number =>
  specs.filter((spec) => spec.state === state).length

function describe({ state, seconds, retried, message }: SpecResult): string {
  if (state === 'skipped') return `skipped: ${escapeCell(message.replace(/^skipped because /i, '')).slice(0, 80)}`
  if (state === 'failed') return '**failed**'
  return retried ? `${seconds} (2nd)` : String(seconds)
}
