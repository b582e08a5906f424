// What the iptables tables hold: all that one service port needs, as one text; and the base. Pure.

import type { Held } from '../backend.ts'
import { isEndpointChain } from '../iptables-kit/chains.ts'
import { chainOfRule, declaration, linesOf } from '../iptables-kit/restore-text.ts'

/**
 * The digest is the text itself, whole lines of iptables-restore: nothing is kept twice, and equal text is equal content. There is one
 * entry per service port, so that writing everything is copying texts: with one per chain, 10,000 services were 70,000 entries.
 * Of a port it has these parts, one after the other: declarations of its own chains; its rules in the shared chains of nat; the rules of
 * its own chains, endpoints without comments, as large clusters get them; its rules in filter; and a remark that is not written.
 */
export interface IptEntry extends Held {
  readonly kind: 'base' | 'port'
  /** `ns/name`; '' for the base. */
  readonly service: string
  /** Where the parts of the digest end: declarations, shared rules, own rules, filter rules. */
  readonly declared: number
  readonly shared: number
  readonly own: number
  readonly filter: number
  /** Own chains. */
  readonly chains: number
  /** How many rules each part has. Of the shared ones some count packets for localhost, which is not possible everywhere. */
  readonly sharedRules: number
  readonly countedRules: number
  readonly ownRules: number
  readonly filterRules: number
  /** Whether reached from here or not: many make a large cluster. */
  readonly endpoints: number
}

/** The fixed rules before and after those of services. */
export type BasePart = 'filter head' | 'filter tail' | 'nat head' | 'nat tail'

const nothing = {
  declared: 0,
  shared: 0,
  own: 0,
  filter: 0,
  chains: 0,
  countedRules: 0,
  ownRules: 0,
  endpoints: 0,
} as const

export function baseEntry(part: BasePart, lines: readonly string[]): IptEntry {
  const nat = part.startsWith('nat') ? lines.length : 0
  const rules = { sharedRules: nat, filterRules: lines.length - nat }
  return { kind: 'base', id: part, digest: text(lines), service: '', ...nothing, ...rules }
}

export interface PortRules {
  /** Own chains, in the order in which they are declared. */
  readonly chains: readonly string[]
  /** Rules in the shared chains of nat. */
  readonly shared: readonly string[]
  /** Those of them that count packets for localhost. */
  readonly counted: number
  /** Rules in own chains, in kube-proxy's order, those about endpoints without comments. */
  readonly own: readonly string[]
  readonly filter: readonly string[]
  /** Endpoints that are not reached from here. */
  readonly unreached: number
  readonly endpoints: number
}

export function portEntry(owner: Owner, rules: PortRules): IptEntry {
  const { chains, shared, own, filter, unreached } = rules
  let digest = ''
  for (const chain of chains) digest += declaration(chain)
  const declared = digest.length
  digest += text(shared)
  const sharedEnd = digest.length
  digest += text(own)
  const ownEnd = digest.length
  digest += text(filter)
  const filterEnd = digest.length
  if (unreached > 0) digest += `# and ${unreached} endpoints that are not reached from here\n`
  return {
    kind: 'port',
    id: owner.id,
    digest,
    service: owner.service,
    declared,
    shared: sharedEnd,
    own: ownEnd,
    filter: filterEnd,
    chains: chains.length,
    sharedRules: shared.length,
    countedRules: rules.counted,
    ownRules: own.length,
    filterRules: filter.length,
    endpoints: rules.endpoints,
  }
}

export const declarationsOf = ({ digest, declared }: IptEntry): string => digest.slice(0, declared)
export const sharedOf = ({ digest, declared, shared }: IptEntry): string => digest.slice(declared, shared)
/** All its rules in nat as they are in large clusters. */
export const natOf = ({ digest, declared, own }: IptEntry): string => digest.slice(declared, own)
export const filterOf = ({ digest, own, filter }: IptEntry): string => digest.slice(own, filter)

/** The rules of its own chains; with comments on endpoints, if asked. */
export const ownOf = (entry: IptEntry, comments: boolean): string => {
  const { digest, shared, own, id } = entry
  const rules = digest.slice(shared, own)
  return comments ? commented(rules, id.slice(0, id.lastIndexOf('/'))) : rules
}

/** No rule is another one. */
export const sameRules = (a: IptEntry, b: IptEntry): boolean =>
  a.digest === b.digest || (a.filter === b.filter && a.digest.slice(0, a.filter) === b.digest.slice(0, b.filter))

/** Whether a chain is this entry's own. */
export function declares({ digest, declared }: IptEntry, chain: string): boolean {
  const at = digest.indexOf(`:${chain} `)
  return at >= 0 && at < declared
}

export function chainsOf({ digest, declared }: IptEntry): readonly string[] {
  const chains: string[] = []
  for (let at = 0; at < declared; at = digest.indexOf('\n', at) + 1)
    chains.push(digest.slice(at + 1, digest.indexOf(' ', at)))
  return chains
}

/** The rules of each own chain, in their order. */
export function rulesByChain(rules: string): Map<string, string> {
  const byChain = new Map<string, string>()
  for (const line of linesOf(rules)) {
    const chain = chainOfRule(line)
    byChain.set(chain, (byChain.get(chain) ?? '') + line)
  }
  return byChain
}

/** With what kube-proxy says about endpoints in small clusters: whose they are, and in jumps to them also their addresses. */
function commented(rules: string, name: string): string {
  const lines = linesOf(rules)
  const addresses = new Map<string, string>()
  for (const line of lines) {
    const at = line.indexOf(destination)
    if (at >= 0) addresses.set(chainOfRule(line), line.slice(at + destination.length, -1))
  }
  return lines.map((line) => commentedRule(line, name, addresses)).join('')
}

const destination = ' --to-destination '

function commentedRule(line: string, name: string, addresses: ReadonlyMap<string, string>): string {
  const chain = chainOfRule(line)
  const rest = line.slice(3 + chain.length)
  if (isEndpointChain(chain)) return `-A ${chain} -m comment --comment ${name}${rest}`
  const address = addresses.get(line.slice(line.lastIndexOf(' ') + 1, -1))
  return address === undefined ? line : `-A ${chain} -m comment --comment "${name} -> ${address}"${rest}`
}

/** What people tell apart, and what `observe` finds in a kernel: rules in shared chains, and each chain by itself. */
export function partsOf(entry: IptEntry): readonly Held[] {
  if (entry.kind === 'base') return [entry]
  const parts: Held[] = []
  for (const [table, rules] of [
    ['filter', filterOf(entry)],
    ['nat', sharedOf(entry)],
  ] as const) {
    if (rules !== '') parts.push({ kind: 'rules', id: `${table} rules ${entry.id}`, digest: rules })
  }
  const rules = rulesByChain(ownOf(entry, true))
  for (const chain of chainsOf(entry)) parts.push({ kind: 'chain', id: `nat ${chain}`, digest: rules.get(chain) ?? '' })
  return parts
}

/** A chain that was found, and is nobody's we know. */
export const strayChain = (chain: string): Held => ({ kind: 'chain', id: `nat ${chain}`, digest: '' })

/** The chain behind the id of a stray one. */
export const chainOf = (id: string): string => id.slice(4)

/** The service port behind an entry. */
interface Owner {
  readonly id: string
  readonly service: string
}

const text = (lines: readonly string[]): string => (lines.length === 0 ? '' : `${lines.join('\n')}\n`)
