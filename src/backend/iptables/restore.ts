// The input of iptables-restore as text, in kube-proxy's order; and what its complaints about that text mean. Pure.
//
// One restore per write, with --noflush: a `:CHAIN` line makes and empties a chain, chains that are not named stay as they
// are, and each table changes at its COMMIT, all at once. The shared chains are always written whole; chains of services
// only where they changed. A line that is refused is found again by its number.

import { canary, counters, type Jump, kubeletFirewall, savedJump, sharedChains } from './chains.ts'
import { chainOf, type IptEntry, type Table, textOf } from './entries.ts'

/** What the tools and the kernel of this machine can do. */
export interface Features {
  /** MASQUERADE --random-fully: iptables 1.6.2. */
  readonly randomFully: boolean
  /** The kernel takes out-of-window packets for valid, so nothing is dropped as invalid. */
  readonly liberal: boolean
  /** nfacct objects that exist. */
  readonly counters: ReadonlySet<string>
}

/** Takes out of planned rules what this machine cannot do. */
export function adapt(text: string, features: Features): string {
  let adapted = text
  if (!features.randomFully) adapted = adapted.replace(' --random-fully', '')
  if (features.liberal) adapted = adapted.replace(/^.* --ctstate INVALID .*\n/m, '')
  if (!adapted.includes(' -m nfacct ')) return adapted
  if (!features.counters.has(counters.localhost)) adapted = adapted.replace(localhostRule, '')
  if (!features.counters.has(counters.invalid)) {
    adapted = adapted.replace(` -m nfacct --nfacct-name ${counters.invalid}`, '')
  }
  return adapted
}

const localhostRule = new RegExp(`^.* --nfacct-name ${counters.localhost} .*\\n`, 'gm')

/** Above this many endpoints their rules go without comments, which make up half of the text. */
export const largeEndpoints = 1000

export interface Draft {
  /** Fixed parts, already adapted; '' where there is none. */
  readonly base: Readonly<Record<Table, { readonly head: string; readonly tail: string }>>
  /** Rules in the shared chains by service port, in order. */
  readonly shared: Readonly<Record<Table, Iterable<readonly [port: string, text: string]>>>
  /** Chains to write, by service port, in order. */
  readonly chains: ReadonlyMap<string, readonly IptEntry[]>
  /** Chains to delete. */
  readonly stale: readonly string[]
  /** Without the comments of endpoints. */
  readonly large: boolean
}

export function compose(draft: Draft): string {
  const out: string[] = ['*filter\n']
  declare(out, sharedChains.filter)
  if (draft.base.filter.head !== '') declare(out, [kubeletFirewall])
  out.push(draft.base.filter.head)
  for (const [, text] of draft.shared.filter) out.push(text)
  out.push(draft.base.filter.tail, 'COMMIT\n*nat\n')

  declare(out, sharedChains.nat)
  const written = new Map<string, readonly IptEntry[]>()
  for (const [port, entries] of draft.chains) {
    const inOrder = sorted(entries)
    written.set(port, inOrder)
    for (const { id } of inOrder) out.push(`:${chainOf(id)} - [0:0]\n`)
  }
  declare(out, draft.stale)
  out.push(draft.base.nat.head)
  const text = (entry: IptEntry) => textOf(entry, !draft.large)
  for (const [port, rules] of draft.shared.nat) {
    out.push(rules)
    const own = written.get(port)
    if (own === undefined) continue
    rulesOf(own, text, out)
    written.delete(port)
  }
  for (const own of written.values()) rulesOf(own, text, out)
  for (const chain of draft.stale) out.push(`-X ${chain}\n`)
  out.push(draft.base.nat.tail, 'COMMIT\n')
  return out.join('')
}

/** Chains of services alone, with the one shared chain that they jump to. */
export function composeChains({ head, chains, large }: ChainsDraft): string {
  const out: string[] = ['*nat\n', ':KUBE-MARK-MASQ - [0:0]\n']
  const all = [...chains.values()].map(sorted)
  for (const { id } of all.flat()) out.push(`:${chainOf(id)} - [0:0]\n`)
  out.push(...(head.match(/^-A KUBE-MARK-MASQ .*\n/gm) ?? []))
  for (const own of all) rulesOf(own, (entry) => textOf(entry, !large), out)
  out.push('COMMIT\n')
  return out.join('')
}

interface ChainsDraft extends Pick<Draft, 'chains' | 'large'> {
  /** The fixed part of nat. */
  readonly head: string
}

export function composeDeletions(chains: readonly string[]): string {
  const out: string[] = ['*nat\n']
  declare(out, chains)
  for (const chain of chains) out.push(`-X ${chain}\n`)
  out.push('COMMIT\n')
  return out.join('')
}

/** The canaries, shared chains and jumps that are missing; '' if none is. A chain that exists must not be named: that would empty it. */
export function composeJumps(missing: readonly Jump[], absent: (table: string, chain: string) => boolean): string {
  const out: string[] = []
  for (const table of ['mangle', 'nat', 'filter']) {
    const own = missing.filter((jump) => jump.table === table)
    const chains = [canary, ...own.map(({ to }) => to)].filter((chain) => absent(table, chain))
    if (own.length + chains.length === 0) continue
    out.push(`*${table}\n`)
    declare(out, [...new Set(chains)])
    for (const jump of own) out.push(`${savedJump(jump).replace('-A', '-I')}\n`)
    out.push('COMMIT\n')
  }
  return out.join('')
}

function declare(out: string[], chains: readonly string[]): void {
  for (const chain of chains) out.push(`:${chain} - [0:0]\n`)
}

const order = ['EXT', 'FW-', 'SVC', 'SVL', 'SEP']

const rank = ({ id }: IptEntry): number => order.indexOf(id.slice(9, 12))

/** They mostly are. */
function sorted(entries: readonly IptEntry[]): readonly IptEntry[] {
  const ranks = entries.map(rank)
  return ranks.every((one, i) => i === 0 || one >= (ranks[i - 1] as number))
    ? entries
    : entries.toSorted((a, b) => rank(a) - rank(b))
}

/** kube-proxy writes the first rule for the cluster IP before it comes to the other chains of the port. */
function rulesOf(entries: readonly IptEntry[], text: (entry: IptEntry) => string, out: string[]): void {
  const internal = entries.find(({ id, digest }) => id.startsWith('KUBE-SV', 4) && clusterIpRule.test(digest))
  const first = internal === undefined ? '' : internal.digest.slice(0, internal.digest.indexOf('\n') + 1)
  out.push(first)
  for (const entry of entries) out.push(entry === internal ? text(entry).slice(first.length) : text(entry))
}

const clusterIpRule = /^-A KUBE-SV[CL]-\S+ -m comment --comment "\S+ cluster IP" /

/**
 * Lines that a failed restore may mean; none if it does not say, or means a whole table. The nft flavour tells of a missing
 * chain one line late (1.8.9).
 */
export function suspectLines(stderr: string, text: string): readonly string[] {
  const match = /line:? (\d+)/.exec(stderr)
  if (match === null) return []
  const number = Number(match[1])
  const lines = text.split('\n', number)
  return [lines[number - 1] ?? '', lines[number - 2] ?? ''].filter((line) => /^(?:-A|-X|:)/.test(line))
}
