// Creates, replaces, patches and removes objects. Everything happens in one turn, so no two writers can interleave.

import { randomBytes, randomUUID } from 'node:crypto'
import { type Clock, formatTime } from '../../lib/time.ts'
import type { Allocations } from '../controllers/allocate.ts'
import {
  alreadyExists,
  badRequest,
  conflict,
  forbidden,
  methodNotAllowed,
  modified,
  notFound,
  unsupportedMedia,
} from '../schema/api-status.ts'
import { child, copy, isObject, type Json, type MutableJson, text, whole } from '../schema/json.ts'
import { graceOf, metaOf, nameOf, namespaceOf, type ServedResource, served } from '../schema/served-resources.ts'
import type { Entry } from '../store/collection.ts'
import type { Registry } from '../store/registry.ts'
import {
  aboutContent,
  aboutStorage,
  decodeBody,
  type FieldValidation,
  finalizersOf,
  finish,
  inherit,
  nextGeneration,
  sameContent,
  statusOf,
  terminating,
} from './admission.ts'
import { jsonPatch, mergePatch } from './json-patch.ts'
import { applyConfiguration } from './server-side-apply.ts'
import { strategicPatch } from './strategic.ts'

export interface WriteOptions {
  readonly dryRun: boolean
  readonly fieldValidation: FieldValidation
  readonly manager: string
  readonly force: boolean
  readonly warn: (text: string) => void
  /** Namespaces that are about to be there. */
  readonly expected?: ReadonlySet<string>
}

export interface Place {
  readonly resource: ServedResource
  readonly namespace: string
  readonly name: string
  readonly subresource: '' | 'status'
}

export interface WriteOutcome {
  readonly object: Json
  readonly created: boolean
}

export interface Patch {
  readonly type: string
  readonly body: unknown
}

export interface DeleteOptions {
  readonly dryRun: boolean
  readonly graceSeconds?: number | undefined
  readonly uid?: string | undefined
  readonly resourceVersion?: string | undefined
}

const protectedNamespaces = new Set(['default', 'kube-system', 'kube-public'])
export const patchTypes = [
  'application/json-patch+json',
  'application/merge-patch+json',
  'application/strategic-merge-patch+json',
  'application/apply-patch+yaml',
]

export class ObjectWriter {
  readonly #registry: Registry
  readonly #allocations: Allocations
  readonly #clock: Clock

  constructor(registry: Registry, allocations: Allocations, clock: Clock) {
    this.#registry = registry
    this.#allocations = allocations
    this.#clock = clock
  }

  create(place: Place, body: unknown, options: WriteOptions): WriteOutcome {
    const { resource } = place
    if (resource.readOnly) throw methodNotAllowed()
    const object = decodeBody(resource, body, options)
    const metadata: MutableJson = { ...metaOf(object) }
    if (text(metadata, 'name') === '' && text(metadata, 'generateName') !== '') {
      metadata.name = `${text(metadata, 'generateName').slice(0, 58)}${suffix()}`
    }
    if (place.name !== '' && text(metadata, 'name') !== place.name) throw wrongName(text(metadata, 'name'), place.name)
    if (text(metadata, 'resourceVersion') !== '') {
      throw badRequest('resourceVersion should not be set on objects to be created')
    }
    this.#settleNamespace(resource, metadata, place.namespace, options.expected?.has(place.namespace) === true)
    if (resource.status === 'subresource') delete object.status
    return {
      object: this.#store(resource, { ...object, metadata: fresh(metadata, this.#now()) }, undefined, options),
      created: true,
    }
  }

