// Adds up the reports of the test tiers and closes with one line that machines can read.
import { readFileSync } from 'node:fs'
import { stripVTControlCharacters } from 'node:util'

const total = { passed: 0, failed: 0, skipped: 0 }

/** vitest's JSON. A file that could not even be loaded has no tests, and is one failure. */
function addReport(report) {
  const unloaded = report.testResults.filter((file) => file.status === 'failed' && file.assertionResults.length === 0)
  total.passed += report.numPassedTests
  total.failed += report.numFailedTests + unloaded.length
  total.skipped += report.numPendingTests + report.numTodoTests
  for (const file of report.testResults) {
    if (file.assertionResults.length === 0 && file.status === 'failed') tell(file.name, file.message)
    for (const test of file.assertionResults) {
      if (test.status === 'failed') tell(test.fullName, test.failureMessages.join('\n'))
    }
  }
}

/** Once more at the end, where it is looked for first. */
function tell(name, message) {
  const lines = stripVTControlCharacters(message).trim().split('\n')
  const shown = lines.length > 40 ? [...lines.slice(0, 10), '…', ...lines.slice(-30)] : lines
  console.log(`FAILED ${name}\n${shown.map((line) => `  ${line}`).join('\n')}`)
}

/** vitest's last words, or the one line of a tier that was skipped. */
function addText(text) {
  const summary = /^\s*Tests\s+(.+)$/m.exec(text)?.[1] ?? ''
  for (const [, count, word] of summary.matchAll(/(\d+) (passed|failed|skipped)/g)) total[word] += Number(count)
  if (/^SKIPPED tier/m.test(text)) total.skipped++
  else if (summary === '') total.failed++
}

for (const path of process.argv.slice(2)) {
  const text = readFileSync(path, 'utf8')
  if (path.endsWith('.json')) addReport(JSON.parse(text))
  else addText(stripVTControlCharacters(text))
}
console.log(`${total.passed} passed, ${total.failed} failed, ${total.skipped} skipped`)
process.exitCode = total.failed > 0 || total.passed === 0 ? 1 : 0
