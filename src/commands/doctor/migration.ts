// `sluice doctor --migrate-to MODE`: traces the same packets with the present and with the new mode, and reports what differs.

import type { Mode } from '../../backend/backend.ts'
import { findLeftovers } from '../../backend/leftovers.ts'
import { findMode, modes } from '../../backend/modes.ts'
import type { ProxyMode } from '../../backend/proxy-mode.ts'
import type { Inputs } from '../../http/admin.ts'
import { DryRun } from '../../inspect/dry-run.ts'
import { ProxyError } from '../../lib/errors.ts'
import { familyOf } from '../../lib/ip.ts'
import { count } from '../../lib/plural.ts'
import type { ModeBehaviour } from '../../model/mode-behaviour.ts'
import { expandNodePortAddresses, nodePortAddresses } from '../../model/node.ts'
import type { Outcome, Packet } from '../../model/packet.ts'
import { trace } from '../../model/trace.ts'
import type { NodeView, ServicePort } from '../../model/types.ts'
import { formatParagraph, formatTable } from '../answers/table.ts'
import type { Flags, Invocation } from '../command.ts'
import { readFromRules } from '../sources/from-rules.ts'
import { configFrom, limitsFrom, readInputs } from '../sources/source.ts'
import { formatAnswer, type Terminal } from '../terminal.ts'
import { makeProbes } from './migration-probes.ts'

/** A packet that the two modes treat differently. */
export interface ServiceDifference {
  /** `ns/name:port`, or '*' for a difference that concerns all services. */
  readonly service: string
  readonly packet: string
  readonly now: string
  readonly later: string
  readonly why: string
}

interface Migration {
  readonly from: ProxyMode
  readonly to: ProxyMode
}

export async function reportMigration({ flags, terminal }: Invocation): Promise<number> {
  const to = findMode(flags.get('migrate-to') ?? '')
  const from = findMode(await findPresentMode(flags, to.name))
  const inputs = await readServices(flags, from.name)
  const differences = await compareModes(inputs, { from, to }, flags)
  const answer = { kind: 'Migration', from: from.name, to: to.name, differences }
  const describeAnswer = () => describe({ from, to }, differences, terminal)
  terminal.write(formatAnswer(answer, flags.get('output') ?? 'table', describeAnswer))
  return 0
}

/** Returns the mode of --mode, else the mode whose rules are on this node. Throws a ProxyError 'migrate'. */
async function findPresentMode(flags: Flags, to: Mode): Promise<Mode> {
  const given = flags.get('mode')
  if (given !== undefined) return given
  const present = new Set((await findLeftovers()).map(({ mode }) => mode))
  const others = modes.map(({ name }) => name).filter((name) => name !== to)
  const from = others.find((name) => present.has(name))
  if (from !== undefined) return from
  if (present.has(to)) throw new ProxyError('migrate', `this node already runs in ${to} mode`)
  const choices = others.map((name) => `--mode ${name}`).join(' or ')
  throw new ProxyError('migrate', `there are no rules of kube-proxy on this node: name its mode by ${choices}`)
}

/** Reads from the source that the flags name, else from the rules on this node. */
async function readServices(flags: Flags, from: Mode): Promise<Inputs> {
  if (flags.has('kubeconfig') || flags.has('manifests') || flags.has('socket')) return readInputs(flags)
  return {
    ...(await readFromRules(from, configFrom(new Map([...flags, ['mode', from]])))),
    limits: limitsFrom(process.env),
  }
}

export async function compareModes(
  inputs: Inputs,
  migration: Migration,
  flags: Flags,
): Promise<readonly ServiceDifference[]> {
  const differences = [...generalDifferences(migration)]
  for (const view of inputs.views) {
    const before = await planMode(inputs, migration.from, nodePortView(inputs, migration.from, view, flags))
    const after = await planMode(inputs, migration.to, nodePortView(inputs, migration.to, view, flags))
    for (const port of before.ports) differences.push(...comparePort(port, { before, after }, inputs))
  }
  return withoutDuplicates(differences)
}

