// What must happen to the first packet of a connection, from the model alone: the oracle of the tests and the voice of `explain`.

import { contains, familyOf, hostPort, isLoopback, parseCidr } from '../lib/ip.ts'
import type { ModeBehaviour } from './mode-behaviour.ts'
import type { Disposition, Endpoint, Frontend, LocalDetector, NodeView, Protocol, ServicePort } from './types.ts'

export interface TraceContext {
  /** All service ports of the view's family. */
  readonly ports: readonly ServicePort[]
  readonly node: NodeView
  /** Every address of the node's interfaces; all of loopback belongs to the node without being listed. */
  readonly nodeAddresses: readonly string[]
}

/** The first packet of a connection as it was sent. Addresses are canonical. */
export interface Packet {
  readonly from: string
  readonly to: string
  readonly port: number
  readonly protocol: Protocol
  /** Entered from a pod of this node, made on the node itself, or came from elsewhere. */
  readonly origin: 'pod' | 'node' | 'outside'
  /** Where it entered; none if made on the node. A pod's packet without one is taken to enter where the local detector looks. */
  readonly inInterface?: string
}

export interface ChosenEndpoint {
  /** `ip:port`. */
  readonly address: string
  /** The endpoint sees this node as the source. */
  readonly snat: boolean
}

export interface Forwarded {
  readonly verdict: 'forward'
  /** Those it may go to, sorted bytewise by address; never empty. */
  readonly endpoints: readonly ChosenEndpoint[]
  /** The source is rewritten whichever endpoint is chosen; if not, only a pod that reaches itself (hairpin) gets another. */
  readonly masquerade: boolean
  /** Seconds for which a client keeps its endpoint; 0: no affinity. */
  readonly affinity: number
  readonly port: ServicePort
  readonly frontend: Frontend
  /** Why, one sentence per decision, in the order they were made. */
  readonly steps: readonly string[]
}

export type Reason =
  | 'no-endpoints'
  | 'no-local-endpoints'
  | 'not-relayed'
  | 'source-range'
  | 'unused-port'
  | 'unallocated'
  | 'node-port-elsewhere'
  | 'health-check'
  | 'no-service'
  | 'other-family'

export interface NotForwarded {
  /** Refused with an ICMP error, silently discarded, or left to ordinary routing. */
  readonly verdict: 'reject' | 'drop' | 'pass'
  readonly reason: Reason
  /** The service port the packet was meant for, if it met one. */
  readonly port: ServicePort | undefined
  readonly frontend: Frontend | undefined
  readonly steps: readonly string[]
}

export type Outcome = Forwarded | NotForwarded

export function trace(world: TraceContext, packet: Packet, dialect: ModeBehaviour): Outcome {
  const steps: string[] = []
  if (familyOf(packet.to) !== world.node.family) {
    steps.push(`${packet.to} is not of the family that is traced.`)
    return { verdict: 'pass', reason: 'other-family', port: undefined, frontend: undefined, steps }
  }
  const match = findByAddress(world, packet) ?? findByNodePort(world, packet)
  if (match === undefined) return withoutService(world, packet, dialect, steps)
  const { port, frontend } = match
  steps.push(`${describePacket(packet)} is for ${describeFrontend(frontend)} of ${port.name}.`)
  const run: Run = { world, packet, dialect, port, frontend, steps }
  if (frontend.kind === 'node-port') return throughNodePort(run)
  return throughFirewall(run) ?? (frontend.kind === 'cluster-ip' ? internally(run) : externally(run))
}

/** One trace under way, after a frontend was found. */
interface Run {
  readonly world: TraceContext
  readonly packet: Packet
  readonly dialect: ModeBehaviour
  readonly port: ServicePort
  readonly frontend: Frontend
  readonly steps: string[]
}

interface Match {
  readonly port: ServicePort
  readonly frontend: Frontend
}

/** An exact address always goes before a node port of the same number. */
function findByAddress(world: TraceContext, packet: Packet): Match | undefined {
  return find(world, packet, (frontend) => frontend.ip === packet.to)
}

function findByNodePort(world: TraceContext, packet: Packet): Match | undefined {
  if (!isNodeAddress(world, packet.to)) return undefined
  return find(world, packet, (frontend) => frontend.kind === 'node-port')
}

