// What userspace mode holds: sockets that we listen on, and iptables lines that bring traffic to them. Pure.

import type { Protocol } from '../../model/types.ts'
import type { Held } from '../backend.ts'

/** Which endpoints a listener offers: all that are usable, or those on this node. */
export type Reach = 'cluster' | 'local'

export const reaches: readonly Reach[] = ['cluster', 'local']

/** One socket per service port and reach; which port it gets is the target's business. */
export interface RelayListenerEntry extends Held {
  readonly kind: 'listener'
  readonly listener: ListenerPlan
}

export interface ListenerPlan {
  readonly protocol: Protocol
  /** `ip:port`. */
  readonly endpoints: readonly string[]
  /** UDP flows to these may go on, though new ones go to `endpoints`; empty for TCP. */
  readonly serving: readonly string[]
  readonly affinitySeconds: number
}

/**
 * Lines of iptables-restore by chain, in which `<id>` of a listener stands for the jump to it. The digest is the text: nothing
 * is kept twice, and equal text is equal content.
 */
export interface PortalRulesEntry extends Held {
  readonly kind: 'rules'
  /** By which the text is ordered. */
  readonly order: string
  /** Node ports among the lines, as `tcp 30080`. */
  readonly nodePorts: readonly string[]
}

/** The node's own address, where listeners are if the configuration names no other. */
export interface HostEntry extends Held {
  readonly kind: 'host'
}

export type UserspaceEntry = RelayListenerEntry | PortalRulesEntry | HostEntry

export const listenerId = (port: string, reach: Reach): string => `${port} ${reach}`

export function listenerEntry(id: string, listener: ListenerPlan): RelayListenerEntry {
  const { protocol, endpoints, serving, affinitySeconds } = listener
  const digest = `${protocol} ${affinitySeconds} ${endpoints.join(',')} ${serving.join(',')}`
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
