// Starts `sluice` from source, for tests that run it as a process.

import { main } from '../../src/main.ts'

await main('sluice', process.argv.slice(2))
