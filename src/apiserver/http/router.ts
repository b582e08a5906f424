// From a request to an answer, whatever carried it: routing, bodies, verbs. Sockets are in server.ts.

import { describeError } from '../../lib/errors.ts'
import type { Logger } from '../../lib/log.ts'
import type { Clock } from '../../lib/time.ts'
import { aboutStorage } from '../requests/admission.ts'
import { askedVersion, checkListOptions, list, selection, tooOld, truth, whole } from '../requests/reads.ts'
import { errorLine, runWatch, type WatchSink } from '../requests/watch.ts'
import type { ObjectWriter, Place, WriteOptions } from '../requests/writes.ts'
import {
  badRequest,
  internal,
  methodNotAllowed,
  notAcceptable,
  notFound,
  StatusError,
  type StatusRefusal,
  statusObject,
  unknownResource,
} from '../schema/api-status.ts'
import { type Json, text } from '../schema/json.ts'
import { findResource, metaOf, nameOf, namespaceOf, type ServedResource } from '../schema/served-resources.ts'
import type { Registry } from '../store/registry.ts'
import { deleteOptions, dryRun, fieldValidation, mediaType, type RequestBody, readBody, readPatch } from './bodies.ts'
import { discover, rootPaths, versionDocument } from './discovery.ts'
import { openApiBinaryType, openApiIndex, openApiV2, openApiV2Binary, openApiV3 } from './openapi.ts'
import { chooseRendering } from './render.ts'

export interface ApiCall extends RequestBody {
  readonly method: string
  /** Still percent-encoded. */
  readonly path: string
  readonly accept: string
}

export interface ApiAnswer {
  readonly status: number
  readonly type: string
  readonly body: string
  readonly headers: Readonly<Record<string, string | readonly string[]>>
  /** A watch writes on until it resolves; the body comes first. */
  readonly stream?: (sink: WatchSink, signal: AbortSignal) => Promise<void>
}

export interface ApiOptions {
  readonly registry: Registry
  readonly writer: ObjectWriter
  readonly clock: Clock
  readonly log: Logger
  readonly address: () => string
  readonly random?: () => number
}

const json = 'application/json'
const plainText = 'text/plain; charset=utf-8'
const health = new Set(['/healthz', '/livez', '/readyz', '/healthz/ping', '/livez/ping', '/readyz/ping'])
/** Told to anybody, as the real server does. */
export const isPublic = (path: string): boolean => health.has(path) || path === '/version' || path === '/version/'

export class Api {
  readonly #options: ApiOptions

  constructor(options: ApiOptions) {
    this.#options = options
  }

  /** Never rejects. */
  async answer(call: ApiCall): Promise<ApiAnswer> {
    try {
      return await this.#answer(call)
    } catch (error) {
      if (error instanceof StatusError) return refusalAnswer(error.refusal)
      this.#options.log.error('A request failed', { method: call.method, path: call.path, error: describeError(error) })
      return refusalAnswer(internal(describeError(error)).refusal)
    }
  }

