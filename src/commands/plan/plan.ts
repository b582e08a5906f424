// `sluice plan`: what a change would do to the data plane, entry by entry, and whether the kernel would take it. Changes nothing.

import { readFileSync } from 'node:fs'
import { parseAllDocuments } from 'yaml'
import type { Held, Mode } from '../../backend/backend.ts'
import type { Inputs } from '../../http/admin.ts'
import { DryRun, type EntryNotes } from '../../inspect/dry-run.ts'
import { describeError, ProxyError } from '../../lib/errors.ts'
import { type Family, familyName } from '../../lib/ip.ts'
import { count } from '../../lib/plural.ts'
import type { Command, Invocation } from '../command.ts'
import { outputFlag } from '../command.ts'
import { inputsOf, modeFlag, plannerOf, sourceFlags } from '../sources/source.ts'
import { printed, type Terminal } from '../terminal.ts'
import { planManifests } from './from-manifests.ts'
import { choose, type PlannedChange, planChange } from './from-records.ts'
import { checkInKernel, type TrialVerdict } from './kernel-trial.ts'

export const planCommand: Command = {
  name: 'plan',
  summary: 'what a change would put and drop, as a diff, tried on the kernel without touching this one',
  usage: '-f FILE [flags]',
  about: `Shows what applying (or with --delete, deleting) the Services and EndpointSlices of a file (with --manifests, also Pods) would do
on this node: every entry to put and to drop. The kernel's opinion comes from a network namespace made for it and thrown away: the state of now and then the change
are really programmed there, through the same code. Needs root and the program ip for that; --no-check does without.
Exit status: 0 nothing would change, 2 something would, 1 an error, the kernel's refusal included.`,
  flags: [
    { name: 'filename', short: 'f', value: 'FILE', help: 'YAML or JSON; - reads standard input', file: true },
    { name: 'delete', help: 'the objects of the file go instead of come' },
    { name: 'no-check', help: 'do not ask the kernel' },
    ...sourceFlags,
    modeFlag,
    outputFlag,
  ],
  examples: [
    ['sluice plan -f web.yaml', 'against what the proxy of this node has now'],
    ['sluice plan -f web.yaml --delete', 'what deleting it would take away'],
    ['sluice plan -f changes.yaml --manifests ./deploy --mode nftables', 'in CI: exit status 0, 2 or 1'],
  ],
  takes: [0, 0],
  run,
}

interface Line {
  readonly action: 'put' | 'change' | 'drop'
  readonly family: Family
  /** '' for what no service owns. */
  readonly service: string
  readonly id: string
  readonly before: string
  readonly after: string
}

interface Plan {
  readonly node: string
  readonly mode: Mode
  readonly changes: readonly Line[]
  readonly remarks: readonly string[]
  readonly kernel: TrialVerdict
}

async function run(invocation: Invocation): Promise<number> {
  const { flags, terminal } = invocation
  const file = flags.get('filename')
  if (file === undefined) throw new ProxyError('usage', 'which file? give -f FILE')
  const { inputs, ...change } = await changeOf(invocation, readObjects(file), flags.has('delete'))
  const mode = (flags.get('mode') as Mode | undefined) ?? inputs.identity.mode
  const plan = await makePlan(
    { ...inputs, identity: { ...inputs.identity, mode } },
    { ...change, check: !flags.has('no-check') },
  )
  terminal.write(printed(plan, flags.get('output') ?? 'table', () => describe(plan, terminal)))
  if (plan.kernel.verdict === 'refused') {
    throw new ProxyError('refused', `the kernel refuses this: ${plan.kernel.refusals.join('; ')}`)
  }
  return plan.changes.length === 0 ? 0 : 2
}

/** Files are changed as their own API server would change them; of another cluster, what it would do is reckoned here. */
async function changeOf(
  invocation: Invocation,
  objects: readonly unknown[],
  remove: boolean,
): Promise<PlannedChange & { readonly inputs: Inputs }> {
  if (invocation.flags.has('manifests')) return planManifests(invocation.flags, objects, remove)
  const { wishes, remarks: left } = choose(objects, ['Service', 'EndpointSlice'])
  const inputs = await inputsOf(invocation)
  const { after, remarks } = planChange(inputs, wishes, remove)
  return { inputs, after, remarks: [...left, ...remarks] }
}