function find(world: TraceContext, packet: Packet, wanted: (frontend: Frontend) => boolean): Match | undefined {
  for (const port of world.ports) {
    if (port.protocol !== packet.protocol) continue
    const frontend = port.frontends.find((candidate) => candidate.port === packet.port && wanted(candidate))
    if (frontend !== undefined) return { port, frontend }
  }
  return undefined
}

function throughFirewall(run: Run): NotForwarded | undefined {
  const { port, frontend, packet, dialect, steps } = run
  if (frontend.allow.length === 0) return undefined
  if (port.external === 'reject' && dialect.firewallWithoutEndpoints === 'reject') return undefined
  const ranges = `source ranges ${frontend.allow.join(', ')}`
  const range = frontend.allow.find((cidr) => inside(cidr, packet.from))
  if (range !== undefined) {
    steps.push(`${packet.from} is in ${range}, one of the service's source ranges: accepted.`)
    return undefined
  }
  const ownAddress = port.frontends.some((own) => own.kind === 'load-balancer' && own.ip === packet.from)
  if (port.nodeAllowed && ownAddress) {
    steps.push(
      `${packet.from} is a load balancer IP of the service itself, which this node may use as its source; the node is in the ${ranges}: accepted.`,
    )
    return undefined
  }
  steps.push(`${packet.from} is in none of the ${ranges}: dropped.`)
  return refuse(run, 'drop', 'source-range')
}

function throughNodePort(run: Run): Outcome {
  const { packet, port, dialect, steps } = run
  if (servesNodePort(run)) return externally(run)
  if (dialect.refusesNodePortsEverywhere && port.external === 'reject') return noEndpoints(run)
  if (dialect.refusesNodePortsEverywhere && port.external === 'drop') return noLocalEndpoints(run, 'external')
  steps.push(
    isLoopback(packet.to)
      ? 'Node ports are not served on loopback here: left to the node itself.'
      : `nodePortAddresses does not include ${packet.to}: left to the node itself.`,
  )
  return refuse(run, 'pass', 'node-port-elsewhere')
}

function servesNodePort({ world, packet, dialect }: Run): boolean {
  const { all, addresses, loopback, loopbackNamed } = world.node.nodePorts
  if (!isLoopback(packet.to)) return all || addresses.includes(packet.to)
  const localhost = dialect.localhostNodePorts[world.node.family]
  if (localhost === 'named') return loopbackNamed && addresses.includes(packet.to)
  return localhost === 'covered' && loopback && (all || addresses.includes(packet.to))
}

function internally(run: Run): Outcome {
  const { port, packet, world, steps } = run
  if (port.internal === 'reject') return noEndpoints(run)
  if (isRefusedSctp(run)) return notRelayed(run)
  if (port.internal === 'drop') return noLocalEndpoints(run, 'internal')
  steps.push(describePolicy('internalTrafficPolicy', port.internal, port[port.internal].length))
  const { node } = world
  let masquerade = false
  if (node.masqueradeAll) {
    masquerade = true
    steps.push('masqueradeAll is set: the source becomes this node.')
  } else if (node.local === undefined) {
    steps.push('It is not known which traffic is of local pods: the source is kept.')
  } else if (fromLocalPod(packet, node.local)) {
    steps.push(`${packet.from} counts as a local pod (${describeDetector(node.local)}): the source is kept.`)
  } else {
    masquerade = true
    steps.push(`${packet.from} is no local pod (${describeDetector(node.local)}): the source becomes this node.`)
  }
  return forward(run, port[port.internal], masquerade)
}

