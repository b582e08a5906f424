// Predicts what happens to the first packet of a connection, from the model alone, for tests and for `explain`. Pure.

import { familyOf, hostPort, isLoopback } from '../lib/ip.ts'
import { slotOfClient } from './consistent-hash.ts'
import { listSlots, tableSizeOf } from './endpoint-slots.ts'
import type { ModeBehaviour } from './mode-behaviour.ts'
import {
  describeTarget,
  type Forwarded,
  isInside,
  isNodeAddress,
  type NotForwarded,
  type Outcome,
  type Packet,
  type Reason,
  type TraceContext,
  type TracedPacket,
} from './packet.ts'
import { traceUnmatched } from './trace-unmatched.ts'
import type { Disposition, Endpoint, Frontend, LocalDetector, ServicePort } from './types.ts'

export function trace(context: TraceContext, packet: Packet, behaviour: ModeBehaviour): Outcome {
  const steps: string[] = []
  if (familyOf(packet.to) !== context.node.family) {
    steps.push(`${packet.to} is not an address of the traced family.`)
    return { verdict: 'pass', reason: 'other-family', port: undefined, frontend: undefined, steps }
  }
  const match = findByAddress(context, packet) ?? findByNodePort(context, packet)
  if (match === undefined) return traceUnmatched({ context, packet, behaviour, steps })
  const { port, frontend } = match
  steps.push(`${describePacket(packet)} is for ${describeFrontend(frontend)} of ${port.name}.`)
  const matched: MatchedPacket = { context, packet, behaviour, port, frontend, steps }
  if (frontend.kind === 'node-port') return traceNodePort(matched)
  return (
    checkSourceRanges(matched) ?? (frontend.kind === 'cluster-ip' ? traceInternal(matched) : traceExternal(matched))
  )
}

/** A packet after its frontend was found. */
interface MatchedPacket extends TracedPacket {
  readonly port: ServicePort
  readonly frontend: Frontend
}

interface Match {
  readonly port: ServicePort
  readonly frontend: Frontend
}

/** A frontend with the exact address always wins over a node port of the same number. */
function findByAddress(context: TraceContext, packet: Packet): Match | undefined {
  return find(context, packet, (frontend) => frontend.ip === packet.to)
}

function findByNodePort(context: TraceContext, packet: Packet): Match | undefined {
  if (!isNodeAddress(context, packet.to)) return undefined
  return find(context, packet, (frontend) => frontend.kind === 'node-port')
}

function find(context: TraceContext, packet: Packet, wanted: (frontend: Frontend) => boolean): Match | undefined {
  for (const port of context.ports) {
    if (port.protocol !== packet.protocol) continue
    const frontend = port.frontends.find((candidate) => candidate.port === packet.port && wanted(candidate))
    if (frontend !== undefined) return { port, frontend }
  }
  return undefined
}

function checkSourceRanges(matched: MatchedPacket): NotForwarded | undefined {
  const { port, frontend, packet, behaviour, steps } = matched
  if (frontend.allow.length === 0) return undefined
  if (port.external === 'reject' && behaviour.firewallWithoutEndpoints === 'reject') return undefined
  const ranges = `source ranges ${frontend.allow.join(', ')}`
  const range = frontend.allow.find((cidr) => isInside(cidr, packet.from))
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
  return endTrace(matched, 'drop', 'source-range')
}

function traceNodePort(matched: MatchedPacket): Outcome {
  const { packet, port, behaviour, steps } = matched
  if (servesNodePort(matched)) return traceExternal(matched)
  if (behaviour.refusesNodePortsEverywhere && port.external === 'reject') return rejectWithoutEndpoints(matched)
  if (behaviour.refusesNodePortsEverywhere && port.external === 'drop') return dropWithoutLocal(matched, 'external')
  steps.push(
    isLoopback(packet.to)
      ? 'Node ports are not served on loopback here: left to the node itself.'
      : `nodePortAddresses does not include ${packet.to}: left to the node itself.`,
  )
  return endTrace(matched, 'pass', 'node-port-elsewhere')
}