async function makePlan(
  inputs: Inputs,
  { after, remarks, check }: PlannedChange & { readonly check: boolean },
): Promise<Plan> {
  const { mode, node } = inputs.identity
  const twin = await DryRun.open({ backend: plannerOf(mode, inputs.settings), views: inputs.views, inParts: true })
  try {
    const before = await twin.replaceObjects(inputs)
    const held = new Map(before.map(({ family, changes }) => [family, byId(changes.put)]))
    const owners = (family: Family, id: string) => twin.ownerOf(family, id)
    const goneOwners = new Map(
      before.flatMap(({ family, changes }) => changes.put.map(({ id }) => [`${family} ${id}`, owners(family, id)])),
    )
    const noted = await twin.replaceObjects(after)
    const changes = noted.flatMap((one) => linesOf(one, held.get(one.family) ?? new Map(), owners, goneOwners))
    const failures = noted.flatMap(({ report }) =>
      report.refused.map(({ service, error }) => `${service}: ${error.message}`),
    )
    return {
      node,
      mode,
      changes,
      remarks: [...remarks, ...failures],
      kernel: check
        ? await checkInKernel({ ...inputs, after })
        : { verdict: 'not asked', why: '--no-check', refusals: [] },
    }
  } finally {
    await twin.close()
  }
}

const byId = (list: readonly Held[]): Map<string, Held> => new Map(list.map((one) => [one.id, one]))

function linesOf(
  { family, changes }: EntryNotes,
  held: ReadonlyMap<string, Held>,
  ownerOf: (family: Family, id: string) => string,
  goneOwners: ReadonlyMap<string, string>,
): readonly Line[] {
  const put = changes.put.map(({ id, digest }): Line => {
    const before = held.get(id)?.digest
    const action = before === undefined ? 'put' : 'change'
    return { action, family, service: ownerOf(family, id), id, before: before ?? '', after: digest }
  })
  const drop = changes.drop.map(({ id }): Line => {
    const service = goneOwners.get(`${family} ${id}`) ?? ''
    return { action: 'drop', family, service, id, before: held.get(id)?.digest ?? '', after: '' }
  })
  return [...put, ...drop].sort((a, b) => (a.service === b.service ? 0 : a.service < b.service ? -1 : 1))
}

/** The objects of a file, lists taken apart; a ProxyError 'manifests' with file and line if it cannot be read. */
function readObjects(file: string): readonly unknown[] {
  let text: string
  try {
    text = readFileSync(file === '-' ? 0 : file, 'utf8')
  } catch (error) {
    throw new ProxyError('manifests', `cannot read ${file}: ${describeError(error)}`, { cause: error })
  }
  return parseAllDocuments(text).flatMap((document) => {
    const broken = document.errors[0]
    if (broken !== undefined) {
      throw new ProxyError('manifests', `${file}:${broken.linePos?.[0].line ?? 1}: ${broken.message.split('\n')[0]}`)
    }
    const value = document.toJS() as { kind?: string; items?: unknown[] } | null
    if (value === null || value === undefined) return []
    return value.kind?.endsWith('List') && Array.isArray(value.items) ? value.items : [value]
  })
}

function describe(plan: Plan, terminal: Terminal): string {
  const lines: string[] = []
  let service: string | undefined
  for (const line of plan.changes) {
    if (line.service !== service) {
      service = line.service
      lines.push(terminal.paint('bold', service === '' ? 'the base' : service))
    }
    const family = plan.changes.some((other) => other.family !== line.family) ? ` (${familyName(line.family)})` : ''
    if (line.action === 'put') lines.push(terminal.paint('green', `  + ${line.id}${family}${content(line.after)}`))
    else if (line.action === 'drop') lines.push(terminal.paint('red', `  - ${line.id}${family}${content(line.before)}`))
    else {
      lines.push(`  ~ ${line.id}${family}`)
      lines.push(terminal.paint('red', `    -${content(line.before)}`))
      lines.push(terminal.paint('green', `    +${content(line.after)}`))
    }
  }
  const of = (action: Line['action']) => plan.changes.filter((line) => line.action === action).length
  const summary =
    plan.changes.length === 0
      ? 'No change.'
      : `Plan for ${plan.node} (${plan.mode}): ${of('put')} to put, ${of('change')} to change, ${of('drop')} to drop.`
  lines.push(summary, kernelLine(plan.kernel), ...plan.remarks.map((remark) => `! ${remark}`))
  return `${lines.join('\n')}\n`
}

/** Rules that come in several lines are set under the entry they belong to. */
function content(digest: string): string {
  const lines = digest.trim().split('\n')
  if (lines.length > 1) return `:${lines.map((line) => `\n      ${line}`).join('')}`
  return lines[0] === '' ? '' : `: ${lines[0]}`
}

function kernelLine({ verdict, why, refusals }: TrialVerdict): string {
  if (verdict === 'accepted') return 'The kernel accepts this (tried in a network namespace that is gone again).'
  if (verdict === 'not asked') return `The kernel was not asked: ${why}.`
  return `The kernel refuses ${count(refusals.length, 'object')}.`
}
