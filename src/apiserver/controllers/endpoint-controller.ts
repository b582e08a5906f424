// Keeps EndpointSlices and Endpoints up to date with services and pods: collects the services that a change affects, and reconciles them
// after the change. What the slices must hold is in endpoint-slices.ts.

import { deepEqual } from '../../lib/equal.ts'
import { type Clock, formatTime } from '../../lib/time.ts'
import { orderFields } from '../requests/admission.ts'
import { createIdentity, generateName } from '../requests/generate-name.ts'
import { matchesMap } from '../requests/selectors.ts'
import { getObject, getString, type Json, type MutableJson } from '../schema/json.ts'
import { labelsOf, metadataOf, nameOf, namespaceOf, uidOf } from '../schema/object-metadata.ts'
import { getResource } from '../schema/served-resources.ts'
import type { Change } from '../store/collection.ts'
import type { Registry } from '../store/registry.ts'
import {
  endpointSubsets,
  findEndpoints,
  managedBy,
  managerName,
  planSlices,
  type SlicePlan,
  selectsPods,
  serviceNameLabel,
  sliceLabels,
} from './endpoint-slices.ts'
import { NameIndex } from './name-index.ts'
import { WorkScheduler } from './work-scheduler.ts'

const slices = getResource('endpointslices')
const endpoints = getResource('endpoints')
const zoneLabel = 'topology.kubernetes.io/zone'
const triggerAnnotation = 'endpoints.kubernetes.io/last-change-trigger-time'
/** The number of services to reconcile in one turn of the event loop. */
const servicesPerTurn = 100
/** Leaves room for a dash and a random suffix. */
const maxSlicePrefix = 56

export class EndpointController {
  readonly #registry: Registry
  readonly #clock: Clock
  readonly #scheduler: WorkScheduler
  /** The services to reconcile, by `namespace/name`, with the time of the first change that affects them. */
  readonly #pending = new Map<string, number>()
  /** Names of services by namespace and one label of their selector. */
  readonly #services = new NameIndex()
  /** Names of pods by namespace and label, for each of their labels. */
  readonly #pods = new NameIndex()
  /** Names of our slices by `namespace/name` of their service. */
  readonly #slices = new NameIndex()
  readonly #observers: ReadonlyMap<string, (change: Change) => void> = new Map([
    ['services', (change: Change) => this.#observeService(change)],
    ['pods', (change: Change) => this.#observePod(change)],
    ['endpointslices', (change: Change) => this.#observeSlice(change)],
    ['nodes', (change: Change) => this.#observeNode(change)],
  ])

  constructor(registry: Registry, clock: Clock) {
    this.#registry = registry
    this.#clock = clock
    this.#scheduler = new WorkScheduler(registry, clock, () => this.#reconcilePending())
    registry.index((change) => this.#observers.get(change.resource)?.(change))
  }

  close(): void {
    this.#scheduler.close()
  }

  #observeService({ namespace, name, previous, next }: Change): void {
    if (previous !== undefined) this.#services.remove(selectorKeys(namespace, previous.object), name)
    if (next !== undefined) this.#services.add(selectorKeys(namespace, next.object), name)
    this.#enqueue(`${namespace}/${name}`)
  }

  #observePod({ namespace, name, previous, next }: Change): void {
    if (previous !== undefined) {
      this.#enqueueSelecting(namespace, previous.object)
      this.#pods.remove(labelKeys(namespace, previous.object), name)
    }
    if (next !== undefined) {
      this.#enqueueSelecting(namespace, next.object)
      this.#pods.add(labelKeys(namespace, next.object), name)
    }
  }

  /** Also sees the changes that users make to our slices; reconciling the service undoes them. */
  #observeSlice({ name, previous, next }: Change): void {
    for (const entry of [previous, next]) {
      if (entry === undefined || labelsOf(entry.object)[managedBy] !== managerName) continue
      const service = `${namespaceOf(entry.object)}/${getString(labelsOf(entry.object), serviceNameLabel)}`
      if (next === undefined) this.#slices.remove([service], name)
      else this.#slices.add([service], name)
      this.#enqueue(service)
    }
  }

  #observeNode({ previous, next }: Change): void {
    if (zoneOf(previous?.object) === zoneOf(next?.object)) return
    for (const { object } of this.#registry.list('services')) this.#enqueue(`${namespaceOf(object)}/${nameOf(object)}`)
  }

