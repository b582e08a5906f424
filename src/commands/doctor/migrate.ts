// `sluice doctor --migrate-to nftables`: sends the same packets through the model as the old mode and as nftables, and tells what differs.

import type { Mode } from '../../backend/backend.ts'
import { findLeftovers } from '../../backend/leftovers.ts'
import { backendFor } from '../../daemon/backend-settings.ts'
import type { Inputs } from '../../http/admin.ts'
import { behaviourOf } from '../../inspect/behaviour-of.ts'
import { DryRun } from '../../inspect/dry-run.ts'
import { ProxyError } from '../../lib/errors.ts'
import { familyOf, hostPort } from '../../lib/ip.ts'
import { type ModeBehaviour, nftables } from '../../model/mode-behaviour.ts'
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
  const from = await presentMode(flags)
  const inputs = await knowledge(invocation, from)
  const differences = await compare(inputs, from, flags)
  terminal.write(
    formatAnswer({ from, to: 'nftables', differences }, flags.get('output') ?? 'table', () =>
      describe(from, differences, terminal),
    ),
  )
  return 0
}

async function presentMode(flags: ReadonlyMap<string, string>): Promise<Mode> {
  const told = flags.get('mode') as Mode | undefined
  if (told !== undefined) return told
  const modes = (await findLeftovers()).map(({ mode }) => mode)
  if (modes.includes('ipvs')) return 'ipvs'
  if (modes.includes('iptables')) return 'iptables'
  if (modes.includes('nftables')) throw new ProxyError('migrate', 'this node already runs in nftables mode')
  throw new ProxyError(
    'migrate',
    'no rules of kube-proxy are here; say which mode it was: --mode iptables or --mode ipvs',
  )
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
  from: Mode,
  flags: ReadonlyMap<string, string>,
): Promise<readonly Difference[]> {
  const asked = (mode: Mode) => configFrom(new Map([...flags, ['mode', mode]])).nodePortAddresses
  const before = { mode: from, dialect: behaviourOf(from, inputs.settings), addresses: asked(from) }
  const after = { mode: 'nftables' as const, dialect: nftables, addresses: asked('nftables') }
  const found: Difference[] = [...general(from)]
  for (const view of inputs.views) {
    const sides = await Promise.all([before, after].map((side) => sideOf(inputs, view, side)))
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
  const twin = await DryRun.open({ backend: backendFor({ mode: side.mode, settings: inputs.settings }), views: [seen] })
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
function general(from: Mode): readonly Difference[] {
  const all: Difference[] = [
    {
      service: '*',
      packet: 'to an address of the service range that no service has',
      now: 'left to routing, perhaps out to the internet',
      later: 'dropped',
      why: 'Traffic to unallocated cluster IPs is dropped, so that it does not loop through the network.',
    },
    {
      service: '*',
      packet: 'rules in iptables that name KUBE- chains, or count on their order',
      now: 'work',
      later: 'have nothing to hold on to',
      why: 'nftables mode has a table of its own; scripts, CNI plugins and monitoring that read KUBE-* chains must change.',
    },
  ]
  if (from === 'iptables') {
    all.push({
      service: '*',
      packet: 'a pod that reaches itself through a service on another node’s address',
      now: 'source rewritten for every endpoint',
      later: 'source rewritten for endpoints on this node',
      why: 'iptables marks hairpins of remote endpoints, too, which cannot happen.',
    })
  }
  if (from === 'ipvs') {
    all.push(
      {
        service: '*',
        packet: 'ping to a cluster IP',
        now: 'answered by the node, which has the address on kube-ipvs0',
        later: 'not answered',
        why: 'No interface has cluster IPs any more; kube-ipvs0 goes with sluice cleanup.',
      },
      {
        service: '*',
        packet: 'from outside to a service with a Local policy and no endpoint on this node',
        now: 'kube-proxy forwards it to all endpoints',
        later: 'dropped',
        why: 'Local means local; load balancers find the right nodes by the health check node port.',
      },
      {
        service: '*',
        packet: 'the ipvs scheduler',
        now: 'rr, lc, sh and others',
        later: 'random',
        why: 'nftables chooses by chance; affinity is by sessionAffinity ClientIP.',
      },
    )
  }
  return all
}

/** The same difference of both families, or of several addresses, is told once. */
function merged(list: readonly Difference[]): readonly Difference[] {
  const seen = new Set<string>()
  return list.filter((one) => {
    const key = JSON.stringify(one)
    return seen.has(key) ? false : seen.add(key)
  })
}

function describe(from: Mode, differences: readonly Difference[], terminal: Terminal): string {
  const rows = differences.map(({ service, packet, now, later }) => [service, packet, now, later])
  const services = new Set(differences.map(({ service }) => service).filter((name) => name !== '*'))
  const reasons = [...new Set(differences.map(({ why }) => why))].map((why) => `  - ${why}\n`)
  return [
    `From ${from} to nftables: ${services.size} service port${services.size === 1 ? '' : 's'} will behave differently for some packets; established connections go on.\n`,
    formatTable(['SERVICE', 'PACKET', `NOW (${from})`, 'THEN (nftables)'], rows, terminal),
    `Why:\n${reasons.join('')}`,
    'To keep node ports on all addresses: nodePortAddresses: [0.0.0.0/0, ::/0]; on loopback as well: add localhost.\n',
  ].join('\n')
}
