// How an object leaves the server: as itself, as bare metadata, or as the row of a table. Pure.

import { badRequest, notAcceptable } from '../schema/api-status.ts'
import type { Json } from '../schema/json.ts'
import { apiVersionOf, metaOf, type ServedResource } from '../schema/served-resources.ts'
import type { Entry } from '../store/collection.ts'
import { type Column, columnsOf } from './columns.ts'

export interface Rendering {
  /** Equal ids render equally, so that what was rendered once can be kept; '' if it cannot. */
  readonly id: string
  one(entry: Entry): string
  list(entries: readonly Entry[], metadata: Json): string
  /** In a watch. */
  event(object: Json, json: string | undefined): string
  bookmark(metadata: Json): string
}

const json = 'application/json'

/** By the Accept header: the first form that is known. Throws a 406 Status. */
export function chooseRendering(
  resource: ServedResource,
  accept: string,
  query: URLSearchParams,
  now: () => number,
): Rendering {
  for (const clause of accept === '' ? [json] : accept.split(',')) {
    const [type = '', ...rest] = clause.split(';').map((part) => part.trim())
    if (!['application/json', 'application/*', '*/*'].includes(type)) continue
    const parameters = new Map(rest.map((part) => [part.split('=')[0] ?? '', part.split('=')[1] ?? '']))
    const form = parameters.get('as')
    if (form === undefined) return plainRendering(resource)
    if (parameters.get('g') !== 'meta.k8s.io') continue
    if (form === 'Table' && ['v1', 'v1beta1'].includes(parameters.get('v') ?? '')) {
      return tableRendering(resource, parameters.get('v') as string, query.get('includeObject') ?? 'Metadata', now)
    }
    if (parameters.get('v') !== 'v1') continue
    if (form === 'PartialObjectMetadata' || form === 'PartialObjectMetadataList') return metadataRendering()
  }
  throw notAcceptable([
    json,
    `${json};as=Table;v=v1;g=meta.k8s.io`,
    `${json};as=PartialObjectMetadata;v=v1;g=meta.k8s.io`,
  ])
}

function plainRendering(resource: ServedResource): Rendering {
  const apiVersion = apiVersionOf(resource)
  const convert = resource.fromStored
  const one = (entry: Entry): string => (convert === undefined ? entry.json : JSON.stringify(convert(entry.object)))
  // Elements of a list do not repeat what they are.
  const prefix = `{"kind":${JSON.stringify(resource.kind)},"apiVersion":${JSON.stringify(resource.version)},`
  const storedPrefix =
    convert === undefined ? prefix.replace(`"${resource.version}"`, JSON.stringify(apiVersion)) : prefix
  const element = (entry: Entry): string => {
    const text = one(entry)
    return text.startsWith(storedPrefix) ? `{${text.slice(storedPrefix.length)}` : text
  }
  return {
    id: `plain ${apiVersion}`,
    one,
    list: (entries, metadata) =>
      `{"kind":"${resource.kind}List","apiVersion":"${apiVersion}","metadata":${JSON.stringify(metadata)},"items":[${entries.map(element).join(',')}]}`,
    event: (object, text) =>
      convert === undefined ? (text ?? JSON.stringify(object)) : JSON.stringify(convert(object)),
    bookmark: (metadata) => JSON.stringify({ kind: resource.kind, apiVersion, metadata }),
  }
}

const partial = (object: Json): Json => ({
  kind: 'PartialObjectMetadata',
  apiVersion: 'meta.k8s.io/v1',
  metadata: metaOf(object),
})

function metadataRendering(): Rendering {
  return {
    id: 'metadata',
    one: (entry) => JSON.stringify(partial(entry.object)),
    list: (entries, metadata) =>
      JSON.stringify({
        kind: 'PartialObjectMetadataList',
        apiVersion: 'meta.k8s.io/v1',
        metadata,
        items: entries.map((entry) => partial(entry.object)),
      }),
    event: (object) => JSON.stringify(partial(object)),
    bookmark: (metadata) => JSON.stringify({ ...partial({}), metadata }),
  }
}

function tableRendering(resource: ServedResource, version: string, include: string, now: () => number): Rendering {
  if (!['None', 'Metadata', 'Object'].includes(include)) {
    throw badRequest(`invalid includeObject: "${include}": must be None, Metadata or Object`)
  }
  const columns = columnsOf(resource.plural)
  const convert = resource.fromStored ?? ((object: Json) => object)
  const shown = { None: () => undefined, Metadata: partial, Object: convert }[include as 'None' | 'Metadata' | 'Object']
  const row = (object: Json, at: number): Json => {
    const part = shown(object)
    return {
      cells: columns.map((column) => column.cell(object, at)),
      ...(part === undefined ? {} : { object: part }),
    }
  }
  const table = (metadata: Json, definitions: unknown, rows: readonly Json[]): string =>
    JSON.stringify({
      kind: 'Table',
      apiVersion: `meta.k8s.io/${version}`,
      metadata,
      columnDefinitions: definitions,
      rows,
    })
  let told = false
  const rowsMetadata = (object: Json): Json => ({ resourceVersion: metaOf(object).resourceVersion })
  return {
    id: '',
    one: (entry) => table(rowsMetadata(entry.object), columns.map(definition), [row(entry.object, now())]),
    list: (entries, metadata) =>
      table(
        metadata,
        columns.map(definition),
        entries.map((entry) => row(entry.object, now())),
      ),
    event(object) {
      // A watch tells the columns once.
      const definitions = told ? null : columns.map(definition)
      told = true
      return table(rowsMetadata(object), definitions, [row(object, now())])
    },
    bookmark: (metadata) => table(metadata, null, []),
  }
}

const definition = ({ name, format, wide }: Column): Json => ({
  name,
  type: 'string',
  format: format ?? '',
  description: '',
  priority: wide === true ? 1 : 0,
})
