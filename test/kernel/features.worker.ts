// Asks whether nftables mode can work here, and says why not.

import { nftables } from '../../src/backend/nftables/backend.ts'
import { describeError } from '../../src/lib/errors.ts'

try {
  await nftables().families()
} catch (error) {
  process.stdout.write(`${error instanceof Error ? error.message : describeError(error)}\n`)
  process.exitCode = 1
}
