// Keeps EndpointSlices and Endpoints in step with services and pods: marks what changed, and works it off after the change.

import { randomBytes, randomUUID } from 'node:crypto'
import { type Clock, formatTime, type Timer } from '../../lib/time.ts'
import { arrange } from '../requests/admission.ts'
import { matchesMap } from '../requests/selectors.ts'
import { child, equal, type Json, type MutableJson, text } from '../schema/json.ts'
import { labelsOf, metaOf, named, nameOf, namespaceOf } from '../schema/served-resources.ts'
import type { Change } from '../store/collection.ts'
import type { Registry } from '../store/registry.ts'
import {
  endpointSubsets,
  endpointsOf,
  managedBy,
  managerName,
  planSlices,
  type SlicePlan,
  selectsPods,
  serviceNameLabel,
  sliceLabels,
} from './endpoint-slices.ts'

const slices = named('endpointslices')
const endpoints = named('endpoints')
const zoneLabel = 'topology.kubernetes.io/zone'
const triggerAnnotation = 'endpoints.kubernetes.io/last-change-trigger-time'
/** Services worked off before others get a turn. */
const perTurn = 100

export class EndpointController {
  readonly #registry: Registry
  readonly #clock: Clock
  /** `ns/name` of services; by when what changed them was written. */
  readonly #dirty = new Map<string, number>()
  /** Names of services and of pods by namespace and `label=value`: of services, one pair of the selector. */
  readonly #servicesBy = new Map<string, Set<string>>()
  readonly #podsBy = new Map<string, Set<string>>()
  readonly #slicesOf = new Map<string, Set<string>>()
  #scheduled = false
  #retry: Timer | undefined
  #closed = false

