// Knows which service port each frontend belongs to, also a short time after it is gone, and which frontends a service port has. Pure.

/** Ids of elements that name a service port: `service-ips 10.96.0.1 tcp 443`. Most service ports have one. */
type ElementIds = string | Set<string>

const commentMark = ' # '

/** The sets whose elements carry the name of a service port as their comment. */
export const namingSets = ['service-ips', 'service-nodeports', 'no-endpoint-services', 'no-endpoint-nodeports'] as const

export class FrontendOwners {
  readonly #ids = new Map<string, ElementIds>()
  /** The last owner of frontends whose verdict is gone while some of their slots are still there. */
  readonly #former = new Map<string, string>()
  /** Service ports without elements. They may come back before they are swept. */
  readonly #retired = new Set<string>()

  /** Called when the kernel got an element or lost it, with its value and comment before and now. */
  update(id: string, before: string | undefined, now: string | undefined): void {
    if (!namesPort(id)) return
    const [old, port] = [readComment(before), readComment(now)]
    if (old === port) return
    if (old !== undefined) this.#remove(old, id)
    if (port !== undefined) this.#add(port, id)
  }

  /** The service port of a frontend (`10.96.0.1 tcp 443`), by its element; undefined if it never had one. */
  find(key: string, elements: ReadonlyMap<string, string>): string | undefined {
    for (const set of namingSets) {
      const port = readComment(elements.get(`${set} ${key}`))
      if (port !== undefined) return port
    }
    return this.#former.get(key)
  }

  has(port: string): boolean {
    return this.#ids.has(port)
  }

  /** The frontends of a service port; undefined if they are more than `limit`. */
  keysOf(port: string, limit: number): readonly string[] | undefined {
    const ids = this.#ids.get(port)
    if (ids === undefined) return []
    if (typeof ids === 'string') return [keyOf(ids)]
    return ids.size > limit ? undefined : [...ids].map(keyOf)
  }

  /** One of the frontends of a service port; '' if it has none. */
  firstKeyOf(port: string): string {
    const ids = this.#ids.get(port) ?? ''
    if (typeof ids === 'string') return keyOf(ids)
    const [first = ''] = ids
    return keyOf(first)
  }

  /** Called when the last slot of a frontend is gone. */
  forget(key: string): void {
    this.#former.delete(key)
  }

  get hasRetired(): boolean {
    return this.#retired.size > 0
  }

  /** Returns service ports that have had no elements since the last call or longer. */
  takeRetired(): readonly string[] {
    const ports = [...this.#retired]
    this.#retired.clear()
    return ports
  }

  clear(): void {
    this.#ids.clear()
    this.#former.clear()
    this.#retired.clear()
  }

  #add(port: string, id: string): void {
    const ids = this.#ids.get(port)
    this.#retired.delete(port)
    if (ids === undefined) this.#ids.set(port, id)
    else if (typeof ids === 'string') this.#ids.set(port, new Set([ids, id]))
    else ids.add(id)
  }

  #remove(port: string, id: string): void {
    const ids = this.#ids.get(port)
    if (id.startsWith('service-')) this.#former.set(keyOf(id), port)
    if (ids instanceof Set) {
      ids.delete(id)
      if (ids.size > 0) return
    } else if (ids !== id) return
    this.#ids.delete(port)
    this.#retired.add(port)
  }
}

export const namesPort = (id: string): boolean => id.startsWith('service-') || id.startsWith('no-endpoint-')

const keyOf = (id: string): string => id.slice(id.indexOf(' ') + 1)

export function readComment(digest: string | undefined): string | undefined {
  const at = digest?.indexOf(commentMark) ?? -1
  return at < 0 ? undefined : digest?.slice(at + commentMark.length)
}
