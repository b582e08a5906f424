// Services on addresses that this machine itself has, without any redirection: which sockets that takes. Pure.
//
// A socket that listens on the service's own address knows the client and the frontend, so it decides all that iptables decides
// elsewhere. What cannot be served has no socket, and the system refuses its clients; nothing can be dropped silently here.

import { contains, type Family, hostPort, isLoopback, parseCidr } from '../../../lib/ip.ts'
import type { Disposition, Endpoint, Frontend, NodeView, Protocol, ServicePort } from '../../../model/types.ts'
import type { Held } from '../../backend.ts'

export interface DirectEntry extends Held {
  readonly kind: 'socket'
  readonly socket: DirectSocket
}

export interface DirectSocket {
  readonly protocol: Protocol
  readonly host: string
  /** Tried in this order; 0: any. */
  readonly ports: readonly number[]
  /** What people call the service port. */
  readonly name: string
  /** For clients of this node and its pods: `ip:port`. */
  readonly near: readonly string[]
  /** For all others; undefined: they are turned away. */
  readonly far: readonly string[] | undefined
  /** Where clients may come from; empty: everywhere. */
  readonly allow: readonly string[]
  /** CIDR of this node's pods; '' if unknown. */
  readonly pods: string
  readonly serving: readonly string[]
  readonly affinitySeconds: number
}

/** Where a frontend is listened on; none: nowhere. */
export type ListenPlace = (
  frontend: Frontend,
  family: Family,
) => { readonly host: string; readonly ports: readonly number[] } | undefined

/** Every address of the service, as it is: for machines that are given these addresses. */
export const serviceAddress: ListenPlace = ({ kind, ip, port }, family) => ({
  host: kind === 'node-port' ? (family === 4 ? '0.0.0.0' : '::') : ip,
  ports: [port],
})

export const planDirect =
  (where: ListenPlace) =>
  (port: ServicePort, node: NodeView): readonly DirectEntry[] => {
    const entries: DirectEntry[] = []
    for (const frontend of port.frontends) {
      const place = where(frontend, node.family)
      const policy = frontend.kind === 'cluster-ip' ? port.internal : port.external
      if (place === undefined || policy === 'reject') continue
      const socket = socketFor({ port, node, frontend, policy, ...place })
      if (socket !== undefined) entries.push(directEntry(frontend, socket))
    }
    return entries
  }

interface Choice {
  readonly port: ServicePort
  readonly node: NodeView
  readonly frontend: Frontend
  readonly policy: Exclude<Disposition, 'reject'>
  readonly host: string
  readonly ports: readonly number[]
}

function socketFor({ port, node, frontend, policy, host, ports }: Choice): DirectSocket | undefined {
  const internal = frontend.kind === 'cluster-ip'
  if (internal && policy === 'drop') return undefined
  const far = policy === 'drop' ? undefined : port[policy].map(address)
  return {
    protocol: port.protocol,
    host,
    ports,
    name: port.name,
    near: internal ? (far ?? []) : port.cluster.map(address),
    far,
    allow: frontend.allow,
    pods: node.local?.kind === 'cidr' ? node.local.cidr : '',
    serving: port.serving.map(address),
    affinitySeconds: port.affinitySeconds,
  }
}

/** By its address: when one service takes it over from another, the socket stays. */
function directEntry({ kind, ip, port }: Frontend, socket: DirectSocket): DirectEntry {
  const id = `${socket.protocol} ${kind === 'node-port' ? `*:${port}` : hostPort(ip, port)}`
  return { kind: 'socket', id, digest: JSON.stringify(socket), socket }
}

const address = ({ ip, port }: Endpoint): string => hostPort(ip, port)

/** Does a client count as being on this node? */
export function isNear(client: string, pods: string, own: ReadonlySet<string>): boolean {
  return isLoopback(client) || own.has(client) || inside(pods, client)
}

export const admits = (client: string, allow: readonly string[]): boolean =>
  allow.length === 0 || allow.some((range) => inside(range, client))

function inside(cidr: string, ip: string): boolean {
  const parsed = cidr === '' ? undefined : parseCidr(cidr)
  return parsed !== undefined && contains(parsed, ip)
}
