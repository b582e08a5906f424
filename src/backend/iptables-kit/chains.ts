// The names of kube-proxy's iptables chains and counters, and the jumps that lead into its shared chains. Pure.

export type IptablesTableName = 'filter' | 'nat'

/** Prefixes of the chains of service ports and endpoints, all in nat. The most frequent prefix comes first. */
const serviceChainPrefixes = ['KUBE-SEP-', 'KUBE-SVC-', 'KUBE-SVL-', 'KUBE-EXT-', 'KUBE-FW-'] as const

/** True if the name that begins at `start` in `text` is the chain of a service port or an endpoint. */
export function isServiceChain(text: string, start = 0): boolean {
  for (const prefix of serviceChainPrefixes) if (text.startsWith(prefix, start)) return true
  return false
}

/** With what the names of the chains of endpoints begin. */
export const [endpointPrefix] = serviceChainPrefixes

/** True if the chain is that of an endpoint. */
export const isEndpointChain = (chain: string): boolean => chain.startsWith(endpointPrefix)

/** A chain without rules in every table. It is missing as soon as someone deletes all chains of that table. */
export const canary = 'KUBE-PROXY-CANARY'

/** Shared chains in the order in which a restore declares them. KUBE-FIREWALL is kubelet's too: it is declared only with its rule. */
export const sharedChains: Readonly<Record<IptablesTableName, readonly string[]>> = {
  filter: ['KUBE-SERVICES', 'KUBE-EXTERNAL-SERVICES', 'KUBE-FORWARD', 'KUBE-NODEPORTS', 'KUBE-PROXY-FIREWALL'],
  nat: ['KUBE-SERVICES', 'KUBE-NODEPORTS', 'KUBE-POSTROUTING', 'KUBE-MARK-MASQ'],
}

export const kubeletFirewall = 'KUBE-FIREWALL'

interface JumpTarget {
  readonly table: IptablesTableName
  readonly to: string
  /** True if only the first packet of a connection jumps. */
  readonly newOnly: boolean
  /** '' for a jump without a comment. */
  readonly comment: string
}

/** A jump from a built-in chain to a shared chain. */
export interface KubeJump extends JumpTarget {
  readonly from: string
}

const externalServices: JumpTarget = {
  table: 'filter',
  to: 'KUBE-EXTERNAL-SERVICES',
  newOnly: true,
  comment: 'kubernetes externally-visible service portals',
}
const healthChecks: JumpTarget = {
  table: 'filter',
  to: 'KUBE-NODEPORTS',
  newOnly: false,
  comment: 'kubernetes health check service ports',
}
const refusedServices: JumpTarget = {
  table: 'filter',
  to: 'KUBE-SERVICES',
  newOnly: true,
  comment: 'kubernetes service portals',
}
const forwarding: JumpTarget = {
  table: 'filter',
  to: 'KUBE-FORWARD',
  newOnly: false,
  comment: 'kubernetes forwarding rules',
}
const proxyFirewall: JumpTarget = {
  table: 'filter',
  to: 'KUBE-PROXY-FIREWALL',
  newOnly: true,
  comment: 'kubernetes load balancer firewall',
}
const services: JumpTarget = {
  table: 'nat',
  to: 'KUBE-SERVICES',
  newOnly: false,
  comment: 'kubernetes service portals',
}
const postrouting: JumpTarget = {
  table: 'nat',
  to: 'KUBE-POSTROUTING',
  newOnly: false,
  comment: 'kubernetes postrouting rules',
}
const firewall: JumpTarget = { table: 'filter', to: kubeletFirewall, newOnly: false, comment: '' }

const jump = (from: string, target: JumpTarget): KubeJump => ({ ...target, from })

/** Each jump is inserted before the rules that are there, so on a fresh node the last jump of a chain comes first. */
export const jumps: readonly KubeJump[] = [
  jump('INPUT', externalServices),
  jump('FORWARD', externalServices),
  jump('INPUT', healthChecks),
  jump('FORWARD', refusedServices),
  jump('OUTPUT', refusedServices),
  jump('FORWARD', forwarding),
  jump('INPUT', proxyFirewall),
  jump('OUTPUT', proxyFirewall),
  jump('FORWARD', proxyFirewall),
  jump('OUTPUT', services),
  jump('PREROUTING', services),
  jump('POSTROUTING', postrouting),
  jump('INPUT', firewall),
  jump('OUTPUT', firewall),
]

/** The arguments of a jump after the name of its chain. */
export function formatJumpArguments({ newOnly, comment, to }: KubeJump): readonly string[] {
  return [
    ...(newOnly ? ['-m', 'conntrack', '--ctstate', 'NEW'] : []),
    ...(comment === '' ? [] : ['-m', 'comment', '--comment', comment]),
    ...['-j', to],
  ]
}

/** The jump as iptables-save prints it. */
export function formatJump(one: KubeJump): string {
  const words = formatJumpArguments(one).map((word) => (word === one.comment ? `"${word}"` : word))
  return `-A ${one.from} ${words.join(' ')}`
}

/** nfacct objects of the kernel that count packets. Not every kernel has nfacct. */
export const counters = {
  invalid: 'ct_state_invalid_dropped_pkts',
  localhost: 'localhost_nps_accepted_pkts',
} as const
