// The program itself, started from source: for tests that need it as a process of its own.

import { main } from '../../src/main.ts'

await main('sluice', process.argv.slice(2))
