// The chains that bring traffic to our listeners: their names and hooks, and the text of iptables-restore for all of them. Pure.

import { hostPort } from '../../lib/ip.ts'
import { canary } from '../iptables-kit/chains.ts'

/** Those of kube-proxy's old userspace mode, and one in filter for what it could not refuse or drop. */
export const chains = {
  portals: { container: 'KUBE-PORTALS-CONTAINER', host: 'KUBE-PORTALS-HOST' },
  nodePorts: { container: 'KUBE-NODEPORT-CONTAINER', host: 'KUBE-NODEPORT-HOST' },
  accept: 'KUBE-NODEPORT-NON-LOCAL',
  filter: 'KUBE-PORTALS-FILTER',
} as const

export type PortalTable = 'nat' | 'filter'

export const ownChains: Readonly<Record<PortalTable, readonly string[]>> = {
  filter: [chains.accept, chains.filter],
  nat: [chains.portals.container, chains.portals.host, chains.nodePorts.container, chains.nodePorts.host],
}

export interface PortalHook {
  readonly table: PortalTable
  readonly from: string
  readonly to: string
  /** Exact addresses go before node ports, and we before others. */
  readonly at: 'first' | 'last'
  /** As iptables-save prints it, so that it is found there. */
  readonly match: string
  readonly comment: string
}

const toNode = '-m addrtype --dst-type LOCAL '
const fresh = '-m conntrack --ctstate NEW '
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
    table: 'filter',
    from: 'INPUT',
    to: chains.accept,
    at: 'first',
    match: '',
    comment: 'Ensure that non-local NodePort traffic can flow',
  },
  // Before the one above, which accepts: each is put before what is there.
  ...(['INPUT', 'FORWARD', 'OUTPUT'] as const).map(
    (from): PortalHook => ({ table: 'filter', from, to: chains.filter, at: 'first', match: fresh, comment: filtered }),
  ),
]

/** What follows the name of the chain, for -C, -I and -A. */
export function hookArgs({ match, comment, to }: PortalHook): readonly string[] {
  return [...match.split(' ').filter((word) => word !== ''), '-m', 'comment', '--comment', comment, '-j', to]
}

const hookLine = ({ at, from, match, comment, to }: PortalHook): string =>
  `${at === 'first' ? '-I' : '-A'} ${from} ${match}-m comment --comment "${comment}" -j ${to}`

export const canaryTables: readonly string[] = ['nat', 'filter', 'mangle']

/** A socket that is open. */
export interface OpenedListener {
  readonly protocol: 'tcp' | 'udp'
  readonly port: number
}

export interface PortalDraft {
  /** Texts of all rules, in order. */
  readonly texts: Iterable<string>
  readonly opened: (listener: string) => OpenedListener | undefined
  readonly listeners: Iterable<OpenedListener>
  /** Where the listeners are; undefined: on every address, and nobody knows which one the packet should go to. */
  readonly host: string | undefined
  /** `tcp 30080`: node ports that may have the number of a listener. */
  readonly nodePorts: ReadonlySet<string>
}

/** What is not there and must be. */
export interface MissingListeners {
  readonly hooks: readonly PortalHook[]
  /** Tables without the chain by which the watch sees that a table was flushed. */
  readonly canaries: readonly string[]
}

/** One text for one restore: each table changes at its COMMIT, all at once. Lines without a listener are left out. */
export function compose(draft: PortalDraft, missing: MissingListeners = { hooks: [], canaries: [] }): string {
  const lines: Record<PortalTable, string[]> = { filter: [], nat: [] }
  for (const line of guard(draft)) lines.filter.push(line)
  for (const text of draft.texts) {
    for (const line of text.split('\n')) {
      if (line === '') continue
      const resolved = resolve(line, draft)
      if (resolved !== undefined) lines[tableOf(line)].push(resolved)
    }
  }
  const out: string[] = []
  // First nat: what is no longer refused must already be redirected.
  for (const table of ['nat', 'filter'] as const) {
    out.push(`*${table}`, ...ownChains[table].map(declaration))
    if (missing.canaries.includes(table)) out.push(declaration(canary))
    out.push(...lines[table])
    for (const hook of missing.hooks) if (hook.table === table) out.push(hookLine(hook))
    out.push('COMMIT')
  }
  if (missing.canaries.includes('mangle')) out.push('*mangle', declaration(canary), 'COMMIT')
  return `${out.join('\n')}\n`
}

/** Where redirected traffic goes while there are no listeners; not a port that any service could use by accident. */
const nowhere = 1

/** As `compose`, but whoever would be redirected to a listener is refused. */
export function composeRefusal(draft: PortalDraft): string {
  const refusal = (['tcp', 'udp'] as const).map(
    (protocol) =>
      `-A ${chains.accept} -p ${protocol} -m ${protocol} --dport ${nowhere} -m conntrack --ctstate NEW -j REJECT`,
  )
  const texts = [...draft.texts, refusal.join('\n')]
  return compose({ ...draft, texts, opened: () => ({ protocol: 'tcp', port: nowhere }), listeners: [] })
}

const declaration = (chain: string): string => `:${chain} - [0:0]`

const tableOf = (line: string): PortalTable =>
  ownChains.filter.some((chain) => line.startsWith(`-A ${chain} `)) ? 'filter' : 'nat'

function resolve(line: string, { opened, host }: PortalDraft): string | undefined {
  const at = line.lastIndexOf('<')
  if (at < 0) return line
  const listener = opened(line.slice(at + 1, -1))
  if (listener === undefined) return undefined
  const target =
    host === undefined
      ? `-j REDIRECT --to-ports ${listener.port}`
      : `-j DNAT --to-destination ${hostPort(host, listener.port)}`
  return line.slice(0, at) + target
}

/**
 * Whoever was redirected may come in, even where INPUT denies by default; who found the port by himself may not. Only on our address:
 * another program may have the same port on loopback.
 */
function* guard({ listeners, nodePorts, host }: PortalDraft): Iterable<string> {
  const to = host === undefined ? '' : `-d ${host} `
  for (const { protocol, port } of listeners) {
    const rule = `-A ${chains.accept} ${to}-p ${protocol} -m ${protocol} --dport ${port} -m conntrack --ctstate NEW`
    yield `${rule} -m conntrack --ctstate DNAT -j ACCEPT`
    if (!nodePorts.has(`${protocol} ${port}`)) yield `${rule} -j REJECT`
  }
}
