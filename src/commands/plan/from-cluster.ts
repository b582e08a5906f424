// Computes the records after a change of a cluster. The cluster's API server tries each object if it may be asked to; the embedded one
// applies them all to what the cluster has, in memory, so that objects of one change are checked against each other too.

import type { NodePortRange } from '../../apiserver/requests/allocations.ts'
import type { ObjectPath } from '../../apiserver/requests/writes.ts'
import type { Json } from '../../apiserver/schema/json.ts'
import type { Inputs } from '../../http/admin.ts'
import type { Objects } from '../../inspect/dry-run.ts'
import { decodeEndpointSlice } from '../../kube/decode/decode-endpoint-slice.ts'
import { decodeService } from '../../kube/decode/decode-service.ts'
import type { ServiceRecord, SliceRecord } from '../../model/types.ts'
import {
  AdmissionTrial,
  namespaceResource,
  pathOf,
  RefusedObject,
  serviceResource,
  sliceResource,
} from './admission-trial.ts'
import { describeRefusal, keyOf, type LocatedManifest, refuse } from './change-files.ts'
import { applierOf, lastAppliedTo, mergeApplied } from './client-apply.ts'
import { forgetAllocated, placeholderRemarks } from './placeholders.ts'
import { makeServiceObject, makeSliceObject } from './record-objects.ts'
import type { DryRunAnswer, TriedObject } from './server-dry-run.ts'

export interface PlannedChange {
  readonly after: Objects
  /** Sentences about what was ignored or assumed. */
  readonly remarks: readonly string[]
}

/** What the cluster says about one object. */
export type PresentObject = { readonly object: Json | undefined } | { readonly unknown: string }

export interface ClusterAccess {
  read(path: ObjectPath): Promise<PresentObject>
  /** Absent if the API server cannot be reached from here. Throws a RefusedObject. */
  readonly tryObject?: ((tried: TriedObject) => Promise<DryRunAnswer>) | undefined
}

export interface ClusterChange {
  readonly objects: readonly LocatedManifest[]
  readonly isDelete: boolean
  readonly nodePorts: NodePortRange
}

/** The kinds that a change may have, in the order in which they are applied. */
export const clusterKinds = ['Namespace', 'Service', 'EndpointSlice']

/** Throws a ProxyError 'manifests' with one line for each field that an API server refuses. */
export async function planCluster(
  inputs: Inputs,
  access: ClusterAccess,
  change: ClusterChange,
): Promise<PlannedChange> {
  const plan = new ClusterPlan(inputs, access, change)
  if (change.isDelete) for (const { manifest } of change.objects) plan.remove(pathTo(manifest))
  else await plan.applyAll(change.objects)
  return plan.result()
}

const pathTo = ({ resource, namespace, name }: LocatedManifest['manifest']): ObjectPath =>
  pathOf(resource, namespace, name)

class ClusterPlan {
  readonly #access: ClusterAccess
  readonly #trial: AdmissionTrial
  readonly #services: Map<string, ServiceRecord>
  readonly #slices: Map<string, SliceRecord>
  readonly #remarks = new Set<string>()
  /** Whether a namespace exists before the change. */
  readonly #namespaces = new Map<string, 'present' | 'absent'>()

  constructor({ views, services, slices }: Inputs, access: ClusterAccess, { nodePorts, objects }: ClusterChange) {
    this.#access = access
    this.#services = new Map(services.map((record) => [record.key, record]))
    this.#slices = new Map(slices.map((record) => [record.key, record]))
    const serviceCidrs = [...new Set(views.flatMap((view) => view.serviceCidrs))]
    this.#trial = new AdmissionTrial({ nodePorts, serviceCidrs })
    for (const record of services) this.#trial.hold(serviceResource, makeServiceObject(record))
    for (const { manifest } of objects) {
      const slice = manifest.resource.kind === 'EndpointSlice' ? this.#slices.get(keyOf(manifest)) : undefined
      if (slice !== undefined) this.#trial.hold(sliceResource, makeSliceObject(slice))
    }
  }

