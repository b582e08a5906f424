// `sluice cleanup`: removes what any mode of Sluice or kube-proxy has left on this node, or lists it with --dry-run.

import type { Mode } from '../backend/backend.ts'
import { findLeftovers } from '../backend/leftovers.ts'
import { modes } from '../backend/modes.ts'
import type { Leftover } from '../backend/proxy-mode.ts'
import { describeError } from '../lib/errors.ts'
import { silentLogger } from '../lib/log.ts'
import { type Command, type Invocation, noArguments, outputFlag } from './command.ts'
import { formatAnswer, formatTable } from './terminal.ts'

export const cleanupCommand: Command = {
  name: 'cleanup',
  summary: 'remove what a proxy has left on this node',
  usage: '[--dry-run] [flags]',
  about: `Removes every rule, set, virtual server and device that Sluice or kube-proxy has made on this node, in every mode, and nothing
else. Traffic to services stops. Stop the proxy first: a running proxy puts everything back.`,
  flags: [{ name: 'dry-run', help: 'only list what would be removed; exits with 2 if there is anything' }, outputFlag],
  examples: [
    ['sluice cleanup --dry-run', 'list what is left'],
    ['sluice cleanup', 'remove it'],
  ],
  arguments: noArguments,
  run,
}

interface CleanupResult {
  readonly mode: Mode
  readonly removed: boolean
  readonly error: string
}

const nothing = 'Nothing to remove.\n'

async function run({ flags, terminal }: Invocation): Promise<number> {
  const format = flags.get('output') ?? 'table'
  const found = await findLeftovers()
  if (flags.has('dry-run')) {
    const rows = found.map(({ mode, what, where }) => [mode, what, where])
    const list = () => formatTable(['MODE', 'WHAT', 'WHERE'], rows, terminal)
    terminal.write(formatAnswer(found, format, () => (found.length === 0 ? nothing : list())))
    return found.length === 0 ? 0 : 2
  }
  const results = await removeAll(found)
  const failed = results.some(({ error }) => error !== '')
  const rows = results.map(({ mode, removed, error }) => [mode, error || (removed ? 'removed' : 'nothing to remove')])
  const list = () => formatTable(['MODE', 'RESULT'], rows, terminal)
  terminal.write(formatAnswer(results, format, () => (found.length === 0 && !failed ? nothing : list())))
  return failed ? 1 : 0
}

/** A mode whose cleanup fails does not keep the other modes from theirs. */
async function removeAll(found: readonly Leftover[]): Promise<readonly CleanupResult[]> {
  const results: CleanupResult[] = []
  for (const { name: mode, leftovers } of modes) {
    try {
      await leftovers.cleanup(silentLogger)
      results.push({ mode, removed: found.some((one) => one.mode === mode), error: '' })
    } catch (error) {
      results.push({ mode, removed: false, error: describeError(error) })
    }
  }
  return results
}
