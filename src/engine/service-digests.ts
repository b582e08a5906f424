// Digests of what each service has in the API: its Service and its EndpointSlices as records. They do not depend on the node or the mode,
// so that proxies can be compared whatever their policies make of the objects. Pure.

import type { Family } from '../lib/ip.ts'
import { hashText, type SketchElement } from '../lib/set-sketch.ts'
import { type Steps, stride } from '../lib/yielding.ts'
import { canaryService } from '../model/canary-records.ts'
import type { ServiceRecord, SliceRecord } from '../model/types.ts'
import type { Store } from './store.ts'

/** To be raised with every change of records or of this file, since only equal formats can be compared. A test pins the digests. */
export const digestFormat = 1

/** What a service's digest is combined with if the data plane does not have its objects yet. */
const unapplied = 0x5bd1e995

export class ServiceDigests {
  /** Records never change, so each is hashed once. */
  readonly #known = new WeakMap<ServiceRecord | SliceRecord, number>()

  #hash(record: ServiceRecord | SliceRecord, content: () => object): number {
    const known = this.#known.get(record)
    if (known !== undefined) return known
    const hash = hashText(JSON.stringify(content()))
    this.#known.set(record, hash)
    return hash
  }

  /** Calls `visit` for every service. `isApplied` is false for a service whose last change could not be programmed. */
  *list(
    store: Pick<Store, 'records' | 'slicesOf'>,
    families: readonly Family[],
    { visit, isApplied }: { visit(element: SketchElement): void; isApplied(service: string): boolean },
  ): Steps<void> {
    let seen = 0
    for (const record of store.records()) {
      if (++seen % stride === 0) yield
      // Every node has its own.
      if (record.key === canaryService) continue
      let content = this.#hash(record, () => record)
      for (const slice of families.flatMap((family) => store.slicesOf(record.key, family))) {
        if (!this.#known.has(slice)) yield
        content = Math.imul(content ^ this.#hash(slice, () => withoutTime(slice)), 0x01000193) >>> 0
      }
      visit({ key: serviceKeyHash(record.key), content: isApplied(record.key) ? content : (content ^ unapplied) >>> 0 })
    }
  }
}

/** The trigger time says when a slice changed, not what it has. */
const withoutTime = (slice: SliceRecord): object => ({ ...slice, triggered: 0 })

/** Identifies a service, `namespace/name`, in a sketch. */
export const serviceKeyHash = (service: string): number => hashText(service)