  constructor(registry: Registry, clock: Clock) {
    this.#registry = registry
    this.#clock = clock
    registry.index((change) => this.#observe(change))
  }

  close(): void {
    this.#closed = true
    this.#retry?.cancel()
  }

  /** Nothing is left to work off. */
  get idle(): boolean {
    return this.#dirty.size === 0
  }

  #observe(change: Change): void {
    const { resource, namespace, name, previous, next } = change
    switch (resource) {
      case 'services':
        if (previous !== undefined) forget(this.#servicesBy, selectorKey(namespace, previous.object), name)
        if (next !== undefined) remember(this.#servicesBy, selectorKey(namespace, next.object), name)
        this.#mark(`${namespace}/${name}`)
        return
      case 'pods':
        for (const object of [previous?.object, next?.object])
          if (object !== undefined) this.#markSelecting(namespace, object)
        if (previous !== undefined)
          for (const key of labelKeys(namespace, previous.object)) forget(this.#podsBy, key, name)
        if (next !== undefined) for (const key of labelKeys(namespace, next.object)) remember(this.#podsBy, key, name)
        return
      case 'endpointslices':
        for (const object of [previous?.object, next?.object])
          if (object !== undefined && isOurs(object)) this.#trackSlice(object, next === undefined)
        return
      case 'nodes':
        if (zoneOf(previous?.object) !== zoneOf(next?.object)) this.#markAll()
        return
    }
  }

  #trackSlice(slice: Json, gone: boolean): void {
    const key = `${namespaceOf(slice)}/${text(labelsOf(slice), serviceNameLabel)}`
    if (gone) forget(this.#slicesOf, key, nameOf(slice))
    else remember(this.#slicesOf, key, nameOf(slice))
    // Somebody may have touched what is ours.
    this.#mark(key)
  }

  #markSelecting(namespace: string, pod: Json): void {
    for (const key of labelKeys(namespace, pod)) {
      for (const name of this.#servicesBy.get(key) ?? []) {
        const service = this.#registry.find('services', namespace, name)
        if (service !== undefined && matchesMap(selectorOf(service.object), labelsOf(pod)))
          this.#mark(`${namespace}/${name}`)
      }
    }
  }

  #markAll(): void {
    for (const { object } of this.#registry.list('services')) this.#mark(`${namespaceOf(object)}/${nameOf(object)}`)
  }

  #mark(service: string): void {
    if (!this.#dirty.has(service)) this.#dirty.set(service, this.#clock.now())
    if (!this.#scheduled && !this.#closed) this.#schedule()
  }

  /** After the change itself, and after all others of the same turn; with time between while nothing can be written. */
  #schedule(): void {
    this.#scheduled = true
    if (this.#registry.failing) this.#retry = this.#clock.after(1_000, () => this.#work())
    else setImmediate(() => this.#work())
  }

  #work(): void {
    this.#scheduled = false
    if (this.#closed) return
    let count = 0
    for (const [service, since] of this.#dirty) {
      if (count++ >= perTurn) break
      this.#dirty.delete(service)
      const slash = service.indexOf('/')
      this.#reconcile(service.slice(0, slash), service.slice(slash + 1), since)
    }
    // Our own writes mark the service again; the second look changes nothing and ends it.
    if (this.#dirty.size > 0 && !this.#scheduled) this.#schedule()
  }

  #reconcile(namespace: string, name: string, since: number): void {
    const service = this.#registry.find('services', namespace, name)?.object
    const existing = [...(this.#slicesOf.get(`${namespace}/${name}`) ?? [])]
      .sort()
      .map((slice) => this.#registry.find('endpointslices', namespace, slice)?.object)
      .filter((slice) => slice !== undefined)
    if (service === undefined || !selectsPods(service)) {
      for (const slice of existing) this.#registry.remove('endpointslices', namespace, nameOf(slice))
      const old = this.#registry.find('endpoints', namespace, name)
      if (old !== undefined && labelsOf(old.object)[managedBy] === managerName)
        this.#registry.remove('endpoints', namespace, name)
      return
    }
    const found = endpointsOf(service, this.#podsOf(namespace, service), (node) =>
      zoneOf(this.#registry.find('nodes', '', node)?.object),
    )
    const plans = planSlices(service, found, existing)
    const kept = new Set(plans.map((plan) => plan.name))
    for (const plan of plans) this.#putSlice(service, plan, since)
    for (const slice of existing)
      if (!kept.has(nameOf(slice))) this.#registry.remove('endpointslices', namespace, nameOf(slice))
    this.#putEndpoints(service, endpointSubsets(service, found))
  }

  /** The rarest label of the selector says where to look. */
  #podsOf(namespace: string, service: Json): readonly Json[] {
    const selector = selectorOf(service)
    let fewest: ReadonlySet<string> | undefined
    for (const [key, value] of Object.entries(selector)) {
      const names = this.#podsBy.get(pairKey(namespace, key, value)) ?? nobody
      if (fewest === undefined || names.size < fewest.size) fewest = names
    }
    return [...(fewest ?? nobody)]
      .sort()
      .map((name) => this.#registry.find('pods', namespace, name)?.object)
      .filter((pod) => pod !== undefined && matchesMap(selector, labelsOf(pod)))
      .filter((pod) => pod !== undefined)
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
    if (old !== undefined && equal(labels, labelsOf(old)) && equal(content, contentOf(old))) return
    const was = metaOf(old ?? {})
    const metadata: MutableJson = {
      ...(old === undefined ? this.#identity(service, `${nameOf(service).slice(0, 56)}-${suffix()}`) : was),
      labels,
      annotations: { [triggerAnnotation]: formatTime(since) },
      generation: Number(was.generation ?? 0) + 1,
    }
    if (old === undefined) metadata.generateName = `${nameOf(service)}-`
    this.#registry.put('endpointslices', arrange(slices, { metadata, ...content }))
  }

  #putEndpoints(service: Json, subsets: readonly Json[]): void {
    const old = this.#registry.find('endpoints', namespaceOf(service), nameOf(service))?.object
    const content = subsets.length > 0 ? { subsets } : {}
    if (old !== undefined && equal(old.subsets, content.subsets)) return
    const { ownerReferences: _, ...identity } = this.#identity(service, nameOf(service))
    const metadata = { ...(old === undefined ? identity : metaOf(old)), labels: { [managedBy]: managerName } }
    this.#registry.put('endpoints', arrange(endpoints, { metadata, ...content }))
  }

  #identity(service: Json, name: string): MutableJson {
    const owner = {
      apiVersion: 'v1',
      kind: 'Service',
      name: nameOf(service),
      uid: text(metaOf(service), 'uid'),
      controller: true,
      blockOwnerDeletion: true,
    }
    return {
      name,
      namespace: namespaceOf(service),
      uid: randomUUID(),
      creationTimestamp: formatTime(Math.floor(this.#clock.now() / 1000) * 1000),
      ownerReferences: [owner],
    }
  }
}

const nobody: ReadonlySet<string> = new Set()
const alphabet = 'bcdfghjklmnpqrstvwxz2456789'
const suffix = (): string => [...randomBytes(5)].map((byte) => alphabet[byte % alphabet.length]).join('')

const isOurs = (slice: Json): boolean => labelsOf(slice)[managedBy] === managerName
const zoneOf = (node: Json | undefined): string => (node === undefined ? '' : text(labelsOf(node), zoneLabel))
const selectorOf = (service: Json): Json => child(child(service, 'spec'), 'selector')
const pairKey = (namespace: string, key: string, value: unknown): string => `${namespace} ${key}=${String(value)}`
const labelKeys = (namespace: string, object: Json): readonly string[] =>
  Object.entries(labelsOf(object)).map(([key, value]) => pairKey(namespace, key, value))

/** Any one pair will do: a pod that matches the selector has it. */
function selectorKey(namespace: string, service: Json): string | undefined {
  const first = Object.entries(selectorOf(service))[0]
  return first === undefined ? undefined : pairKey(namespace, first[0], first[1])
}

function remember(index: Map<string, Set<string>>, key: string | undefined, name: string): void {
  if (key === undefined) return
  const names = index.get(key)
  if (names === undefined) index.set(key, new Set([name]))
  else names.add(name)
}

function forget(index: Map<string, Set<string>>, key: string | undefined, name: string): void {
  if (key === undefined) return
  const names = index.get(key)
  names?.delete(name)
  if (names?.size === 0) index.delete(key)
}

const contentOf = (slice: Json): Json => ({
  addressType: slice.addressType,
  endpoints: slice.endpoints ?? [],
  ...(slice.ports === undefined ? {} : { ports: slice.ports }),
})
