// Predicts what happens to a packet that no frontend matches by address and port. Pure.

import { hostPort } from '../lib/ip.ts'
import {
  describeTarget,
  isInside,
  isNodeAddress,
  type NotForwarded,
  type Reason,
  type TraceContext,
  type TracedPacket,
} from './packet.ts'
import type { ServicePort } from './types.ts'

/** The address alone may belong to a service or be reserved for services. The first rule that applies decides. */
export function traceUnmatched(unmatched: TracedPacket): NotForwarded {
  const rules = [passToApiServer, traceUnusedPort, rejectOnOwnedAddress, traceUnallocated, passToHealthCheck]
  for (const rule of rules) {
    const decision = rule(unmatched)
    if (decision !== undefined) return decision
  }
  unmatched.steps.push(`No service has ${describeTarget(unmatched.packet)}: routing decides.`)
  return endUnmatched(unmatched, 'pass', 'no-service')
}

function endUnmatched(
  { steps }: TracedPacket,
  verdict: NotForwarded['verdict'],
  reason: Reason,
  port?: ServicePort,
): NotForwarded {
  return { verdict, reason, port, frontend: undefined, steps }
}

function passToApiServer(unmatched: TracedPacket): NotForwarded | undefined {
  const { context, packet, steps } = unmatched
  if (packet.protocol !== 'tcp' || !isApiServer(context, packet.to, packet.port)) return undefined
  steps.push(`${hostPort(packet.to, packet.port)} is the API server: no rule refuses or drops this traffic.`)
  return endUnmatched(unmatched, 'pass', 'api-server')
}

/** Decides for a cluster IP whose service has no such port. */
function traceUnusedPort(unmatched: TracedPacket): NotForwarded | undefined {
  const { context, packet, behaviour, steps } = unmatched
  const owner = context.ports.find((port) => hasClusterIp(port, packet.to))
  if (owner === undefined) return undefined
  steps.push(`${packet.to} is the cluster IP of ${owner.service}, which has no port ${packet.port}/${packet.protocol}.`)
  if (behaviour.rejectsUnusedPorts) {
    steps.push('Ports of cluster IPs that no service uses are refused.')
    return endUnmatched(unmatched, 'reject', 'unused-port', owner)
  }
  steps.push(`${behaviour.name} does not refuse unused ports: routing decides.`)
  return endUnmatched(unmatched, 'pass', 'unused-port', owner)
}

/** Some modes bind the addresses of services to the node, which then answers for all their ports. */
function rejectOnOwnedAddress(unmatched: TracedPacket): NotForwarded | undefined {
  const { context, packet, behaviour, steps } = unmatched
  if (!behaviour.ownsAddresses || isNodeAddress(context, packet.to) || isApiServer(context, packet.to)) return undefined
  const holder = findHolder(context, packet.to)
  if (holder === undefined) return undefined
  steps.push(`${packet.to} is an address of ${holder.service}, which has no port ${packet.port}/${packet.protocol}.`)
  steps.push(`In mode ${behaviour.name} the node answers for it, and refuses ports that no service uses.`)
  return endUnmatched(unmatched, 'reject', 'unused-port', holder)
}

function traceUnallocated(unmatched: TracedPacket): NotForwarded | undefined {
  const { context, packet, behaviour, steps } = unmatched
  if (isNodeAddress(context, packet.to)) return undefined
  const cidr = context.node.serviceCidrs.find((range) => isInside(range, packet.to))
  if (cidr === undefined) return undefined
  steps.push(`${packet.to} is in the service CIDR ${cidr}, but no service has it as its cluster IP.`)
  if (behaviour.dropsUnallocated) {
    steps.push('Traffic to unallocated cluster IPs is dropped, so that it does not loop through the network.')
    return endUnmatched(unmatched, 'drop', 'unallocated')
  }
  steps.push(`${behaviour.name} does not drop traffic to unallocated cluster IPs: routing decides.`)
  return endUnmatched(unmatched, 'pass', 'unallocated')
}

function passToHealthCheck(unmatched: TracedPacket): NotForwarded | undefined {
  const { context, packet, steps } = unmatched
  if (packet.protocol !== 'tcp' || !isNodeAddress(context, packet.to)) return undefined
  const checked = context.ports.find((port) => port.health?.port === packet.port)
  if (checked === undefined) return undefined
  steps.push(`${packet.port} is the health check node port of ${checked.service}: the proxy itself answers.`)
  return endUnmatched(unmatched, 'pass', 'health-check', checked)
}

/** Compares only the address if no port is given. */
const isApiServer = ({ node }: TraceContext, ip: string, port?: number): boolean =>
  node.apiServers.some((server) => server.ip === ip && (port === undefined || server.port === port))

const hasClusterIp = (port: ServicePort, ip: string): boolean =>
  port.frontends.some((frontend) => frontend.kind === 'cluster-ip' && frontend.ip === ip)

const findHolder = (context: TraceContext, ip: string): ServicePort | undefined =>
  context.ports.find((port) => port.frontends.some((frontend) => frontend.ip === ip))
