// HTTP listeners: binding as Go binds, limits against slow or broken clients, routing, retries until a port is free.

import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http'
import type { AddressInfo } from 'node:net'
import { describeError, ProxyError } from '../lib/errors.ts'
import { hostPort, isUnspecified, splitHostPort } from '../lib/ip.ts'
import type { Logger } from '../lib/log.ts'
import { type Clock, systemClock, type Timer } from '../lib/time.ts'

export type Handler = (request: IncomingMessage, response: ServerResponse) => void | Promise<void>

/** One request, with its target taken apart. */
export interface Exchange {
  readonly method: string
  /** Decoded, without the query. */
  readonly path: string
  readonly query: URLSearchParams
  readonly request: IncomingMessage
  readonly response: ServerResponse
}

export type Route = (exchange: Exchange) => void | Promise<void>

/** By exact path; a path that ends in `/` also serves everything below it. */
export type Routes = Readonly<Record<string, Route>>

interface Limits {
  readonly headersTimeoutMs: number
  readonly requestTimeoutMs: number
  /** How often the two timeouts above are looked at. */
  readonly checkMs: number
  readonly maxConnections: number
}

const defaultLimits: Limits = {
  headersTimeoutMs: 10_000,
  requestTimeoutMs: 30_000,
  checkMs: 2_000,
  // Descriptors are shared with netlink and the API client; a flood of probes must not use them up.
  maxConnections: 1024,
}

export interface HttpListenOptions {
  /** `ip:port`; port 0 lets the kernel choose. */
  readonly address: string
  readonly handler: Handler
  /** Go's names: `tcp` serves both families on a wildcard address, `tcp4` and `tcp6` only the one. */
  readonly network?: 'tcp' | 'tcp4' | 'tcp6'
  readonly log: Logger
  readonly limits?: Partial<Limits>
}

export interface HttpListener {
  /** As bound. */
  readonly address: string
  readonly port: number
  /** Requests under way get `graceMs` to finish. */
  close(graceMs?: number): Promise<void>
}

/** Resolves once requests are accepted; rejects with a ProxyError `listen` that names the address. */
export async function listen(options: HttpListenOptions): Promise<HttpListener> {
  const target = splitHostPort(options.address)
  if (target === undefined) throw new ProxyError('listen', `cannot listen on "${options.address}": not an ip:port`)
  let failure: unknown
  for (const place of places(target.host, options.network ?? 'tcp')) {
    const server = makeServer(options)
    try {
      await bind(server, { host: place.host, port: target.port, ipv6Only: place.ipv6Only })
      return makeListener(server, options.log)
    } catch (error) {
      failure = error
      if (!familyMissing(error)) break
    }
  }
  throw new ProxyError('listen', `cannot listen on ${options.address}`, {
    cause: failure,
    fields: { address: options.address },
  })
}

export interface ServeOptions extends HttpListenOptions {
  /** For log lines: `health server`. */
  readonly name: string
  /** Report the first failure and stop, instead of trying again every five seconds. */
  readonly hardFail?: boolean
  readonly onFatal?: (error: ProxyError) => void
  readonly onListening?: (listener: HttpListener) => void
  readonly clock?: Clock
}

const retryMs = 5_000

/** Listens now or, if the address is not free, later; what calls this never waits for the port. */
export function serveWithRetry(options: ServeOptions): { close(): Promise<void> } {
  const clock = options.clock ?? systemClock
  let closed = false
  let timer: Timer | undefined
  let listener: HttpListener | undefined

  const attempt = async (): Promise<void> => {
    try {
      listener = await listen(options)
    } catch (error) {
      if (closed) return
      const failure = error instanceof ProxyError ? error : new ProxyError('listen', describeError(error))
      if (options.hardFail) return options.onFatal?.(failure)
      options.log.error(`${options.name} cannot start, trying again in 5s`, { error: describeError(failure) })
      timer = clock.after(retryMs, () => {
        current = attempt()
      })
      return
    }
    if (closed) return listener.close()
    options.log.info(`${options.name} listening`, { address: listener.address })
    options.onListening?.(listener)
  }

  let current = attempt()
  return {
    async close() {
      closed = true
      timer?.cancel()
      await current
      await listener?.close()
    },
  }
}

