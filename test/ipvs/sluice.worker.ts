// Runs the whole program. It is in this folder so that it is bundled for the VM with the other programs of this tier.

import { main } from '../../src/main.ts'

await main('sluice', process.argv.slice(2))