  replace(place: Place, body: unknown, options: WriteOptions): WriteOutcome {
    const { resource, namespace, name, subresource } = place
    if (resource.readOnly) throw methodNotAllowed()
    const object = decodeBody(resource, body, options)
    if (nameOf(object) !== '' && nameOf(object) !== name) throw wrongName(nameOf(object), name)
    const old = this.#registry.find(resource.plural, namespace, name)
    if (old === undefined) {
      if (subresource !== '' || text(metaOf(object), 'uid') !== '' || text(metaOf(object), 'resourceVersion') !== '') {
        throw notFound(aboutStorage(resource, name))
      }
      return this.create(
        { ...place, name },
        { ...served(resource, object), metadata: { ...metaOf(object), name } },
        options,
      )
    }
    this.#expectVersion(resource, object, old)
    this.#settleNamespace(resource, object.metadata as MutableJson, namespace, true)
    return { object: this.#update(place, object, old, options), created: false }
  }

  patch(place: Place, patch: Patch, options: WriteOptions): WriteOutcome {
    const { resource, namespace, name } = place
    if (resource.readOnly) throw methodNotAllowed()
    const old = this.#registry.find(resource.plural, namespace, name)
    if (patch.type === 'application/apply-patch+yaml') return this.#apply(place, patch.body, old, options)
    if (old === undefined) throw notFound(aboutStorage(resource, name))
    const patched = carryOut(resource, served(resource, old.object), patch)
    const object = decodeBody(resource, patched, options)
    if (nameOf(object) !== name || namespaceOf(object) !== namespace) throw wrongName(nameOf(object), name)
    this.#expectVersion(resource, object, old)
    return { object: this.#update(place, object, old, options), created: false }
  }

  #apply(place: Place, body: unknown, old: Entry | undefined, options: WriteOptions): WriteOutcome {
    const { resource, name, namespace } = place
    if (options.manager === '')
      throw badRequest(
        'PatchOptions.meta.k8s.io "" is invalid: fieldManager: Required value: is required for apply patch',
      )
    const config = decodeBody(resource, body, options)
    if (nameOf(config) !== '' && nameOf(config) !== name) throw wrongName(nameOf(config), name)
    const merged = applyConfiguration(resource, {
      current: old?.object,
      config: { ...config, metadata: { ...metaOf(config), name, ...(resource.namespaced ? { namespace } : {}) } },
      manager: options.manager,
      force: options.force,
      subresource: place.subresource,
      now: this.#now(),
    })
    if (old !== undefined) {
      this.#expectVersion(resource, merged, old)
      return { object: this.#update(place, merged, old, options), created: false }
    }
    if (place.subresource !== '') throw notFound(aboutStorage(resource, name))
    return this.create(place, served(resource, merged), options)
  }

  /** Answers the object as it was last, and whether it is gone already. */
  remove(place: Place, options: DeleteOptions): { object: Json; gone: boolean } {
    const { resource, namespace, name } = place
    if (resource.readOnly) throw methodNotAllowed()
    const entry = this.#registry.find(resource.plural, namespace, name)
    if (entry === undefined) throw notFound(aboutStorage(resource, name))
    const { object } = entry
    const uid = text(metaOf(object), 'uid')
    if (options.uid !== undefined && options.uid !== uid) {
      throw conflict(
        aboutContent(resource, name),
        `the UID in the precondition (${options.uid}) does not match the UID in record (${uid}). The object might have been deleted and then recreated`,
      )
    }
    if (options.resourceVersion !== undefined && options.resourceVersion !== String(entry.version)) {
      throw conflict(
        aboutContent(resource, name),
        `the ResourceVersion in the precondition (${options.resourceVersion}) does not match the ResourceVersion in record (${entry.version}). The object might have been modified`,
      )
    }
    if (resource.plural === 'namespaces' && protectedNamespaces.has(name)) {
      throw forbidden(aboutStorage(resource, name), 'this namespace may not be deleted')
    }
    const grace = resource.plural === 'pods' ? graceFor(object, options.graceSeconds) : 0
    const waits = grace > 0 || finalizersOf(object).length > 0 || resource.plural === 'namespaces'
    if (!waits) {
      if (!options.dryRun) this.#registry.remove(resource.plural, namespace, name)
      return { object, gone: true }
    }
    const ends = formatTime(Math.floor(this.#clock.now() / 1000) * 1000 + grace * 1000)
    const was = metaOf(object).deletionTimestamp
    if (typeof was === 'string' && Date.parse(was) <= Date.parse(ends)) return { object, gone: false }
    const marked = copy(object) as MutableJson
    marked.metadata = { ...metaOf(object), deletionTimestamp: ends, deletionGracePeriodSeconds: grace }
    resource.complete(marked)
    return { object: options.dryRun ? marked : this.#registry.put(resource.plural, marked).object, gone: false }
  }

  #update({ resource, subresource }: Place, object: MutableJson, old: Entry, options: WriteOptions): Json {
    const kept = inherit(resource, object, old.object, subresource === 'status' ? 'status' : 'main')
    return this.#store(resource, kept, old, options)
  }

  /** The last steps of every write: complete, check, compare, store. */
  #store(resource: ServedResource, object: MutableJson, old: Entry | undefined, options: WriteOptions): Json {
    const finished = finish(resource, object, old?.object, this.#allocations)
    nextGeneration(resource, finished, old?.object)
    if (
      old === undefined &&
      this.#registry.find(resource.plural, namespaceOf(finished), nameOf(finished)) !== undefined
    ) {
      throw alreadyExists(aboutStorage(resource, nameOf(finished)))
    }
    if (old !== undefined && sameContent(finished, old.object)) return old.object
    // The last finalizer that goes lets go of the object, too.
    const released = old !== undefined && terminating(old.object) && finalizersOf(finished).length === 0
    if (released && resource.plural !== 'namespaces' && whole(metaOf(old.object), 'deletionGracePeriodSeconds') === 0) {
      if (!options.dryRun) this.#registry.remove(resource.plural, namespaceOf(finished), nameOf(finished))
      return finished
    }
    return options.dryRun ? untold(finished, old) : this.#registry.put(resource.plural, finished).object
  }

  #expectVersion(resource: ServedResource, object: Json, old: Entry): void {
    const given = metaOf(object)
    const uid = text(given, 'uid')
    if (uid !== '' && uid !== text(metaOf(old.object), 'uid')) {
      throw conflict(
        aboutStorage(resource, nameOf(old.object)),
        `Precondition failed: UID in precondition: ${uid}, UID in object meta: ${text(metaOf(old.object), 'uid')}`,
      )
    }
    const version = text(given, 'resourceVersion')
    if (version !== '' && version !== String(old.version)) throw modified(aboutStorage(resource, nameOf(old.object)))
  }

  /** The path decides; what the object says must not contradict it. New objects need a namespace that is to stay. */
  #settleNamespace(resource: ServedResource, metadata: MutableJson, namespace: string, trusted = false): void {
    if (!resource.namespaced) {
      delete metadata.namespace
      return
    }
    const given = text(metadata, 'namespace')
    if (given !== '' && given !== namespace) {
      throw badRequest(`the namespace of the provided object does not match the namespace sent on the request`)
    }
    metadata.namespace = namespace
    if (trusted) return
    const found = this.#registry.find('namespaces', '', namespace)
    if (found === undefined) throw notFound({ group: '', kind: 'namespaces', name: namespace })
    if (text(statusOf(found.object), 'phase') === 'Terminating') {
      throw forbidden(
        aboutStorage(resource, text(metadata, 'name')),
        `unable to create new content in namespace ${namespace} because it is being terminated`,
      )
    }
  }

  #now(): string {
    return formatTime(Math.floor(this.#clock.now() / 1000) * 1000)
  }
}

function carryOut(resource: ServedResource, current: Json, { type, body }: Patch): unknown {
  switch (type) {
    case 'application/json-patch+json':
      return jsonPatch(current, body)
    case 'application/merge-patch+json':
    case 'application/strategic-merge-patch+json':
      if (!isObject(body)) throw badRequest('error decoding patch: a patch is an object')
      return type.includes('strategic') ? strategicPatch(resource.shape, current, body) : mergePatch(current, body)
    default:
      throw unsupportedMedia(patchTypes)
  }
}

/** Metadata that the server decides. */
function fresh(metadata: MutableJson, now: string): MutableJson {
  const {
    resourceVersion: _,
    selfLink: __,
    deletionTimestamp: ___,
    deletionGracePeriodSeconds: ____,
    generation: _____,
    ...kept
  } = metadata
  return { ...kept, uid: randomUUID(), creationTimestamp: now }
}

/** What was only tried has the version that it would replace, or none. */
function untold(object: MutableJson, old: Entry | undefined): Json {
  const { resourceVersion: _, ...metadata } = metaOf(object)
  return { ...object, metadata: old === undefined ? metadata : { ...metadata, resourceVersion: String(old.version) } }
}

const wrongName = (given: string, path: string) =>
  badRequest(`the name of the object (${given}) does not match the name on the URL (${path})`)

const alphabet = 'bcdfghjklmnpqrstvwxz2456789'
const suffix = (): string => [...randomBytes(5)].map((byte) => alphabet[byte % alphabet.length]).join('')

/** Only what runs is given time to end. */
function graceFor(pod: Json, asked: number | undefined): number {
  const status = child(pod, 'status')
  if (text(status, 'podIP') === '' || ['Succeeded', 'Failed'].includes(text(status, 'phase'))) return 0
  return Math.max(0, asked ?? graceOf(pod))
}
