// `sluice plan`: shows what a change would do to the data plane, entry by entry, and whether the kernel would accept it. Changes nothing.

import type { Mode } from '../../backend/backend.ts'
import { defaultMode, findMode } from '../../backend/modes.ts'
import type { Inputs } from '../../http/admin.ts'
import { DryRun, type RecordedChanges } from '../../inspect/dry-run.ts'
import { describePart } from '../../inspect/part-descriptions.ts'
import { ProxyError } from '../../lib/errors.ts'
import { type Family, familyName } from '../../lib/ip.ts'
import { count } from '../../lib/plural.ts'
import { type Command, type Flags, flagValues, type Invocation, noArguments, outputFlag } from '../command.ts'
import { chooseNodePorts, nodePortRangeFlag } from '../node-port-range.ts'
import { modeFlag, readInputs, sourceFlags } from '../sources/source.ts'
import { formatAnswer, type Terminal } from '../terminal.ts'
import { readChange } from './change-files.ts'
import { withClusterAccess } from './cluster-access.ts'
import { clusterKinds, type PlannedChange, planCluster } from './from-cluster.ts'
import { manifestKinds, planManifests } from './from-manifests.ts'
import { notAsked, type TrialVerdict, tryInKernel } from './kernel-trial.ts'

export const planCommand: Command = {
  name: 'plan',
  usage: '-f FILE [-f FILE...] [flags]',
  about: `Shows what applying the Services and EndpointSlices of files would do on this node (with --delete: deleting them; with
--manifests: also Pods): every entry to put and to drop. An object first gets the defaults and checks of the API server, and is refused
as there, with file, line and field. With --kubeconfig the API server itself tries it by a dry run; where that is not allowed, and for a
running proxy, the API server of sluice up does. To ask the kernel, plan programs the present state and then the change in a temporary
network namespace, with the code of the proxy. That needs root and the program ip; --no-check skips it.
Exit status: 0 nothing would change, 2 something would change, 1 an error or a refusal of the API server or of the kernel.`,
  flags: [
    {
      name: 'filename',
      short: 'f',
      value: 'FILE',
      help: 'YAML or JSON, or a directory of such files; - reads standard input; may be repeated',
      file: true,
      repeats: true,
    },
    { name: 'delete', help: 'delete the objects of the files instead of applying them' },
    nodePortRangeFlag,
    { name: 'no-check', help: 'do not ask the kernel' },
    ...sourceFlags,
    modeFlag,
    outputFlag,
  ],
  examples: [
    ['sluice plan -f web.yaml', 'compare with what the proxy of this node has now'],
    ['sluice plan -f web.yaml --delete', 'show what deleting would remove'],
    ['kubectl kustomize overlays/prod | sluice plan -f - --kubeconfig ~/.kube/config', 'a rendered stream'],
    [`sluice plan -f changes.yaml --manifests ./deploy --mode ${defaultMode}`, 'in CI: exit status 0, 2 or 1'],
  ],
  arguments: noArguments,
  run,
}

interface EntryChange {
  readonly action: 'put' | 'change' | 'drop'
  readonly family: Family
  /** '' for an entry that no service owns. */
  readonly service: string
  readonly kind: string
  /** As the program names it that lists the entry: `chain service-ABC`. */
  readonly name: string
  /** The content now; '' for an entry that is put. */
  readonly before: string
  /** The content after the change; '' for an entry that is dropped. */
  readonly after: string
}

interface Plan {
  readonly node: string
  readonly mode: Mode
  readonly changes: readonly EntryChange[]
  readonly remarks: readonly string[]
  readonly kernel: TrialVerdict
}

async function run({ flags, terminal }: Invocation): Promise<number> {
  const files = flagValues(flags, 'filename')
  if (files.length === 0) throw new ProxyError('usage', 'no file is given: add -f FILE')
  const { inputs, ...change } = await computeChange(flags, files)
  const mode = (flags.get('mode') as Mode | undefined) ?? inputs.identity.mode
  const present = { ...inputs, identity: { ...inputs.identity, mode } }
  const planned = await makePlan(present, change)
  const kernel = flags.has('no-check') ? notAsked('--no-check') : await tryInKernel({ ...present, after: change.after })
  const plan = { ...planned, kernel }
  terminal.write(
    formatAnswer({ kind: 'Plan', ...plan }, flags.get('output') ?? 'table', () => describe(plan, terminal)),
  )
  if (kernel.verdict === 'refused') {
    throw new ProxyError('refused', `the kernel refuses this: ${kernel.refusals.join('; ')}`)
  }
  return plan.changes.length === 0 ? 0 : 2
}

/** Manifests are changed by their own API server; a cluster's API server only tries the objects. */
async function computeChange(
  flags: Flags,
  files: readonly string[],
): Promise<PlannedChange & { readonly inputs: Inputs }> {
  const isDelete = flags.has('delete')
  if (flags.has('manifests')) {
    const { objects, remarks: ignored } = readChange(files, manifestKinds)
    const { remarks, ...planned } = await planManifests(flags, objects, isDelete)
    return { ...planned, remarks: [...ignored, ...remarks] }
  }
  const { objects, remarks: ignored } = readChange(files, clusterKinds)
  const inputs = await readInputs(flags)
  const nodePorts = chooseNodePorts(flags.get(nodePortRangeFlag.name), inputs.services)
  const { after, remarks } = await withClusterAccess(flags, (access) =>
    planCluster(inputs, access, { objects, isDelete, nodePorts }),
  )
  return { inputs, after, remarks: [...ignored, ...remarks] }
}

