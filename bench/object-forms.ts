// How a scripted API server writes objects: as protobuf for clients that prefer it, as JSON otherwise, with the embedded API server's encoder.
// Also its answers about what no benchmark changes.

import type { IncomingMessage, ServerResponse } from 'node:http'
import { chooseRenderer } from '../src/apiserver/http/render.ts'
import type { Json } from '../src/apiserver/schema/json.ts'
import { getResource } from '../src/apiserver/schema/served-resources.ts'
import { lastVersion, node } from './api-objects.ts'

export type EventType = 'ADDED' | 'MODIFIED' | 'DELETED'

/** One resource in the form that a client asked for. Forms with the same `type` write equal bytes. */
export interface ObjectForm {
  /** The content types of objects and lists, and of watches. */
  readonly type: string
  readonly watchType: string
  writeObject(object: object): Buffer
  writeList(items: readonly object[]): Buffer
  writeEvent(type: EventType, object: object): Buffer
  /** Writes the bookmark that ends a snapshot. */
  writeBookmark(resourceVersion: string): Buffer
}

/** Chooses the form by the Accept header. Nodes are always JSON, since the encoder does not know their protobuf form. */
export function chooseForm(plural: string, accept = ''): ObjectForm {
  const renderer = chooseRenderer(getResource(plural), accept, new URLSearchParams(), Date.now)
  const bytes = (text: string): Buffer => Buffer.from(text, renderer.encoding ?? 'utf8')
  const entry = (object: object) => ({ object: object as Json, json: JSON.stringify(object), version: 0 })
  return {
    type: renderer.type,
    watchType: renderer.watchType,
    writeObject: (object) => bytes(renderer.renderObject(entry(object))),
    writeList: (items) => bytes(renderer.renderList(items.map(entry), { resourceVersion: '1' })),
    writeEvent: (type, object) => bytes(renderer.formatEvent(type, object as Json, undefined)),
    writeBookmark: (resourceVersion) =>
      bytes(renderer.formatBookmark({ resourceVersion, annotations: { 'k8s.io/initial-events-end': 'true' } })),
  }
}

/** Answers the other requests of a proxy: its node, the service CIDRs, and its events. */
export function answerOther(request: IncomingMessage, url: URL, response: ServerResponse): void {
  const plural = ['nodes', 'servicecidrs'].find((word) => url.pathname.split('/').includes(word))
  if (request.method !== 'GET') return void response.writeHead(201, { 'content-type': 'application/json' }).end('{}')
  if (plural === undefined) return void response.writeHead(404).end()
  const form = chooseForm(plural, request.headers.accept)
  const items = plural === 'nodes' ? [node()] : []
  response.setHeader('content-type', url.searchParams.has('watch') ? form.watchType : form.type)
  if (url.pathname.endsWith('/nodes/node-7')) response.end(form.writeObject(node()))
  else if (!url.searchParams.has('watch')) response.end(form.writeList(items))
  else {
    for (const item of items) response.write(form.writeEvent('ADDED', item))
    response.write(form.writeBookmark(lastVersion()))
  }
}
