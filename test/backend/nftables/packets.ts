// What a packet may not meet: between any two states of the table, it may read rules of the one and elements of the other.

import { decodeKey, shapeOf } from '../../../src/backend/nftables/commit/set-codec.ts'
import type { State } from './fake-kernel.ts'

interface Lead {
  readonly key: string
  readonly chain: string
}

/** Where the verdicts of services lead. */
function leads(state: State): readonly Lead[] {
  const found: Lead[] = []
  for (const set of ['service-ips', 'service-nodeports'] as const) {
    const shape = shapeOf(
      set === 'service-ips' ? 'address . protocol . port : verdict' : 'protocol . port : verdict',
      4,
    )
    for (const { key, data } of state.elements.get(set)?.values() ?? []) {
      if (data === undefined || !('chain' in data)) continue
      found.push({ key: `${set} ${decodeKey(shape, 4, Buffer.from(key), undefined)}`, chain: data.chain })
    }
  }
  return found
}

function slots(state: State): ReadonlySet<string> {
  const found = new Set<string>()
  for (const [map, set] of [
    ['endpoints', 'service-ips'],
    ['nodeport-endpoints', 'service-nodeports'],
  ] as const) {
    const shape =
      map === 'endpoints'
        ? 'address . protocol . port . slot : address . port'
        : 'protocol . port . slot : address . port'
    for (const { key } of state.elements.get(map)?.values() ?? []) {
      found.add(`${set} ${decodeKey(shapeOf(shape, 4), 4, Buffer.from(key), undefined)}`)
    }
  }
  return found
}

/** Slots that the chain may choose. */
function chosen({ key, chain }: Lead): readonly string[] {
  const match = /^(?:lb|np)-(?:masquerade-)?(?:local-(\d+)-of-)?(\d+)$/.exec(chain)
  if (match === null) return []
  const range = (count: number, offset: number) => Array.from({ length: count }, (_, i) => `${key} ${offset + i}`)
  return [...range(Number(match[2]), 0), ...range(Number(match[1] ?? 0), 0x4000_0000)]
}

/** What is wrong with going from one state to the other, for a packet that sees a little of both. */
export function gaps(before: State, after: State): readonly string[] {
  const found: string[] = []
  const live = before.chains.has('nat-prerouting')
  const present = slots(after)
  const had = new Map(leads(before).map((lead) => [lead.key, lead.chain]))
  // Not exchanged as a whole: then the old table's maps are all gone at once, and nothing can be kept of them.
  const same = live && before.flags === after.flags
  for (const lead of leads(after)) {
    for (const slot of chosen(lead))
      if (!present.has(slot)) found.push(`${lead.key} leads to ${lead.chain}, but slot ${slot} is missing`)
    if (!same || had.get(lead.key) === lead.chain) continue
    if ((before.rules.get(lead.chain)?.length ?? 0) === 0)
      found.push(`${lead.chain} was empty when ${lead.key} began to lead there`)
  }
  if (!same) return found
  for (const [key, chain] of had) {
    for (const slot of chosen({ key, chain }))
      if (!present.has(slot)) found.push(`slot ${slot} went while ${chain} could choose it`)
  }
  for (const [name, rules] of after.rules) {
    if (rules.length === 0 && (before.rules.get(name)?.length ?? 0) > 0 && [...had.values()].includes(name)) {
      found.push(`${name} was emptied while packets were in it`)
    }
  }
  return found
}
