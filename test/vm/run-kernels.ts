// Runs kernel tiers on Debian's kernels, one boot each, and writes the table in docs/kernels.md after every test file.
//
// `npm run test:kernels [-- --kernels 5.10,6.12 --tiers ipvs --whole]`. `--whole` runs all files of the tiers and every scenario. Rows and
// cells of kernels and tiers that are not run stay unchanged.

import { readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { parseArgs } from 'node:util'
import { providePackages } from './host-packages.ts'
import type { KernelFeatures } from './kernel-features.worker.ts'
import { provideKernel } from './provide-kernel.ts'
import type { Outcome } from './runner.worker.ts'
import { kernelNames, quickFiles, runFiles, suiteOf, tiers } from './tiers.ts'

const file = join(import.meta.dirname, '../../docs/kernels.md')
const mark = '<!-- results -->'
const columns = ['suite', 'kernel', 'lacks', ...Object.keys(tiers)]
const hourMs = 3_600_000

/** The cells of a row by column, and by tier the note below the table: what failed and what was skipped. */
interface Row {
  readonly cells: Record<string, string>
  readonly notes: Record<string, string>
}

/** Reads the rows of the file, by suite. */
function readRows(): Map<string, Row> {
  const text = readFileSync(file, 'utf8').split(mark)[1] ?? ''
  const rows = new Map<string, Row>()
  for (const line of text
    .split('\n')
    .filter((one) => one.startsWith('|'))
    .slice(2)) {
    const values = line
      .split('|')
      .slice(1, -1)
      .map((cell) => cell.trim())
    const cells = Object.fromEntries(columns.map((name, i) => [name, values[i] ?? '']))
    rows.set(values[0] ?? '', { cells, notes: {} })
  }
  for (const part of text.split('\n### ').slice(1)) {
    const [title = '', ...lines] = part.split('\n')
    const [suite = '', tier = ''] = title.split(', ')
    const row = rows.get(suite)
    if (row !== undefined) row.notes[tier] = lines.join('\n').trim()
  }
  return rows
}

function writeRows(rows: ReadonlyMap<string, Row>): void {
  const known = kernelNames.map(suiteOf)
  const order = [...rows].sort(([a], [b]) => known.indexOf(a) - known.indexOf(b))
  const lines = order.map(([, { cells }]) => `| ${columns.map((name) => cells[name] || 'not run').join(' | ')} |`)
  const table = [`| ${columns.join(' | ')} |`, `|${columns.map(() => '---').join('|')}|`, ...lines].join('\n')
  const notes = order.flatMap(([suite, row]) =>
    Object.entries(row.notes).map(([tier, note]) => (note === '' ? '' : `\n### ${suite}, ${tier}\n\n${note}\n`)),
  )
  const head = readFileSync(file, 'utf8').split(mark)[0] as string
  writeFileSync(file, `${head}${mark}\n\n${table}\n${notes.join('')}`)
}

function composeCell(outcomes: readonly Outcome[], whole: boolean, ended: boolean): string {
  const count = (state: Outcome['state']) => outcomes.filter((one) => one.state === state).length
  const failed = count('failed')
  const parts = [`${count('passed')} passed`]
  if (failed > 0) parts.push(`**${failed} failed**`)
  if (count('skipped') > 0) parts.push(`${count('skipped')} skipped`)
  const how = [...(whole ? ['whole'] : []), ...(ended ? [] : ['did not end'])]
  return parts.join(', ') + (how.length > 0 ? ` (${how.join(', ')})` : '')
}

/** Skips without a reason are the same for all kernels, so only those with a reason are listed. */
function composeNote(outcomes: readonly Outcome[]): string {
  const first = (text: string) => text.split('\n')[0]?.slice(0, 200)
  return outcomes
    .filter(({ state, reason }) => state === 'failed' || (state === 'skipped' && reason !== ''))
    .map(({ name, state, reason }) => `* ${state}: ${name}: ${first(reason)}`)
    .join('\n')
}

function listMissing({ has }: KernelFeatures): string {
  const lacks = Object.entries(has).filter(([, isPresent]) => !isPresent)
  return lacks.length === 0 ? 'nothing' : lacks.map(([name]) => name).join(', ')
}

async function runKernel(name: string, wanted: readonly string[], whole: boolean): Promise<boolean> {
  const suite = suiteOf(name)
  const kernel = provideKernel(suite)
  const rows = readRows()
  const row = rows.get(suite) ?? { cells: {}, notes: {} }
  rows.set(suite, row)
  Object.assign(row.cells, { suite, kernel: kernel.release })
  const filesOf = (tier: string) => (whole ? (tiers[tier] ?? []) : quickFiles(tier))
  const outcomes: Outcome[] = []
  /** Files whose tests have all ended. */
  const complete = new Set<string | undefined>()
  const write = () => {
    for (const tier of wanted) {
      const own = outcomes.filter((one) => tiers[tier]?.includes(one.file))
      if (own.length === 0) continue
      row.cells[tier] = composeCell(own, whole, complete.has(filesOf(tier).at(-1)))
      row.notes[tier] = composeNote(own)
    }
    writeRows(rows)
  }
  const { code } = await runFiles({
    kernel,
    files: wanted.flatMap(filesOf),
    corpus: whole ? 'whole' : 'quick',
    timeoutMs: 4 * hourMs,
    onFeatures: (features) => Object.assign(row.cells, { lacks: listMissing(features) }),
    onOutcome(outcome) {
      const next = outcomes.at(-1)?.file !== outcome.file
      if (next && outcomes.length > 0) {
        complete.add(outcomes.at(-1)?.file)
        write()
      }
      outcomes.push(outcome)
    },
  })
  if (code === 0 || code === 1) complete.add(outcomes.at(-1)?.file)
  write()
  return code === 0
}

const { values } = parseArgs({
  options: {
    kernels: { type: 'string', default: kernelNames.join(',') },
    tiers: { type: 'string', default: Object.keys(tiers).join(',') },
    whole: { type: 'boolean', default: false },
  },
})
const why = providePackages()
if (why !== undefined) process.stdout.write(`SKIPPED tier kernels: ${why}\n`)
else {
  for (const name of values.kernels.split(',')) {
    if (!(await runKernel(name, values.tiers.split(','), values.whole))) process.exitCode = 1
  }
}
