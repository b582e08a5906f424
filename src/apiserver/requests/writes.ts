// Creates, replaces, patches and deletes objects. Each write happens within one turn of the event loop, so no two writers can interleave.

import { type Clock, formatTime } from '../../lib/time.ts'
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
import { getNumber, getObject, getString, isObject, type Json, type MutableJson, mutableCopy } from '../schema/json.ts'
import { finalizersOf, isTerminating, metadataOf, nameOf, namespaceOf, uidOf } from '../schema/object-metadata.ts'
import { isPodFinished } from '../schema/pod-status.ts'
import { gracePeriodOf, type ServedResource, toServedForm } from '../schema/served-resources.ts'
import type { Entry } from '../store/collection.ts'
import type { Registry } from '../store/registry.ts'
import {
  admit,
  type DecodeOptions,
  decodeBody,
  hasSameContent,
  keepServerFields,
  kindSubject,
  resourceSubject,
  setGeneration,
} from './admission.ts'
import type { Allocations } from './allocations.ts'
import { createIdentity, formatNow, generateName } from './generate-name.ts'
import { jsonPatch, mergePatch } from './json-patch.ts'
import { applyPatchType, patchTypes } from './patch-types.ts'
import { applyConfiguration } from './server-side-apply.ts'
import { strategicPatch } from './strategic.ts'

export interface ObjectWriteOptions extends DecodeOptions {
  readonly dryRun: boolean
  readonly manager: string
  readonly force: boolean
  /** Namespaces that count as existing in a dry run, because the caller creates them before the write. */
  readonly pendingNamespaces?: ReadonlySet<string>
}

/** The object that a request is about, as its URL names it. */
export interface ObjectPath {
  readonly resource: ServedResource
  /** '' for resources without namespaces. */
  readonly namespace: string
  readonly name: string
  readonly subresource: '' | 'status'
}

export interface WriteOutcome {
  readonly object: Json
  readonly created: boolean
}

export interface Patch {
  /** The media type of the body. */
  readonly type: string
  readonly body: unknown
}

export interface DeleteOptions {
  readonly dryRun: boolean
  readonly graceSeconds?: number | undefined
  readonly uid?: string | undefined
  readonly resourceVersion?: string | undefined
}

export interface DeleteOutcome {
  /** The last state of the object. */
  readonly object: Json
  /** False if the object waits for its grace period, for finalizers or for the content of its namespace. */
  readonly gone: boolean
}

const protectedNamespaces = new Set(['default', 'kube-system', 'kube-public'])

export class ObjectWriter {
  readonly #registry: Registry
  readonly #allocations: Allocations
  readonly #clock: Clock

  constructor(registry: Registry, allocations: Allocations, clock: Clock) {
    this.#registry = registry
    this.#allocations = allocations
    this.#clock = clock
  }