  result(): PlannedChange {
    const after = { services: [...this.#services.values()], slices: [...this.#slices.values()] }
    return { after, remarks: [...this.#remarks] }
  }

  /** Removes the slices of a removed service as well, as the garbage collector of a cluster does. */
  remove({ resource, namespace, name }: ObjectPath): void {
    const key = keyOf({ namespace, name })
    if (resource.kind === 'EndpointSlice') this.#slices.delete(key)
    if (resource.kind !== 'Service') return
    this.#services.delete(key)
    for (const slice of [...this.#slices.values()]) if (slice.service === key) this.#slices.delete(slice.key)
  }

  async applyAll(objects: readonly LocatedManifest[]): Promise<void> {
    const created = objects.filter(({ manifest }) => manifest.resource.kind === 'Namespace')
    for (const { manifest } of created) this.#trial.addNamespace(manifest.name)
    const refusals: string[] = []
    for (const located of objects) {
      try {
        await this.#apply(located)
      } catch (error) {
        if (!(error instanceof RefusedObject)) throw error
        refusals.push(...describeRefusal(located, error.refusal))
      }
    }
    if (refusals.length > 0) throw refuse(refusals)
  }

  async #apply({ manifest }: LocatedManifest): Promise<void> {
    const path = pathTo(manifest)
    await this.#findNamespace(path.namespace)
    const isComplete = await this.#readPresent(path)
    const current = this.#trial.find(path)
    const object = await this.#admit({ path, body: manifest.body, current }, isComplete)
    if (path.resource.kind === 'Service') this.#keepService(path, manifest.body, object)
    if (path.resource.kind === 'EndpointSlice') this.#keepSlice(path, object)
  }

  /** A namespace that no one can be asked about counts as existing. */
  async #findNamespace(namespace: string): Promise<void> {
    if (namespace === '' || this.#namespaces.has(namespace)) return
    const present = await this.#access.read(pathOf(namespaceResource, '', namespace))
    const isAbsent = 'object' in present && present.object === undefined
    this.#namespaces.set(namespace, isAbsent ? 'absent' : 'present')
    if (!isAbsent) this.#trial.addNamespace(namespace)
  }

  /** Holds the whole object in place of what its record says. Returns false if only the record is known. */
  async #readPresent(path: ObjectPath): Promise<boolean> {
    const present = await this.#access.read(path)
    if ('unknown' in present) {
      const what = `the API server could not be asked for ${path.resource.plural} (${present.unknown})`
      if (path.resource !== namespaceResource) this.#remarks.add(`${what}: the files count as whole objects`)
      return false
    }
    if (present.object !== undefined) this.#trial.hold(path.resource, present.object)
    else this.#trial.remove(path)
    return true
  }

  /** Returns what an API server would store. Throws a RefusedObject. */
  async #admit(tried: TriedObject, isComplete: boolean): Promise<Json> {
    const { path, body, current } = tried
    const answer = isComplete ? await this.#ask(tried) : undefined
    if (answer !== undefined) return this.#writeAnswer(tried, answer)
    if (current === undefined || !isComplete) return this.#trial.write(path, body)
    const manager = applierOf(current)
    if (manager !== '' && lastAppliedTo(current) === undefined) return this.#trial.apply(path, body, manager)
    return this.#trial.write(path, mergeApplied(path.resource.schema, body, current))
  }

  /** Returns the answer of the cluster's own API server; undefined if it could not be asked. */
  async #ask(tried: TriedObject): Promise<Json | undefined> {
    if (this.#access.tryObject === undefined || this.#isInNewNamespace(tried.path)) return undefined
    const answer = await this.#access.tryObject(tried)
    if ('object' in answer) return answer.object
    this.#remarks.add(`the API server did not try this; its embedded copy did: ${answer.unavailable}`)
    return undefined
  }

  /** True if the namespace exists only after the change: a dry run would not find it. */
  #isInNewNamespace({ namespace }: ObjectPath): boolean {
    return this.#namespaces.get(namespace) === 'absent' && this.#trial.hasNamespace(namespace)
  }

  /** The embedded server finds what two objects of the change both want. On all else the cluster's own server has the last word. */
  #writeAnswer({ path, body, current }: TriedObject, answer: Json): Json {
    const object = path.resource.kind === 'Service' ? forgetAllocated(answer, body, current) : answer
    try {
      return this.#trial.write(path, object)
    } catch (error) {
      if (!(error instanceof RefusedObject) || error.message.includes('already allocated')) throw error
      this.#trial.hold(path.resource, answer)
      return answer
    }
  }

  #keepService(path: ObjectPath, body: Json, object: Json): void {
    const key = keyOf(path)
    const { record, problems } = decodeService(object)
    for (const { field, message } of problems) this.#remarks.add(`${key}: ${field}: ${message}`)
    const before = this.#services.get(key)
    for (const remark of placeholderRemarks(body, before, record)) this.#remarks.add(remark)
    if (record === undefined) this.#services.delete(key)
    else this.#services.set(key, record)
  }

  #keepSlice(path: ObjectPath, object: Json): void {
    const { key, record, problems, unused } = decodeEndpointSlice(object)
    for (const { field, message } of problems) this.#remarks.add(`${keyOf(path)}: ${field}: ${message}`)
    if (unused !== undefined) this.#remarks.add(`${keyOf(path)}: ${unused}`)
    if (record === undefined) this.#slices.delete(key)
    else this.#slices.set(record.key, record)
  }
}