function externally(run: Run): Outcome {
  const { port, packet, world, dialect, steps } = run
  if (port.external === 'reject') {
    const leaves = packet.origin === 'node' && !isNodeAddress(world, packet.to)
    if (!leaves || dialect.rejectsNodeToExternal) return noEndpoints(run)
    steps.push(`${port.name} has no endpoints, but ${dialect.name} lets the node's own packets leave: routing decides.`)
    return refuse(run, 'pass', 'no-endpoints')
  }
  if (isRefusedSctp(run)) return notRelayed(run)
  if (port.external === 'cluster') {
    steps.push(describePolicy('externalTrafficPolicy', 'cluster', port.cluster.length))
    steps.push('The endpoint may be on another node: the source becomes this node, so that replies come back here.')
    return forward(run, port.cluster, true)
  }
  if (port.external === 'local' && !dialect.shortCircuits) return toLocalEndpoints(run)
  if (world.node.local !== undefined && fromLocalPod(packet, world.node.local)) {
    steps.push(
      `externalTrafficPolicy is Local, but ${packet.from} counts as a local pod (${describeDetector(world.node.local)}): short-circuited to all ${count(port.cluster)}, the source is kept.`,
    )
    return forward(run, port.cluster, false)
  }
  if (isNodeAddress(world, packet.from)) {
    steps.push(
      `externalTrafficPolicy is Local, but ${packet.from} is this node: short-circuited to all ${count(port.cluster)}, the source becomes this node.`,
    )
    return forward(run, port.cluster, true)
  }
  if (port.external === 'drop') return noLocalEndpoints(run, 'external')
  steps.push(describePolicy('externalTrafficPolicy', 'local', port.local.length))
  steps.push('The endpoint is on this node: the source is kept.')
  return forward(run, port.local, false)
}

/** Whoever comes meets the endpoints here; only the node itself, which may use a service address as its source, is masqueraded. */
function toLocalEndpoints(run: Run): Forwarded {
  const { port, packet, world, dialect, steps } = run
  const own = isNodeAddress(world, packet.from)
  steps.push(describePolicy('externalTrafficPolicy', 'local', port.local.length))
  steps.push(`${dialect.name} sends everybody there: ${own ? 'the source becomes this node' : 'the source is kept'}.`)
  return forward(run, port.local, own)
}

/** No frontend has this address and port; perhaps the address alone means something. */
function withoutService(world: TraceContext, packet: Packet, dialect: ModeBehaviour, steps: string[]): NotForwarded {
  const answer = (verdict: NotForwarded['verdict'], reason: Reason, port?: ServicePort): NotForwarded => {
    return { verdict, reason, port, frontend: undefined, steps }
  }
  const owner = world.ports.find((port) => hasClusterIp(port, packet.to))
  if (owner !== undefined) {
    steps.push(
      `${packet.to} is the cluster IP of ${owner.service}, which has no port ${packet.port}/${packet.protocol}.`,
    )
    if (dialect.rejectsUnusedPorts) {
      steps.push('Ports of cluster IPs that no service uses are refused.')
      return answer('reject', 'unused-port', owner)
    }
    steps.push(`${dialect.name} does not refuse unused ports: routing decides.`)
    return answer('pass', 'unused-port', owner)
  }
  const lender = dialect.ownsAddresses && !isNodeAddress(world, packet.to) ? holderOf(world, packet.to) : undefined
  if (lender !== undefined) {
    steps.push(`${packet.to} is an address of ${lender.service}, which has no port ${packet.port}/${packet.protocol}.`)
    steps.push(`In mode ${dialect.name} the node answers for it, and refuses ports that no service uses.`)
    return answer('reject', 'unused-port', lender)
  }
  const cidr = world.node.serviceCidrs.find((range) => inside(range, packet.to))
  if (cidr !== undefined) {
    steps.push(`${packet.to} is in the service CIDR ${cidr}, but no service has it as its cluster IP.`)
    if (dialect.dropsUnallocated) {
      steps.push('Traffic to unallocated cluster IPs is dropped, so that it does not loop through the network.')
      return answer('drop', 'unallocated')
    }
    steps.push(`${dialect.name} does not drop such traffic: routing decides.`)
    return answer('pass', 'unallocated')
  }
  if (packet.protocol === 'tcp' && isNodeAddress(world, packet.to)) {
    const checked = world.ports.find((port) => port.health?.port === packet.port)
    if (checked !== undefined) {
      steps.push(`${packet.port} is the health check node port of ${checked.service}: the proxy itself answers.`)
      return answer('pass', 'health-check', checked)
    }
  }
  steps.push(`No service has ${describeTarget(packet)}: routing decides.`)
  return answer('pass', 'no-service')
}

function noEndpoints(run: Run): NotForwarded {
  run.steps.push(`${run.port.name} has no usable endpoints anywhere: refused.`)
  return refuse(run, 'reject', 'no-endpoints')
}

