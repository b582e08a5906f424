// Requests and responses of the API, independent of the transport (rest-server.ts for sockets, in-process-client.ts for this process). Pure.

import type { WatchSink } from '../requests/watch-queue.ts'
import { type StatusRefusal, statusObject } from '../schema/api-status.ts'

export interface RequestBody {
  readonly query: URLSearchParams
  readonly contentType: string
  readonly body: Buffer
}

export interface RestRequest extends RequestBody {
  readonly method: string
  /** Still percent-encoded. */
  readonly path: string
  readonly accept: string
}

export interface RestResponse {
  readonly status: number
  readonly type: string
  /** Text, or with `encoding` bytes as characters. */
  readonly body: string
  readonly encoding?: 'latin1'
  readonly headers: Readonly<Record<string, string | readonly string[]>>
  /** The events of a watch, which follow the body. Resolves at the end of the watch. */
  readonly stream?: (sink: WatchSink, signal: AbortSignal) => Promise<void>
}

export const jsonType = 'application/json'

export const jsonResponse = (status: number, body: string, type = jsonType): RestResponse => ({
  status,
  type,
  body,
  headers: {},
})

export const textResponse = (status: number, body: string): RestResponse =>
  jsonResponse(status, body, 'text/plain; charset=utf-8')

export const pageNotFound = (): RestResponse => textResponse(404, '404 page not found\n')

export const failureResponse = (refusal: StatusRefusal): RestResponse => ({
  ...jsonResponse(refusal.code, JSON.stringify(statusObject(refusal))),
  headers: refusal.headers ?? {},
})
