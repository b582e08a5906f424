// Lets the embedded API server decide what becomes of a changed object: defaults, admission and validation, over the objects of a cluster
// that are held in memory. Nothing is sent to the cluster, and no controller runs.

import { Allocations, type NodePortRange } from '../../apiserver/requests/allocations.ts'
import { applyPatchType } from '../../apiserver/requests/patch-types.ts'
import { type ObjectPath, type ObjectWriteOptions, ObjectWriter } from '../../apiserver/requests/writes.ts'
import { StatusError } from '../../apiserver/schema/api-status.ts'
import type { Json } from '../../apiserver/schema/json.ts'
import { metadataOf } from '../../apiserver/schema/object-metadata.ts'
import { apiVersionOf, getResource, type ServedResource } from '../../apiserver/schema/served-resources.ts'
import { Registry } from '../../apiserver/store/registry.ts'
import { createMemoryLog } from '../../apiserver/store/write-ahead-log.ts'
import { systemClock } from '../../lib/time.ts'
import type { ApiRefusal } from './change-files.ts'

export interface TrialOptions {
  readonly nodePorts: NodePortRange
  /** The ranges of cluster IPs, the preferred family first; empty if they are not known. */
  readonly serviceCidrs: readonly string[]
}

/** A refusal of the API server, real or embedded. */
export class RefusedObject extends Error {
  readonly refusal: ApiRefusal

  constructor(refusal: ApiRefusal) {
    super(refusal.message)
    this.refusal = refusal
  }
}

/** Ranges for placeholders while the cluster's own are not known; then every address is in a range. */
const assumedCidrs = ['10.96.0.0/16', 'fd00:10:96::/112']
const allAddresses = ['0.0.0.0/0', '::/0']

export class AdmissionTrial {
  readonly #registry: Registry
  readonly #writer: ObjectWriter
  /** Namespaces that exist, or that count as existing because no one could be asked. */
  readonly #namespaces = new Set<string>()

  constructor({ nodePorts, serviceCidrs }: TrialOptions) {
    this.#registry = new Registry({ writeAheadLog: createMemoryLog(), firstVersion: 1 })
    // Allocation is random by default; a constant makes the same files give the same placeholders each time.
    const allocations = new Allocations(nodePorts, () => 0)
    this.#registry.index((change) => allocations.observe(change))
    this.#writer = new ObjectWriter(this.#registry, allocations, systemClock)
    const isKnown = serviceCidrs.length > 0
    this.#addCidrs('kubernetes', isKnown ? serviceCidrs : assumedCidrs)
    if (!isKnown) this.#addCidrs('unknown', allAddresses)
  }

  #addCidrs(name: string, cidrs: readonly string[]): void {
    this.#registry.put('servicecidrs', { metadata: { name }, spec: { cidrs } })
  }

  addNamespace(name: string): void {
    this.#namespaces.add(name)
  }

  hasNamespace(name: string): boolean {
    return this.#namespaces.has(name)
  }

  /** Holds an object of the cluster as it is. */
  hold(resource: ServedResource, object: Json): void {
    this.#registry.put(resource.plural, { ...object, kind: resource.kind, apiVersion: apiVersionOf(resource) })
  }

  find({ resource, namespace, name }: ObjectPath): Json | undefined {
    return this.#registry.find(resource.plural, namespace, name)?.object
  }

  remove({ resource, namespace, name }: ObjectPath): void {
    this.#registry.remove(resource.plural, namespace, name)
  }

  /** Creates or replaces the object. Throws a RefusedObject. */
  write(path: ObjectPath, body: Json): Json {
    const options = this.#options('')
    // The uid and version of the object are the server's business.
    const { uid: _, resourceVersion: __, ...metadata } = metadataOf(body)
    const object = { ...body, metadata }
    return refuseByStatus(() =>
      this.find(path) === undefined
        ? this.#writer.create({ ...path, name: '' }, object, options).object
        : this.#writer.replace(path, object, options).object,
    )
  }

  /** Server-side apply. Throws a RefusedObject. */
  apply(path: ObjectPath, body: Json, manager: string): Json {
    return refuseByStatus(() => this.#writer.patch(path, { type: applyPatchType, body }, this.#options(manager)).object)
  }

  #options(manager: string): ObjectWriteOptions {
    return {
      dryRun: false,
      manager,
      force: true,
      fieldValidation: 'Ignore',
      warn: () => {},
      pendingNamespaces: this.#namespaces,
    }
  }
}

function refuseByStatus(write: () => Json): Json {
  try {
    return write()
  } catch (error) {
    if (!(error instanceof StatusError)) throw error
    throw new RefusedObject({ message: error.message, causes: error.refusal.details?.causes ?? [] })
  }
}

export const pathOf = (resource: ServedResource, namespace: string, name: string): ObjectPath => ({
  resource,
  namespace,
  name,
  subresource: '',
})

export const serviceResource = getResource('services')
export const sliceResource = getResource('endpointslices')
export const namespaceResource = getResource('namespaces')