  create(path: ObjectPath, body: unknown, options: ObjectWriteOptions): WriteOutcome {
    const { resource, namespace } = path
    if (resource.readOnly) throw methodNotAllowed()
    const object = decodeBody(resource, body, options)
    const metadata: MutableJson = { ...metadataOf(object) }
    const prefix = getString(metadata, 'generateName')
    if (getString(metadata, 'name') === '' && prefix !== '') metadata.name = generateName(prefix)
    const name = getString(metadata, 'name')
    if (path.name !== '' && name !== path.name) throw wrongName(name, path.name)
    if (getString(metadata, 'resourceVersion') !== '') {
      throw badRequest('resourceVersion should not be set on objects to be created')
    }
    setNamespace(path, metadata)
    if (resource.namespaced && options.pendingNamespaces?.has(namespace) !== true) this.#checkNamespace(path, name)
    if (resource.status === 'subresource') delete object.status
    const created = { ...object, metadata: { ...withoutServerMetadata(metadata), ...createIdentity(this.#clock) } }
    return { object: this.#store(resource, created, undefined, options), created: true }
  }

  replace(path: ObjectPath, body: unknown, options: ObjectWriteOptions): WriteOutcome {
    const { resource, namespace, name, subresource } = path
    if (resource.readOnly) throw methodNotAllowed()
    const object = decodeBody(resource, body, options)
    if (nameOf(object) !== '' && nameOf(object) !== name) throw wrongName(nameOf(object), name)
    const old = this.#registry.find(resource.plural, namespace, name)
    if (old === undefined) {
      if (subresource !== '' || uidOf(object) !== '' || getString(metadataOf(object), 'resourceVersion') !== '') {
        throw notFound(resourceSubject(resource, name))
      }
      const named = { ...toServedForm(resource, object), metadata: { ...metadataOf(object), name } }
      return this.create(path, named, options)
    }
    checkPreconditions(resource, object, old)
    const metadata: MutableJson = { ...metadataOf(object) }
    setNamespace(path, metadata)
    return { object: this.#update(path, { ...object, metadata }, old, options), created: false }
  }

  patch(path: ObjectPath, patch: Patch, options: ObjectWriteOptions): WriteOutcome {
    const { resource, namespace, name } = path
    if (resource.readOnly) throw methodNotAllowed()
    const old = this.#registry.find(resource.plural, namespace, name)
    if (patch.type === applyPatchType) return this.#apply(path, patch.body, old, options)
    if (old === undefined) throw notFound(resourceSubject(resource, name))
    const patched = applyPatch(resource, toServedForm(resource, old.object), patch)
    const object = decodeBody(resource, patched, options)
    if (nameOf(object) !== name || namespaceOf(object) !== namespace) throw wrongName(nameOf(object), name)
    checkPreconditions(resource, object, old)
    return { object: this.#update(path, object, old, options), created: false }
  }

  /** Server-side apply, which creates the object if it does not exist. */
  #apply(path: ObjectPath, body: unknown, old: Entry | undefined, options: ObjectWriteOptions): WriteOutcome {
    const { resource, name, namespace, subresource } = path
    if (options.manager === '')
      throw badRequest(
        'PatchOptions.meta.k8s.io "" is invalid: fieldManager: Required value: is required for apply patch',
      )
    const config = decodeBody(resource, body, options)
    if (nameOf(config) !== '' && nameOf(config) !== name) throw wrongName(nameOf(config), name)
    const merged = applyConfiguration(resource, {
      current: old?.object,
      config: { ...config, metadata: { ...metadataOf(config), name, ...(resource.namespaced ? { namespace } : {}) } },
      manager: options.manager,
      force: options.force,
      subresource,
      now: formatNow(this.#clock),
    })
    if (old !== undefined) {
      checkPreconditions(resource, merged, old)
      return { object: this.#update(path, merged, old, options), created: false }
    }
    if (subresource !== '') throw notFound(resourceSubject(resource, name))
    return this.create(path, toServedForm(resource, merged), options)
  }

  /** Removes the object, or marks it if something must happen first. Controllers remove marked objects (controllers/lifecycle.ts). */
  delete(path: ObjectPath, options: DeleteOptions): DeleteOutcome {
    const { resource, namespace, name } = path
    if (resource.readOnly) throw methodNotAllowed()
    const entry = this.#registry.find(resource.plural, namespace, name)
    if (entry === undefined) throw notFound(resourceSubject(resource, name))
    checkDeletePreconditions(resource, entry, options)
    const isNamespace = resource.plural === 'namespaces'
    if (isNamespace && protectedNamespaces.has(name)) {
      throw forbidden(resourceSubject(resource, name), 'this namespace may not be deleted')
    }
    const { object } = entry
    const graceSeconds = resource.plural === 'pods' ? gracePeriodFor(object, options.graceSeconds) : 0
    if (isNamespace || graceSeconds > 0 || finalizersOf(object).length > 0) {
      return { object: this.#markDeleted(resource, object, graceSeconds, options.dryRun), gone: false }
    }
    if (!options.dryRun) this.#registry.remove(resource.plural, namespace, name)
    return { object, gone: true }
  }

  /** Sets the deletion time; a second delete can only make it earlier. */
  #markDeleted(resource: ServedResource, object: Json, graceSeconds: number, dryRun: boolean): Json {
    const deletionTimestamp = formatTime(Math.floor(this.#clock.now() / 1000 + graceSeconds) * 1000)
    const before = metadataOf(object).deletionTimestamp
    if (typeof before === 'string' && Date.parse(before) <= Date.parse(deletionTimestamp)) return object
    const marked = mutableCopy(object)
    marked.metadata = { ...metadataOf(object), deletionTimestamp, deletionGracePeriodSeconds: graceSeconds }
    resource.setDefaults(marked)
    return dryRun ? marked : this.#registry.put(resource.plural, marked).object
  }

  #update({ resource, subresource }: ObjectPath, object: MutableJson, old: Entry, options: ObjectWriteOptions): Json {
    const part = subresource === 'status' ? 'status' : 'main'
    return this.#store(resource, keepServerFields(resource, object, old.object, part), old, options)
  }

  /** The last steps of every write: admit, compare, store. */
  #store(resource: ServedResource, object: MutableJson, old: Entry | undefined, options: ObjectWriteOptions): Json {
    const admitted = admit(resource, object, old?.object, this.#allocations)
    for (const warning of resource.warnings(admitted)) options.warn(warning)
    setGeneration(resource, admitted, old?.object)
    const [namespace, name] = [namespaceOf(admitted), nameOf(admitted)]
    if (old === undefined && this.#registry.find(resource.plural, namespace, name) !== undefined) {
      throw alreadyExists(resourceSubject(resource, name))
    }
    if (old !== undefined && hasSameContent(admitted, old.object)) return old.object
    if (old !== undefined && isReleased(resource, old.object, admitted)) {
      if (!options.dryRun) this.#registry.remove(resource.plural, namespace, name)
      return admitted
    }
    return options.dryRun ? withOldVersion(admitted, old) : this.#registry.put(resource.plural, admitted).object
  }

  /** Refuses new objects in a namespace that does not exist or is being deleted. */
  #checkNamespace({ resource, namespace }: ObjectPath, name: string): void {
    const found = this.#registry.find('namespaces', '', namespace)
    if (found === undefined) throw notFound({ group: '', kind: 'namespaces', name: namespace })
    if (getString(getObject(found.object, 'status'), 'phase') === 'Terminating') {
      throw forbidden(
        resourceSubject(resource, name),
        `unable to create new content in namespace ${namespace} because it is being terminated`,
      )
    }
  }
}

/** Takes the namespace from the path; the object may leave it out, but not contradict it. */
function setNamespace({ resource, namespace }: ObjectPath, metadata: MutableJson): void {
  if (!resource.namespaced) {
    delete metadata.namespace
    return
  }
  const given = getString(metadata, 'namespace')
  if (given !== '' && given !== namespace) {
    throw badRequest(`the namespace of the provided object does not match the namespace sent on the request`)
  }
  metadata.namespace = namespace
}

/** A client that sends a uid or a version means exactly that object. */
function checkPreconditions(resource: ServedResource, object: Json, old: Entry): void {
  const subject = resourceSubject(resource, nameOf(old.object))
  const uid = uidOf(object)
  if (uid !== '' && uid !== uidOf(old.object)) {
    throw conflict(
      subject,
      `Precondition failed: UID in precondition: ${uid}, UID in object meta: ${uidOf(old.object)}`,
    )
  }
  const version = getString(metadataOf(object), 'resourceVersion')
  if (version !== '' && version !== String(old.version)) throw modified(subject)
}

function checkDeletePreconditions(resource: ServedResource, { object, version }: Entry, options: DeleteOptions): void {
  const subject = kindSubject(resource, nameOf(object))
  const uid = uidOf(object)
  if (options.uid !== undefined && options.uid !== uid) {
    throw conflict(
      subject,
      `the UID in the precondition (${options.uid}) does not match the UID in record (${uid}). The object might have been deleted and then recreated`,
    )
  }
  if (options.resourceVersion !== undefined && options.resourceVersion !== String(version)) {
    throw conflict(
      subject,
      `the ResourceVersion in the precondition (${options.resourceVersion}) does not match the ResourceVersion in record (${version}). The object might have been modified`,
    )
  }
}

function applyPatch(resource: ServedResource, current: Json, { type, body }: Patch): unknown {
  switch (type) {
    case 'application/json-patch+json':
      return jsonPatch(current, body)
    case 'application/merge-patch+json':
      return mergePatch(current, checkedPatch(body))
    case 'application/strategic-merge-patch+json':
      return strategicPatch(resource.schema, current, checkedPatch(body))
    default:
      throw unsupportedMedia(patchTypes)
  }
}

function checkedPatch(body: unknown): Json {
  if (!isObject(body)) throw badRequest('error decoding patch: a patch is an object')
  return body
}

function withoutServerMetadata(metadata: MutableJson): MutableJson {
  const {
    resourceVersion: _,
    selfLink: __,
    deletionTimestamp: ___,
    deletionGracePeriodSeconds: ____,
    generation: _____,
    ...kept
  } = metadata
  return kept
}

/** The result of a dry run has the version of the object that it would replace, or none. */
function withOldVersion(object: MutableJson, old: Entry | undefined): Json {
  const { resourceVersion: _, ...metadata } = metadataOf(object)
  return { ...object, metadata: old === undefined ? metadata : { ...metadata, resourceVersion: String(old.version) } }
}

/** True if the write removes the last finalizer of an object that waits only for it. The namespace controller removes namespaces. */
const isReleased = (resource: ServedResource, old: Json, object: Json): boolean =>
  resource.plural !== 'namespaces' &&
  isTerminating(old) &&
  finalizersOf(object).length === 0 &&
  getNumber(metadataOf(old), 'deletionGracePeriodSeconds') === 0

const wrongName = (given: string, path: string) =>
  badRequest(`the name of the object (${given}) does not match the name on the URL (${path})`)

/** Only a running pod has a grace period. */
function gracePeriodFor(pod: Json, requested: number | undefined): number {
  if (getString(getObject(pod, 'status'), 'podIP') === '' || isPodFinished(pod)) return 0
  return Math.max(0, requested ?? gracePeriodOf(pod))
}