/** Dispatches by path. Nothing a client sends, and nothing a route throws, ends the server. */
export function router(routes: Routes, log: Logger): Handler {
  const below = Object.keys(routes)
    .filter((path) => path.endsWith('/'))
    .sort((a, b) => b.length - a.length)
  return async (request, response) => {
    const target = parseTarget(request.url ?? '/')
    if (target === undefined) return text(response, 400, '400 bad request\n')
    const found = Object.hasOwn(routes, target.path)
      ? target.path
      : below.find((prefix) => target.path.startsWith(prefix))
    const route = found === undefined ? undefined : routes[found]
    if (route === undefined) return notFound(response)
    try {
      await route({ ...target, method: request.method ?? 'GET', request, response })
    } catch (error) {
      log.error('request failed', { path: target.path, error: describeError(error) })
      if (response.headersSent) response.destroy()
      else text(response, 500, '500 internal error\n')
    }
  }
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

export const text = (response: ServerResponse, status: number, body: string): void =>
  reply(response, { status, type: 'text/plain; charset=utf-8', body })

export const notFound = (response: ServerResponse): void => text(response, 404, '404 page not found\n')

/** The whole body as text, or undefined if it is longer than `limit` bytes. */
export async function readBody(request: IncomingMessage, limit: number): Promise<string | undefined> {
  const chunks: Buffer[] = []
  let size = 0
  // A reader that stops early would otherwise destroy the socket before the answer is out.
  for await (const chunk of request.iterator({ destroyOnReturn: false }) as AsyncIterable<Buffer>) {
    size += chunk.length
    if (size > limit) return undefined
    chunks.push(chunk)
  }
  return Buffer.concat(chunks).toString('utf8')
}

interface Place {
  readonly host: string
  readonly ipv6Only: boolean
}

/** Go opens one dual-stack socket for either wildcard of plain `tcp`; Node's 0.0.0.0 would leave [::1] unanswered. */
function places(host: string, network: 'tcp' | 'tcp4' | 'tcp6'): readonly Place[] {
  if (network === 'tcp4') return [{ host: host || '0.0.0.0', ipv6Only: false }]
  if (network === 'tcp6') return [{ host: host || '::', ipv6Only: true }]
  if (host !== '' && !isUnspecified(host)) return [{ host, ipv6Only: false }]
  return [
    { host: '::', ipv6Only: false },
    { host: '0.0.0.0', ipv6Only: false },
  ]
}

/** The host has no IPv6, or has it switched off. */
function familyMissing(error: unknown): boolean {
  const code = (error as NodeJS.ErrnoException).code
  return code === 'EAFNOSUPPORT' || code === 'EADDRNOTAVAIL'
}

function makeServer({ handler, log, limits }: HttpListenOptions): Server {
  const { headersTimeoutMs, requestTimeoutMs, checkMs, maxConnections } = { ...defaultLimits, ...limits }
  const server = createServer(
    {
      headersTimeout: headersTimeoutMs,
      requestTimeout: requestTimeoutMs,
      connectionsCheckingInterval: checkMs,
      keepAliveTimeout: 75_000,
      maxHeaderSize: 16_384,
    },
    (request, response) => {
      // A client that leaves in the middle is no news.
      response.on('error', () => {})
      answer(handler, request, response).catch((error: unknown) => {
        log.error('request failed', { url: request.url, error: describeError(error) })
        response.destroy()
      })
    },
  )
  server.maxConnections = maxConnections
  return server
}

async function answer(handler: Handler, request: IncomingMessage, response: ServerResponse): Promise<void> {
  await handler(request, response)
}

function bind(server: Server, where: { host: string; port: number; ipv6Only: boolean }): Promise<void> {
  return new Promise((resolve, reject) => {
    server.once('error', reject)
    server.listen(where, () => {
      server.removeListener('error', reject)
      resolve()
    })
  })
}

function makeListener(server: Server, log: Logger): HttpListener {
  // After the bind only a failing accept reports here; connections that are open keep working, and so do later ones.
  server.on('error', (error) => log.error('cannot accept a connection', { error: describeError(error) }))
  const { address, port } = server.address() as AddressInfo
  return {
    address: hostPort(address, port),
    port,
    close(graceMs = 1_000) {
      return new Promise((resolve) => {
        const timer = graceMs > 0 ? setTimeout(() => server.closeAllConnections(), graceMs) : undefined
        server.close(() => {
          clearTimeout(timer)
          resolve()
        })
        if (graceMs > 0) server.closeIdleConnections()
        else server.closeAllConnections()
      })
    },
  }
}

function parseTarget(url: string): { path: string; query: URLSearchParams } | undefined {
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
