// Groups changes into units that are written or refused as a whole: one per service. Pure.

import type { Changes, Held } from '../../backend.ts'
import { createStray, type IptablesEntry, isIptablesEntry } from '../entries.ts'
import type { WrittenRules } from './written.ts'

export interface Unit {
  /** What it changes. `strays` are chains of unknown origin, `forgotten` are chains of ports that we wrote and that are not wanted. */
  readonly kind: 'base' | 'service' | 'strays' | 'forgotten'
  /** The service of the unit; '' if it has none. */
  readonly service: string
  readonly put: readonly IptablesEntry[]
  /** Entries, or strays for the kinds `strays` and `forgotten`. */
  readonly drop: readonly Held[]
  /** If true, chains that are no longer needed stay, because they cannot be deleted. */
  readonly keepsChains?: boolean
}

/** Changes that are written in one go. */
export interface GroupedChanges {
  /** Changes that go with every write until one has succeeded. If they are refused, no service is to blame. */
  readonly required: Unit
  /** Changes that may be refused one by one. */
  readonly units: readonly Unit[]
}

interface MutableUnit extends Unit {
  readonly put: IptablesEntry[]
  readonly drop: Held[]
}

const createUnit = (kind: Unit['kind'], service = ''): MutableUnit => ({ kind, service, put: [], drop: [] })

/** Groups changes by service. The base is required. */
export function groupChanges({ put, drop }: Changes<IptablesEntry>): GroupedChanges {
  const base = createUnit('base')
  const strays = createUnit('strays')
  const services = new Map<string, MutableUnit>()
  let last: MutableUnit | undefined
  const unitOf = (entry: IptablesEntry): MutableUnit => {
    if (entry.kind === 'base') return base
    // Entries of one service mostly follow each other.
    if (last?.service === entry.service) return last
    last = services.get(entry.service)
    if (last === undefined) {
      last = createUnit('service', entry.service)
      services.set(entry.service, last)
    }
    return last
  }
  for (const entry of put) unitOf(entry).put.push(entry)
  for (const held of drop) (isIptablesEntry(held) ? unitOf(held) : strays).drop.push(held)
  return { required: base, units: [...services.values(), ...(strays.drop.length > 0 ? [strays] : [])] }
}

/**
 * Adds what a write of everything implies: written entries that are not among the changes are forgotten. Their rules go with the
 * required changes, since broken rules among them must not make every write fail. Their chains are a unit, since others may use them.
 */
export function addForgotten(changes: GroupedChanges, written: WrittenRules): GroupedChanges {
  const { required, units } = changes
  const forgotten = findForgotten([required, ...units], written)
  if (forgotten.length === 0) return changes
  const chains = forgotten.flatMap((entry) => (entry.kind === 'port' ? entry.rules.chains().map(createStray) : []))
  return {
    required: { ...required, drop: [...required.drop, ...forgotten], keepsChains: true },
    units: chains.length === 0 ? units : [...units, { ...createUnit('forgotten'), drop: chains }],
  }
}

function findForgotten(units: readonly Unit[], written: WrittenRules): readonly IptablesEntry[] {
  let known = 0
  for (const { put } of units) for (const { id } of put) if (written.entry(id) !== undefined) known++
  // Usually nothing is forgotten.
  if (known === written.size) return []
  const ids = new Set(units.flatMap(({ put }) => put.map(({ id }) => id)))
  return [...written.entries()].filter(({ id }) => !ids.has(id))
}
