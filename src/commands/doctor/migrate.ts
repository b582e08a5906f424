// `sluice doctor --migrate-to MODE`: sends the same packets through the model as the old and as the new mode, and reports what differs.

import type { Mode } from '../../backend/backend.ts'
import { findLeftovers } from '../../backend/leftovers.ts'
import { findMode, modes } from '../../backend/modes.ts'
import type { ProxyMode } from '../../backend/proxy-mode.ts'
import type { Inputs } from '../../http/admin.ts'
import { DryRun } from '../../inspect/dry-run.ts'
import { ProxyError } from '../../lib/errors.ts'
import { familyOf, hostPort } from '../../lib/ip.ts'
import type { ModeBehaviour } from '../../model/mode-behaviour.ts'
import { expandNodePortAddresses, nodePortAddresses } from '../../model/node.ts'
import { type Outcome, type Packet, trace } from '../../model/trace.ts'
import type { NodeView, ServicePort } from '../../model/types.ts'
import type { Invocation } from '../command.ts'
import { readFromRules } from '../sources/from-rules.ts'
import { configFrom, readInputs } from '../sources/source.ts'
import { formatAnswer, formatTable, type Terminal } from '../terminal.ts'

export interface Difference {
  /** `ns/name:port`, or '*' for what concerns all. */
  readonly service: string
  readonly packet: string
  readonly now: string
  readonly later: string
  readonly why: string
}

export async function migrate(invocation: Invocation): Promise<number> {
  const { flags, terminal } = invocation
  const to = findMode(flags.get('migrate-to') ?? '')
  const from = await presentMode(flags, to.name)
  const inputs = await knowledge(invocation, from)
  const differences = await compare(inputs, { from: findMode(from), to }, flags)
  terminal.write(
    formatAnswer({ from, to: to.name, differences }, flags.get('output') ?? 'table', () =>
      describe({ from, to }, differences, terminal),
    ),
  )
  return 0
}

