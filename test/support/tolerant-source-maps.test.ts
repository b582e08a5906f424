import { spawnSync } from 'node:child_process'
import { mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { expect, it, onTestFinished } from 'vitest'
import type { Report } from '../../scripts/count.ts'

const root = join(import.meta.dirname, '../..')

it('a test fails with the output of a child that tsx ran, and is reported', () => {
  const folder = mkdtempSync(join(tmpdir(), 'sluice-runner-'))
  onTestFinished(() => rmSync(folder, { recursive: true }))
  mkdirSync(join(folder, 'test'))
  const child = `['--import', ${JSON.stringify(join(root, 'node_modules/tsx/dist/loader.mjs'))}, '-e', "require('nowhere')"]`
  const test = `import { execFileSync } from 'node:child_process'
import { it } from ${JSON.stringify(join(root, 'node_modules/vitest/dist/index.js'))}
it('runs a child', () => void execFileSync(process.execPath, ${child}, { stdio: 'pipe' }))
`
  writeFileSync(join(folder, 'test/child.test.ts'), test)
  const report = join(folder, 'report.json')
  const options = ['--root', folder, '--config', join(root, 'vitest.config.ts'), '--project', 'unit']
  const vitest = [join(root, 'node_modules/vitest/vitest.mjs'), 'run', ...options, '--reporter=json']
  const { stderr } = spawnSync(process.execPath, [...vitest, `--outputFile=${report}`], { cwd: root, encoding: 'utf8' })
  expect(stderr).not.toContain('Unhandled')
  const { testResults } = JSON.parse(readFileSync(report, 'utf8')) as Report
  const results = testResults.flatMap(({ assertionResults }) => assertionResults)
  expect(results.map(({ status }) => status)).toEqual(['failed'])
  expect(results[0]?.failureMessages[0]).toMatch(/Cannot find module 'nowhere'(?:.|\n)*node_modules\/tsx/)
})
