// Renders objects in the form that the Accept header asks for: the object itself as JSON or protobuf, its metadata alone, or a row of a
// table. Pure.

import { encodeBody, encodeList, encodeMessage, encodeStatus, encodeWatchFrame } from '../protobuf/encode-protobuf.ts'
import { hasProtobufForm, protobufType } from '../protobuf/protobuf-fields.ts'
import type { WatchRenderer } from '../requests/watch.ts'
import { badRequest, notAcceptable } from '../schema/api-status.ts'
import type { Json } from '../schema/json.ts'
import { metadataOf } from '../schema/object-metadata.ts'
import { apiVersionOf, type ServedResource, toServedForm } from '../schema/served-resources.ts'
import type { Entry } from '../store/collection.ts'
import { type Column, columnsOf } from './columns.ts'
import { jsonType } from './rest-messages.ts'

export interface Renderer extends WatchRenderer {
  /** The content type of objects and lists, and of watches. */
  readonly type: string
  readonly watchType: string
  /** Given if the texts are bytes as characters: one pipeline serves text and bytes. */
  readonly encoding?: 'latin1'
  renderObject(entry: Entry): string
  renderList(entries: readonly Entry[], metadata: Json): string
}

/** Takes the first clause of the Accept header that the server knows. Throws a Status 406. */
export function chooseRenderer(
  resource: ServedResource,
  accept: string,
  query: URLSearchParams,
  now: () => number,
): Renderer {
  for (const clause of accept === '' ? [jsonType] : accept.split(',')) {
    switch (parseClause(clause)) {
      case 'object':
        return objectRenderer(resource)
      case 'protobuf':
        if (hasProtobufForm(resource.schema)) return protobufRenderer(resource)
        break
      case 'metadata':
        return metadataRenderer()
      case 'table v1':
        return tableRenderer(resource, 'v1', query.get('includeObject') ?? 'Metadata', now)
      case 'table v1beta1':
        return tableRenderer(resource, 'v1beta1', query.get('includeObject') ?? 'Metadata', now)
    }
  }
  throw notAcceptable([
    jsonType,
    ...(hasProtobufForm(resource.schema) ? [protobufType] : []),
    `${jsonType};as=Table;v=v1;g=meta.k8s.io`,
    `${jsonType};as=PartialObjectMetadata;v=v1;g=meta.k8s.io`,
  ])
}

type RenderedForm = 'object' | 'protobuf' | 'metadata' | 'table v1' | 'table v1beta1'

/** The parameters `as` and `v` of a clause, by form. */
const forms: ReadonlyMap<string, RenderedForm> = new Map<string, RenderedForm>([
  ['Table v1', 'table v1'],
  ['Table v1beta1', 'table v1beta1'],
  ['PartialObjectMetadata v1', 'metadata'],
  ['PartialObjectMetadataList v1', 'metadata'],
])

/** undefined if the server does not know the form. */
function parseClause(clause: string): RenderedForm | undefined {
  const [type = '', ...rest] = clause.split(';').map((part) => part.trim())
  const parameters = new Map(rest.map((part) => [part.split('=')[0] ?? '', part.split('=')[1] ?? '']))
  const form = parameters.get('as')
  if (type === protobufType) return form === undefined ? 'protobuf' : undefined
  if (!['application/json', 'application/*', '*/*'].includes(type)) return undefined
  if (form === undefined) return 'object'
  return parameters.get('g') === 'meta.k8s.io' ? forms.get(`${form} ${parameters.get('v')}`) : undefined
}

/** How JSON renders one object, from which the lines of a watch follow. */
interface JsonForm extends Pick<Renderer, 'id' | 'renderObject' | 'renderList'> {
  renderEvent(object: Json, json: string | undefined): string
  renderBookmark(metadata: Json): string
}

function jsonRenderer({ renderEvent, renderBookmark, ...form }: JsonForm): Renderer {
  const line = (type: string, object: string): string => `{"type":"${type}","object":${object}}\n`
  return {
    ...form,
    type: jsonType,
    watchType: jsonType,
    formatEvent: (type, object, json) => line(type, renderEvent(object, json)),
    formatBookmark: (metadata) => line('BOOKMARK', renderBookmark(metadata)),
    formatError: (status) => line('ERROR', JSON.stringify(status)),
  }
}

