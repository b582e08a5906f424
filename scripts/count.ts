// Counts the results of all steps that scripts/test ran, prints every failure again, and closes with one line that machines can read.
//
// usage: tsx scripts/count.ts DIRECTORY [TIER]; with a tier it only prints the test files of it that failed. The directory holds for each step:
//   NAME.status       its exit status (NAME-list.status if the test files of a tier could not be listed)
//   NAME.files.json   if it is a tier of vitest: the test files that vitest found
//   NAME.json         if it is a tier of vitest: the report
//   NAME.txt          if it is a tier without a report: what it printed
//   NAME.again.*      if it failed and ran once more: the same of that run, for a tier of vitest with its failed files alone

import { existsSync, readdirSync, readFileSync } from 'node:fs'
import { basename, join, relative } from 'node:path'
import { stripVTControlCharacters } from 'node:util'

export interface Step {
  readonly name: string
  readonly status: number
  /** Test files that must have a result; undefined if the step is not a tier of vitest. */
  readonly files?: readonly string[] | undefined
  /** Undefined if the report is missing or is not valid JSON. */
  readonly report?: Report | undefined
  readonly text?: string | undefined
  /** The second run of a step that failed. */
  readonly again?: Pick<Step, 'status' | 'report' | 'text'> | undefined
}

/** The part of vitest's JSON report that counts. */
export interface Report {
  readonly testResults: readonly {
    readonly name: string
    readonly status: string
    readonly message: string
    readonly assertionResults: readonly {
      readonly fullName: string
      readonly status: string
      readonly failureMessages: readonly string[]
    }[]
  }[]
}

export interface Failure {
  readonly name: string
  readonly message: string
}

export interface Count {
  passed: number
  skipped: number
  readonly failures: Failure[]
  /** What failed in the first run and passed in the second one. */
  readonly unstable: Failure[]
}

export function countSteps(steps: readonly Step[]): Count {
  const total: Count = { passed: 0, skipped: 0, failures: [], unstable: [] }
  for (const step of steps) {
    const { passed, skipped, failures, unstable } = countBothRuns(step)
    total.passed += passed
    total.skipped += skipped
    total.failures.push(...failures)
    total.unstable.push(...unstable)
  }
  return total
}

/** Every file counts as in its second run, if it had one. */
function countBothRuns(step: Step): Count {
  const first = countStep(step)
  if (step.again === undefined || first.failures.length === 0) return first
  const { status, text, report } = step.again
  const second = countStep({ ...step, status, text, report: step.report && report && exchange(step.report, report) })
  const failed = new Set(second.failures.map(({ name }) => name))
  return { ...second, unstable: first.failures.filter(({ name }) => !failed.has(name)) }
}

function exchange(first: Report, second: Report): Report {
  const later = new Map(second.testResults.map((file) => [file.name, file]))
  return { testResults: first.testResults.map((file) => later.get(file.name) ?? file) }
}

/** The test files that the second run of a tier must contain. */
export function failedFiles({ testResults }: Report): readonly string[] {
  const complete = new Set(['passed', 'skipped', 'todo'])
  const failed = testResults.filter(
    (file) => file.status === 'failed' || file.assertionResults.some(({ status }) => !complete.has(status)),
  )
  return failed.map(({ name }) => relative('', name))
}

function countStep(step: Step): Count {
  const count: Count = { passed: 0, skipped: 0, failures: [], unstable: [] }
  const fail = (name: string, message: string) => void count.failures.push({ name, message })
  if (step.files !== undefined) {
    if (step.report === undefined) fail(step.name, 'the tier wrote no report')
    else countReport(step.report, step.files, count)
  } else if (step.text !== undefined) countText(step.name, step.text, count)
  if (step.status !== 0 && count.failures.length === 0) fail(step.name, `ended with status ${step.status}`)
  return count
}

