// Routes HTTP requests by path, reads request bodies and writes replies.

import type { IncomingMessage, ServerResponse } from 'node:http'
import { describeError } from '../lib/errors.ts'
import { isTrustedHost } from '../lib/host-header.ts'
import type { Logger } from '../lib/log.ts'
import type { Handler } from './server.ts'

/** One request with its parsed target, and its response. */
export interface Exchange {
  readonly method: string
  /** Decoded, without the query. */
  readonly path: string
  readonly query: URLSearchParams
  readonly request: IncomingMessage
  readonly response: ServerResponse
}

export type Route = (exchange: Exchange) => void | Promise<void>

/** Routes by exact path; a path that ends in `/` also serves everything below it. */
export type Routes = Readonly<Record<string, Route>>

/** Returns a handler that calls the route of the request's path. No request and no error of a route ends the server. */
export function routeRequests(routes: Routes, log: Logger): Handler {
  const prefixes = Object.keys(routes)
    .filter((path) => path.endsWith('/'))
    .sort((a, b) => b.length - a.length)
  return async (request, response) => {
    const target = parseTarget(request.url ?? '/')
    if (target === undefined) return replyText(response, 400, '400 bad request\n')
    const path = Object.hasOwn(routes, target.path)
      ? target.path
      : prefixes.find((prefix) => target.path.startsWith(prefix))
    const route = path === undefined ? undefined : routes[path]
    if (route === undefined) return replyNotFound(response)
    try {
      await route({ ...target, method: request.method ?? 'GET', request, response })
    } catch (error) {
      log.error('Request failed', { path: target.path, error: describeError(error) })
      if (response.headersSent) response.destroy()
      else replyText(response, 500, '500 internal error\n')
    }
  }
}

/** Returns undefined if the path cannot be decoded. */
export function parseTarget(url: string): { path: string; query: URLSearchParams } | undefined {
  // Proxies and some probes send the absolute form.
  const local = url.replace(/^https?:\/\/[^/?#]*/i, '')
  const mark = local.indexOf('?')
  const raw = mark < 0 ? local : local.slice(0, mark)
  try {
    const path = decodeURIComponent(raw === '' ? '/' : raw)
    return { path, query: new URLSearchParams(mark < 0 ? '' : local.slice(mark + 1)) }
  } catch {
    return undefined
  }
}

/** Answers 421 if the Host header is not an address, `localhost` or one of the names. Routes in `open` answer any Host. */
export function checkHost(routes: Routes, names: ReadonlySet<string>, open: ReadonlySet<string>): Routes {
  const guard =
    (route: Route): Route =>
    (exchange) => {
      if (isTrustedHost(exchange.request.headers.host, names)) return route(exchange)
      replyText(exchange.response, 421, 'the Host header must be an IP address, localhost or the name of this node\n')
    }
  return Object.fromEntries(
    Object.entries(routes).map(([path, route]) => [path, open.has(path) ? route : guard(route)]),
  )
}

export interface Reply {
  readonly status: number
  readonly type: string
  readonly body: string
  readonly headers?: Readonly<Record<string, string>>
}

export function reply(response: ServerResponse, { status, type, body, headers }: Reply): void {
  response.writeHead(status, {
    'Content-Type': type,
    'X-Content-Type-Options': 'nosniff',
    ...headers,
    'Content-Length': Buffer.byteLength(body),
  })
  response.end(body)
}

export const replyText = (response: ServerResponse, status: number, body: string): void =>
  reply(response, { status, type: 'text/plain; charset=utf-8', body })

export const replyNotFound = (response: ServerResponse): void => replyText(response, 404, '404 page not found\n')

/** Returns the whole body as text, or undefined if it is longer than `limit` bytes. */
export async function readBody(request: IncomingMessage, limit: number): Promise<string | undefined> {
  const chunks: Buffer[] = []
  let size = 0
  // By default, leaving the loop early destroys the socket before the reply is sent.
  for await (const chunk of request.iterator({ destroyOnReturn: false }) as AsyncIterable<Buffer>) {
    size += chunk.length
    if (size > limit) return undefined
    chunks.push(chunk)
  }
  return Buffer.concat(chunks).toString('utf8')
}
