// Parses the query parameters of lists and watches, with the errors of the real kube-apiserver. Pure.

import { badRequest, invalid } from '../schema/api-status.ts'
import { FieldErrors } from '../schema/field-errors.ts'
import { isObject, type Json } from '../schema/json.ts'
import { labelsOf } from '../schema/object-metadata.ts'
import { type ServedResource, selectableFields } from '../schema/served-resources.ts'
import { matchesFields, matchesLabels, parseFieldSelector, parseLabelSelector } from './selectors.ts'

export type ObjectFilter = (object: Json) => boolean

/** The end of one page, and the beginning of the next. */
export interface ContinueToken {
  readonly version: number
  /** `namespace/name` of the last object of the page. */
  readonly after: string
}

export interface ListQuery {
  readonly matches: ObjectFilter
  /** True if the query has no selectors. */
  readonly selectsAll: boolean
  /** 0: no limit. */
  readonly limit: number
  /** undefined: the first page. */
  readonly token: ContinueToken | undefined
  /** The oldest version that the client accepts; undefined: any. */
  readonly version: number | undefined
  /** undefined: the list may be newer than `version`. */
  readonly exactVersion: number | undefined
}

export interface WatchQuery {
  readonly matches: ObjectFilter
  /** undefined: the current version. */
  readonly version: number | undefined
  /** True if the watch begins with all objects; false if it begins with the changes after `version`. */
  readonly fromState: boolean
  /** True if a bookmark marks the end of the objects that the watch begins with (WatchList). */
  readonly marksEnd: boolean
  readonly bookmarks: boolean
  /** 0: the server decides. */
  readonly timeoutSeconds: number
}

/** Throws a Status 400 or 422. */
export function parseListQuery(resource: ServedResource, query: URLSearchParams): ListQuery {
  checkListOptions(query, false)
  const selectors = parseSelectors(resource, query)
  const limit = parseInteger(query, 'limit') ?? 0
  const token = query.get('continue') ?? ''
  const version = parseResourceVersion(query)
  if (token !== '' && version !== undefined && version !== 0) {
    throw badRequest('specifying resource version is not allowed when using continue')
  }
  const match = query.get('resourceVersionMatch') ?? ''
  const isExact = match === 'Exact' || (match === '' && limit > 0)
  return {
    ...selectors,
    limit,
    token: token === '' ? undefined : parseToken(token),
    version,
    exactVersion: isExact && version !== 0 ? version : undefined,
  }
}

/** Throws a Status 400 or 422. */
export function parseWatchQuery(resource: ServedResource, query: URLSearchParams): WatchQuery {
  checkListOptions(query, true)
  const { matches } = parseSelectors(resource, query)
  const version = parseResourceVersion(query)
  const marksEnd = parseBoolean(query, 'sendInitialEvents')
  const refusesState = query.get('sendInitialEvents') === 'false'
  return {
    matches,
    version,
    fromState: marksEnd || ((version ?? 0) === 0 && !refusesState),
    marksEnd,
    bookmarks: parseBoolean(query, 'allowWatchBookmarks'),
    timeoutSeconds: parseInteger(query, 'timeoutSeconds') ?? 0,
  }
}

function parseSelectors(
  resource: ServedResource,
  query: URLSearchParams,
): { matches: ObjectFilter; selectsAll: boolean } {
  const labels = parseLabelSelector(query.get('labelSelector') ?? '')
  const fields = parseFieldSelector(query.get('fieldSelector') ?? '', Object.keys(resource.fields))
  return {
    selectsAll: labels.length === 0 && fields.length === 0,
    matches: (object) =>
      matchesLabels(labels, labelsOf(object)) && matchesFields(fields, selectableFields(resource, object)),
  }
}

/** undefined if the parameter is missing or empty. Throws a Status 400. */
export function parseInteger(query: URLSearchParams, name: string): number | undefined {
  const value = query.get(name)
  if (value === null || value === '') return undefined
  if (!/^-?\d{1,18}$/.test(value))
    throw badRequest(`strconv.ParseInt: parsing ${JSON.stringify(value)}: invalid syntax`)
  return Number(value)
}

