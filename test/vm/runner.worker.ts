// Runs one bundled test file in a VM: `node runner.worker.mjs label file.mjs [pattern]`. Prints a line per test, and writes the same as JSON for the host.

import { appendFileSync } from 'node:fs'
import { type File, startTests, type Task, type TaskResult, type Test, type VitestRunner } from '@vitest/runner'
import { getFullName, getTests } from '@vitest/runner/utils'
import { expect } from './vitest-in-vm.ts'

/** An emulated CPU is about twenty times slower. */
const timeout = 600_000

export interface Outcome {
  readonly file: string
  readonly name: string
  readonly state: 'passed' | 'failed' | 'skipped'
  readonly seconds: number
  /** Why it failed or was skipped. */
  readonly reason: string
}

const [label = '', file = '', pattern] = process.argv.slice(2)
const reported = new Set<Task>()

const states = { pass: 'passed', fail: 'failed' } as const

function toOutcome(test: Test): Outcome {
  const { state, duration = 0, errors = [], note = '' } = (test.result ?? {}) as Partial<TaskResult> & { note?: string }
  return {
    file: label,
    name: getFullName(test, ' > ').replace(/^\S+ > /, ''),
    state: state === 'pass' || state === 'fail' ? states[state] : 'skipped',
    seconds: Math.round(duration / 100) / 10,
    reason: state === 'fail' ? errors.map(({ message, diff = '' }) => `${message}\n${diff}`.trim()).join('\n') : note,
  }
}

function report(test: Test): void {
  if (reported.has(test)) return
  reported.add(test)
  const outcome = toOutcome(test)
  const { name, state, seconds, reason } = outcome
  const sign = { passed: '✓', failed: '✗', skipped: '↓' }[state]
  process.stdout.write(
    `${sign} ${label} ${name} ${seconds} s\n${reason === '' ? '' : `    ${reason.replaceAll('\n', '\n    ')}\n`}`,
  )
  const results = process.env.SLUICE_RESULTS
  if (results !== undefined) appendFileSync(results, `${JSON.stringify(outcome)}\n`)
}

const runner: VitestRunner = {
  config: {
    root: process.cwd(),
    setupFiles: [],
    name: undefined,
    passWithNoTests: true,
    testNamePattern: pattern === undefined ? undefined : new RegExp(pattern),
    allowOnly: false,
    sequence: { seed: 0, hooks: 'stack', setupFiles: 'list' },
    chaiConfig: undefined,
    // As many as the corpus has lanes, so that no test's time includes waiting for another.
    maxConcurrency: 2,
    testTimeout: timeout,
    hookTimeout: timeout,
    retry: 0,
    includeTaskLocation: false,
    tags: [],
    tagsFilter: undefined,
    strictTags: false,
  } as unknown as VitestRunner['config'],
  importFile: (path) => import(path),
  extendTaskContext: (context) => Object.assign(context, { expect }),
  onAfterRunTask: report,
}

// A test may wait for something that does not keep a process alive, such as notifications of the kernel.
setInterval(() => undefined, 60_000)
const begun = performance.now()
const files = await startTests([{ filepath: file, fileTags: [], testLocations: undefined }], runner)
const tests = getTests(files)
for (const test of tests) report(test)
/** A file that cannot be loaded and a hook that fails are failures of their own. */
const broken = [...files, ...files.flatMap(suites)].flatMap((task) => task.result?.errors ?? [])
for (const { message, stack } of broken) process.stdout.write(`✗ ${label}: ${stack ?? message}\n`)
if (broken.length > 0 && process.env.SLUICE_RESULTS !== undefined) {
  const reason = broken.map(({ message }) => message).join('\n')
  const outcome: Outcome = { file: label, name: label, state: 'failed', seconds: 0, reason }
  appendFileSync(process.env.SLUICE_RESULTS, `${JSON.stringify(outcome)}\n`)
}
const seconds = Math.round((performance.now() - begun) / 1000)
process.stdout.write(`${label}: ${seconds} s\n`)
process.exit(broken.length > 0 || tests.some((test) => test.result?.state === 'fail') ? 1 : 0)

function suites(file: File): Task[] {
  const below = (task: Task): Task[] => (task.type === 'suite' ? [task, ...task.tasks.flatMap(below)] : [])
  return file.tasks.flatMap(below)
}
