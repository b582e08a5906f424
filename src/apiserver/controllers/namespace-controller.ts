// Deletes the content of namespaces that are being deleted, and then the namespaces.

import type { ObjectWriter } from '../requests/writes.ts'
import { finalizersOf, isTerminating, nameOf } from '../schema/object-metadata.ts'
import { getResource, resources } from '../schema/served-resources.ts'
import type { Change } from '../store/collection.ts'
import type { Registry } from '../store/registry.ts'
import type { DeferredController } from './work-scheduler.ts'

/** The plurals of all kinds with namespaces. Two served forms of one kind share a plural. */
const namespacedPlurals = [...new Set(resources.filter((each) => each.namespaced).map(({ plural }) => plural))]

export class NamespaceController implements DeferredController {
  readonly #registry: Registry
  readonly #writer: ObjectWriter
  readonly #pending = new Set<string>()

  constructor(registry: Registry, writer: ObjectWriter) {
    this.#registry = registry
    this.#writer = writer
  }

  get hasWork(): boolean {
    return this.#pending.size > 0
  }

  observe({ resource, namespace, name, next }: Change): void {
    if (resource === 'namespaces' && next !== undefined && isTerminating(next.object)) this.#pending.add(name)
    if (next === undefined && namespace !== '' && this.#isTerminating(namespace)) this.#pending.add(namespace)
  }

  /** A deletion enqueues its namespace again; the loop visits it once more. */
  run(): void {
    for (const namespace of this.#pending) {
      this.#pending.delete(namespace)
      const remaining = namespacedPlurals.reduce((sum, plural) => sum + this.#deleteAll(plural, namespace), 0)
      if (remaining === 0) this.#removeNamespace(namespace)
    }
  }

  /** Returns the number of objects that wait for a grace period or a finalizer. */
  #deleteAll(plural: string, namespace: string): number {
    const resource = getResource(plural)
    let remaining = 0
    for (const { object } of [...this.#registry.list(plural, namespace)]) {
      const name = nameOf(object)
      if (resource.readOnly) this.#registry.remove(plural, namespace, name)
      else if (isTerminating(object)) remaining++
      else if (!this.#writer.delete({ resource, namespace, name, subresource: '' }, { dryRun: false }).gone) remaining++
    }
    return remaining
  }

  #removeNamespace(name: string): void {
    const namespace = this.#registry.find('namespaces', '', name)?.object
    if (namespace !== undefined && isTerminating(namespace) && finalizersOf(namespace).length === 0)
      this.#registry.remove('namespaces', '', name)
  }

  #isTerminating(name: string): boolean {
    const namespace = this.#registry.find('namespaces', '', name)
    return namespace !== undefined && isTerminating(namespace.object)
  }
}
