// What the iptables tables hold: one entry per service port, and the base. Pure.

import type { Held } from '../backend.ts'
import type { IptablesTableName } from '../iptables-kit/chains.ts'
import { groupByChain, joinLines, type PortRules, PortText } from './port-text.ts'

/** The parts of the base: fixed rules before and after those of services. */
export type BasePart = 'filter head' | 'filter tail' | 'nat head' | 'nat tail'

/** One part of the base. The digest is its text, whole lines of iptables-restore. */
export interface BaseEntry extends Held {
  readonly kind: 'base'
  readonly id: BasePart
  readonly service: ''
  readonly table: IptablesTableName
}

/** Everything that one service port needs. The digest is `rules.text`. */
export interface PortEntry extends Held {
  readonly kind: 'port'
  /** `ns/name`. */
  readonly service: string
  readonly rules: PortText
  /** Endpoints, reached from here or not: many make a large cluster. */
  readonly endpoints: number
}

export type IptablesEntry = BaseEntry | PortEntry

export function createBaseEntry(part: BasePart, lines: readonly string[]): BaseEntry {
  const table = part.startsWith('nat') ? 'nat' : 'filter'
  return { kind: 'base', id: part, digest: joinLines(lines), service: '', table }
}

export interface PortOwner {
  readonly id: string
  readonly service: string
}

export function createPortEntry({ id, service }: PortOwner, rules: PortRules, endpoints: number): PortEntry {
  const text = new PortText(rules)
  return { kind: 'port', id, digest: text.text, service, rules: text, endpoints }
}

/** `ns/name:port`, from the id `ns/name:port/protocol`. */
export const portNameOf = ({ id }: PortEntry): string => id.slice(0, id.lastIndexOf('/'))

/** Splits an entry into what `observe` finds in a kernel and what people look at: rules in shared chains, and each chain by itself. */
export function splitEntry(entry: IptablesEntry): readonly Held[] {
  if (entry.kind === 'base') return [entry]
  const { id, rules } = entry
  const parts: Held[] = []
  const [filter, shared] = [rules.filter(), rules.shared()]
  if (filter !== '') parts.push({ kind: 'rules', id: `filter rules ${id}`, digest: filter })
  if (shared !== '') parts.push({ kind: 'rules', id: `nat rules ${id}`, digest: shared })
  const byChain = groupByChain(rules.ownWithComments(portNameOf(entry)))
  for (const chain of rules.chains()) {
    parts.push({ kind: 'chain', id: strayId(chain), digest: byChain.get(chain) ?? '' })
  }
  return parts
}

/** A service chain that was found in the kernel and that no known entry has. */
export const createStray = (chain: string): Held => ({ kind: 'chain', id: strayId(chain), digest: '' })

/** The chain of a stray. */
export const strayChainOf = ({ id }: Held): string => id.slice(strayPrefix.length)

/** True for an entry that the ledger has settled; false for a stray, which was only observed. */
export const isIptablesEntry = (held: Held): held is IptablesEntry => 'service' in held

const strayPrefix = 'nat '
const strayId = (chain: string): string => `${strayPrefix}${chain}`
