import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { describe, expect, it, onTestFinished } from 'vitest'
import { closingLine, countSteps, failedFiles, formatFailure, type Report, readSteps } from '../../scripts/count.ts'

const file = (name: string, ...statuses: readonly string[]): Report['testResults'][number] => ({
  name,
  status: statuses.includes('failed') ? 'failed' : 'passed',
  message: '',
  assertionResults: statuses.map((status, i) => ({
    fullName: `${name} ${i}`,
    status,
    failureMessages: status === 'failed' ? ['expected 1 to be 2'] : [],
  })),
})

const tier = (files: readonly string[], testResults: Report['testResults'], status = 0) => ({
  name: 'unit',
  status,
  files,
  report: { testResults },
})

const line = (...steps: Parameters<typeof countSteps>[0]) => closingLine(countSteps(steps))

describe('the closing line', () => {
  it('adds up the tests of all tiers', () => {
    const unit = tier(['/a', '/b'], [file('/a', 'passed', 'passed', 'skipped'), file('/b', 'failed', 'todo')], 1)
    const ipvs = {
      name: 'ipvs',
      status: 1,
      text: '\u001b[2m      Tests \u001b[22m 2 failed | 7 passed | 1 skipped (10)\n',
    }
    expect(line(unit, ipvs, { name: 'build', status: 0 })).toBe('9 passed, 3 failed, 3 skipped')
  })

  it('counts a step that ended with an error as failed, and as nothing else', () => {
    expect(line({ name: 'build', status: 2 })).toBe('0 passed, 1 failed, 0 skipped')
    expect(countSteps([{ name: 'build', status: 2 }]).failures).toEqual([
      { name: 'build', message: 'ended with status 2' },
    ])
  })

  it('counts a tier whose tests all passed and which ended with an error as failed', () => {
    expect(line(tier(['/a'], [file('/a', 'passed')], 1))).toBe('1 passed, 1 failed, 0 skipped')
  })

  it('counts a test file without a result as failed', () => {
    expect(line(tier(['/a', '/lost'], [file('/a', 'passed')]))).toBe('1 passed, 1 failed, 0 skipped')
  })

  it('counts a test without a result as failed: the runner crashed while it ran', () => {
    expect(line(tier(['/a'], [file('/a', 'passed', 'pending')], 1))).toBe('1 passed, 1 failed, 0 skipped')
  })

  it('counts a file that could not be loaded as failed', () => {
    const broken = { name: '/a', status: 'failed', message: 'SyntaxError', assertionResults: [] }
    expect(line(tier(['/a'], [broken], 1))).toBe('0 passed, 1 failed, 0 skipped')
  })

  it('counts a tier without a report, and one that printed no result, as failed', () => {
    expect(line({ name: 'unit', status: 0, files: [] })).toBe('0 passed, 1 failed, 0 skipped')
    expect(line({ name: 'ipvs', status: 0, text: 'the VM starts\n' })).toBe('0 passed, 1 failed, 0 skipped')
  })

  it('counts a tier that the machine cannot run as skipped', () => {
    const text = 'SKIPPED tier ipvs: there is no qemu\n'
    expect(line({ name: 'ipvs', status: 0, text })).toBe('0 passed, 0 failed, 1 skipped')
  })
})

describe('a second run', () => {
  const first = tier(['/a', '/b'], [file('/a', 'passed', 'failed'), file('/b', 'passed')], 1)

  it('contains the files with a test that failed or has no result, and no others', () => {
    const broken = { name: '/c', status: 'failed', message: 'SyntaxError', assertionResults: [] }
    const testResults = [...first.report.testResults, file('/p', 'passed', 'pending'), broken, file('/s', 'skipped')]
    expect(failedFiles({ testResults }).map((name) => name.replace(/^.*\//, ''))).toEqual(['a', 'p', 'c'])
  })

  it('makes a test that passes then unstable, and it counts once', () => {
    const count = countSteps([
      { ...first, again: { status: 0, report: { testResults: [file('/a', 'passed', 'passed')] } } },
    ])
    expect(closingLine(count)).toBe('3 passed, 0 failed, 0 skipped')
    expect(count.unstable).toEqual([{ name: '/a 1', message: 'expected 1 to be 2' }])
  })

  it('leaves a test failed that fails again, or fails only then', () => {
    const fails = (...statuses: readonly string[]) => ({
      ...first,
      again: { status: 1, report: { testResults: [file('/a', ...statuses)] } },
    })
    expect(countSteps([fails('passed', 'failed')])).toMatchObject({ failures: [{ name: '/a 1' }], unstable: [] })
    expect(countSteps([fails('failed', 'passed')])).toMatchObject({
      failures: [{ name: '/a 0' }],
      unstable: [{ name: '/a 1' }],
    })
  })

  it('that wrote no report, or ended with an error though its tests passed, leaves the tier failed', () => {
    expect(line({ ...first, again: { status: 1 } })).toBe('0 passed, 1 failed, 0 skipped')
    const passed = { testResults: [file('/a', 'passed', 'passed')] }
    expect(line({ ...first, again: { status: 1, report: passed } })).toBe('3 passed, 1 failed, 0 skipped')
  })

  it('replaces the text of a tier without a report', () => {
    const ipvs = { name: 'ipvs', status: 1, text: ' Tests  2 failed | 7 passed (9)\n' }
    const count = countSteps([{ ...ipvs, again: { status: 0, text: ' Tests  9 passed (9)\n' } }])
    expect(closingLine(count)).toBe('9 passed, 0 failed, 0 skipped')
    expect(count.unstable).toHaveLength(2)
  })
})

it('reads the directory that scripts/test fills', () => {
  const directory = mkdtempSync(join(tmpdir(), 'sluice-count-'))
  onTestFinished(() => rmSync(directory, { recursive: true }))
  const files = {
    'build.status': '0\n',
    'unit.status': '1\n',
    'unit.files.json': '[{"file":"/a","projectName":"unit"}]',
    'unit.json': JSON.stringify({ testResults: [file('/a', 'passed')] }),
    'e2e.status': '0\n',
    'e2e.files.json': '[]',
    'e2e.json': '{"testResults":',
    'ipvs.status': '0\n',
    'ipvs.txt': 'SKIPPED tier ipvs: there is no qemu\n',
  }
  for (const [name, text] of Object.entries(files)) writeFileSync(join(directory, name), text)
  const count = countSteps(readSteps(directory))
  expect(closingLine(count)).toBe('1 passed, 2 failed, 1 skipped')
  expect(count.failures).toEqual([
    { name: 'e2e', message: 'the tier wrote no report' },
    { name: 'unit', message: 'ended with status 1' },
  ])
})

it('shows the beginning and the end of a long message', () => {
  const message = Array.from({ length: 100 }, (_, i) => `line ${i}`).join('\n')
  const text = formatFailure({ name: 'a test', message })
  expect(text.split('\n')).toHaveLength(1 + 10 + 1 + 30)
  expect(text).toMatch(/^FAILED a test\n {2}line 0\n(?:.*\n)* {2}line 99$/)
})
