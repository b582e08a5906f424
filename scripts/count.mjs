// Adds up the JSON reports of the test tiers and closes with one line that machines can read.
import { readFileSync } from 'node:fs'

const total = { passed: 0, failed: 0, skipped: 0 }
for (const path of process.argv.slice(2)) {
  const report = JSON.parse(readFileSync(path, 'utf8'))
  total.passed += report.numPassedTests
  total.failed += report.numFailedTests + report.testResults.filter((file) => file.status === 'failed' && file.assertionResults.length === 0).length
  total.skipped += report.numPendingTests + report.numTodoTests
}
console.log(`${total.passed} passed, ${total.failed} failed, ${total.skipped} skipped`)
process.exitCode = total.failed > 0 || total.passed === 0 ? 1 : 0
