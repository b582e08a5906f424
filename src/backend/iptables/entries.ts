// What the iptables tables hold: rules that a service port adds to shared chains, chains of its own, and the base. Pure.

import type { Held } from '../backend.ts'

export type Table = 'filter' | 'nat'

/**
 * The digest is the text itself, whole `-A …` lines of iptables-restore: nothing is kept twice, and equal text is equal content.
 * Only chains of endpoints, which are most of all there is, say it shorter: address, and ` recent` with affinity.
 * `rules` are a service port's part of the shared chains, which are rewritten whole at every write; a `chain` is a service
 * port's own and is rewritten only when it changes. `count` is no rule: how many endpoints a port has that are not reached from here.
 */
export interface IptEntry extends Held {
  readonly kind: 'base' | 'rules' | 'chain' | 'count'
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

/** The chain of one endpoint, at `address`; its name and its port say the rest. */
export function endpointEntry(chain: string, owner: Owner, address: string, affinity: boolean): IptEntry {
  const digest = affinity ? `${address} recent` : address
  return { kind: 'chain', id: chainId(chain), digest, table: 'nat', service: owner.service, port: owner.id }
}

/** They count when it comes to how large the cluster is, though they have no chain. */
export function countEntry(owner: Owner, unreached: number): IptEntry {
  const { id, service } = owner
  return { kind: 'count', id: `unreached endpoints ${id}`, digest: String(unreached), table: 'nat', service, port: id }
}

export const isEndpoint = ({ id }: { readonly id: string }): boolean => id.startsWith('KUBE-SEP-', 4)

/** The lines of an entry; those about endpoints without their comments, if asked. */
export function textOf(entry: IptEntry, comments = true): string {
  if (isEndpoint(entry)) return endpointText(entry, comments)
  return comments || entry.kind !== 'chain' ? entry.digest : entry.digest.replaceAll(endpointComment, '')
}

const endpointComment = / -m comment --comment "\S+ -> \S+"/g

function endpointText({ id, port, digest }: IptEntry, comments: boolean): string {
  const chain = chainOf(id)
  const slash = port.lastIndexOf('/')
  const protocol = port.slice(slash + 1)
  const space = digest.indexOf(' ')
  const address = space < 0 ? digest : digest.slice(0, space)
  const ip = address.slice(
    address.startsWith('[') ? 1 : 0,
    address.lastIndexOf(':') - (address.startsWith('[') ? 1 : 0),
  )
  const rule = comments ? `-A ${chain} -m comment --comment ${port.slice(0, slash)}` : `-A ${chain}`
  const remember = space < 0 ? '' : ` -m recent --name ${chain} --set`
  return `${rule} -s ${ip} -j KUBE-MARK-MASQ\n${rule}${remember} -m ${protocol} -p ${protocol} -j DNAT --to-destination ${address}\n`
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
