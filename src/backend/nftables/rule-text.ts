// Writes planned rules as text that resembles what nft lists, for people. Pure.

import type { KeyField, Match, PlannedRule, Statement } from './entries.ts'

export function formatRule({ statements, comment }: PlannedRule): string {
  return statements.map(formatStatement).join(' ') + (comment === undefined ? '' : ` comment "${comment}"`)
}

const fields = (keys: readonly KeyField[]): string => keys.join(' . ')
const hex = (bits: number): string => `0x${bits.toString(16)}`

function formatStatement(one: Statement): string {
  switch (one.kind) {
    case 'verdict-map':
      return `${fields(one.fields)} vmap @${one.set}`
    case 'random-verdict':
      return `numgen ${one.turn ? 'inc' : 'random'} mod ${one.targets.length} vmap { ${one.targets.map((to, i) => `${i} : goto ${to}`).join(', ')} }`
    case 'remember':
      return `update @${one.set} { saddr timeout ${one.timeoutSeconds}s }`
    case 'dnat-map':
      return `dnat to ${fields(one.fields)} . ${chooser(one)} mod ${one.count} offset ${one.offset} map @${one.set}`
    case 'dnat':
      return `${one.protocol} dnat to ${one.ip.includes(':') ? `[${one.ip}]` : one.ip}:${one.port}`
    case 'count':
      return 'counter'
    case 'mark-or':
      return `mark set mark or ${hex(one.bits)}`
    case 'mark-clear':
      return `mark set mark and not ${hex(one.bits)}`
    case 'masquerade':
      return 'masquerade fully-random'
    case 'reject':
    case 'drop':
      return one.kind
    case 'jump':
    case 'goto':
      return `${one.kind} ${one.chain}`
    default:
      return formatMatch(one)
  }
}

function chooser({ choice }: Statement & { kind: 'dnat-map' }): string {
  if (choice === 'hash') return 'jhash saddr'
  return choice === 'turn' ? 'numgen inc' : 'numgen random'
}

function formatMatch(one: Match): string {
  switch (one.kind) {
    case 'ct-new':
      return 'ct state new'
    case 'ct-dnat':
      return 'ct status dnat'
    case 'match-address':
      return `${one.field} ${one.not ? '!= ' : ''}${one.cidr}`
    case 'match-interface':
      return `iifname ${one.not ? '!= ' : ''}"${one.name}${one.prefix ? '*' : ''}"`
    case 'match-mark':
      return `mark and ${hex(one.bits)} != 0`
    case 'address-type-local':
      return `fib ${one.field} type ${one.not ? '!= ' : ''}local`
    case 'in-set':
      return `${fields(one.fields)} ${one.not ? '!= ' : ''}@${one.set}`
  }
}
