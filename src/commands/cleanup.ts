// `sluice cleanup`: removes what any mode, ours or kube-proxy's, has left on this node; or only says what that would be.

import type { Mode } from '../backend/backend.ts'
import { findLeftovers } from '../backend/leftovers.ts'
import { cleanups } from '../backend/modes.ts'
import { describeError } from '../lib/errors.ts'
import { createLogger } from '../lib/log.ts'
import type { Command, Invocation } from './command.ts'
import { outputFlag } from './command.ts'
import { printed, table } from './terminal.ts'

export const cleanupCommand: Command = {
  name: 'cleanup',
  summary: 'remove what a proxy has left on this node',
  usage: '[--dry-run] [flags]',
  about: `Removes every rule, set, virtual server and device that a proxy has made on this node, ours or kube-proxy's, in every mode, and
nothing else. Traffic to services stops. Stop the proxy first: a running one puts everything back.`,
  flags: [{ name: 'dry-run', help: 'only say what would be removed; exits with 2 if there is anything' }, outputFlag],
  examples: [
    ['sluice cleanup --dry-run', 'what is there'],
    ['sluice cleanup', 'remove it'],
  ],
  takes: [0, 0],
  run,
}

interface Outcome {
  readonly mode: Mode
  readonly removed: boolean
  readonly error: string
}

async function run({ flags, terminal }: Invocation): Promise<number> {
  const format = flags.get('output') ?? 'table'
  const found = await findLeftovers()
  const rows = found.map(({ mode, what, where }) => [mode, what, where])
  if (flags.has('dry-run')) {
    terminal.write(
      printed(found, format, () =>
        found.length === 0 ? 'Nothing to remove.\n' : table(['MODE', 'WHAT', 'WHERE'], rows, terminal),
      ),
    )
    return found.length === 0 ? 0 : 2
  }
  const outcomes: Outcome[] = []
  for (const [mode, cleanup] of cleanups) {
    const log = createLogger({ format: 'text', verbosity: 0, write: () => {} })
    try {
      await cleanup(log)
      outcomes.push({ mode, removed: found.some((one) => one.mode === mode), error: '' })
    } catch (error) {
      outcomes.push({ mode, removed: false, error: describeError(error) })
    }
  }
  terminal.write(
    printed(outcomes, format, () =>
      found.length === 0 && outcomes.every(({ error }) => error === '')
        ? 'Nothing to remove.\n'
        : table(
            ['MODE', 'OUTCOME'],
            outcomes.map(({ mode, removed, error }) => [mode, error || (removed ? 'removed' : 'nothing there')]),
            terminal,
          ),
    ),
  )
  return outcomes.some(({ error }) => error !== '') ? 1 : 0
}
