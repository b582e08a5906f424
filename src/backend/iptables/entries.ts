// What the iptables tables hold: rules that a service port adds to shared chains, chains of its own, and the base. Pure.

import type { Held } from '../backend.ts'

export type Table = 'filter' | 'nat'

/**
 * The digest is the text itself, whole `-A …` lines of iptables-restore: nothing is kept twice, and equal text is equal content.
 * `rules` are a service port's part of the shared chains, which are rewritten whole at every write; a `chain` is a service
 * port's own and is rewritten only when it changes.
 */
export interface IptEntry extends Held {
  readonly kind: 'base' | 'rules' | 'chain'
  readonly table: Table
  /** `ns/name`; '' for the base. */
  readonly service: string
  /** Id of the service port, by which the text is ordered; '' for the base. */
  readonly port: string
}

/** The fixed rules before and after those of services. */
export type BasePart = 'filter head' | 'filter tail' | 'nat head' | 'nat tail'

export function baseEntry(part: BasePart, lines: readonly string[]): IptEntry {
  const table = part.startsWith('nat') ? 'nat' : 'filter'
  return { kind: 'base', id: part, digest: text(lines), table, service: '', port: '' }
}

export function rulesEntry(table: Table, owner: Owner, lines: readonly string[]): IptEntry {
  return {
    kind: 'rules',
    id: `${table} rules ${owner.id}`,
    digest: text(lines),
    table,
    service: owner.service,
    port: owner.id,
  }
}

export function chainEntry(chain: string, owner: Owner, lines: readonly string[]): IptEntry {
  return {
    kind: 'chain',
    id: chainId(chain),
    digest: text(lines),
    table: 'nat',
    service: owner.service,
    port: owner.id,
  }
}

/** The service port behind an entry. */
interface Owner {
  readonly id: string
  readonly service: string
}

const chainId = (chain: string): string => `nat ${chain}`

/** The chain behind the id of a `chain` entry. */
export const chainOf = (id: string): string => id.slice(4)

const text = (lines: readonly string[]): string => `${lines.join('\n')}\n`