/** A file that could not be loaded has no tests and counts as one failure. */
function countReport(report: Report, files: readonly string[], count: Count): void {
  const fail = (name: string, message: string) => void count.failures.push({ name, message })
  const reported = new Set(report.testResults.map(({ name }) => name))
  for (const file of files) if (!reported.has(file)) fail(relative('', file), 'the report has no result of this file')
  for (const { name, status, message, assertionResults } of report.testResults) {
    if (status === 'failed' && assertionResults.length === 0) fail(relative('', name), message)
    for (const test of assertionResults) {
      if (test.status === 'passed') count.passed++
      else if (test.status === 'skipped' || test.status === 'todo') count.skipped++
      else if (test.status === 'failed') fail(test.fullName, test.failureMessages.join('\n'))
      else fail(test.fullName, 'the test began or waited, and has no result')
    }
  }
}

/** The closing line of vitest, or the one line of a tier that this machine cannot run. */
function countText(name: string, text: string, count: Count): void {
  const plain = stripVTControlCharacters(text)
  if (/^SKIPPED tier/m.test(plain)) {
    count.skipped++
    return
  }
  const summary = /^\s*Tests\s+(.+)$/m.exec(plain)?.[1]
  if (summary === undefined) {
    count.failures.push({ name, message: 'the tier printed no result' })
    return
  }
  const of = (word: string) => Number(new RegExp(`(\\d+) ${word}`).exec(summary)?.[1] ?? 0)
  count.passed += of('passed')
  count.skipped += of('skipped')
  for (let i = 0; i < of('failed'); i++) count.failures.push({ name, message: 'see the output of the tier above' })
}

/** A long message is shown without its middle. */
export function formatFailure({ name, message }: Failure, title = 'FAILED'): string {
  const lines = stripVTControlCharacters(message).trim().split('\n')
  const shown = lines.length > 40 ? [...lines.slice(0, 10), '…', ...lines.slice(-30)] : lines
  return `${title} ${name}\n${shown.map((line) => `  ${line}`).join('\n')}`
}

export function closingLine({ passed, skipped, failures }: Count): string {
  return `${passed} passed, ${failures.length} failed, ${skipped} skipped`
}

export function readSteps(directory: string): readonly Step[] {
  const names = readdirSync(directory).filter((name) => name.endsWith('.status') && !name.endsWith('.again.status'))
  return names.sort().map((file) => {
    const name = basename(file, '.status')
    const read = (suffix: string) => readIfThere(join(directory, `${name}${suffix}`))
    const files = parse(read('.files.json')) as readonly { readonly file: string }[] | undefined
    const run = (prefix: string) => ({
      status: Number(read(`${prefix}.status`)),
      report: parse(read(`${prefix}.json`)) as Report | undefined,
      text: read(`${prefix}.txt`),
    })
    const again = read('.again.status') === undefined ? undefined : run('.again')
    return { name, files: files?.map((one) => one.file), ...run(''), again }
  })
}

function readIfThere(path: string): string | undefined {
  return existsSync(path) ? readFileSync(path, 'utf8') : undefined
}

function parse(text: string | undefined): unknown {
  if (text === undefined) return undefined
  try {
    return JSON.parse(text)
  } catch {
    return undefined
  }
}

function main(directory: string, tier: string | undefined): void {
  if (tier !== undefined) {
    const report = parse(readIfThere(join(directory, `${tier}.json`))) as Report | undefined
    for (const file of report === undefined ? [] : failedFiles(report)) console.log(file)
    return
  }
  const count = countSteps(readSteps(directory))
  for (const one of count.unstable) console.log(formatFailure(one, 'UNSTABLE, passed in its second run:'))
  for (const failure of count.failures) console.log(formatFailure(failure))
  if (count.unstable.length > 0) console.log(`${count.unstable.length} of the passed tests failed in their first run`)
  console.log(closingLine(count))
  process.exitCode = count.failures.length > 0 || count.passed === 0 ? 1 : 0
}

if (process.argv[1] === import.meta.filename) main(process.argv[2] as string, process.argv[3])
