// Asks the kernel whether it accepts a change by programming the change in a temporary network namespace.
//
// A transaction without commit would not do: the kernel checks some things only at commit, other modes have no transactions, and the
// running proxy owns the live table. In its own namespace the trial cannot affect anything else.

import { findMode } from '../../backend/modes.ts'
import type { Inputs } from '../../http/admin.ts'
import { DryRun, type Objects } from '../../inspect/dry-run.ts'
import { describeError } from '../../lib/errors.ts'
import { runProgram } from '../../sys/process/exec.ts'
import { type Command, noArguments } from '../command.ts'
import { ownProgram } from '../own-program.ts'

export interface TrialVerdict {
  readonly verdict: 'accepted' | 'refused' | 'unasked'
  /** Why the kernel was not asked. */
  readonly why: string
  readonly refusals: readonly string[]
}

export interface Trial extends Inputs {
  readonly after: Objects
}

export const notAsked = (why: string): TrialVerdict => ({ verdict: 'unasked', why, refusals: [] })

export async function tryInKernel(trial: Trial): Promise<TrialVerdict> {
  const { trialObstacle } = findMode(trial.identity.mode)
  if (trialObstacle !== undefined) return notAsked(trialObstacle)
  if (process.getuid?.() !== 0) return notAsked('making a network namespace needs root')
  const name = `sluice-plan-${process.pid}`
  try {
    await runProgram('ip', ['netns', 'add', name])
  } catch (error) {
    return notAsked(`cannot make a network namespace: ${describeError(error)}`)
  }
  try {
    await runProgram('ip', ['-n', name, 'link', 'set', 'lo', 'up'])
    const args = ['netns', 'exec', name, ...ownProgram(), trialCommand.name]
    const { stdout } = await runProgram('ip', args, { stdin: JSON.stringify(trial), deadlineMs: 120_000 })
    return JSON.parse(stdout) as TrialVerdict
  } catch (error) {
    return notAsked(describeError(error))
  } finally {
    await runProgram('ip', ['netns', 'del', name])
  }
}

/** The part that runs inside the namespace. */
export const trialCommand: Command = {
  name: '__trial',
  usage: '',
  about:
    'Programs a state and then a change of it in this network namespace, and prints what the kernel refused. For sluice plan.',
  flags: [],
  examples: [],
  arguments: noArguments,
  async run({ terminal }) {
    const chunks: Buffer[] = []
    for await (const chunk of process.stdin) chunks.push(chunk as Buffer)
    terminal.write(JSON.stringify(await tryHere(JSON.parse(Buffer.concat(chunks).toString()) as Trial)))
    return 0
  },
}

async function tryHere(trial: Trial): Promise<TrialVerdict> {
  const backend = findMode(trial.identity.mode).makeBackend(trial.settings)
  let dryRun: DryRun
  try {
    dryRun = await DryRun.open({ backend, views: trial.views, limits: trial.limits, appliesChanges: true })
  } catch (error) {
    // The mode itself does not work here, which says nothing about the change.
    return notAsked(describeError(error))
  }
  try {
    return await tryChange(dryRun, trial)
  } finally {
    await dryRun.close()
  }
}

async function tryChange(dryRun: DryRun, trial: Trial): Promise<TrialVerdict> {
  const before = await dryRun.replaceObjects(trial)
  const failed = before.find(({ report }) => !report.ok)
  if (failed !== undefined) {
    const why = describeError(failed.report.error)
    return notAsked(`the present state cannot be programmed in an empty namespace: ${why}`)
  }
  const refusedBefore = new Set(before.flatMap(({ report }) => report.refused.map(({ id }) => id)))
  const after = await dryRun.replaceObjects(trial.after)
  const refusals = after.flatMap(({ report }) => {
    const refused = report.refused.filter(({ id }) => !refusedBefore.has(id))
    return [...(report.ok ? [] : [describeError(report.error)]), ...describeRefusals(refused)]
  })
  return { verdict: refusals.length === 0 ? 'accepted' : 'refused', why: '', refusals }
}

/** Rules of one service that are written together are refused together: the line names the first of them and counts the others. */
function describeRefusals(refused: readonly { service: string; id: string; error: Error }[]): readonly string[] {
  const idsByReason = new Map<string, string[]>()
  for (const { service, id, error } of refused) {
    const reason = `${service}: ${error.message}`
    idsByReason.set(reason, [...(idsByReason.get(reason) ?? []), id])
  }
  return [...idsByReason].map(
    ([reason, [id, ...more]]) => `${reason} (${id}${more.length === 0 ? '' : ` and ${more.length} more`})`,
  )
}
