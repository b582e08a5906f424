// Answers API requests, whatever transport brought them: finds the resource by the path, and runs the verb. Sockets are in rest-server.ts.

import { describeError } from '../../lib/errors.ts'
import type { Logger } from '../../lib/log.ts'
import type { Clock } from '../../lib/time.ts'
import { resourceSubject } from '../requests/admission.ts'
import { parseBoolean, parseWatchQuery } from '../requests/list-options.ts'
import { list } from '../requests/reads.ts'
import { runWatch } from '../requests/watch.ts'
import { WatchBudget } from '../requests/watch-budget.ts'
import type { ObjectPath, ObjectWriteOptions, ObjectWriter, WriteOutcome } from '../requests/writes.ts'
import {
  badRequest,
  internal,
  methodNotAllowed,
  notFound,
  StatusError,
  subjectDetails,
  unknownResource,
  versionTooLarge,
} from '../schema/api-status.ts'
import { isObject, type Json } from '../schema/json.ts'
import { nameOf, namespaceOf, uidOf } from '../schema/object-metadata.ts'
import { decodeObject } from '../schema/schema.ts'
import type { Registry } from '../store/registry.ts'
import { findReview, type ReviewResource } from './access-reviews.ts'
import { parseDeleteOptions, parseDryRun, parseFieldValidation, readBody, readPatch } from './bodies.ts'
import { findDocument } from './documents.ts'
import { chooseRenderer, type Renderer } from './render.ts'
import { parseResourcePath, type ResourcePath, splitPath } from './request-path.ts'
import { failureResponse, jsonResponse, pageNotFound, type RestRequest, type RestResponse } from './rest-messages.ts'
import { findUnserved } from './unserved-resources.ts'

export interface ApiOptions {
  readonly registry: Registry
  readonly writer: ObjectWriter
  readonly clock: Clock
  readonly log: Logger
  /** The server's own `host:port`. */
  readonly address: () => string
  readonly random?: () => number
}

type Verb = (path: ResourcePath, request: RestRequest) => RestResponse | Promise<RestResponse>

/** Watches without a timeout end after 30 to 60 minutes, so that not all clients come back at the same moment. */
const minWatchSeconds = 1800