function servesNodePort({ context, packet, behaviour }: MatchedPacket): boolean {
  const { all, addresses, loopback, loopbackNamed } = context.node.nodePorts
  if (!isLoopback(packet.to)) return all || addresses.includes(packet.to)
  const localhost = behaviour.localhostNodePorts[context.node.family]
  if (localhost === 'named') return loopbackNamed && addresses.includes(packet.to)
  return localhost === 'covered' && loopback && (all || addresses.includes(packet.to))
}

function traceInternal(matched: MatchedPacket): Outcome {
  const { port, packet, context, steps } = matched
  if (port.internal === 'reject') return rejectWithoutEndpoints(matched)
  if (isRefusedSctp(matched)) return rejectSctp(matched)
  if (port.internal === 'drop') return dropWithoutLocal(matched, 'internal')
  steps.push(describePolicy('internalTrafficPolicy', port.internal, port[port.internal].length))
  const { node } = context
  let masquerade = false
  if (node.masqueradeAll) {
    masquerade = true
    steps.push('masqueradeAll is set: the source becomes this node.')
  } else if (node.local === undefined) {
    steps.push('This node cannot detect traffic of local pods: the source is kept.')
  } else if (isFromLocalPod(packet, node.local)) {
    steps.push(`${packet.from} counts as a local pod (${describeDetector(node.local)}): the source is kept.`)
  } else {
    masquerade = true
    steps.push(`${packet.from} is not a local pod (${describeDetector(node.local)}): the source becomes this node.`)
  }
  return forward(matched, port[port.internal], masquerade)
}

function traceExternal(matched: MatchedPacket): Outcome {
  const { port, packet, context, behaviour, steps } = matched
  if (port.external === 'reject') {
    const leaves = packet.origin === 'node' && !isNodeAddress(context, packet.to)
    if (!leaves || behaviour.rejectsNodeToExternal) return rejectWithoutEndpoints(matched)
    steps.push(
      `${port.name} has no endpoints, but ${behaviour.name} lets the node's own packets leave: routing decides.`,
    )
    return endTrace(matched, 'pass', 'no-endpoints')
  }
  if (isRefusedSctp(matched)) return rejectSctp(matched)
  if (port.external === 'cluster') {
    steps.push(describeExternal(port))
    steps.push('The endpoint may be on another node: the source becomes this node, so that replies come back here.')
    return forward(matched, port.cluster, true)
  }
  if (port.external === 'local' && !behaviour.shortCircuits) return forwardToLocal(matched)
  if (context.node.local !== undefined && isFromLocalPod(packet, context.node.local)) {
    steps.push(
      `externalTrafficPolicy is Local, but ${packet.from} counts as a local pod (${describeDetector(context.node.local)}): short-circuited to all ${count(port.cluster)}, the source is kept.`,
    )
    return forward(matched, port.cluster, false)
  }
  if (isNodeAddress(context, packet.from)) {
    steps.push(
      `externalTrafficPolicy is Local, but ${packet.from} is this node: short-circuited to all ${count(port.cluster)}, the source becomes this node.`,
    )
    return forward(matched, port.cluster, true)
  }
  if (port.external === 'drop') return dropWithoutLocal(matched, 'external')
  steps.push(describePolicy('externalTrafficPolicy', 'local', port.local.length))
  steps.push('The endpoint is on this node: the source is kept.')
  return forward(matched, port.local, false)
}

/** All clients reach the endpoints on this node. Only the node itself, which may use a service address as its source, is masqueraded. */
function forwardToLocal(matched: MatchedPacket): Forwarded {
  const { port, packet, context, behaviour, steps } = matched
  const own = isNodeAddress(context, packet.from)
  steps.push(describePolicy('externalTrafficPolicy', 'local', port.local.length))
  steps.push(
    `${behaviour.name} sends all clients there: ${own ? 'the source becomes this node' : 'the source is kept'}.`,
  )
  return forward(matched, port.local, own)
}

function rejectWithoutEndpoints(matched: MatchedPacket): NotForwarded {
  matched.steps.push(`${matched.port.name} has no usable endpoints anywhere: refused.`)
  return endTrace(matched, 'reject', 'no-endpoints')
}