function protobufRenderer(resource: ServedResource): Renderer {
  const { kind, schema } = resource
  const apiVersion = apiVersionOf(resource)
  const encode = (object: Json): Buffer => encodeMessage(toServedForm(resource, object), schema)
  const encodeObject = (object: Json): Buffer => encodeBody(kind, apiVersion, encode(object))
  const frame = (type: string, body: Buffer): string => encodeWatchFrame(type, body).toString('latin1')
  return {
    id: `protobuf ${apiVersion}`,
    type: protobufType,
    watchType: `${protobufType};stream=watch`,
    encoding: 'latin1',
    renderObject: ({ object }) => encodeObject(object).toString('latin1'),
    renderList: (entries, metadata) => {
      const list = encodeList(
        metadata,
        entries.map(({ object }) => encode(object)),
      )
      return encodeBody(`${kind}List`, apiVersion, list).toString('latin1')
    },
    formatEvent: (type, object) => frame(type, encodeObject(object)),
    formatBookmark: (metadata) => frame('BOOKMARK', encodeObject({ metadata })),
    formatError: (status) => frame('ERROR', encodeStatus(status)),
  }
}

function objectRenderer(resource: ServedResource): Renderer {
  const apiVersion = apiVersionOf(resource)
  const isStoredForm = resource.fromStored === undefined
  const render = (object: Json, json: string | undefined): string =>
    isStoredForm ? (json ?? JSON.stringify(object)) : JSON.stringify(toServedForm(resource, object))
  // The elements of a list do not repeat kind and version. Converted objects do.
  const prefix = `{"kind":${JSON.stringify(resource.kind)},"apiVersion":${JSON.stringify(apiVersion)},`
  const renderElement = ({ object, json }: Entry): string =>
    isStoredForm && json.startsWith(prefix) ? `{${json.slice(prefix.length)}` : render(object, json)
  return jsonRenderer({
    id: `object ${apiVersion}`,
    renderObject: ({ object, json }) => render(object, json),
    renderList: (entries, metadata) =>
      `{"kind":"${resource.kind}List","apiVersion":"${apiVersion}","metadata":${JSON.stringify(metadata)},"items":[${entries.map(renderElement).join(',')}]}`,
    renderEvent: render,
    renderBookmark: (metadata) => JSON.stringify({ kind: resource.kind, apiVersion, metadata }),
  })
}

const toPartialObject = (object: Json): Json => ({
  kind: 'PartialObjectMetadata',
  apiVersion: 'meta.k8s.io/v1',
  metadata: metadataOf(object),
})

const metadataRenderer = (): Renderer =>
  jsonRenderer({
    id: 'metadata',
    renderObject: (entry) => JSON.stringify(toPartialObject(entry.object)),
    renderList: (entries, metadata) =>
      JSON.stringify({
        kind: 'PartialObjectMetadataList',
        apiVersion: 'meta.k8s.io/v1',
        metadata,
        items: entries.map((entry) => toPartialObject(entry.object)),
      }),
    renderEvent: (object) => JSON.stringify(toPartialObject(object)),
    renderBookmark: (metadata) => JSON.stringify({ ...toPartialObject({}), metadata }),
  })

/** The part of an object that a row includes. */
type IncludePart = (resource: ServedResource, object: Json) => Json

/** The parts by the value of `includeObject`. */
const includedParts: ReadonlyMap<string, IncludePart> = new Map<string, IncludePart>([
  ['None', () => ({})],
  ['Metadata', (_, object) => ({ object: toPartialObject(object) })],
  ['Object', (resource, object) => ({ object: toServedForm(resource, object) })],
])

function tableRenderer(resource: ServedResource, version: string, include: string, now: () => number): Renderer {
  const includePart = includedParts.get(include)
  if (includePart === undefined) {
    throw badRequest(`invalid includeObject: "${include}": must be None, Metadata or Object`)
  }
  const columns = columnsOf(resource.plural)
  const definitions = columns.map(describeColumn)
  const renderTable = (metadata: Json, columnDefinitions: readonly Json[] | null, objects: readonly Json[]): string => {
    const time = now()
    const rows = objects.map((object) => ({
      cells: columns.map((column) => column.cell(object, time)),
      ...includePart(resource, object),
    }))
    return JSON.stringify({ kind: 'Table', apiVersion: `meta.k8s.io/${version}`, metadata, columnDefinitions, rows })
  }
  const versionOf = (object: Json): Json => ({ resourceVersion: metadataOf(object).resourceVersion })
  let isFirstEvent = true
  return jsonRenderer({
    id: '',
    renderObject: ({ object }) => renderTable(versionOf(object), definitions, [object]),
    renderList: (entries, metadata) =>
      renderTable(
        metadata,
        definitions,
        entries.map(({ object }) => object),
      ),
    renderEvent(object) {
      // A watch sends the columns only with its first event.
      const columnDefinitions = isFirstEvent ? definitions : null
      isFirstEvent = false
      return renderTable(versionOf(object), columnDefinitions, [object])
    },
    renderBookmark: (metadata) => renderTable(metadata, null, []),
  })
}

const describeColumn = ({ name, format, wide }: Column): Json => ({
  name,
  type: 'string',
  format: format ?? '',
  description: '',
  priority: wide === true ? 1 : 0,
})
