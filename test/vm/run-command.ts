// Runs any command under another kernel: `tsx test/vm/run-command.ts [--kernel bookworm] [--minutes 10] -- command…`.

import { parseArgs } from 'node:util'
import { boot } from './boot.ts'
import { providePackages } from './host-packages.ts'
import { provideKernel } from './provide-kernel.ts'

const { values, positionals } = parseArgs({
  allowPositionals: true,
  options: { kernel: { type: 'string', default: 'bookworm' }, minutes: { type: 'string', default: '10' } },
})
const why = providePackages()
if (why !== undefined || positionals.length === 0) {
  process.stderr.write(`vm: ${why ?? 'usage: run-command.ts [--kernel SUITE[:PACKAGE]] [--minutes N] -- command…'}\n`)
  process.exit(125)
}
const kernel = provideKernel(values.kernel)
process.exitCode = await boot({ kernel, command: positionals, timeoutMs: Number(values.minutes) * 60_000 })