  async #answer(call: ApiCall): Promise<ApiAnswer> {
    const parts = splitPath(call.path)
    const document = this.#document(call, `/${parts.join('/')}`)
    if (document !== undefined) {
      if (call.method !== 'GET' && call.method !== 'HEAD') throw methodNotAllowed()
      return document
    }
    const target = findTarget(parts)
    if (target === undefined) return answer(404, '404 page not found\n', plainText)
    const { resource, namespace, name, subresource } = target
    if (resource === undefined) throw unknownResource()
    const place: Place = { resource, namespace: namespace ?? '', name, subresource }
    switch (call.method) {
      case 'GET':
      case 'HEAD':
        if (name !== '') return this.#read(place, call)
        if (truth(call.query, 'watch')) return this.#watch(resource, namespace, call)
        return this.#list(resource, namespace, call)
      case 'POST':
        if (name !== '' || (resource.namespaced && namespace === undefined)) throw methodNotAllowed()
        return this.#write(call, place, (options) =>
          this.#options.writer.create(place, readBody(call, resource), options),
        )
      case 'PUT':
        if (name === '') throw methodNotAllowed()
        return this.#write(call, place, (options) =>
          this.#options.writer.replace(place, readBody(call, resource), options),
        )
      case 'PATCH': {
        if (name === '') throw methodNotAllowed()
        const patch = { type: mediaType(call.contentType), body: readPatch(call) }
        return this.#write(call, place, (options) => this.#options.writer.patch(place, patch, options))
      }
      case 'DELETE':
        if (subresource !== '') throw methodNotAllowed()
        return name === '' ? this.#removeAll(resource, namespace, call) : this.#remove(place, call)
      default:
        throw methodNotAllowed()
    }
  }

  #document(call: ApiCall, path: string): ApiAnswer | undefined {
    if (health.has(path)) return answer(200, 'ok', plainText)
    if (path === '/version') return answer(200, JSON.stringify(versionDocument))
    if (path === '/') return answer(200, JSON.stringify(rootPaths()))
    if (path === '/openapi/v2') {
      // Clients ask for it by a name that is no media type.
      if (call.accept.replace('@', '.').includes(openApiBinaryType))
        return answer(200, openApiV2Binary(), openApiBinaryType)
      if (!/application\/json|\*\/\*|^$/.test(call.accept)) throw notAcceptable([json, openApiBinaryType])
      return answer(200, openApiV2())
    }
    if (path === '/openapi/v3') return answer(200, openApiIndex())
    if (path.startsWith('/openapi/v3/')) {
      const found = openApiV3(path.slice('/openapi/v3/'.length))
      if (found === undefined) return answer(404, '404 page not found\n', plainText)
      if (!/application\/json|\*\/\*|^$/.test(call.accept)) throw notAcceptable([json])
      return answer(200, found)
    }
    const discovered = discover(path, call.accept, this.#options.address())
    return discovered === undefined ? undefined : answer(200, JSON.stringify(discovered.document), discovered.type)
  }

  async #read({ resource, namespace, name }: Place, call: ApiCall): Promise<ApiAnswer> {
    const rendering = chooseRendering(resource, call.accept, call.query, this.#now)
    const entry = this.#options.registry.find(resource.plural, namespace, name)
    if (entry === undefined) throw notFound(aboutStorage(resource, name))
    await this.#settle()
    return answer(200, rendering.one(entry))
  }

  async #list(resource: ServedResource, namespace: string | undefined, call: ApiCall): Promise<ApiAnswer> {
    const rendering = chooseRendering(resource, call.accept, call.query, this.#now)
    const { entries, metadata } = list(this.#options.registry, resource, namespace, call.query)
    await this.#settle()
    return answer(200, rendering.list(entries, metadata))
  }

  #watch(resource: ServedResource, namespace: string | undefined, call: ApiCall): ApiAnswer {
    const { registry, clock } = this.#options
    const { query } = call
    checkListOptions(query, true)
    const { matches } = selection(resource, query)
    const rendering = chooseRendering(resource, call.accept, query, this.#now)
    const asked = askedVersion(query)
    const markEnd = truth(query, 'sendInitialEvents')
    const quiet = query.get('sendInitialEvents') === 'false'
    const seconds = whole(query, 'timeoutSeconds') ?? 0
    const timeoutMs = (seconds > 0 ? seconds : 1800 + 1800 * (this.#options.random ?? Math.random)()) * 1000
    const fromState = markEnd || ((asked === undefined || asked === 0) && !quiet)
    if (markEnd && asked !== undefined && asked > registry.version)
      throw new StatusError(tooLargeFor(asked, registry.version))
    const base = { registry, clock, resource: resource.plural, namespace, matches, rendering, timeoutMs }
    const stream = async (sink: WatchSink, signal: AbortSignal): Promise<void> => {
      const options = {
        ...base,
        bookmarks: truth(query, 'allowWatchBookmarks'),
        markEnd,
      }
      if (fromState) return runWatch(options, { state: [...registry.list(resource.plural, namespace)] }, sink, signal)
      const after = asked ?? registry.version
      if (after > registry.version) {
        sink.write(errorLine(new StatusError(tooLargeFor(after, registry.version))))
        return
      }
      const missed = registry.since(resource.plural, after)
      if (missed === undefined) {
        sink.write(errorLine(tooOld(after, registry.horizon(resource.plural))))
        return
      }
      await runWatch(options, { missed }, sink, signal)
    }
    return { ...answer(200, ''), stream }
  }

  async #write(
    call: ApiCall,
    place: Place,
    act: (options: WriteOptions) => { object: Json; created: boolean },
  ): Promise<ApiAnswer> {
    const rendering = chooseRendering(place.resource, call.accept, call.query, this.#now)
    const warnings: string[] = []
    const options: WriteOptions = {
      dryRun: dryRun(call.query),
      fieldValidation: fieldValidation(call.query),
      manager: call.query.get('fieldManager') ?? '',
      force: truth(call.query, 'force'),
      warn: (warning) => warnings.push(`299 - ${JSON.stringify(warning)}`),
    }
    const { object, created } = act(options)
    await this.#settle()
    const entry = { object, json: JSON.stringify(object), version: 0 }
    const headers: Record<string, readonly string[]> = warnings.length > 0 ? { Warning: warnings } : {}
    return { ...answer(created ? 201 : 200, rendering.one(entry)), headers }
  }

  async #remove(place: Place, call: ApiCall): Promise<ApiAnswer> {
    const { resource } = place
    const { object, gone } = this.#options.writer.remove(place, deleteOptions(call))
    await this.#settle()
    if (!gone || resource.plural === 'services' || resource.plural === 'pods') {
      const rendering = chooseRendering(resource, call.accept, call.query, this.#now)
      return answer(200, rendering.one({ object, json: JSON.stringify(object), version: 0 }))
    }
    const details = {
      name: place.name,
      ...(resource.group === '' ? {} : { group: resource.group }),
      kind: resource.plural,
      uid: text(metaOf(object), 'uid'),
    }
    return answer(200, JSON.stringify({ kind: 'Status', apiVersion: 'v1', metadata: {}, status: 'Success', details }))
  }

  async #removeAll(resource: ServedResource, namespace: string | undefined, call: ApiCall): Promise<ApiAnswer> {
    const { registry, writer } = this.#options
    if (resource.readOnly || resource.plural === 'namespaces' || (resource.namespaced && namespace === undefined))
      throw methodNotAllowed()
    const rendering = chooseRendering(resource, call.accept, call.query, this.#now)
    const options = deleteOptions(call)
    const { entries } = list(registry, resource, namespace, call.query)
    for (const { object } of entries) {
      writer.remove({ resource, namespace: namespaceOf(object), name: nameOf(object), subresource: '' }, options)
    }
    const version = String(registry.head)
    await this.#settle()
    return answer(200, rendering.list(entries, { resourceVersion: version }))
  }

  /** Nothing is told before it is on disk. */
  async #settle(): Promise<void> {
    try {
      await this.#options.registry.settled()
    } catch (error) {
      throw internal(describeError(error))
    }
  }

  readonly #now = (): number => this.#options.clock.now()
}

const answer = (status: number, body: string, type = json): ApiAnswer => ({ status, type, body, headers: {} })

export const refusalAnswer = (refusal: StatusRefusal): ApiAnswer => ({
  ...answer(refusal.code, JSON.stringify(statusObject(refusal))),
  headers: refusal.headers ?? {},
})

const tooLargeFor = (asked: number, current: number): StatusRefusal => ({
  code: 504,
  reason: 'Timeout',
  message: `Timeout: Too large resource version: ${asked}, current: ${current}`,
  details: {
    causes: [{ reason: 'ResourceVersionTooLarge', message: 'Too large resource version' }],
    retryAfterSeconds: 1,
  },
})

function splitPath(path: string): readonly string[] {
  try {
    return path
      .split('/')
      .filter((part) => part !== '')
      .map(decodeURIComponent)
  } catch {
    throw badRequest('the path is not properly encoded')
  }
}

interface Target {
  /** undefined: the group is known, the resource is not. */
  readonly resource: ServedResource | undefined
  readonly namespace: string | undefined
  readonly name: string
  readonly subresource: '' | 'status'
}

const groupsServed = new Map([
  ['discovery.k8s.io', 'v1'],
  ['events.k8s.io', 'v1'],
  ['networking.k8s.io', 'v1'],
])

/** undefined if the path is of nothing that is served. */
function findTarget(parts: readonly string[]): Target | undefined {
  const [root, group = '', version = ''] = parts
  const core = root === 'api' && group === 'v1'
  if (!core && !(root === 'apis' && groupsServed.get(group) === version)) return undefined
  const rest = parts.slice(core ? 2 : 3)
  const find = (plural: string) => findResource(core ? '' : group, 'v1', plural)
  const unknown: Target = { resource: undefined, namespace: undefined, name: '', subresource: '' }
  const inNamespace = rest[0] === 'namespaces' && rest.length >= 3 && rest[2] !== 'status' && rest[2] !== 'finalize'
  const [plural = '', name = '', sub = '', extra] = inNamespace ? rest.slice(2) : rest
  const resource = find(plural)
  if (resource === undefined || extra !== undefined || (sub !== '' && sub !== 'status')) return unknown
  if (sub === 'status' && resource.status === 'none') return unknown
  if (inNamespace !== resource.namespaced && !(resource.namespaced && name === '')) return unknown
  return {
    resource,
    namespace: inNamespace ? rest[1] : resource.namespaced ? undefined : '',
    name,
    subresource: sub as '' | 'status',
  }
}
