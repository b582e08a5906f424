// Keeps the slices of each service of one family, sorted by key. No decisions.
//
// A service may have thousands of slices, which arrive one by one. Sorting each of them into a list takes time in proportion to the list, so
// changes are collected, and merged when the list is read.

import type { SliceRecord } from '../model/types.ts'

/** Changes of one service that are not merged yet: slices by key, undefined for a slice that is gone. */
type Unmerged = Map<string, SliceRecord | undefined>

export class SlicesByService {
  /** The only slice of a service, or all of them. A list for each service would take megabytes. */
  readonly #slices = new Map<string, SliceRecord | readonly SliceRecord[]>()
  readonly #unmerged = new Map<string, Unmerged>()
  /** How many slices of a service have UDP endpoints; absent for none. */
  readonly #udpSlices = new Map<string, number>()
  #endpoints = 0

  /** The number of endpoints in all slices. */
  get endpointCount(): number {
    return this.#endpoints
  }

  /** The slices of a service. The list never changes; a later call may return another one. */
  of(service: string): readonly SliceRecord[] {
    const unmerged = this.#unmerged.get(service)
    const before = asList(this.#slices.get(service))
    if (unmerged === undefined) return before
    this.#unmerged.delete(service)
    const after = merge(before, unmerged)
    const [first] = after
    if (first === undefined) this.#slices.delete(service)
    else this.#slices.set(service, after.length === 1 ? first : after)
    return after
  }

  *all(): Iterable<readonly SliceRecord[]> {
    for (const service of [...this.#unmerged.keys()]) this.of(service)
    for (const slices of this.#slices.values()) yield asList(slices)
  }

  /** True if a slice of the service has UDP endpoints. */
  servesUdp(service: string): boolean {
    return this.#udpSlices.has(service)
  }

  /** Puts `record` in the place of the slice `before`, or adds it; without a record, removes the slice. */
  replace(before: SliceRecord | undefined, record: SliceRecord | undefined): void {
    const at = (record ?? before) as SliceRecord
    const { service } = at
    this.#endpoints += (record?.endpoints.length ?? 0) - (before?.endpoints.length ?? 0)
    const changed =
      Number(record !== undefined && servesUdp(record)) - Number(before !== undefined && servesUdp(before))
    if (changed !== 0) this.#countUdp(service, changed)
    const unmerged = this.#unmerged.get(service)
    if (unmerged !== undefined) unmerged.set(at.key, record)
    else if (!this.#replaceOnly(at, record)) this.#unmerged.set(service, new Map([[at.key, record]]))
  }

  /** Most services have one slice, with which there is nothing to merge. Returns false if the service has others. */
  #replaceOnly({ service, key }: SliceRecord, record: SliceRecord | undefined): boolean {
    const only = this.#slices.get(service)
    if (only !== undefined && (!('key' in only) || only.key !== key)) return false
    if (record === undefined) this.#slices.delete(service)
    else this.#slices.set(service, record)
    return true
  }

  #countUdp(service: string, change: number): void {
    const count = (this.#udpSlices.get(service) ?? 0) + change
    if (count === 0) this.#udpSlices.delete(service)
    else this.#udpSlices.set(service, count)
  }
}

/** Returns a list sorted by key, without spare capacity, since there is one list per service. `sorted` is sorted by key. */
function merge(sorted: readonly SliceRecord[], changes: Unmerged): readonly SliceRecord[] {
  const added = [...changes.values()].filter((record) => record !== undefined)
  added.sort((a, b) => (a.key < b.key ? -1 : 1))
  const merged: SliceRecord[] = []
  let next = 0
  for (const record of sorted) {
    if (changes.has(record.key)) continue
    while (next < added.length && (added[next] as SliceRecord).key < record.key) {
      merged.push(added[next++] as SliceRecord)
    }
    merged.push(record)
  }
  while (next < added.length) merged.push(added[next++] as SliceRecord)
  return merged.slice()
}

const none: readonly never[] = []

function asList(slices: SliceRecord | readonly SliceRecord[] | undefined): readonly SliceRecord[] {
  if (slices === undefined) return none
  return 'key' in slices ? [slices] : slices
}

const servesUdp = (slice: SliceRecord): boolean =>
  slice.endpoints.length > 0 && slice.ports.some((port) => port.protocol === 'udp')