  #enqueueSelecting(namespace: string, pod: Json): void {
    const names = labelKeys(namespace, pod).flatMap((key) => [...this.#services.get(key)])
    for (const name of names) {
      const service = this.#registry.find('services', namespace, name)
      if (service !== undefined && matchesMap(selectorOf(service.object), labelsOf(pod)))
        this.#enqueue(`${namespace}/${name}`)
    }
  }

  #enqueue(service: string): void {
    if (!this.#pending.has(service)) this.#pending.set(service, this.#clock.now())
    this.#scheduler.request()
  }

  #reconcilePending(): void {
    let count = 0
    for (const [service, since] of this.#pending) {
      if (count++ >= servicesPerTurn) break
      this.#pending.delete(service)
      const slash = service.indexOf('/')
      this.#reconcile(service.slice(0, slash), service.slice(slash + 1), since)
    }
    // Writing a slice enqueues its service again; the second reconciliation changes nothing, so this ends.
    if (this.#pending.size > 0) this.#scheduler.request()
  }

  #reconcile(namespace: string, name: string, since: number): void {
    const service = this.#registry.find('services', namespace, name)?.object
    const existing = this.#find('endpointslices', namespace, this.#slices.get(`${namespace}/${name}`))
    if (service === undefined || !selectsPods(service)) {
      this.#removeManaged(namespace, name, existing)
      return
    }
    const found = findEndpoints(service, this.#selectedPods(namespace, service), (node) =>
      zoneOf(this.#registry.find('nodes', '', node)?.object),
    )
    const plans = planSlices(service, found, existing)
    const kept = new Set(plans.map((plan) => plan.name))
    for (const plan of plans) this.#putSlice(service, plan, since)
    for (const slice of existing.filter((each) => !kept.has(nameOf(each))))
      this.#registry.remove('endpointslices', namespace, nameOf(slice))
    this.#putEndpoints(service, endpointSubsets(service, found))
  }

  /** Endpoints that a user wrote stay. */
  #removeManaged(namespace: string, name: string, existing: readonly Json[]): void {
    for (const slice of existing) this.#registry.remove('endpointslices', namespace, nameOf(slice))
    const old = this.#registry.find('endpoints', namespace, name)
    if (old !== undefined && labelsOf(old.object)[managedBy] === managerName)
      this.#registry.remove('endpoints', namespace, name)
  }

  /** The objects in the order of their names. */
  #find(resource: string, namespace: string, names: ReadonlySet<string>): readonly Json[] {
    return [...names]
      .sort()
      .map((name) => this.#registry.find(resource, namespace, name)?.object)
      .filter((object) => object !== undefined)
  }

  /** Looks only at the pods with the rarest label of the selector. */
  #selectedPods(namespace: string, service: Json): readonly Json[] {
    const selector = selectorOf(service)
    const candidates = Object.entries(selector).map(([key, value]) => this.#pods.get(pairKey(namespace, key, value)))
    const [first, ...rest] = candidates
    if (first === undefined) return []
    const fewest = rest.reduce((best, names) => (names.size < best.size ? names : best), first)
    return this.#find('pods', namespace, fewest).filter((pod) => matchesMap(selector, labelsOf(pod)))
  }

  #putSlice(service: Json, plan: SlicePlan, since: number): void {
    const namespace = namespaceOf(service)
    const old =
      plan.name === undefined ? undefined : this.#registry.find('endpointslices', namespace, plan.name)?.object
    const content = {
      addressType: plan.addressType,
      endpoints: plan.endpoints,
      ...(plan.ports.length > 0 ? { ports: plan.ports } : {}),
    }
    const labels = sliceLabels(service)
    if (old !== undefined && deepEqual(labels, labelsOf(old)) && deepEqual(content, contentOf(old))) return
    const metadata: MutableJson = {
      ...(old === undefined ? this.#createSliceMetadata(service) : metadataOf(old)),
      labels,
      annotations: { [triggerAnnotation]: formatTime(since) },
      generation: Number(metadataOf(old ?? {}).generation ?? 0) + 1,
    }
    this.#registry.put('endpointslices', orderFields(slices, { metadata, ...content }))
  }

  #createSliceMetadata(service: Json): Json {
    const owner = {
      apiVersion: 'v1',
      kind: 'Service',
      name: nameOf(service),
      uid: uidOf(service),
      controller: true,
      blockOwnerDeletion: true,
    }
    return {
      name: generateName(`${nameOf(service).slice(0, maxSlicePrefix)}-`),
      generateName: `${nameOf(service)}-`,
      namespace: namespaceOf(service),
      ...createIdentity(this.#clock),
      ownerReferences: [owner],
    }
  }

  #putEndpoints(service: Json, subsets: readonly Json[]): void {
    const [namespace, name] = [namespaceOf(service), nameOf(service)]
    const old = this.#registry.find('endpoints', namespace, name)?.object
    const content = subsets.length > 0 ? { subsets } : {}
    if (old !== undefined && deepEqual(old.subsets, content.subsets)) return
    const metadata: MutableJson = {
      ...(old === undefined ? { name, namespace, ...createIdentity(this.#clock) } : metadataOf(old)),
      labels: { [managedBy]: managerName },
    }
    this.#registry.put('endpoints', orderFields(endpoints, { metadata, ...content }))
  }
}

const zoneOf = (node: Json | undefined): string => (node === undefined ? '' : getString(labelsOf(node), zoneLabel))
const selectorOf = (service: Json): Json => getObject(getObject(service, 'spec'), 'selector')
const pairKey = (namespace: string, key: string, value: unknown): string => `${namespace} ${key}=${String(value)}`
const labelKeys = (namespace: string, object: Json): readonly string[] =>
  Object.entries(labelsOf(object)).map(([key, value]) => pairKey(namespace, key, value))

/** One label of the selector is enough: every pod that the service selects has it. */
const selectorKeys = (namespace: string, service: Json): readonly string[] =>
  Object.entries(selectorOf(service))
    .slice(0, 1)
    .map(([key, value]) => pairKey(namespace, key, value))

const contentOf = (slice: Json): Json => ({
  addressType: slice.addressType,
  endpoints: slice.endpoints ?? [],
  ...(slice.ports === undefined ? {} : { ports: slice.ports }),
})
