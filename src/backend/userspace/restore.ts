// Composes the input of iptables-restore for all chains of userspace mode. Pure.

import { hostPort } from '../../lib/ip.ts'
import { canary } from '../iptables-kit/chains.ts'
import { chains, hookLine, ownChains, type PortalHook, type PortalTable } from './portal-chains.ts'

/** A socket that is open. */
export interface OpenedListener {
  readonly protocol: 'tcp' | 'udp'
  readonly port: number
}

/** Where the listeners are that the rules redirect to. */
export interface ListenerLayout {
  /** Undefined if the listener is not open. */
  readonly findOpened: (listener: string) => OpenedListener | undefined
  /** All wanted listeners that are open. */
  readonly listeners: Iterable<OpenedListener>
  /** The address of the listeners; undefined: they listen on every address, and the kernel chooses the one to redirect to. */
  readonly host: string | undefined
  /** `tcp 30080`: node ports, which may have the number of a listener's port. */
  readonly nodePorts: ReadonlySet<string>
}

/** What the kernel lacks and a restore must add. */
export interface MissingHooks {
  readonly hooks: readonly PortalHook[]
  /** Tables without the canary chain. */
  readonly canaries: readonly string[]
}

/** `texts` are the rules of all entries, in order. One restore changes each table at its COMMIT. Lines whose listener is not open are left out. */
export function compose(
  texts: Iterable<string>,
  layout: ListenerLayout,
  missing: MissingHooks = { hooks: [], canaries: [] },
): string {
  const lines: Record<PortalTable, string[]> = { filter: [...guardListeners(layout)], nat: [] }
  for (const text of texts) {
    for (const line of text.split('\n').filter((one) => one !== '')) {
      const resolved = resolveListener(line, layout)
      if (resolved !== undefined) lines[tableOf(line)].push(resolved)
    }
  }
  const out: string[] = []
  // nat comes first: traffic that the filter table no longer refuses must already be redirected.
  for (const table of ['nat', 'filter'] as const) {
    out.push(`*${table}`, ...ownChains[table].map(declaration))
    if (missing.canaries.includes(table)) out.push(declaration(canary))
    out.push(...lines[table])
    out.push(...missing.hooks.filter((hook) => hook.table === table).map(hookLine))
    out.push('COMMIT')
  }
  if (missing.canaries.includes('mangle')) out.push('*mangle', declaration(canary), 'COMMIT')
  return `${out.join('\n')}\n`
}

/** Traffic is redirected here while there are no listeners. No service can have a listener on this port. */
const refusedPort = 1

/** As `compose`, but refuses all traffic that would be redirected to a listener. */
export function composeRefusal(texts: Iterable<string>, layout: ListenerLayout): string {
  const refusal = (['tcp', 'udp'] as const).map(
    (protocol) =>
      `-A ${chains.accept} -p ${protocol} -m ${protocol} --dport ${refusedPort} -m conntrack --ctstate NEW -j REJECT`,
  )
  const findOpened = (): OpenedListener => ({ protocol: 'tcp', port: refusedPort })
  return compose([...texts, refusal.join('\n')], { ...layout, findOpened, listeners: [] })
}

const declaration = (chain: string): string => `:${chain} - [0:0]`

/** The table of a rule in one of our chains. */
export const tableOf = (line: string): PortalTable =>
  ownChains.filter.some((chain) => line.startsWith(`-A ${chain} `)) ? 'filter' : 'nat'

/** Replaces `<id>` at the end of a line by the jump to that listener. Undefined if the listener is not open. */
export function resolveListener(
  line: string,
  { findOpened, host }: Pick<ListenerLayout, 'findOpened' | 'host'>,
): string | undefined {
  const start = line.lastIndexOf('<')
  if (start < 0) return line
  const listener = findOpened(line.slice(start + 1, -1))
  if (listener === undefined) return undefined
  const target =
    host === undefined
      ? `-j REDIRECT --to-ports ${listener.port}`
      : `-j DNAT --to-destination ${hostPort(host, listener.port)}`
  return line.slice(0, start) + target
}

/**
 * Accepts redirected clients even where INPUT denies by default, and refuses clients that connect to the port of a listener directly. Only
 * on the address of the listeners: another program may have the same port on loopback.
 */
function* guardListeners({ listeners, nodePorts, host }: ListenerLayout): Iterable<string> {
  const to = host === undefined ? '' : `-d ${host} `
  for (const { protocol, port } of listeners) {
    const rule = `-A ${chains.accept} ${to}-p ${protocol} -m ${protocol} --dport ${port} -m conntrack --ctstate NEW`
    yield `${rule} -m conntrack --ctstate DNAT -j ACCEPT`
    if (!nodePorts.has(`${protocol} ${port}`)) yield `${rule} -j REJECT`
  }
}