/** Returns the differences that the two modes declare and that no single packet of a service shows. */
const generalDifferences = ({ from, to }: Migration): readonly ServiceDifference[] =>
  [...(to.doctor.migration.entering?.differences ?? []), ...from.doctor.migration.leaving].map((difference) => ({
    service: '*',
    ...difference,
  }))

/** Returns the view of the node with the node port addresses that the configuration has in this mode. */
function nodePortView(inputs: Inputs, mode: ProxyMode, view: NodeView, flags: Flags): NodeView {
  const config = configFrom(new Map([...flags, ['mode', mode.name]]))
  const ips = { 4: '127.0.0.1', 6: '::1', primary: view.family, [view.family]: view.ip } as const
  const cidrs = expandNodePortAddresses(config.nodePortAddresses, ips)
  return { ...view, nodePorts: nodePortAddresses(cidrs, view.family, inputs.nodeAddresses) }
}

/** One family of the node as one mode serves it. */
interface PlannedMode {
  readonly view: NodeView
  readonly behaviour: ModeBehaviour
  readonly ports: readonly ServicePort[]
}

async function planMode(inputs: Inputs, mode: ProxyMode, view: NodeView): Promise<PlannedMode> {
  const dryRun = await DryRun.open({ backend: mode.makeBackend(inputs.settings), views: [view], limits: inputs.limits })
  try {
    await dryRun.replaceObjects(inputs)
    return { view, behaviour: mode.behaviour(inputs.settings), ports: [...dryRun.ports(view.family)] }
  } finally {
    await dryRun.close()
  }
}

function comparePort(
  port: ServicePort,
  { before, after }: { readonly before: PlannedMode; readonly after: PlannedMode },
  inputs: Inputs,
): readonly ServiceDifference[] {
  const nodeAddresses = inputs.nodeAddresses.filter((ip) => familyOf(ip) === port.family)
  const traceWith = ({ view, behaviour, ports }: PlannedMode, packet: Packet) =>
    trace({ ports, node: view, nodeAddresses }, packet, behaviour)
  return makeProbes(port, before.view, inputs).flatMap(({ packet, title }) => {
    const outcome = traceWith(after, packet)
    const [now, later] = [describeOutcome(traceWith(before, packet)), describeOutcome(outcome)]
    return now === later ? [] : [{ service: port.name, packet: title, now, later, why: outcome.steps.at(-1) ?? '' }]
  })
}

const verdicts = { reject: 'refused', drop: 'dropped', pass: 'left to the node or to routing' } as const

function describeOutcome(outcome: Outcome): string {
  if (outcome.verdict !== 'forward') return verdicts[outcome.verdict]
  return `forwarded (${count(outcome.endpoints.length, 'endpoint')}${outcome.masquerade ? ', source rewritten' : ''})`
}

/** Both families, or several addresses, may have the same difference. */
function withoutDuplicates(differences: readonly ServiceDifference[]): readonly ServiceDifference[] {
  return [...new Map(differences.map((one) => [JSON.stringify(one), one])).values()]
}

function describe({ from, to }: Migration, differences: readonly ServiceDifference[], terminal: Terminal): string {
  const rows = differences.map(({ service, packet, now, later }) => [service, packet, now, later])
  const ports = new Set(differences.map(({ service }) => service).filter((name) => name !== '*'))
  const reasons = [...new Set(differences.map(({ why }) => why))].map((why) =>
    formatParagraph(`  - ${why}`, terminal, '    '),
  )
  return [
    formatParagraph(
      `From ${from.name} to ${to.name}: ${count(ports.size, 'service port')} will behave differently for some packets; established connections continue.`,
      terminal,
    ),
    formatTable(['SERVICE', 'PACKET', `NOW (${from.name})`, `LATER (${to.name})`], rows, terminal),
    `Why:\n${reasons.join('')}`,
    formatParagraph(to.doctor.migration.entering?.advice ?? '', terminal),
  ].join('\n')
}
