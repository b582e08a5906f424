// What a question is about: an address and port, or a service by name; and where a packet with a given source comes from.

import { ProxyError } from '../lib/errors.ts'
import { canonicalIp, contains, familyOf, isLoopback, parseCidr, splitHostPort } from '../lib/ip.ts'
import type { Frontend, NodeView, Protocol, ServicePort } from '../model/types.ts'
import type { Desired } from './dry-run.ts'

export interface PacketTarget {
  readonly ip: string
  readonly port: number
  readonly protocol: Protocol
}

interface Where {
  readonly desired: Desired
  readonly views: readonly NodeView[]
  readonly nodeAddresses: readonly string[]
}

const forms = ['ADDRESS:PORT[/tcp|udp|sctp]', 'NAMESPACE/NAME[:PORT]'] as const

/** Throws a ProxyError 'question' if it cannot be understood or there is no such service. */
export function findTargets(where: Where, text: string): readonly PacketTarget[] {
  const match = /^(.*?)(?:\/(tcp|udp|sctp))?$/i.exec(text.trim()) as RegExpExecArray
  const [body, protocol] = [match[1] as string, match[2]?.toLowerCase() as Protocol | undefined]
  const place = splitHostPort(body)
  const ip = place === undefined ? undefined : canonicalIp(place.host)
  if (place !== undefined && ip !== undefined) return [{ ip, port: place.port, protocol: protocol ?? 'tcp' }]
  if (canonicalIp(body.replace(/^\[|\]$/g, '')) !== undefined) {
    throw new ProxyError('question', `"${text}" has no port: give ${forms.join(' or ')}`)
  }
  if (canonicalIp(body.replace(/:\d*$/, '').replace(/^\[|\]$/g, '')) !== undefined) {
    throw new ProxyError('question', `"${text}": a port is a number from 1 to 65535`)
  }
  return byName(where, body, protocol)
}

function byName(where: Where, text: string, protocol: Protocol | undefined): readonly PacketTarget[] {
  const match = /^(?:([a-z0-9.-]+)\/)?([a-z0-9.-]+)(?::([A-Za-z0-9-]+))?$/.exec(text)
  if (match === null) throw new ProxyError('question', `"${text}" is neither ${forms.join(' nor ')}`)
  const key = `${match[1] ?? 'default'}/${match[2]}`
  if (where.desired.store.service(key) === undefined) throw noService(where, key)
  const ports = where.views.flatMap(({ family }) => where.desired.portsOf(key, family))
  const wanted = (port: ServicePort) =>
    (protocol === undefined || port.protocol === protocol) &&
    (match[3] === undefined ||
      port.portName === match[3] ||
      port.frontends.some((frontend) => String(frontend.port) === match[3]))
  const aims = ports
    .filter(wanted)
    .flatMap((port) => port.frontends.flatMap((frontend) => packetTarget(where, port, frontend)))
  if (aims.length === 0) {
    const known = [...new Set(ports.map((port) => `${port.portName || port.frontends[0]?.port}/${port.protocol}`))]
    throw new ProxyError('question', `${key} has no such port here; it has ${known.join(', ') || 'none'}`)
  }
  return aims
}

function packetTarget(where: Where, port: ServicePort, frontend: Frontend): readonly PacketTarget[] {
  if (frontend.kind !== 'node-port') return [{ ip: frontend.ip, port: frontend.port, protocol: port.protocol }]
  const view = where.views.find(({ family }) => family === port.family)
  const served = view?.nodePorts.addresses.find((ip) => !isLoopback(ip))
  const ip = view === undefined ? undefined : view.nodePorts.all ? view.ip : (served ?? view.ip)
  return ip === undefined ? [] : [{ ip, port: frontend.port, protocol: port.protocol }]
}

function noService({ desired }: Where, key: string): ProxyError {
  const name = key.slice(key.indexOf('/') + 1)
  const near = [...desired.store.records()].map((record) => record.key).filter((one) => one.endsWith(`/${name}`))
  const hint = near.length === 0 ? '' : ` (there is ${near.slice(0, 3).join(', ')})`
  return new ProxyError('question', `there is no service ${key} with a cluster IP${hint}`)
}

/** From a pod of this node, from the node itself, or from elsewhere: as far as the address tells. */
export function originOf(where: Where, view: NodeView, source: string): 'pod' | 'node' | 'outside' {
  if (isLoopback(source) || where.nodeAddresses.includes(source) || source === view.ip) return 'node'
  if (view.local?.kind === 'cidr') {
    const cidr = parseCidr(view.local.cidr)
    return cidr !== undefined && contains(cidr, source) ? 'pod' : 'outside'
  }
  // Interfaces tell nothing about an address: endpoints that are known to be here are pods of this node.
  for (const record of where.desired.store.records()) {
    for (const slice of where.desired.store.slicesOf(record.key, familyOf(source))) {
      if (slice.endpoints.some((endpoint) => endpoint.ip === source && endpoint.node === view.name)) return 'pod'
    }
  }
  return 'outside'
}
