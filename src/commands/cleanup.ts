// `sluice cleanup`: removes what any mode of Sluice or kube-proxy has left on this node, or lists it with --dry-run.

import type { Mode } from '../backend/backend.ts'
import { findKeptObjects, findLeftovers } from '../backend/leftovers.ts'
import { modes } from '../backend/modes.ts'
import type { KeptObject, Leftover } from '../backend/proxy-mode.ts'
import { describeError } from '../lib/errors.ts'
import { silentLogger } from '../lib/log.ts'
import { formatParagraph, formatTable } from './answers/table.ts'
import { type Command, type Invocation, noArguments, outputFlag } from './command.ts'
import { formatAnswer, type Terminal } from './terminal.ts'

export const cleanupCommand: Command = {
  name: 'cleanup',
  usage: '[--dry-run] [flags]',
  about: `Removes every rule, set, virtual server and device that Sluice or kube-proxy has made on this node, in every mode, and nothing
else: what kubelet or other programs use as well stays, and is named. Traffic to services stops. Stop the proxy first: a running proxy puts everything back.`,
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
  const isDryRun = flags.has('dry-run')
  const found = await findLeftovers()
  const results = isDryRun ? [] : await removeAll(found)
  const kept = await findKeptObjects()
  const failed = results.some(({ error }) => error !== '')
  const describe = () => {
    const isEmpty = found.length === 0 && !failed
    const list = isDryRun ? listFound(found, terminal) : listResults(results, terminal)
    return `${isEmpty ? nothing : list}${describeKept(kept, terminal)}`
  }
  const answer = { kind: 'Cleanup', dryRun: isDryRun, found, results, kept }
  terminal.write(formatAnswer(answer, flags.get('output') ?? 'table', describe))
  if (isDryRun) return found.length === 0 ? 0 : 2
  return failed ? 1 : 0
}

function listFound(found: readonly Leftover[], terminal: Terminal): string {
  const rows = found.map(({ mode, what, where }) => [mode, what, where])
  return formatTable(['MODE', 'WHAT', 'WHERE'], rows, terminal)
}

function listResults(results: readonly CleanupResult[], terminal: Terminal): string {
  const rows = results.map(({ mode, removed, error }) => [mode, error || (removed ? 'removed' : 'nothing to remove')])
  return formatTable(['MODE', 'RESULT'], rows, terminal)
}

const describeKept = (kept: readonly KeptObject[], terminal: Terminal): string =>
  kept
    .map(({ what, where, why, commands }) => {
      const text = `Kept: ${what} in ${where}: ${why}. If no other program on this machine needs it:`
      return formatParagraph(text, terminal) + commands.map((command) => `  ${command}\n`).join('')
    })
    .join('')

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