function noLocalEndpoints(run: Run, policy: 'internal' | 'external'): NotForwarded {
  run.steps.push(
    `${policy}TrafficPolicy is Local and ${run.port.name} has usable endpoints, but none on this node: dropped.`,
  )
  return refuse(run, 'drop', 'no-local-endpoints')
}

const isRefusedSctp = ({ packet, dialect }: Run): boolean => dialect.refusesSctp && packet.protocol === 'sctp'

function notRelayed(run: Run): NotForwarded {
  run.steps.push(`${run.dialect.name} mode does not know SCTP: refused.`)
  return refuse(run, 'reject', 'not-relayed')
}

const refuse = ({ port, frontend, steps }: Run, verdict: NotForwarded['verdict'], reason: Reason): NotForwarded => {
  return { verdict, reason, port, frontend, steps }
}

function forward(run: Run, endpoints: readonly Endpoint[], rewritten: boolean): Forwarded {
  const { packet, port, frontend, dialect, steps } = run
  const masquerade = rewritten || dialect.hidesClients
  if (dialect.hidesClients) steps.push('The proxy makes a connection of its own: whoever answers sees this node.')
  const hairpins = (endpoint: Endpoint) => endpoint.ip === packet.from && (endpoint.local || dialect.hairpin === 'all')
  if (!masquerade && endpoints.some(hairpins)) {
    steps.push(`If ${packet.from} is chosen to answer itself, the source becomes this node (hairpin).`)
  }
  if (port.affinitySeconds > 0) steps.push(`The client keeps its endpoint for ${port.affinitySeconds} s (ClientIP).`)
  return {
    verdict: 'forward',
    endpoints: endpoints.map((endpoint) => ({
      address: hostPort(endpoint.ip, endpoint.port),
      snat: masquerade || hairpins(endpoint),
    })),
    masquerade,
    affinity: port.affinitySeconds,
    port,
    frontend,
    steps,
  }
}

const isNodeAddress = (world: TraceContext, ip: string): boolean => isLoopback(ip) || world.nodeAddresses.includes(ip)

const hasClusterIp = (port: ServicePort, ip: string): boolean =>
  port.frontends.some((frontend) => frontend.kind === 'cluster-ip' && frontend.ip === ip)

const holderOf = (world: TraceContext, ip: string): ServicePort | undefined =>
  world.ports.find((port) => port.frontends.some((frontend) => frontend.ip === ip))

function inside(cidr: string, ip: string): boolean {
  const parsed = parseCidr(cidr)
  return parsed !== undefined && contains(parsed, ip)
}

function fromLocalPod(packet: Packet, detector: LocalDetector): boolean {
  if (detector.kind === 'cidr') return inside(detector.cidr, packet.from)
  if (packet.inInterface === undefined) return packet.origin === 'pod'
  return detector.kind === 'interface'
    ? packet.inInterface === detector.name
    : packet.inInterface.startsWith(detector.prefix)
}

// ---- Words. ----

const kinds: Readonly<Record<Frontend['kind'], string>> = {
  'cluster-ip': 'cluster IP',
  'external-ip': 'external IP',
  'load-balancer': 'load balancer IP',
  'node-port': 'node port',
}

const describeTarget = (packet: Packet): string => `${hostPort(packet.to, packet.port)}/${packet.protocol}`

const describePacket = (packet: Packet): string => `A packet from ${packet.from} to ${describeTarget(packet)}`

const describeFrontend = (frontend: Frontend): string =>
  frontend.kind === 'node-port' ? `node port ${frontend.port}` : `${kinds[frontend.kind]} ${frontend.ip}`

function describeDetector(detector: LocalDetector): string {
  if (detector.kind === 'cidr') return `pods are ${detector.cidr}`
  return detector.kind === 'interface'
    ? `pods enter through ${detector.name}`
    : `pods enter through ${detector.prefix}*`
}

const count = (endpoints: readonly Endpoint[]): string =>
  endpoints.length === 1 ? '1 usable endpoint' : `${endpoints.length} usable endpoints`

function describePolicy(name: string, disposition: Disposition, endpoints: number): string {
  const which = endpoints === 1 ? 'the one usable endpoint' : `any of the ${endpoints} usable endpoints`
  return disposition === 'local'
    ? `${name} is Local: ${which} on this node may answer.`
    : `${name} is Cluster: ${which} may answer.`
}
