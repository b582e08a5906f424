// The names of the chains that redirect traffic to our listeners, and the jumps into them from built-in chains. Pure.

/**
 * The chains of kube-proxy's old userspace mode, and two of our own: one in filter, which refuses and drops where that mode could not, and
 * one in nat, which is empty while a process relays.
 */
export const chains = {
  portals: { container: 'KUBE-PORTALS-CONTAINER', host: 'KUBE-PORTALS-HOST' },
  nodePorts: { container: 'KUBE-NODEPORT-CONTAINER', host: 'KUBE-NODEPORT-HOST' },
  accept: 'KUBE-NODEPORT-NON-LOCAL',
  filter: 'KUBE-PORTALS-FILTER',
  postrouting: 'KUBE-PORTALS-POSTROUTING',
} as const

export type PortalTable = 'nat' | 'filter'

export const ownChains: Readonly<Record<PortalTable, readonly string[]>> = {
  filter: [chains.accept, chains.filter],
  nat: [
    chains.portals.container,
    chains.portals.host,
    chains.nodePorts.container,
    chains.nodePorts.host,
    chains.postrouting,
  ],
}

export interface PortalHook {
  readonly table: PortalTable
  readonly from: string
  readonly to: string
  /** Exact addresses come before node ports, and our rules before those of other programs. */
  readonly at: 'first' | 'last'
  /** The match in the form of iptables-save, so that it can be found there. */
  readonly match: string
  readonly comment: string
}

const toNode = '-m addrtype --dst-type LOCAL '
const isNew = '-m conntrack --ctstate NEW '
const filtered = 'handle ClusterIPs; NOTE: what is not redirected is refused or dropped'

export const hooks: readonly PortalHook[] = [
  {
    table: 'nat',
    from: 'PREROUTING',
    to: chains.portals.container,
    at: 'first',
    match: '',
    comment: 'handle ClusterIPs; NOTE: this must be before the NodePort rules',
  },
  {
    table: 'nat',
    from: 'OUTPUT',
    to: chains.portals.host,
    at: 'first',
    match: '',
    comment: 'handle ClusterIPs; NOTE: this must be before the NodePort rules',
  },
  {
    table: 'nat',
    from: 'PREROUTING',
    to: chains.nodePorts.container,
    at: 'last',
    match: toNode,
    comment: 'handle service NodePorts; NOTE: this must be the last rule in the chain',
  },
  {
    table: 'nat',
    from: 'OUTPUT',
    to: chains.nodePorts.host,
    at: 'last',
    match: toNode,
    comment: 'handle service NodePorts; NOTE: this must be the last rule in the chain',
  },
  {
    table: 'nat',
    from: 'POSTROUTING',
    to: chains.postrouting,
    at: 'first',
    match: '',
    comment: 'masquerade what the kernel translates while no process relays',
  },
  {
    table: 'filter',
    from: 'INPUT',
    to: chains.accept,
    at: 'first',
    match: '',
    comment: 'Ensure that non-local NodePort traffic can flow',
  },
  // Each is inserted at the top, so these come before the hook above, which accepts.
  ...(['INPUT', 'FORWARD', 'OUTPUT'] as const).map(
    (from): PortalHook => ({ table: 'filter', from, to: chains.filter, at: 'first', match: isNew, comment: filtered }),
  ),
]

/** The arguments of -C, -I and -A after the name of the chain. */
export function hookArguments({ match, comment, to }: PortalHook): readonly string[] {
  return [...match.split(' ').filter((word) => word !== ''), '-m', 'comment', '--comment', comment, '-j', to]
}

/** The hook as iptables-save prints it. */
export const formatHook = ({ from, match, comment, to }: PortalHook): string =>
  `-A ${from} ${match}-m comment --comment "${comment}" -j ${to}`

/** The line for iptables-restore. */
export const hookLine = ({ at, from, match, comment, to }: PortalHook): string =>
  `${at === 'first' ? '-I' : '-A'} ${from} ${match}-m comment --comment "${comment}" -j ${to}`

/** Tables that hold the chain by which a drift check notices that a table was flushed. */
export const canaryTables: readonly string[] = ['nat', 'filter', 'mangle']

export const commentMatch = (text: string): string => `-m comment --comment "${text}"`
