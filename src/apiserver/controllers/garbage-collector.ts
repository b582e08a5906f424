// Deletes the dependents of objects that are gone, as their owner references ask for.

import type { ObjectWriter } from '../requests/writes.ts'
import { getObjects, getString, type Json } from '../schema/json.ts'
import { metadataOf, uidOf } from '../schema/object-metadata.ts'
import { getResource } from '../schema/served-resources.ts'
import type { Change } from '../store/collection.ts'
import type { Registry } from '../store/registry.ts'
import { NameIndex } from './name-index.ts'
import type { DeferredController } from './work-scheduler.ts'

export class GarbageCollector implements DeferredController {
  readonly #registry: Registry
  readonly #writer: ObjectWriter
  /** `resource namespace name` of the dependents by the uid of their owner. */
  readonly #dependents = new NameIndex()
  /** The uids of all objects. */
  readonly #existing = new Set<string>()
  /** `resource namespace name` of objects that lost an owner. */
  readonly #orphans = new Set<string>()

  constructor(registry: Registry, writer: ObjectWriter) {
    this.#registry = registry
    this.#writer = writer
  }

  get hasWork(): boolean {
    return this.#orphans.size > 0
  }

  observe({ resource, namespace, name, previous, next }: Change): void {
    const id = `${resource} ${namespace} ${name}`
    this.#dependents.remove(ownersOf(previous?.object), id)
    this.#dependents.add(ownersOf(next?.object), id)
    const oldUid = previous === undefined ? '' : uidOf(previous.object)
    const uid = next === undefined ? '' : uidOf(next.object)
    if (uid !== '') this.#existing.add(uid)
    if (oldUid === '' || oldUid === uid) return
    this.#existing.delete(oldUid)
    for (const dependent of this.#dependents.removeKey(oldUid)) this.#orphans.add(dependent)
  }

  /** A deletion can make more orphans; the loop reaches these as well. */
  run(): void {
    for (const id of this.#orphans) {
      this.#orphans.delete(id)
      const [plural = '', namespace = '', name = ''] = id.split(' ')
      const object = this.#registry.find(plural, namespace, name)?.object
      if (object === undefined || ownersOf(object).some((uid) => this.#existing.has(uid))) continue
      const resource = getResource(plural)
      if (resource.readOnly) this.#registry.remove(plural, namespace, name)
      else this.#writer.delete({ resource, namespace, name, subresource: '' }, { dryRun: false })
    }
  }
}

const ownersOf = (object: Json | undefined): readonly string[] =>
  getObjects(metadataOf(object ?? {}), 'ownerReferences').map((owner) => getString(owner, 'uid'))
