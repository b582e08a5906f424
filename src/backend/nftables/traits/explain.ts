// What `sluice explain`, `plan` and `status` say about the parts of nftables mode: names and commands that nft knows. Pure.

import type { Family } from '../../../lib/ip.ts'
import type { Protocol } from '../../../model/types.ts'
import type { Held } from '../../backend.ts'
import type { ExplainTraits, PartDescription } from '../../proxy-mode.ts'
import { tableName } from '../base.ts'
import type { NftEntry, SlotChoice } from '../entries.ts'
import { formatRule } from '../rule-text.ts'
import { balanceName, balanceOf } from '../rules.ts'

export const nftablesExplain: ExplainTraits = {
  remarks: [],
  describePart,
  listCommand: `nft list table ip ${tableName}`,
}

function describePart(part: Held, family: Family): PartDescription {
  const table = `${family === 4 ? 'ip' : 'ip6'} ${tableName}`
  const [first = '', ...rest] = part.id.split(' ')
  switch (part.kind) {
    case 'element':
      return describeElement(table, first, rest, part.digest)
    case 'frontend':
      return describeElement(table, rest.length === 3 ? 'service-ips' : 'service-nodeports', rest, frontendText(part))
    case 'chain':
      return { name: part.id, content: chainText(part), command: `nft list ${part.id.replace(' ', ` ${table} `)}` }
    case 'set':
      return describeSet(table, rest.join(' '), part.digest)
    default:
      return describeSocket(rest, part.digest)
  }
}

function describeElement(table: string, set: string, key: readonly string[], content: string): PartDescription {
  const element = `{ ${key.join(' . ')} }`
  return { name: `element ${set} ${element}`, content, command: `nft get element ${table} ${set} '${element}'` }
}

/** From `policy cluster,endpoints local,endpoints # comment` to what nft lists, and the endpoints. */
function frontendText({ id, digest }: Held): string {
  const [kind = '', cluster = '', local = ''] = digest.split(' # ', 1)[0]?.split(' ') ?? []
  const [policy = '', choice] = kind.split('-').reverse() as [string, SlotChoice | undefined]
  const [ip, protocol, port] = id.split(' ').length === 3 ? ['', ...id.split(' ').slice(1)] : id.split(' ').slice(1)
  const chain = balanceName(
    balanceOf({
      ...{ ip: ip as string, protocol: protocol as Protocol, port: Number(port), comment: '', choice },
      policy: policy as 'plain' | 'masquerade' | 'local',
      cluster: listSlots(cluster),
      local: listSlots(local),
    }),
  )
  const onNode = policy === 'local' ? `; on this node ${countSlots(local) || 'none'}` : ''
  return `goto ${chain}: ${countSlots(cluster)}${onNode}`
}

/** A table of a hash is known by its size and checksum alone. */
function listSlots(text: string): readonly string[] {
  const table = /^(\d+):[A-Z2-7]+$/.exec(text)
  if (table !== null) return new Array<string>(Number(table[1])).fill('')
  return text === '' ? [] : text.split(',')
}

/** `10.0.0.1:80 (3 slots), 10.0.0.2:80`. */
function countSlots(text: string): string {
  const slots = listSlots(text)
  if (slots[0] === '') return `a table of ${slots.length} slots (checksum ${text.split(':')[1]})`
  const counts = new Map<string, number>()
  for (const slot of slots) counts.set(slot, (counts.get(slot) ?? 0) + 1)
  return [...counts].map(([endpoint, count]) => (count === 1 ? endpoint : `${endpoint} (${count} slots)`)).join(', ')
}

/** A chain that was only observed has a digest and no rules. */
function chainText(part: Held): string {
  const { chain } = part as Partial<Extract<NftEntry, { kind: 'chain' }>>
  return chain === undefined ? '' : chain.rules.map(formatRule).join('\n')
}

/** The digest is `shape # comment`; the shape of a map has a value. */
function describeSet(table: string, name: string, digest: string): PartDescription {
  const [shape = '', comment = ''] = digest.split(' # ')
  const kind = shape.includes(' : ') ? 'map' : 'set'
  const content = comment === '' ? shape : `${shape} (${comment})`
  return { name: `${kind} ${name}`, content, command: `nft list ${kind} ${table} ${name}` }
}

/** The id is `listener 127.0.0.1 tcp 30080`, the digest is the endpoints and the seconds of affinity. */
function describeSocket([ip = '', protocol = '', port = '']: readonly string[], digest: string): PartDescription {
  const address = `${ip.includes(':') ? `[${ip}]` : ip}:${port}`
  const content = `relays to ${digest.split(' ')[0]?.replaceAll(',', ', ')}`
  const command = `ss -Hn${protocol === 'udp' ? 'u' : 't'}l src ${address}`
  return { name: `socket ${address}/${protocol}`, content, command }
}
