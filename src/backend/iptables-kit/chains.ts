// The names that kube-proxy gives to chains, and where its shared chains hang: facts shared by base, target and cleanup. Pure.

import type { IptablesTableName } from '../iptables/entries.ts'

/** Chains of service ports and endpoints, all in nat; first those of which there are most. */
const ownPrefixes = ['KUBE-SEP-', 'KUBE-SVC-', 'KUBE-SVL-', 'KUBE-EXT-', 'KUBE-FW-'] as const

/** Looks at `text` from `start` on. */
export function isOwnChain(text: string, start = 0): boolean {
  for (const prefix of ownPrefixes) if (text.startsWith(prefix, start)) return true
  return false
}

export const canary = 'KUBE-PROXY-CANARY'

/** In the order in which restore declares them. KUBE-FIREWALL is kubelet's too: declared only when its rule is written. */
export const sharedChains: Readonly<Record<IptablesTableName, readonly string[]>> = {
  filter: ['KUBE-SERVICES', 'KUBE-EXTERNAL-SERVICES', 'KUBE-FORWARD', 'KUBE-NODEPORTS', 'KUBE-PROXY-FIREWALL'],
  nat: ['KUBE-SERVICES', 'KUBE-NODEPORTS', 'KUBE-POSTROUTING', 'KUBE-MARK-MASQ'],
}

export const kubeletFirewall = 'KUBE-FIREWALL'

export interface KubeJump {
  readonly table: IptablesTableName
  readonly from: string
  readonly to: string
  /** Only the first packet of a connection. */
  readonly fresh: boolean
  /** '' for none. */
  readonly comment: string
}

const external = 'kubernetes externally-visible service portals'
const portals = 'kubernetes service portals'
const firewall = 'kubernetes load balancer firewall'

const jump = (table: IptablesTableName, from: string, to: string, comment: string, fresh = false): KubeJump => {
  return { table, from, to, comment, fresh }
}

/** Each is put before what is there, so on a fresh node the last one of a chain comes first. */
export const jumps: readonly KubeJump[] = [
  jump('filter', 'INPUT', 'KUBE-EXTERNAL-SERVICES', external, true),
  jump('filter', 'FORWARD', 'KUBE-EXTERNAL-SERVICES', external, true),
  jump('filter', 'INPUT', 'KUBE-NODEPORTS', 'kubernetes health check service ports'),
  jump('filter', 'FORWARD', 'KUBE-SERVICES', portals, true),
  jump('filter', 'OUTPUT', 'KUBE-SERVICES', portals, true),
  jump('filter', 'FORWARD', 'KUBE-FORWARD', 'kubernetes forwarding rules'),
  jump('filter', 'INPUT', 'KUBE-PROXY-FIREWALL', firewall, true),
  jump('filter', 'OUTPUT', 'KUBE-PROXY-FIREWALL', firewall, true),
  jump('filter', 'FORWARD', 'KUBE-PROXY-FIREWALL', firewall, true),
  jump('nat', 'OUTPUT', 'KUBE-SERVICES', portals),
  jump('nat', 'PREROUTING', 'KUBE-SERVICES', portals),
  jump('nat', 'POSTROUTING', 'KUBE-POSTROUTING', 'kubernetes postrouting rules'),
  jump('filter', 'INPUT', kubeletFirewall, ''),
  jump('filter', 'OUTPUT', kubeletFirewall, ''),
]

/** What follows the name of the chain. */
export function jumpArgs({ fresh, comment, to }: KubeJump): readonly string[] {
  return [
    ...(fresh ? ['-m', 'conntrack', '--ctstate', 'NEW'] : []),
    ...(comment === '' ? [] : ['-m', 'comment', '--comment', comment]),
    ...['-j', to],
  ]
}

/** As iptables-save prints it. */
export function savedJump(one: KubeJump): string {
  const args = jumpArgs(one).map((arg) => (arg === one.comment ? `"${arg}"` : arg))
  return `-A ${one.from} ${args.join(' ')}`
}

/** Objects of the kernel that count packets, where it has nfacct. */
export const counters = {
  invalid: 'ct_state_invalid_dropped_pkts',
  localhost: 'localhost_nps_accepted_pkts',
} as const
