// What `sluice explain`, `plan` and `status` say about the parts of userspace mode: portals and the sockets behind them. Pure.

import type { Family } from '../../../lib/ip.ts'
import type { Held } from '../../backend.ts'
import type { ExplainTraits, PartDescription } from '../../proxy-mode.ts'
import { lastOrders } from '../entries.ts'

export const userspaceExplain: ExplainTraits = {
  remarks: [],
  describePart,
  listCommand: 'iptables-save -t nat',
}

function describePart({ id, kind, digest }: Held, family: Family): PartDescription {
  const save = family === 4 ? 'iptables-save' : 'ip6tables-save'
  const show = (text: string) => `${save} | grep -F -e '${text}'`
  switch (kind) {
    case 'rules':
      return describePortal(id.slice('rules '.length), digest.trim(), show)
    case 'listener': {
      const port = id.split(' ')[0] ?? ''
      return { name: `socket of ${port}`, content: describeRelay(digest), command: show(portName(port)) }
    }
    case 'socket':
      return describeSocket(id, digest)
    default:
      return { name: id, content: digest, command: show('KUBE-') }
  }
}

/** From `ns/name:port/tcp` to `ns/name:port`, which the comments of rules have. */
const portName = (port: string): string => port.slice(0, port.lastIndexOf('/'))

/** The order of a portal is its service port, or begins with ~ for rules that come after those of all ports. */
function describePortal(order: string, content: string, show: (text: string) => string): PartDescription {
  if (order.startsWith(lastOrders.unused)) {
    const ip = order.slice(lastOrders.unused.length)
    return { name: `other ports of ${ip}`, content, command: show(`-d ${ip}/${ip.includes(':') ? 128 : 32} `) }
  }
  if (order === lastOrders.apiServers) return { name: 'API servers', content, command: show('"API server"') }
  if (order === lastOrders.unallocated) return { name: 'unallocated addresses', content, command: show('unallocated') }
  return { name: `portal ${order}`, content, command: show(portName(order)) }
}

/** The digest is the protocol, the seconds of affinity, and the endpoints. */
const describeRelay = (digest: string): string =>
  `relays to ${digest.split(' ')[2]?.replaceAll(',', ', ') || 'no endpoint'}`

/** Without rules, sockets are at addresses of services: the digest says where, and to which endpoints they relay. */
function describeSocket(id: string, digest: string): PartDescription {
  const { protocol, host, ports, forNode } = JSON.parse(digest) as {
    readonly protocol: string
    readonly host: string
    readonly ports: readonly number[]
    readonly forNode: { readonly endpoints: readonly string[] }
  }
  const address = `${host.includes(':') ? `[${host}]` : host}:${ports[0]}`
  return {
    name: `socket ${address} for ${id}`,
    content: `relays to ${forNode.endpoints.join(', ') || 'no endpoint'}`,
    command: `ss -Hn${protocol === 'udp' ? 'u' : 't'}l src ${address}`,
  }
}
