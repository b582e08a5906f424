// The documents at fixed paths: health, version, the root, OpenAPI, discovery. The objects are behind router.ts.

import { notAcceptable } from '../schema/api-status.ts'
import { discover, rootPaths, versionDocument } from './discovery.ts'
import { openApiBinaryType, openApiIndex, openApiV2, openApiV2Binary, openApiV3 } from './openapi.ts'
import { jsonResponse, jsonType, pageNotFound, type RestResponse, textResponse } from './rest-messages.ts'

const healthPaths = new Set(['/healthz', '/livez', '/readyz', '/healthz/ping', '/livez/ping', '/readyz/ping'])
/** True for the paths that need no token, as in the real server. */
export const isPublic = (path: string): boolean => healthPaths.has(path) || path === '/version' || path === '/version/'

const openApiV3Prefix = '/openapi/v3/'

/** Responses by path; the argument is the Accept header. */
const documents: ReadonlyMap<string, (accept: string) => RestResponse> = new Map([
  ['/', () => jsonResponse(200, JSON.stringify(rootPaths()))],
  ['/version', () => jsonResponse(200, JSON.stringify(versionDocument))],
  ['/openapi/v2', respondOpenApiV2],
  ['/openapi/v3', () => jsonResponse(200, openApiIndex())],
])

/** undefined if there is no document at the path. Throws a Status 406. */
export function findDocument(path: string, accept: string, address: string): RestResponse | undefined {
  if (healthPaths.has(path)) return textResponse(200, 'ok')
  const document = documents.get(path)
  if (document !== undefined) return document(accept)
  if (path.startsWith(openApiV3Prefix)) return respondOpenApiV3(path.slice(openApiV3Prefix.length), accept)
  const discovered = discover(path, accept, address)
  return discovered === undefined ? undefined : jsonResponse(200, JSON.stringify(discovered.document), discovered.type)
}

const acceptsJson = (accept: string): boolean => /application\/json|\*\/\*|^$/.test(accept)

function respondOpenApiV2(accept: string): RestResponse {
  // Clients write the type with an @, which is not valid in a media type.
  if (accept.replace('@', '.').includes(openApiBinaryType))
    return jsonResponse(200, openApiV2Binary(), openApiBinaryType)
  if (!acceptsJson(accept)) throw notAcceptable([jsonType, openApiBinaryType])
  return jsonResponse(200, openApiV2())
}

function respondOpenApiV3(group: string, accept: string): RestResponse {
  const found = openApiV3(group)
  if (found === undefined) return pageNotFound()
  if (!acceptsJson(accept)) throw notAcceptable([jsonType])
  return jsonResponse(200, found)
}
