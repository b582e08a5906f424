// Plans which sockets serve a service on addresses that this machine itself has, without any redirection. Pure.
//
// A socket that listens on the service's own address knows the client and the frontend, so it decides everything that iptables decides
// elsewhere. A frontend that cannot be served has no socket, and the system refuses its clients; nothing can be dropped silently here.

import { contains, hostPort, isLinkLocal6, isLoopback, parseCidr } from '../../../lib/ip.ts'
import { listWeighted } from '../../../model/endpoint-slots.ts'
import type { Disposition, Endpoint, Frontend, NodeView, Protocol, ServicePort } from '../../../model/types.ts'
import type { Held } from '../../backend.ts'
import { type BalancerChoice, planChoice } from '../../relay/balancer-choice.ts'

export interface DirectEntry extends Held {
  readonly kind: 'socket'
  readonly socket: DirectSocket
}

export interface DirectSocket {
  readonly protocol: Protocol
  readonly host: string
  /** Tried in this order; 0: any. */
  readonly ports: readonly number[]
  /** The name of the service port, for messages. */
  readonly name: string
  /** Endpoints for clients on this node and its pods. */
  readonly forNode: DirectEndpoints
  /** Endpoints for all other clients; undefined: they are turned away. */
  readonly forOthers: DirectEndpoints | undefined
  /** Ranges that clients may come from; empty: all. */
  readonly allow: readonly string[]
  /** CIDR of this node's pods; '' if unknown. */
  readonly pods: string
  readonly serving: readonly string[]
  readonly affinitySeconds: number
  readonly choice?: BalancerChoice
}

export interface DirectEndpoints {
  /** All usable endpoints of the service port, or those on this node. Sockets with the same reach share sessions. */
  readonly reach: 'cluster' | 'local'
  /** As `ip:port`, each as often as its weight wants. */
  readonly endpoints: readonly string[]
}

/** An address and the ports on which a frontend is served. */
export interface DirectPlace {
  readonly host: string
  readonly ports: readonly number[]
  /** The address in ids: `10.96.0.1:80`, or `*:30080`. */
  readonly label: string
}

/** Chooses the places of a frontend; none: the frontend is not served. */
export type DirectPlacement = (frontend: Frontend, protocol: Protocol, node: NodeView) => readonly DirectPlace[]

/**
 * Serves every frontend on its own address, for machines that get these addresses, and node ports on the addresses of the node. A UDP
 * socket for all addresses would answer from an address that the client did not ask.
 */
export const placeOnServiceAddress: DirectPlacement = ({ kind, ip, port }, protocol, { family, nodePorts }) => {
  if (kind !== 'node-port') return [makePlace(ip, port)]
  if (nodePorts.all && protocol === 'tcp') {
    return [{ host: family === 4 ? '0.0.0.0' : '::', ports: [port], label: `*:${port}` }]
  }
  return nodePorts.addresses.filter((own) => !isLinkLocal6(own)).map((own) => makePlace(own, port))
}

const makePlace = (host: string, port: number): DirectPlace => ({ host, ports: [port], label: hostPort(host, port) })

export const planDirect =
  (placement: DirectPlacement) =>
  (port: ServicePort, node: NodeView): readonly DirectEntry[] => {
    const entries: DirectEntry[] = []
    for (const frontend of port.frontends) {
      const policy = frontend.kind === 'cluster-ip' ? port.internal : port.external
      if (policy === 'reject') continue
      for (const place of placement(frontend, port.protocol, node)) {
        const socket = planSocket({ port, node, frontend, policy, place })
        if (socket !== undefined) entries.push(directEntry(place, socket))
      }
    }
    return entries
  }

interface SocketRequest {
  readonly port: ServicePort
  readonly node: NodeView
  readonly frontend: Frontend
  readonly policy: Exclude<Disposition, 'reject'>
  readonly place: DirectPlace
}

function planSocket({ port, node, frontend, policy, place }: SocketRequest): DirectSocket | undefined {
  const isInternal = frontend.kind === 'cluster-ip'
  if (isInternal && policy === 'drop') return undefined
  const listEndpoints = (reach: 'cluster' | 'local') => ({ reach, endpoints: listWeighted(port, port[reach]) })
  const forOthers = policy === 'drop' ? undefined : listEndpoints(policy)
  return {
    protocol: port.protocol,
    host: place.host,
    ports: place.ports,
    name: port.name,
    forNode: isInternal && forOthers !== undefined ? forOthers : listEndpoints('cluster'),
    forOthers,
    allow: listAllowed(port, frontend),
    pods: node.local?.kind === 'cidr' ? node.local.cidr : '',
    serving: port.serving.map(formatEndpoint),
    affinitySeconds: port.affinitySeconds,
    ...planChoice(port),
  }
}

/** A process of the node that asks an address of the service often has that address as its source. */
function listAllowed({ nodeAllowed }: ServicePort, { allow, ip }: Frontend): readonly string[] {
  return nodeAllowed && allow.length > 0 && ip !== '' ? [...allow, `${ip}/${ip.includes(':') ? 128 : 32}`] : allow
}

/** The id is the address, so the socket stays open when another service gets the address. */
const directEntry = ({ label }: DirectPlace, socket: DirectSocket): DirectEntry => ({
  kind: 'socket',
  id: `${socket.protocol} ${label}`,
  digest: JSON.stringify(socket),
  socket,
})

const formatEndpoint = ({ ip, port }: Endpoint): string => hostPort(ip, port)

/** True if the client counts as being on this node: `own` are the addresses of the node. */
export function isOnNode(client: string, pods: string, own: ReadonlySet<string>): boolean {
  return isLoopback(client) || own.has(client) || isInside(pods, client)
}

export const isAllowed = (client: string, allow: readonly string[]): boolean =>
  allow.length === 0 || allow.some((range) => isInside(range, client))

function isInside(cidr: string, ip: string): boolean {
  const parsed = cidr === '' ? undefined : parseCidr(cidr)
  return parsed !== undefined && contains(parsed, ip)
}
