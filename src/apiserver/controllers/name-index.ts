// A multimap from keys to names of objects. Pure.

const noNames: ReadonlySet<string> = new Set()

export class NameIndex {
  readonly #names = new Map<string, Set<string>>()

  get(key: string): ReadonlySet<string> {
    return this.#names.get(key) ?? noNames
  }

  add(keys: readonly string[], name: string): void {
    for (const key of keys) {
      const names = this.#names.get(key)
      if (names === undefined) this.#names.set(key, new Set([name]))
      else names.add(name)
    }
  }

  remove(keys: readonly string[], name: string): void {
    for (const key of keys) {
      const names = this.#names.get(key)
      names?.delete(name)
      if (names?.size === 0) this.#names.delete(key)
    }
  }

  /** Removes the key, and returns the names that it had. */
  removeKey(key: string): ReadonlySet<string> {
    const names = this.get(key)
    this.#names.delete(key)
    return names
  }
}
