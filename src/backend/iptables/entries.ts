// What the iptables tables hold: rules that a service port adds to shared chains, chains of its own, and the base. Pure.

import type { Protocol } from '../../model/types.ts'
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
  return comments || entry.kind !== 'chain' ? entry.digest : withoutEndpoints(entry.digest)
}

/** Without ` -m comment --comment "service port -> endpoint"`. */
function withoutEndpoints(text: string): string {
  let out = ''
  let from = 0
  for (let arrow = text.indexOf(' -> '); arrow >= 0; arrow = text.indexOf(' -> ', from)) {
    out += text.slice(from, text.lastIndexOf(' -m comment ', arrow))
    from = text.indexOf('"', arrow) + 1
  }
  return out + text.slice(from)
}

/** Few parts: there are very many of these, and each part costs. */
function endpointText({ id, port, digest }: IptEntry, comments: boolean): string {
  const rule = `-A ${chainOf(id)}${comments ? ` -m comment --comment ${port.slice(0, port.lastIndexOf('/'))}` : ''}`
  const space = digest.indexOf(' ')
  const address = space < 0 ? digest : digest.slice(0, space)
  const bracket = address.startsWith('[') ? 1 : 0
  const ip = address.slice(bracket, address.lastIndexOf(':') - bracket)
  const remember = space < 0 ? '' : ` -m recent --name ${chainOf(id)} --set`
  return `${rule} -s ${ip} -j KUBE-MARK-MASQ\n${rule}${remember}${deliveries[protocolOf(port)]}${address}\n`
}

const delivery = (protocol: Protocol) => ` -m ${protocol} -p ${protocol} -j DNAT --to-destination `

const deliveries = { tcp: delivery('tcp'), udp: delivery('udp'), sctp: delivery('sctp') } as const

/** At the end of the id of a service port. */
function protocolOf(port: string): Protocol {
  if (port.endsWith('/tcp')) return 'tcp'
  return port.endsWith('/udp') ? 'udp' : 'sctp'
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