async function presentMode(flags: ReadonlyMap<string, string>, to: Mode): Promise<Mode> {
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

interface Migration {
  readonly from: ProxyMode
  readonly to: ProxyMode
}

/** From the API or files if named; else from the very rules that are to be replaced. */
async function knowledge(invocation: Invocation, from: Mode): Promise<Inputs> {
  const { flags } = invocation
  if (flags.has('kubeconfig') || flags.has('manifests') || flags.has('socket')) return readInputs(flags)
  return readFromRules(from, configFrom(new Map([...flags, ['mode', from]])))
}

/** The same node, with node ports where this mode serves them. */
function viewFor(view: NodeView, inputs: Inputs, addresses: readonly string[]): NodeView {
  const ips = { 4: '127.0.0.1', 6: '::1', primary: view.family, [view.family]: view.ip } as const
  const cidrs = expandNodePortAddresses(addresses, ips)
  return { ...view, nodePorts: nodePortAddresses(cidrs, view.family, inputs.nodeAddresses) }
}

export async function compare(
  inputs: Inputs,
  { from, to }: Migration,
  flags: ReadonlyMap<string, string>,
): Promise<readonly Difference[]> {
  const asked = (mode: Mode) => configFrom(new Map([...flags, ['mode', mode]])).nodePortAddresses
  const side = (mode: ProxyMode) => ({
    mode: mode.name,
    dialect: mode.behaviour(inputs.settings),
    addresses: asked(mode.name),
  })
  const found: Difference[] = [...general({ from, to })]
  for (const view of inputs.views) {
    const sides = await Promise.all([from, to].map((mode) => sideOf(inputs, view, side(mode))))
    const [old, fresh] = sides as [Side, Side]
    for (const port of old.ports) found.push(...differencesOf(port, old, fresh, inputs))
  }
  return merged(found)
}

interface Side {
  readonly view: NodeView
  readonly dialect: ModeBehaviour
  readonly ports: readonly ServicePort[]
}

async function sideOf(
  inputs: Inputs,
  view: NodeView,
  side: { mode: Mode; dialect: ModeBehaviour; addresses: readonly string[] },
): Promise<Side> {
  const seen = viewFor(view, inputs, side.addresses)
  const twin = await DryRun.open({ backend: findMode(side.mode).makeBackend(inputs.settings), views: [seen] })
  try {
    await twin.replaceObjects(inputs)
    return { view: seen, dialect: side.dialect, ports: [...twin.ports(view.family)] }
  } finally {
    await twin.close()
  }
}

interface Probe {
  readonly packet: Packet
  readonly what: string
}

/** One packet of every kind that modes treat differently. */
function probesFor(port: ServicePort, view: NodeView, inputs: Inputs): readonly Probe[] {
  const { family, protocol } = port
  const outside = family === 4 ? '198.51.100.7' : '2001:db8::7'
  const own = inputs.nodeAddresses.filter((ip) => familyOf(ip) === family && !isLinkLocal(ip))
  const send = (what: string, from: string, origin: Packet['origin'], to: string, number: number): Probe => ({
    what,
    packet: { from, to, port: number, protocol, origin },
  })
  return port.frontends.flatMap((frontend): Probe[] => {
    if (frontend.kind === 'node-port') {
      const loopback = family === 4 ? '127.0.0.1' : '::1'
      return [
        ...own
          .filter((ip) => !isLoop(ip))
          .map((ip) =>
            send(`from outside to node port ${hostPort(ip, frontend.port)}`, outside, 'outside', ip, frontend.port),
          ),
        send(`on the node to ${hostPort(loopback, frontend.port)}`, loopback, 'node', loopback, frontend.port),
      ]
    }
    if (frontend.kind === 'cluster-ip') {
      const free = unusedPort(port)
      return [
        send(`on the node to ${hostPort(frontend.ip, frontend.port)}`, view.ip, 'node', frontend.ip, frontend.port),
        send(`to a port of ${frontend.ip} that no service uses`, view.ip, 'node', frontend.ip, free),
      ]
    }
    const kind = frontend.kind === 'load-balancer' ? 'load balancer IP' : 'external IP'
    return [
      send(
        `from outside to ${kind} ${hostPort(frontend.ip, frontend.port)}`,
        outside,
        'outside',
        frontend.ip,
        frontend.port,
      ),
      send(
        `on the node to ${kind} ${hostPort(frontend.ip, frontend.port)}`,
        view.ip,
        'node',
        frontend.ip,
        frontend.port,
      ),
    ]
  })
}

const isLoop = (ip: string): boolean => ip === '::1' || ip.startsWith('127.')
const isLinkLocal = (ip: string): boolean => ip.startsWith('fe80:')

/** Discard's successor: nobody has a service on it. */
const unusedPort = (port: ServicePort): number => (port.frontends.some(({ port: number }) => number === 10) ? 11 : 10)

function differencesOf(port: ServicePort, old: Side, fresh: Side, inputs: Inputs): readonly Difference[] {
  const nodeAddresses = inputs.nodeAddresses.filter((ip) => familyOf(ip) === port.family)
  return probesFor(port, old.view, inputs).flatMap(({ packet, what }) => {
    const follow = ({ view, dialect, ports }: Side) => trace({ ports, node: view, nodeAddresses }, packet, dialect)
    const [now, later] = [follow(old), follow(fresh)]
    if (summary(now) === summary(later)) return []
    return [
      { service: port.name, packet: what, now: summary(now), later: summary(later), why: later.steps.at(-1) ?? '' },
    ]
  })
}

function summary(outcome: Outcome): string {
  if (outcome.verdict !== 'forward') {
    const words = { reject: 'refused', drop: 'dropped', pass: 'left to the node or to routing' }
    return words[outcome.verdict]
  }
  const { length } = outcome.endpoints
  return `forwarded (${length} endpoint${length === 1 ? '' : 's'}${outcome.masquerade ? ', source rewritten' : ''})`
}

/** What no single packet of a service shows. */
const general = ({ from, to }: Migration): readonly Difference[] =>
  [...(to.doctor.migration.entering?.differences ?? []), ...from.doctor.migration.leaving].map((difference) => ({
    service: '*',
    ...difference,
  }))

/** The same difference of both families, or of several addresses, is told once. */
function merged(list: readonly Difference[]): readonly Difference[] {
  const seen = new Set<string>()
  return list.filter((one) => {
    const key = JSON.stringify(one)
    return seen.has(key) ? false : seen.add(key)
  })
}

function describe(
  { from, to }: { readonly from: Mode; readonly to: ProxyMode },
  differences: readonly Difference[],
  terminal: Terminal,
): string {
  const rows = differences.map(({ service, packet, now, later }) => [service, packet, now, later])
  const services = new Set(differences.map(({ service }) => service).filter((name) => name !== '*'))
  const reasons = [...new Set(differences.map(({ why }) => why))].map((why) => `  - ${why}\n`)
  return [
    `From ${from} to ${to.name}: ${services.size} service port${services.size === 1 ? '' : 's'} will behave differently for some packets; established connections go on.\n`,
    formatTable(['SERVICE', 'PACKET', `NOW (${from})`, `THEN (${to.name})`], rows, terminal),
    `Why:\n${reasons.join('')}`,
    `${to.doctor.migration.entering?.advice ?? ''}\n`,
  ].join('\n')
}