export class ApiRouter {
  readonly #options: ApiOptions
  readonly #watchBudget = new WatchBudget()
  readonly #verbs: ReadonlyMap<string, Verb> = new Map<string, Verb>([
    ['GET', (path, request) => this.#get(path, request)],
    ['HEAD', (path, request) => this.#get(path, request)],
    ['POST', (path, request) => this.#create(path, request)],
    ['PUT', (path, request) => this.#replace(path, request)],
    ['PATCH', (path, request) => this.#patch(path, request)],
    ['DELETE', (path, request) => this.#delete(path, request)],
  ])

  constructor(options: ApiOptions) {
    this.#options = options
  }

  /** Never rejects. */
  async respond(request: RestRequest): Promise<RestResponse> {
    try {
      return await this.#route(request)
    } catch (error) {
      if (error instanceof StatusError) return failureResponse(error.refusal)
      const { method, path } = request
      this.#options.log.error('A request failed', { method, path, error: describeError(error) })
      return failureResponse(internal(describeError(error)).refusal)
    }
  }

  async #route(request: RestRequest): Promise<RestResponse> {
    const parts = splitPath(request.path)
    const document = findDocument(`/${parts.join('/')}`, request.accept, this.#options.address())
    if (document !== undefined) {
      if (request.method !== 'GET' && request.method !== 'HEAD') throw methodNotAllowed()
      return document
    }
    const review = findReview(parts)
    if (review !== undefined) return answerReview(review, request)
    const unserved = findUnserved(parts)
    if (unserved !== undefined) throw unserved
    const path = parseResourcePath(parts)
    if (path === 'not-served') return pageNotFound()
    if (path === 'unknown-resource') throw unknownResource()
    const verb = this.#verbs.get(request.method)
    if (verb === undefined) throw methodNotAllowed()
    return verb(path, request)
  }

  #get(path: ResourcePath, request: RestRequest): RestResponse | Promise<RestResponse> {
    if (path.name !== '') return this.#read(path, request)
    return parseBoolean(request.query, 'watch') ? this.#watch(path, request) : this.#list(path, request)
  }

  async #read({ resource, namespace = '', name }: ResourcePath, request: RestRequest): Promise<RestResponse> {
    const renderer = this.#chooseRenderer(resource, request)
    const entry = this.#options.registry.find(resource.plural, namespace, name)
    if (entry === undefined) throw notFound(resourceSubject(resource, name))
    await this.#settle()
    return respond(200, renderer, renderer.renderObject(entry))
  }

  async #list(path: ResourcePath, request: RestRequest): Promise<RestResponse> {
    const renderer = this.#chooseRenderer(path.resource, request)
    const { entries, metadata } = list(this.#options.registry, path, request.query)
    await this.#settle()
    return respond(200, renderer, renderer.renderList(entries, metadata))
  }

  #watch({ resource, namespace }: ResourcePath, request: RestRequest): RestResponse {
    const { registry, clock, random = Math.random } = this.#options
    const query = parseWatchQuery(resource, request.query)
    const renderer = this.#chooseRenderer(resource, request)
    const { version = 0, marksEnd, timeoutSeconds } = query
    if (marksEnd && version > registry.version) throw versionTooLarge(version, registry.version)
    const seconds = timeoutSeconds > 0 ? timeoutSeconds : minWatchSeconds * (1 + random())
    const options = {
      registry,
      clock,
      resource: resource.plural,
      namespace,
      query,
      renderer,
      timeoutMs: seconds * 1000,
      budget: this.#watchBudget,
    }
    return {
      ...respond(200, renderer, ''),
      type: renderer.watchType,
      stream: (sink, signal) => runWatch(options, sink, signal),
    }
  }

  #create(path: ResourcePath, request: RestRequest): Promise<RestResponse> {
    if (path.name !== '' || path.namespace === undefined) throw methodNotAllowed()
    const target = toObjectPath(path)
    return this.#write(target, request, (options) =>
      this.#options.writer.create(target, readBody(request, path.resource), options),
    )
  }

  #replace(path: ResourcePath, request: RestRequest): Promise<RestResponse> {
    if (path.name === '') throw methodNotAllowed()
    const target = toObjectPath(path)
    return this.#write(target, request, (options) =>
      this.#options.writer.replace(target, readBody(request, path.resource), options),
    )
  }

  #patch(path: ResourcePath, request: RestRequest): Promise<RestResponse> {
    if (path.name === '') throw methodNotAllowed()
    const target = toObjectPath(path)
    const patch = readPatch(request)
    return this.#write(target, request, (options) => this.#options.writer.patch(target, patch, options))
  }

  async #write(
    { resource }: ObjectPath,
    request: RestRequest,
    write: (options: ObjectWriteOptions) => WriteOutcome,
  ): Promise<RestResponse> {
    const renderer = this.#chooseRenderer(resource, request)
    const warnings: string[] = []
    const { object, created } = write({
      dryRun: parseDryRun(request.query),
      fieldValidation: parseFieldValidation(request.query),
      manager: request.query.get('fieldManager') ?? '',
      force: parseBoolean(request.query, 'force'),
      warn: (warning) => warnings.push(`299 - ${JSON.stringify(warning)}`),
    })
    await this.#settle()
    const headers: Record<string, readonly string[]> = warnings.length > 0 ? { Warning: warnings } : {}
    return { ...respond(created ? 201 : 200, renderer, renderWritten(renderer, object)), headers }
  }

  #delete(path: ResourcePath, request: RestRequest): Promise<RestResponse> {
    if (path.subresource !== '') throw methodNotAllowed()
    return path.name === '' ? this.#deleteAll(path, request) : this.#deleteOne(path, request)
  }

  /** Services and pods, and all objects that are not gone yet, are returned themselves; for others the response is a Status. */
  async #deleteOne(path: ResourcePath, request: RestRequest): Promise<RestResponse> {
    const { resource, name } = path
    const { object, gone } = this.#options.writer.delete(toObjectPath(path), parseDeleteOptions(request))
    await this.#settle()
    if (!gone || resource.plural === 'services' || resource.plural === 'pods') {
      const renderer = this.#chooseRenderer(resource, request)
      return respond(200, renderer, renderWritten(renderer, object))
    }
    const details = { ...subjectDetails(resourceSubject(resource, name)), uid: uidOf(object) }
    const status = { kind: 'Status', apiVersion: 'v1', metadata: {}, status: 'Success', details }
    return jsonResponse(200, JSON.stringify(status))
  }

  async #deleteAll(path: ResourcePath, request: RestRequest): Promise<RestResponse> {
    const { registry, writer } = this.#options
    const { resource } = path
    if (resource.readOnly || resource.plural === 'namespaces' || path.namespace === undefined) throw methodNotAllowed()
    const renderer = this.#chooseRenderer(resource, request)
    const options = parseDeleteOptions(request)
    const { entries } = list(registry, path, request.query)
    for (const { object } of entries) {
      writer.delete({ resource, namespace: namespaceOf(object), name: nameOf(object), subresource: '' }, options)
    }
    const resourceVersion = String(registry.head)
    await this.#settle()
    return jsonResponse(200, renderer.renderList(entries, { resourceVersion }))
  }

  #chooseRenderer(resource: ResourcePath['resource'], { accept, query }: RestRequest): Renderer {
    return chooseRenderer(resource, accept, query, () => this.#options.clock.now())
  }

  /** Waits until all that the response says is on disk. */
  async #settle(): Promise<void> {
    try {
      await this.#options.registry.settled()
    } catch (error) {
      throw internal(describeError(error))
    }
  }
}

/** The answer is the question with a status, as after a creation. */
function answerReview(review: ReviewResource, request: RestRequest): RestResponse {
  if (request.method !== 'POST') throw methodNotAllowed()
  const { kind, group, version, schema } = review
  const body = readBody(request, review)
  if (!isObject(body)) throw badRequest(`the object provided is unrecognized (must be of type ${kind})`)
  const { object, mismatch } = decodeObject(schema, body)
  if (mismatch !== undefined) throw badRequest(`${kind} in version "${version}" cannot be handled: ${mismatch.message}`)
  const status = review.answer(object, (path) => findDocument(path, '', '') !== undefined)
  return jsonResponse(201, JSON.stringify({ ...object, kind, apiVersion: `${group}/${version}`, metadata: {}, status }))
}

const toObjectPath = ({ namespace = '', ...path }: ResourcePath): ObjectPath => ({ ...path, namespace })

const respond = (status: number, { type, encoding }: Renderer, body: string): RestResponse => ({
  ...jsonResponse(status, body, type),
  ...(encoding === undefined ? {} : { encoding }),
})

const renderWritten = (renderer: Renderer, object: Json): string =>
  renderer.renderObject({ object, json: JSON.stringify(object), version: 0 })
