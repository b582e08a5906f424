// Writes the documents that follow from tables: docs/commands.md, docs/flags.md, docs/json.md with its schema, docs/metrics.md,
// docs/privileges.md and docs/sluice-config.md (`npm run docs`).

import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { formatPrivilegeDocs } from '../packaging/privileges.ts'
import { formatSchema, formatSchemaDocs } from '../src/commands/answers/answer-schema.ts'
import { formatCommandDocs } from '../src/commands/command-list.ts'
import { formatFlagDocs } from '../src/config/flags/flag-help.ts'
import { formatSluiceConfigDocs } from '../src/config/sluice-config.ts'
import { formatMetricDocs } from '../src/http/metric-table.ts'

const folder = join(import.meta.dirname, '../docs')
writeFileSync(join(folder, 'commands.md'), await formatCommandDocs())
writeFileSync(join(folder, 'flags.md'), formatFlagDocs())
writeFileSync(join(folder, 'json.md'), formatSchemaDocs())
writeFileSync(join(folder, 'schema/sluice-v1.schema.json'), formatSchema())
writeFileSync(join(folder, 'metrics.md'), formatMetricDocs())
writeFileSync(join(folder, 'sluice-config.md'), formatSluiceConfigDocs())
writeFileSync(join(folder, 'privileges.md'), formatPrivilegeDocs())
