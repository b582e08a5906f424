// Finds gaps between two states of the table: a packet may read rules of the first state and elements of the second.

import { SetCodec } from '../../../src/backend/nftables/commit/set-codec.ts'
import { localSlots } from '../../../src/backend/nftables/rules.ts'
import type { State } from './fake-kernel.ts'

interface VerdictElement {
  /** Set and key. */
  readonly key: string
  /** The chain that the verdict leads into. */
  readonly chain: string
}

const codecs = {
  'service-ips': new SetCodec('address . protocol . port : verdict', 4),
  'service-nodeports': new SetCodec('protocol . port : verdict', 4),
}

const slotMaps = [
  ['endpoints', 'service-ips', new SetCodec('address . protocol . port . slot : address . port', 4)],
  ['nodeport-endpoints', 'service-nodeports', new SetCodec('protocol . port . slot : address . port', 4)],
] as const

function findVerdicts(state: State): readonly VerdictElement[] {
  const found: VerdictElement[] = []
  for (const [set, codec] of Object.entries(codecs)) {
    for (const { key, data } of state.elements.get(set)?.values() ?? []) {
      if (data === undefined || !('chain' in data)) continue
      found.push({ key: `${set} ${codec.readKey(Buffer.from(key))}`, chain: data.chain })
    }
  }
  return found
}

/** Returns the slots that the state has, each with the key of its verdict. */
function findSlots(state: State): ReadonlySet<string> {
  const found = new Set<string>()
  for (const [map, set, codec] of slotMaps) {
    for (const { key } of state.elements.get(map)?.values() ?? []) {
      const bytes = Buffer.from(key)
      found.add(`${set} ${codec.readKey(bytes)} ${codec.readSlot(bytes)}`)
    }
  }
  return found
}

/** Returns the slots that the chain may choose. */
function listChosenSlots({ key, chain }: VerdictElement): readonly string[] {
  const match = /^(?:lb|np)-(?:hash-|turn-)?(?:masquerade-)?(?:local-(\d+)-of-)?(\d+)(?:-[A-Z2-7]{8})?$/.exec(chain)
  if (match === null) return []
  const range = (count: number, offset: number) => Array.from({ length: count }, (_, i) => `${key} ${offset + i}`)
  return [...range(Number(match[2]), 0), ...range(Number(match[1] ?? 0), localSlots)]
}

/** Describes what is wrong with a change from one state to the other, for a packet that sees a part of both. */
export function findGaps(before: State, after: State): readonly string[] {
  const slots = findSlots(after)
  const wasLive = before.chains.has('nat-prerouting')
  // When the whole table is exchanged, all maps of the old table are gone at once, and nothing can be kept of them.
  const wasExchanged = before.flags !== after.flags
  const gaps = findVerdicts(after).flatMap((verdict) => findMissingSlots(verdict, slots))
  return wasLive && !wasExchanged ? [...gaps, ...findChangeGaps(before, after, slots)] : gaps
}

function findMissingSlots(verdict: VerdictElement, slots: ReadonlySet<string>): readonly string[] {
  const missing = listChosenSlots(verdict).filter((slot) => !slots.has(slot))
  return missing.map((slot) => `${verdict.key} leads to ${verdict.chain}, but slot ${slot} is missing`)
}

function findChangeGaps(before: State, after: State, slots: ReadonlySet<string>): readonly string[] {
  const old = new Map(findVerdicts(before).map(({ key, chain }) => [key, chain]))
  const gaps: string[] = []
  const hadRules = (chain: string) => (before.rules.get(chain)?.length ?? 0) > 0
  for (const { key, chain } of findVerdicts(after)) {
    if (old.get(key) !== chain && !hadRules(chain)) gaps.push(`${chain} was empty when ${key} began to lead there`)
  }
  for (const [key, chain] of old) {
    const removed = listChosenSlots({ key, chain }).filter((slot) => !slots.has(slot))
    gaps.push(...removed.map((slot) => `slot ${slot} was removed while ${chain} could choose it`))
  }
  const entered = new Set(old.values())
  for (const [name, rules] of after.rules) {
    if (rules.length === 0 && hadRules(name) && entered.has(name)) {
      gaps.push(`${name} was emptied while packets were in it`)
    }
  }
  return gaps
}
