// Makes the packets by which modes are compared: for each address of a service port, one of every kind that modes treat differently. Pure.

import type { Inputs } from '../../http/admin.ts'
import { familyOf, hostPort, isLoopback } from '../../lib/ip.ts'
import type { Packet } from '../../model/packet.ts'
import type { Frontend, NodeView, ServicePort } from '../../model/types.ts'

export interface MigrationProbe {
  /** Names sender and destination for people. */
  readonly title: string
  readonly packet: Packet
}

interface Destination {
  readonly ip: string
  readonly port: number
}

export function makeProbes(
  servicePort: ServicePort,
  view: NodeView,
  { nodeAddresses }: Pick<Inputs, 'nodeAddresses'>,
): readonly MigrationProbe[] {
  const { family, protocol } = servicePort
  const loopback = family === 4 ? '127.0.0.1' : '::1'
  const send = (from: string, origin: Packet['origin'], to: Destination): Packet => ({
    from,
    to: to.ip,
    port: to.port,
    protocol,
    origin,
  })
  const fromOutside = (to: Destination) => send(family === 4 ? '198.51.100.7' : '2001:db8::7', 'outside', to)
  const fromNode = (to: Destination) => send(view.ip, 'node', to)

  const probesByKind: Readonly<Record<Frontend['kind'], (to: Destination) => readonly MigrationProbe[]>> = {
    'node-port': ({ port }) => [
      ...nodeAddresses
        .filter((ip) => familyOf(ip) === family && !isLinkLocal(ip) && !isLoopback(ip))
        .map((ip) => ({
          title: `from outside to node port ${hostPort(ip, port)}`,
          packet: fromOutside({ ip, port }),
        })),
      {
        title: `on the node to ${hostPort(loopback, port)}`,
        packet: send(loopback, 'node', { ip: loopback, port }),
      },
    ],
    'cluster-ip': (to) => [
      { title: `on the node to ${hostPort(to.ip, to.port)}`, packet: fromNode(to) },
      {
        title: `to a port of ${to.ip} that no service uses`,
        packet: fromNode({ ip: to.ip, port: unusedPort(servicePort) }),
      },
    ],
    'load-balancer': (to) => probeExternal('load balancer IP', to),
    'external-ip': (to) => probeExternal('external IP', to),
  }
  const probeExternal = (kind: string, to: Destination): readonly MigrationProbe[] => [
    { title: `from outside to ${kind} ${hostPort(to.ip, to.port)}`, packet: fromOutside(to) },
    { title: `on the node to ${kind} ${hostPort(to.ip, to.port)}`, packet: fromNode(to) },
  ]
  return servicePort.frontends.flatMap((frontend) => probesByKind[frontend.kind](frontend))
}

const isLinkLocal = (ip: string): boolean => ip.startsWith('fe80:')

/** Port 10 is not assigned to any protocol, so services hardly ever use it. */
const unusedPort = ({ frontends }: ServicePort): number => (frontends.some(({ port }) => port === 10) ? 11 : 10)
