// Asks the kernel about a change by really programming it, in a network namespace that is made for this and thrown away.
//
// Why not a transaction that ends without commit: the kernel checks some things only at commit, other modes have no transactions, and
// the live table is owned by the running proxy. A namespace of its own needs no care at all: nothing in it is anybody else's.

import type { Inputs } from '../../http/admin.ts'
import { DryRun, type Objects } from '../../inspect/dry-run.ts'
import { describeError } from '../../lib/errors.ts'
import { runProgram } from '../../sys/process/exec.ts'
import type { Command } from '../command.ts'
import { ownProgram } from '../own-program.ts'
import { plannerOf } from '../sources/source.ts'

export interface TrialVerdict {
  readonly verdict: 'accepted' | 'refused' | 'not asked'
  /** Why it was not asked. */
  readonly why: string
  readonly refusals: readonly string[]
}

export interface Trial extends Inputs {
  readonly after: Objects
}

export async function checkInKernel(trial: Trial): Promise<TrialVerdict> {
  const notAsked = (why: string): TrialVerdict => ({ verdict: 'not asked', why, refusals: [] })
  if (trial.identity.mode === 'userspace')
    return notAsked('userspace mode programs sockets, which it would have to open')
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
  summary: '',
  usage: '',
  about: 'Programs a state and a change of it where it is started, and tells what the kernel refused. For sluice plan.',
  flags: [],
  examples: [],
  takes: [0, 0],
  hidden: true,
  async run({ terminal }) {
    const chunks: Buffer[] = []
    for await (const chunk of process.stdin) chunks.push(chunk as Buffer)
    terminal.write(JSON.stringify(await tryHere(JSON.parse(Buffer.concat(chunks).toString()) as Trial)))
    return 0
  },
}

async function tryHere(trial: Trial): Promise<TrialVerdict> {
  const backend = plannerOf(trial.identity.mode, trial.settings)
  let twin: DryRun
  try {
    twin = await DryRun.open({ backend, views: trial.views, real: true })
  } catch (error) {
    // The mode itself does not work here, which says nothing about the change.
    return { verdict: 'not asked', why: describeError(error), refusals: [] }
  }
  try {
    const before = await twin.replaceObjects(trial)
    const failed = before.find(({ report }) => !report.ok)
    if (failed !== undefined) {
      const why = `even the state of now cannot be programmed in an empty namespace: ${describeError(failed.report.error)}`
      return { verdict: 'not asked', why, refusals: [] }
    }
    const known = new Set(before.flatMap(({ report }) => report.refused.map(({ id }) => id)))
    const after = await twin.replaceObjects(trial.after)
    const refusals = after.flatMap(({ report }) => {
      const fresh = report.refused.filter(({ id }) => !known.has(id))
      return [...(report.ok ? [] : [describeError(report.error)]), ...byReason(fresh)]
    })
    return { verdict: refusals.length === 0 ? 'accepted' : 'refused', why: '', refusals }
  } finally {
    await twin.close()
  }
}

/** A service whose rules go in together is refused together: said once, with the first of them. */
function byReason(refused: readonly { service: string; id: string; error: Error }[]): readonly string[] {
  const reasons = new Map<string, string[]>()
  for (const { service, id, error } of refused) {
    const reason = `${service}: ${error.message}`
    const ids = reasons.get(reason)
    if (ids === undefined) reasons.set(reason, [id])
    else ids.push(id)
  }
  return [...reasons].map(
    ([reason, [id, ...more]]) => `${reason} (${id}${more.length === 0 ? '' : ` and ${more.length} more`})`,
  )
}
