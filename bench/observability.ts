// Measures what observability costs, section by section; each section is a file of its own: npm run bench:observability [SECTION...]

import { measureCounters } from './observability-counters.ts'
import { measureFlows } from './observability-flows.ts'
import { measureHistory } from './observability-history.ts'
import { measurePage } from './observability-page.ts'

/** A section measures in namespaces of its own and returns the lines of its result. */
const sections: Readonly<Record<string, () => Promise<readonly string[]>>> = {
  counters: measureCounters,
  flows: measureFlows,
  history: async () => measureHistory(),
  page: measurePage,
}

const wanted = process.argv.slice(2)
for (const [name, measure] of Object.entries(sections)) {
  if (wanted.length > 0 && !wanted.includes(name)) continue
  console.log(`## ${name}\n`)
  for (const line of await measure()) console.log(line)
  console.log('')
}
