// Writes the documents that follow from tables in the sources: docs/commands.md, docs/flags.md and docs/metrics.md (`npm run docs`).

import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { commandDocs } from '../src/commands/command-list.ts'
import { flagDocs } from '../src/config/flags/flag-help.ts'
import { metricDocs } from '../src/http/metric-table.ts'

const folder = join(import.meta.dirname, '../docs')
writeFileSync(join(folder, 'commands.md'), commandDocs())
writeFileSync(join(folder, 'flags.md'), flagDocs())
writeFileSync(join(folder, 'metrics.md'), metricDocs())