async function makePlan(inputs: Inputs, { after, remarks }: PlannedChange): Promise<Omit<Plan, 'kernel'>> {
  const { mode, node } = inputs.identity
  const backend = findMode(mode).makeBackend(inputs.settings)
  const dryRun = await DryRun.open({ backend, views: inputs.views, limits: inputs.limits, splitsEntries: true })
  try {
    const before = (await dryRun.replaceObjects(inputs)).flatMap((one) => ownedEntries({ dryRun, mode }, one))
    const present = new Map(before.map((entry) => [`${entry.family} ${entry.id}`, entry]))
    const recorded = await dryRun.replaceObjects(after)
    const refusals = recorded.flatMap(({ report }) =>
      report.refused.map(({ service, error }) => `${service}: ${error.message}`),
    )
    const changes = recorded.flatMap((one) =>
      [
        ...ownedEntries({ dryRun, mode }, one).map((entry) =>
          putChange(entry, present.get(`${entry.family} ${entry.id}`)),
        ),
        ...one.changes.drop.flatMap(({ id }) => dropChange(present.get(`${one.family} ${id}`)) ?? []),
      ].sort(byService),
    )
    return { node, mode, changes, remarks: [...remarks, ...refusals] }
  } finally {
    await dryRun.close()
  }
}

interface OwnedEntry {
  readonly id: string
  readonly kind: string
  readonly family: Family
  readonly service: string
  readonly name: string
  readonly content: string
}

/** Returns the entries that the sync put, with the service that owns each. */
const ownedEntries = (
  { dryRun, mode }: { readonly dryRun: DryRun; readonly mode: Mode },
  { family, changes }: RecordedChanges,
): readonly OwnedEntry[] =>
  changes.put.map((entry) => {
    const { name, content } = describePart(findMode(mode), entry, family)
    return { id: entry.id, kind: entry.kind, family, service: dryRun.ownerOf(family, entry.id), name, content }
  })

const putChange = (entry: OwnedEntry, before: OwnedEntry | undefined): EntryChange => ({
  action: before === undefined ? 'put' : 'change',
  family: entry.family,
  service: entry.service,
  kind: entry.kind,
  name: entry.name,
  before: before?.content ?? '',
  after: entry.content,
})

/** What is dropped was put before, since the plan starts with nothing. */
function dropChange(before: OwnedEntry | undefined): EntryChange | undefined {
  if (before === undefined) return undefined
  const { family, service, kind, name, content } = before
  return { action: 'drop', family, service, kind, name, before: content, after: '' }
}

function byService(a: EntryChange, b: EntryChange): number {
  if (a.service === b.service) return 0
  return a.service < b.service ? -1 : 1
}

function describe(plan: Plan, terminal: Terminal): string {
  const isDualStack = new Set(plan.changes.map(({ family }) => family)).size > 1
  const lines: string[] = []
  let service: string | undefined
  for (const change of plan.changes) {
    if (change.service !== service) lines.push(terminal.paint('bold', change.service || 'base entries'))
    service = change.service
    const name = isDualStack ? `${change.name} (${familyName(change.family)})` : change.name
    lines.push(...describeChange(change, name, terminal))
  }
  const total = (action: EntryChange['action']) => plan.changes.filter((change) => change.action === action).length
  const summary =
    plan.changes.length === 0
      ? 'No change.'
      : `Plan for ${plan.node} (${plan.mode}): ${total('put')} to put, ${total('change')} to change, ${total('drop')} to drop.`
  lines.push(summary, describeVerdict(plan.kernel), ...plan.remarks.map((remark) => `! ${remark}`))
  return `${lines.join('\n')}\n`
}

function describeChange({ action, before, after }: EntryChange, name: string, terminal: Terminal): readonly string[] {
  if (action === 'put') return [terminal.paint('green', `  + ${name}${describeContent(after)}`)]
  if (action === 'drop') return [terminal.paint('red', `  - ${name}${describeContent(before)}`)]
  return [
    `  ~ ${name}`,
    terminal.paint('red', `    -${describeContent(before)}`),
    terminal.paint('green', `    +${describeContent(after)}`),
  ]
}

/** Several rules of one entry go on lines of their own below it. */
function describeContent(digest: string): string {
  const lines = digest.trim().split('\n')
  if (lines.length > 1) return `:${lines.map((line) => `\n      ${line}`).join('')}`
  return lines[0] === '' ? '' : `: ${lines[0]}`
}

function describeVerdict({ verdict, why, refusals }: TrialVerdict): string {
  if (verdict === 'accepted') return 'The kernel accepts this (tried in a temporary network namespace).'
  if (verdict === 'unasked') return `The kernel was not asked: ${why}.`
  return `The kernel refuses ${count(refusals.length, 'object')}.`
}
