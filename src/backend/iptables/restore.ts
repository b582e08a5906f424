// The input of iptables-restore as text, in kube-proxy's order; and what its complaints about that text mean. Pure.
//
// One restore per write, with --noflush: a `:CHAIN` line makes and empties a chain, chains that are not named stay as they
// are, and each table changes at its COMMIT, all at once. The shared chains are always written whole; chains of services
// only where they changed. A line that is refused is found again by its number.

import { canary, counters, type Jump, kubeletFirewall, savedJump, sharedChains } from './chains.ts'
import { chainOf, type IptEntry, type Table, textOf } from './entries.ts'
import { Paper } from './paper.ts'

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
  /** Chains to write, by service port, in order; those of a port in kube-proxy's order. */
  readonly chains: ReadonlyMap<string, readonly IptEntry[]>
  /** Chains to delete. */
  readonly stale: readonly string[]
  /** Without the comments of endpoints. */
  readonly large: boolean
}

export function compose(draft: Draft): Paper {
  const { base, shared, chains, stale, large } = draft
  const paper = new Paper()
  paper.begin('filter')
  paper.add(declare(sharedChains.filter))
  if (base.filter.head !== '') paper.add(declare([kubeletFirewall]))
  paper.add(base.filter.head)
  for (const [, text] of shared.filter) paper.add(text)
  paper.add(base.filter.tail)
  paper.commit()
  paper.begin('nat')
  paper.add(declare(sharedChains.nat))
  for (const entries of chains.values()) paper.add(declarations(entries))
  paper.add(declare(stale))
  paper.add(base.nat.head)
  let written = 0
  for (const [port, rules] of shared.nat) {
    paper.add(rules)
    const own = chains.get(port)
    if (own === undefined) continue
    written++
    paper.add(rulesOf(own, large))
  }
  // Of a port that nothing leads to.
  if (written < chains.size) {
    const led = new Set(ports(shared.nat))
    for (const [port, own] of chains) if (!led.has(port)) paper.add(rulesOf(own, large))
  }
  for (const chain of stale) paper.add(`-X ${chain}\n`)
  paper.add(base.nat.tail)
  paper.commit()
  return paper
}

function* ports(texts: Iterable<readonly [port: string, text: string]>): Iterable<string> {
  for (const [port] of texts) yield port
}

/** Chains of services alone, with the one shared chain that they jump to. */
export function composeChains({ head, chains, large }: ChainsDraft): Paper {
  const paper = new Paper()
  paper.begin('nat')
  paper.add(':KUBE-MARK-MASQ - [0:0]\n')
  for (const entries of chains.values()) paper.add(declarations(entries))
  for (const line of head.match(/^-A KUBE-MARK-MASQ .*\n/gm) ?? []) paper.add(line)
  for (const entries of chains.values()) paper.add(rulesOf(entries, large))
  paper.commit()
  return paper
}

interface ChainsDraft extends Pick<Draft, 'chains' | 'large'> {
  /** The fixed part of nat. */
  readonly head: string
}

export function composeDeletions(chains: readonly string[]): Paper {
  const paper = new Paper()
  paper.begin('nat')
  paper.add(declare(chains))
  for (const chain of chains) paper.add(`-X ${chain}\n`)
  paper.commit()
  return paper
}

/** The canaries, shared chains and jumps that are missing; '' if none is. A chain that exists must not be named: that would empty it. */
export function composeJumps(missing: readonly Jump[], absent: (table: string, chain: string) => boolean): string {
  let out = ''
  for (const table of ['mangle', 'nat', 'filter']) {
    const own = missing.filter((jump) => jump.table === table)
    const chains = [canary, ...own.map(({ to }) => to)].filter((chain) => absent(table, chain))
    if (own.length + chains.length === 0) continue
    const jumps = own.map((jump) => `${savedJump(jump).replace('-A', '-I')}\n`)
    out += `*${table}\n${declare([...new Set(chains)])}${jumps.join('')}COMMIT\n`
  }
  return out
}

const declare = (chains: readonly string[]): string => chains.map((chain) => `:${chain} - [0:0]\n`).join('')

function declarations(entries: readonly IptEntry[]): string {
  let out = ''
  for (const { id } of entries) out += `:${chainOf(id)} - [0:0]\n`
  return out
}

/** kube-proxy writes the first rule for the cluster IP before it comes to the other chains of the port. */
function rulesOf(entries: readonly IptEntry[], large: boolean): string {
  let first = ''
  let out = ''
  for (const entry of entries) {
    const text = textOf(entry, !large)
    const end = first === '' && entry.id.startsWith('KUBE-SV', 4) ? clusterIpEnd(text) : 0
    if (end > 0) first = text.slice(0, end)
    out += end > 0 ? text.slice(end) : text
  }
  return first + out
}

/** Where the first line ends if it is about the cluster IP, else 0. */
function clusterIpEnd(text: string): number {
  const end = text.indexOf('\n') + 1
  const at = text.indexOf(' cluster IP" ')
  return at >= 0 && at < end ? end : 0
}

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
