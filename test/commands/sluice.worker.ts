// Starts `sluice` from source, for tests that run it as a process.

import { main } from '../../src/main.ts'
import { useTestFolders } from '../support/program-folders.ts'
import { useShortWaits } from '../support/short-waits.ts'

useTestFolders()
useShortWaits()
await main('sluice', process.argv.slice(2))
