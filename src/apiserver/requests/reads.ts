// Lists and single objects: selectors, versions, pages. Reads at once; the caller waits until that is on disk.

import { badRequest, expired, invalid, versionTooLarge } from '../schema/api-status.ts'
import { Problems } from '../schema/field-errors.ts'
import { isObject, type Json } from '../schema/json.ts'
import { fieldReader, labelsOf, nameOf, namespaceOf, type ServedResource } from '../schema/served-resources.ts'
import type { Entry } from '../store/collection.ts'
import type { Registry } from '../store/registry.ts'
import { matchesFields, matchesLabels, parseFieldSelector, parseLabelSelector } from './selectors.ts'

export type Matches = (object: Json) => boolean

/** Throws a 400 Status. */
export function selection(resource: ServedResource, query: URLSearchParams): { matches: Matches; everything: boolean } {
  const labels = parseLabelSelector(query.get('labelSelector') ?? '')
  const fields = parseFieldSelector(query.get('fieldSelector') ?? '', Object.keys(resource.fields))
  return {
    everything: labels.length === 0 && fields.length === 0,
    matches: (object) =>
      matchesLabels(labels, labelsOf(object)) && matchesFields(fields, fieldReader(resource, object)),
  }
}

export function whole(query: URLSearchParams, name: string): number | undefined {
  const value = query.get(name)
  if (value === null || value === '') return undefined
  if (!/^-?\d{1,18}$/.test(value))
    throw badRequest(`strconv.ParseInt: parsing ${JSON.stringify(value)}: invalid syntax`)
  return Number(value)
}

/** undefined if none is asked for. Throws a 400 Status. */
export function askedVersion(query: URLSearchParams): number | undefined {
  const value = query.get('resourceVersion')
  if (value === null || value === '') return undefined
  if (!/^\d{1,16}$/.test(value) || !Number.isSafeInteger(Number(value))) {
    throw badRequest(
      `invalid resource version: resourceVersion: Invalid value: ${JSON.stringify(value)}: strconv.ParseUint: parsing ${JSON.stringify(value)}: invalid syntax`,
    )
  }
  return Number(value)
}

export const truth = (query: URLSearchParams, name: string): boolean =>
  ['', 'true', '1', 't', 'T', 'TRUE', 'True'].includes(query.get(name) ?? 'false')

const listOptions = { group: 'meta.k8s.io', kind: 'ListOptions' }

/** The rules that tie options of lists and watches to one another. Throws a 422 Status. */
export function checkListOptions(query: URLSearchParams, watch: boolean): void {
  const problems = new Problems()
  const match = query.get('resourceVersionMatch') ?? ''
  const initial = query.has('sendInitialEvents')
  const forbid = (field: string, why: string) => problems.forbidden(field, why)
  if (!watch && initial) forbid('sendInitialEvents', 'sendInitialEvents is forbidden for list')
  if (watch && initial && match !== 'NotOlderThan') {
    forbid('resourceVersionMatch', 'sendInitialEvents requires setting resourceVersionMatch to NotOlderThan')
  } else if (watch && !initial && match !== '') {
    forbid('resourceVersionMatch', 'resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided')
  } else if (!watch && match !== '') {
    const version = query.get('resourceVersion') ?? ''
    if (version === '')
      forbid('resourceVersionMatch', 'resourceVersionMatch is forbidden unless resourceVersion is provided')
    if ((query.get('continue') ?? '') !== '')
      forbid('resourceVersionMatch', 'resourceVersionMatch is forbidden when continue is provided')
    if (!['Exact', 'NotOlderThan'].includes(match))
      problems.unsupported('resourceVersionMatch', match, ['Exact', 'NotOlderThan', ''])
    if (match === 'Exact' && version === '0')
      forbid('resourceVersionMatch', 'resourceVersionMatch "exact" is forbidden for resourceVersion "0"')
  }
  if (problems.causes.length > 0) throw invalid(listOptions, problems.causes)
}

export interface Page {
  readonly entries: readonly Entry[]
  readonly metadata: Json
}

/** Throws a Status: 400 for bad options, 410 for what has expired, 504 for what has not happened yet. */
export function list(
  registry: Registry,
  resource: ServedResource,
  namespace: string | undefined,
  query: URLSearchParams,
): Page {
  checkListOptions(query, false)
  const { matches, everything } = selection(resource, query)
  const limit = whole(query, 'limit') ?? 0
  const token = query.get('continue') ?? ''
  const asked = askedVersion(query)
  if (token !== '' && asked !== undefined && asked !== 0) {
    throw badRequest('specifying resource version is not allowed when using continue')
  }
  const start = token === '' ? undefined : openToken(token)
  if (asked !== undefined && asked > registry.head) throw versionTooLarge(asked, registry.head)
  const match = query.get('resourceVersionMatch') ?? ''
  const exact = asked !== undefined && asked > 0 && (match === 'Exact' || (match === '' && limit > 0))
  const version = start?.version ?? (exact ? asked : registry.head)
  const all =
    version === registry.head
      ? [...registry.list(resource.plural, namespace)]
      : registry.listAt(resource.plural, namespace, version)
  if (all === undefined)
    throw start === undefined
      ? tooOld(version, registry.horizon(resource.plural))
      : pageExpired(registry.head, start.after)
  const chosen = everything ? all : all.filter((entry) => matches(entry.object))
  const from = start === undefined ? 0 : firstAfter(chosen, start.after)
  const end = limit > 0 ? Math.min(from + limit, chosen.length) : chosen.length
  const entries = chosen.slice(from, end)
  const remaining = chosen.length - end
  const last = entries.at(-1)
  const more = remaining > 0 && last !== undefined
  return {
    entries,
    metadata: {
      resourceVersion: String(version),
      ...(more ? { continue: makeToken(version, keyOf(last)) } : {}),
      ...(more && everything ? { remainingItemCount: remaining } : {}),
    },
  }
}

export const tooOld = (version: number, horizon: number) => expired(`too old resource version: ${version} (${horizon})`)

function pageExpired(version: number, after: string) {
  return expired(
    'The continue parameter is too old for a consistent list; start again without it, or go on with the token in metadata.continue, which may miss changes.',
    { continue: makeToken(version, after) },
  )
}

const keyOf = (entry: Entry): string => `${namespaceOf(entry.object)}/${nameOf(entry.object)}`

const makeToken = (version: number, after: string): string =>
  Buffer.from(JSON.stringify({ v: version, after })).toString('base64url')

function openToken(token: string): { version: number; after: string } {
  try {
    const opened: unknown = JSON.parse(Buffer.from(token, 'base64url').toString('utf8'))
    if (isObject(opened) && Number.isSafeInteger(opened.v) && typeof opened.after === 'string') {
      return { version: opened.v as number, after: opened.after }
    }
  } catch {
    // falls through to the refusal
  }
  throw badRequest('invalid continue token: continue key is not valid')
}

function firstAfter(entries: readonly Entry[], after: string): number {
  const [namespace = '', name = ''] = after.split('/')
  const at = entries.findIndex(({ object }) => {
    const own = namespaceOf(object)
    return own > namespace || (own === namespace && nameOf(object) > name)
  })
  return at < 0 ? entries.length : at
}