/** A parameter without a value is true, as in `?watch`. */
export const parseBoolean = (query: URLSearchParams, name: string): boolean =>
  ['', 'true', '1', 't', 'T', 'TRUE', 'True'].includes(query.get(name) ?? 'false')

function parseResourceVersion(query: URLSearchParams): number | undefined {
  const value = query.get('resourceVersion')
  if (value === null || value === '') return undefined
  if (!/^\d{1,16}$/.test(value) || !Number.isSafeInteger(Number(value))) {
    throw badRequest(
      `invalid resource version: resourceVersion: Invalid value: ${JSON.stringify(value)}: strconv.ParseUint: parsing ${JSON.stringify(value)}: invalid syntax`,
    )
  }
  return Number(value)
}

export const formatToken = ({ version, after }: ContinueToken): string =>
  Buffer.from(JSON.stringify({ v: version, after })).toString('base64url')

function parseToken(token: string): ContinueToken {
  const refusal = badRequest('invalid continue token: continue key is not valid')
  let parsed: unknown
  try {
    parsed = JSON.parse(Buffer.from(token, 'base64url').toString('utf8'))
  } catch {
    throw refusal
  }
  const { v: version, after } = isObject(parsed) ? parsed : {}
  if (typeof version !== 'number' || !Number.isSafeInteger(version) || typeof after !== 'string') throw refusal
  return { version, after }
}

/** The parameters that depend on each other. */
interface VersionOptions {
  readonly isWatch: boolean
  readonly hasInitialEvents: boolean
  readonly match: string
  readonly version: string
  readonly token: string
}

const optionRules: readonly {
  readonly field: string
  readonly isBroken: (options: VersionOptions) => boolean
  readonly message: string
}[] = [
  {
    field: 'sendInitialEvents',
    isBroken: ({ isWatch, hasInitialEvents }) => !isWatch && hasInitialEvents,
    message: 'sendInitialEvents is forbidden for list',
  },
  {
    field: 'resourceVersionMatch',
    isBroken: ({ isWatch, hasInitialEvents, match }) => isWatch && hasInitialEvents && match !== 'NotOlderThan',
    message: 'sendInitialEvents requires setting resourceVersionMatch to NotOlderThan',
  },
  {
    field: 'resourceVersionMatch',
    isBroken: ({ isWatch, hasInitialEvents, match }) => isWatch && !hasInitialEvents && match !== '',
    message: 'resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided',
  },
  {
    field: 'resourceVersionMatch',
    isBroken: ({ isWatch, match, version }) => !isWatch && match !== '' && version === '',
    message: 'resourceVersionMatch is forbidden unless resourceVersion is provided',
  },
  {
    field: 'resourceVersionMatch',
    isBroken: ({ isWatch, match, token }) => !isWatch && match !== '' && token !== '',
    message: 'resourceVersionMatch is forbidden when continue is provided',
  },
  {
    field: 'resourceVersionMatch',
    isBroken: ({ isWatch, match, version }) => !isWatch && match === 'Exact' && version === '0',
    message: 'resourceVersionMatch "exact" is forbidden for resourceVersion "0"',
  },
]

function checkListOptions(query: URLSearchParams, isWatch: boolean): void {
  const match = query.get('resourceVersionMatch') ?? ''
  const options: VersionOptions = {
    isWatch,
    hasInitialEvents: query.has('sendInitialEvents'),
    match,
    version: query.get('resourceVersion') ?? '',
    token: query.get('continue') ?? '',
  }
  const errors = new FieldErrors()
  for (const { field, isBroken, message } of optionRules) if (isBroken(options)) errors.forbidden(field, message)
  if (!isWatch && !['', 'Exact', 'NotOlderThan'].includes(match))
    errors.unsupported('resourceVersionMatch', match, ['Exact', 'NotOlderThan', ''])
  if (!errors.isEmpty) throw invalid({ group: 'meta.k8s.io', kind: 'ListOptions' }, errors.causes)
}
