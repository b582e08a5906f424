// Shares equal values among records: node names, zones and port lists repeat in thousands of objects. Holds the only module-level state of
// this folder, the tables of this process.

import type { ServicePortRecord, SlicePortRecord } from '../../model/types.ts'

/** When a table is full it starts again empty, which costs only memory for values that are then held twice. */
const maxValues = 50_000

export class InternTable<T> {
  readonly #values = new Map<string, T>()

  /** Returns the value that was first made for `key`. */
  share(key: string, make: () => T): T {
    const known = this.#values.get(key)
    if (known !== undefined) return known
    if (this.#values.size >= maxValues) this.#values.clear()
    const made = make()
    this.#values.set(key, made)
    return made
  }
}

/** One table per type of value and process. A table never changes what a decoder returns, only how much memory the records need. */
export const internTables = {
  names: new InternTable<string>(),
  nameLists: new InternTable<readonly string[]>(),
  servicePorts: new InternTable<ServicePortRecord>(),
  servicePortLists: new InternTable<readonly ServicePortRecord[]>(),
  slicePorts: new InternTable<SlicePortRecord>(),
  slicePortLists: new InternTable<readonly SlicePortRecord[]>(),
} as const

export const internName = (name: string): string => (name === '' ? '' : internTables.names.share(name, () => name))

/** Returns one list for all records that hold the same names in the same order. */
export function internNames(names: readonly string[]): readonly string[] {
  return internTables.nameLists.share(names.join('\n'), () => Object.freeze(names.map(internName)))
}
