// Sharing of equal values among records: node names, zones and port lists repeat in thousands of objects.

/** Forgetting costs only memory that is then held twice, so the table may simply start anew when names have churned. */
const limit = 50_000

export class Interned<T> {
  readonly #values = new Map<string, T>()

  /** The value that was first made for `key`. */
  share(key: string, make: () => T): T {
    const known = this.#values.get(key)
    if (known !== undefined) return known
    if (this.#values.size >= limit) this.#values.clear()
    const made = make()
    this.#values.set(key, made)
    return made
  }
}

const names = new Interned<string>()
const lists = new Interned<readonly string[]>()

export const internName = (name: string): string => (name === '' ? '' : names.share(name, () => name))

/** One list for all that hold the same names in the same order. */
export function internNames(values: readonly string[]): readonly string[] {
  return lists.share(values.join('\n'), () => Object.freeze(values.map(internName)))
}
