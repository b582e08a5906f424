// Parses what the user asks about, an address and port or a service by name, and decides where a packet with a given source comes from.

import { ProxyError } from '../lib/errors.ts'
import { canonicalIp, contains, familyOf, isLoopback, parseCidr, splitHostPort } from '../lib/ip.ts'
import type { Frontend, NodeView, Protocol, ServicePort } from '../model/types.ts'
import type { Desired } from './dry-run.ts'
import { parseServiceName, type ServiceName } from './service-name.ts'

export interface PacketTarget {
  readonly ip: string
  readonly port: number
  readonly protocol: Protocol
}

interface QuestionContext {
  readonly desired: Desired
  readonly views: readonly NodeView[]
  readonly nodeAddresses: readonly string[]
}

/** Throws a ProxyError 'question' if the text has no known form or the service does not exist. */
export function findTargets(context: QuestionContext, text: string): readonly PacketTarget[] {
  const match = /^(.*?)(?:\/(tcp|udp|sctp))?$/i.exec(text.trim())
  const body = match?.[1] ?? ''
  const protocol = match?.[2]?.toLowerCase() as Protocol | undefined
  if (body.startsWith(':')) return findNodePortTargets(context, body.slice(1), protocol ?? 'tcp')
  const address = splitHostPort(body)
  const ip = address === undefined ? undefined : canonicalIp(address.host)
  if (address !== undefined && ip !== undefined) return [{ ip, port: address.port, protocol: protocol ?? 'tcp' }]
  refuseBadAddress(text, body)
  return findServiceTargets(context, parseServiceName(body), protocol)
}

/** Throws if the text looks like an address and is none. */
function refuseBadAddress(text: string, body: string): void {
  if (isIp(body)) throw new ProxyError('question', `"${text}" has no port: give ADDRESS:PORT`)
  const host = body.replace(/:\d*$/, '')
  if (isIp(host)) throw new ProxyError('question', `"${text}": a port is a number from 1 to 65535`)
  const looksLikeAddress = /^[\d.]+$/.test(host) || /:.*:/.test(body) || body.startsWith('[')
  if (looksLikeAddress) throw new ProxyError('question', `"${text}": ${host} is not a valid IP address`)
}

const isIp = (text: string): boolean => canonicalIp(text.replace(/^\[|\]$/g, '')) !== undefined

/** A node port is asked about on one address of each family of this node. */
function findNodePortTargets({ views }: QuestionContext, text: string, protocol: Protocol): readonly PacketTarget[] {
  const port = /^\d+$/.test(text) ? Number(text) : 0
  if (port < 1 || port > 65_535) {
    throw new ProxyError('question', `":${text}": a node port is a number from 1 to 65535`)
  }
  // A family in which the node has no address has a loopback address as its placeholder.
  const served = views.filter((view) => !isLoopback(view.ip))
  return (served.length === 0 ? views : served).map((view) => ({ ip: nodePortAddress(view), port, protocol }))
}

function findServiceTargets(
  context: QuestionContext,
  { keys, port: portText }: ServiceName,
  protocol: Protocol | undefined,
): readonly PacketTarget[] {
  const key = keys.find((one) => context.desired.store.service(one) !== undefined)
  if (key === undefined) throw unknownService(context, keys[0] ?? '')
  const ports = context.views.flatMap(({ family }) => context.desired.portsOf(key, family))
  const targets = ports
    .filter((port) => protocol === undefined || port.protocol === protocol)
    .filter((port) => portText === '' || isNamed(port, portText))
    .flatMap((port) => port.frontends.flatMap((frontend) => targetOf(context, port, frontend)))
  if (targets.length === 0) {
    const quarantine = context.desired.quarantined().find(({ service }) => service === key)
    if (quarantine !== undefined) {
      throw new ProxyError('question', `${key} is not programmed: ${quarantine.error.message}`)
    }
    const known = [...new Set(ports.map((port) => `${port.portName || port.frontends[0]?.port}/${port.protocol}`))]
    throw new ProxyError('question', `${key} has no such port here; it has ${known.join(', ') || 'none'}`)
  }
  return targets
}

/** True if the text is the name or the number of the port. */
const isNamed = (port: ServicePort, text: string): boolean =>
  port.portName === text || port.frontends.some((frontend) => String(frontend.port) === text)

function targetOf(context: QuestionContext, port: ServicePort, frontend: Frontend): readonly PacketTarget[] {
  const { protocol } = port
  if (frontend.kind !== 'node-port') return [{ ip: frontend.ip, port: frontend.port, protocol }]
  const view = context.views.find(({ family }) => family === port.family)
  return view === undefined ? [] : [{ ip: nodePortAddress(view), port: frontend.port, protocol }]
}

function nodePortAddress({ ip, nodePorts }: NodeView): string {
  if (nodePorts.all) return ip
  return nodePorts.addresses.find((one) => !isLoopback(one)) ?? ip
}

function unknownService({ desired }: QuestionContext, key: string): ProxyError {
  const name = key.slice(key.indexOf('/') + 1)
  const similar = [...desired.store.records()].map((record) => record.key).filter((one) => one.endsWith(`/${name}`))
  const hint = similar.length === 0 ? '' : ` (there is ${similar.slice(0, 3).join(', ')})`
  return new ProxyError('question', `there is no service ${key} with a cluster IP${hint}`)
}

/** Says whether a source is a pod of this node, the node itself, or outside, as far as its address shows. */
export function originOf(context: QuestionContext, view: NodeView, source: string): 'pod' | 'node' | 'outside' {
  if (isLoopback(source) || context.nodeAddresses.includes(source) || source === view.ip) return 'node'
  if (view.local?.kind === 'cidr') {
    const cidr = parseCidr(view.local.cidr)
    return cidr !== undefined && contains(cidr, source) ? 'pod' : 'outside'
  }
  // The other detectors look at interfaces, which an address does not reveal: only known endpoints of this node count as pods.
  return isLocalEndpoint(context, view, source) ? 'pod' : 'outside'
}

function isLocalEndpoint({ desired }: QuestionContext, view: NodeView, ip: string): boolean {
  for (const record of desired.store.records()) {
    const endpoints = desired.store.slicesOf(record.key, familyOf(ip)).flatMap((slice) => [...slice.endpoints])
    if (endpoints.some((endpoint) => endpoint.ip === ip && endpoint.node === view.name)) return true
  }
  return false
}