function dropWithoutLocal(matched: MatchedPacket, policy: 'internal' | 'external'): NotForwarded {
  matched.steps.push(
    `${policy}TrafficPolicy is Local and ${matched.port.name} has usable endpoints, but none on this node: dropped.`,
  )
  return endTrace(matched, 'drop', 'no-local-endpoints')
}

const isRefusedSctp = ({ packet, behaviour }: MatchedPacket): boolean =>
  behaviour.refusesSctp && packet.protocol === 'sctp'

function rejectSctp(matched: MatchedPacket): NotForwarded {
  matched.steps.push(`${matched.behaviour.name} mode does not support SCTP: refused.`)
  return endTrace(matched, 'reject', 'not-relayed')
}

const endTrace = (
  { port, frontend, steps }: MatchedPacket,
  verdict: NotForwarded['verdict'],
  reason: Reason,
): NotForwarded => {
  return { verdict, reason, port, frontend, steps }
}

function forward(matched: MatchedPacket, endpoints: readonly Endpoint[], rewritten: boolean): Forwarded {
  const { packet, port, frontend, behaviour, steps } = matched
  const masquerade = rewritten || behaviour.hidesClients
  if (behaviour.hidesClients)
    steps.push('The proxy opens a connection of its own: the endpoint sees this node as the source.')
  const hairpins = (endpoint: Endpoint) =>
    endpoint.ip === packet.from && (endpoint.local || behaviour.hairpin === 'all')
  if (!masquerade && endpoints.some(hairpins)) {
    steps.push(`If ${packet.from} is chosen to answer itself, the source becomes this node (hairpin).`)
  }
  if (port.affinitySeconds > 0) steps.push(`The client keeps its endpoint for ${port.affinitySeconds} s (ClientIP).`)
  const chosen = chooseByAlgorithm(matched, endpoints)
  return {
    verdict: 'forward',
    endpoints: chosen.map((endpoint) => ({
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

/** Returns the endpoints that this client may get: one with consistent hashing, and otherwise all. */
function chooseByAlgorithm({ packet, port, behaviour, steps }: MatchedPacket, endpoints: readonly Endpoint[]) {
  const size = tableSizeOf(port)
  if (size === 0 || endpoints.length === 0) return endpoints
  if (behaviour.hashTable !== 'ours') {
    steps.push(
      behaviour.hashTable === 'none'
        ? `${behaviour.name} mode has no consistent hashing: the endpoint is chosen at random.`
        : `A hash of ${packet.from}, which the kernel looks up in a table of its own, chooses the endpoint.`,
    )
    return endpoints
  }
  const table = listSlots(port, endpoints)
  const slot = slotOfClient(packet.from, table.length)
  steps.push(`Consistent hashing chooses ${table[slot]}: ${packet.from} has slot ${slot} of ${table.length}.`)
  return endpoints.filter(({ ip, port: number }) => hostPort(ip, number) === table[slot])
}

function isFromLocalPod(packet: Packet, detector: LocalDetector): boolean {
  if (detector.kind === 'cidr') return isInside(detector.cidr, packet.from)
  if (packet.inInterface === undefined) return packet.origin === 'pod'
  return detector.kind === 'interface'
    ? packet.inInterface === detector.name
    : packet.inInterface.startsWith(detector.prefix)
}

// ---- Sentences. ----

const kinds: Readonly<Record<Frontend['kind'], string>> = {
  'cluster-ip': 'cluster IP',
  'external-ip': 'external IP',
  'load-balancer': 'load balancer IP',
  'node-port': 'node port',
}

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

function describeExternal({ drainingUntil, cluster }: ServicePort): string {
  if (drainingUntil === undefined) return describePolicy('externalTrafficPolicy', 'cluster', cluster.length)
  return `externalTrafficPolicy is Local, and the last endpoint on this node has gone: draining until ${drainingUntil}, ${count(cluster)} on other nodes may answer.`
}

function describePolicy(name: string, disposition: Disposition, endpoints: number): string {
  const which = endpoints === 1 ? 'the one usable endpoint' : `any of the ${endpoints} usable endpoints`
  return disposition === 'local'
    ? `${name} is Local: ${which} on this node may answer.`
    : `${name} is Cluster: ${which} may answer.`
}
