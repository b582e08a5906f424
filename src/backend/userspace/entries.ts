// The entries of userspace mode: sockets that we listen on, and iptables rules that redirect traffic to them. Pure.

import type { Protocol } from '../../model/types.ts'
import type { Held } from '../backend.ts'
import type { BalancerChoice } from '../relay/balancer-choice.ts'

/** Which endpoints a listener offers: all usable ones, or those on this node. */
export type Reach = 'cluster' | 'local'

export const reaches: readonly Reach[] = ['cluster', 'local']

/** One socket per service port and reach. The target chooses its port. */
export interface RelayListenerEntry extends Held {
  readonly kind: 'listener'
  readonly listener: ListenerPlan
}

export interface ListenerPlan {
  readonly protocol: Protocol
  /** `ip:port`, each as often as its weight wants. */
  readonly endpoints: readonly string[]
  /** UDP flows to these endpoints may continue, although new flows go to `endpoints`; empty for TCP. */
  readonly serving: readonly string[]
  readonly affinitySeconds: number
  readonly choice?: BalancerChoice
}

/**
 * Lines for iptables-restore, in which `<id>` of a listener stands for the jump to it. The digest is the text itself: so the text is not
 * stored twice, and equal digests mean equal content.
 */
export interface PortalRulesEntry extends Held {
  readonly kind: 'rules'
  /** The entries are written in this order. */
  readonly order: string
  /** The node ports among the lines, as `tcp 30080`. */
  readonly nodePorts: readonly string[]
}

/** The node's own address: listeners use it if the configuration names no other. */
export interface HostEntry extends Held {
  readonly kind: 'host'
}

export type UserspaceEntry = RelayListenerEntry | PortalRulesEntry | HostEntry

/** Rules of exact addresses and ports come before rules of whole addresses, and those before rules of networks. */
export const lastOrders = { apiServers: '~0 ', unused: '~1 ', unallocated: '~2 ' } as const

export const listenerId = (port: string, reach: Reach): string => `${port} ${reach}`

export function listenerEntry(id: string, listener: ListenerPlan): RelayListenerEntry {
  const { protocol, endpoints, serving, affinitySeconds, choice } = listener
  const chosen = choice === undefined ? '' : ` ${JSON.stringify(choice)}`
  const digest = `${protocol} ${affinitySeconds} ${endpoints.join(',')} ${serving.join(',')}${chosen}`
  return { kind: 'listener', id, digest, listener }
}

export function rulesEntry(
  order: string,
  lines: readonly string[],
  nodePorts: readonly string[] = [],
): PortalRulesEntry {
  const digest = lines.map((line) => `${line}\n`).join('')
  return { kind: 'rules', id: `rules ${order}`, digest, order, nodePorts }
}

export const hostEntry = (ip: string): HostEntry => ({ kind: 'host', id: 'host', digest: ip })
