// Serves the API over HTTP and HTTPS: authentication, limits for bodies, compression, and watches that never block other requests.

import { createServer as createHttpServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http'
import { createServer as createHttpsServer } from 'node:https'
import type { AddressInfo } from 'node:net'
import type { Duplex } from 'node:stream'
import { gzip } from 'node:zlib'
import { ConnectionLimit } from '../../lib/connection-limit.ts'
import { describeError, ProxyError } from '../../lib/errors.ts'
import { isTrustedHost } from '../../lib/host-header.ts'
import { hostPort } from '../../lib/ip.ts'
import type { Logger } from '../../lib/log.ts'
import { openFileLimit } from '../../sys/kernel-facts.ts'
import type { WatchSink } from '../requests/watch-queue.ts'
import { badRequest, misdirected, type StatusError, tooLarge, unauthorized } from '../schema/api-status.ts'
import type { KeyPair } from './certificate.ts'
import { isPublic } from './documents.ts'
import { failureResponse, type RestResponse } from './rest-messages.ts'
import type { ApiRouter } from './router.ts'

export interface RestListenOptions {
  readonly router: ApiRouter
  readonly address: string
  readonly port: number
  /** undefined: plain HTTP. */
  readonly keyPair: KeyPair | undefined
  /** Checks the Authorization header. undefined: all clients are authorized. */
  readonly isAuthorized: ((authorization: string | undefined) => boolean) | undefined
  readonly maxConnections: number | undefined
  readonly log: Logger
}

export interface ApiListener {
  readonly port: number
  close(): Promise<void>
}

/** The limit of the real server, somewhat above the size of the largest object. */
const maxBodyBytes = 3 << 20
/** A fifth of the files that the process may open is left to each listener, and the rest to the proxy. */
const chooseMaxConnections = (): number => Math.max(1, Math.min(4096, Math.floor(openFileLimit() / 5)))
const compressAbove = 128 << 10
/** A watch that ends with more unsent bytes than this closes its connection instead of sending them. */
const maxUnsentBytes = 64 << 10
/** A client that reads nothing of its response for this long is disconnected: the response takes memory. */
const unreadTimeoutMs = 30_000
const closeTimeoutMs = 500
const limits = { headersTimeout: 20_000, requestTimeout: 60_000, keepAliveTimeout: 120_000, maxHeaderSize: 32_768 }
/** The time for the TLS handshake, which comes before the headers. */
const handshakeTimeout = 10_000

/** Rejects with a ProxyError `listen`. */
export async function listenApi(options: RestListenOptions): Promise<ApiListener> {
  const stopped = new AbortController()
  const { keyPair, maxConnections = chooseMaxConnections() } = options
  const connections = new ConnectionLimit({ maxConnections, whenBusy: 'refuse-new' })
  const onRequest = (request: IncomingMessage, response: ServerResponse) => {
    // A client that disconnects during the response is not worth a log line.
    response.on('error', () => {})
    respond({ ...options, connections, stopped: stopped.signal }, request, response).catch((error: unknown) => {
      options.log.error('A request failed', { url: request.url, error: describeError(error) })
      response.destroy()
    })
  }
  const server: Server =
    keyPair === undefined
      ? createHttpServer(limits, onRequest)
      : createHttpsServer({ ...limits, handshakeTimeout, ...keyPair }, onRequest)
  server.on('connection', (socket) => connections.add(socket))
  server.on('clientError', (_error, socket) => refuseMalformed(socket))
  await listen(server, options)
  server.on('error', (error) => options.log.error('Cannot accept a connection', { error: describeError(error) }))
  return {
    // A server that listens on TCP has an AddressInfo.
    port: (server.address() as AddressInfo).port,
    close() {
      stopped.abort()
      return close(server)
    },
  }
}

function listen(server: Server, { address, port }: RestListenOptions): Promise<void> {
  return new Promise((resolve, reject) => {
    server.once('error', (error) =>
      reject(new ProxyError('listen', `cannot listen on ${hostPort(address, port)}`, { cause: error })),
    )
    server.listen({ host: address, port }, resolve)
  })
}

/** Gives responses that are under way some time to end. */
function close(server: Server): Promise<void> {
  return new Promise((resolve) => {
    const timer = setTimeout(() => server.closeAllConnections(), closeTimeoutMs)
    server.close(() => {
      clearTimeout(timer)
      resolve()
    })
    server.closeIdleConnections()
  })
}

function refuseMalformed(socket: Duplex): void {
  if (!socket.writable) {
    socket.destroy()
    return
  }
  const { body } = failureResponse(badRequest('this is not a valid HTTP request').refusal)
  const head = `Content-Type: application/json\r\nContent-Length: ${Buffer.byteLength(body)}\r\nConnection: close`
  socket.end(`HTTP/1.1 400 Bad Request\r\n${head}\r\n\r\n${body}`)
}

interface ServingOptions extends RestListenOptions {
  readonly connections: ConnectionLimit
  readonly stopped: AbortSignal
}

async function respond(options: ServingOptions, request: IncomingMessage, response: ServerResponse): Promise<void> {
  const { path, query } = parseTarget(request.url ?? '/')
  const refusal = findRefusal(options, request, path)
  if (refusal !== undefined) return send(request, response, failureResponse(refusal.refusal))
  const hasRights = options.isAuthorized === undefined || !isPublic(path)
  // Public requests do not protect their connection from being closed for another.
  if (hasRights) options.connections.serve(request.socket, response)
  // Public documents need no body, and a client without a token may not fill the memory with one.
  const body = hasRights ? await readAll(request) : emptyBody
  if (body === undefined) {
    response.setHeader('Connection', 'close')
    return send(request, response, failureResponse(tooLarge(maxBodyBytes).refusal))
  }
  const answer = await options.router.respond({
    method: request.method ?? 'GET',
    path: path === '' ? '/' : path,
    query,
    accept: request.headers.accept ?? '',
    contentType: request.headers['content-type'] ?? '',
    body,
  })
  if (answer.stream === undefined || request.method === 'HEAD') return send(request, response, answer)
  await stream(answer, response, options.stopped)
}

/**
 * With a token any Host is served: a page in a browser has no token to send. Without one the server is on loopback, where a page could
 * reach it by DNS rebinding (its own name as Host) or by a simple request to another site (Origin), so both are refused.
 */
function findRefusal(
  { isAuthorized }: RestListenOptions,
  { headers }: IncomingMessage,
  path: string,
): StatusError | undefined {
  if (isAuthorized !== undefined) {
    return isPublic(path) || isAuthorized(headers.authorization) ? undefined : unauthorized()
  }
  return headers.origin === undefined && isTrustedHost(headers.host, noNames) ? undefined : misdirected()
}

const emptyBody = Buffer.alloc(0)
const noNames: ReadonlySet<string> = new Set()

function parseTarget(url: string): { path: string; query: URLSearchParams } {
  // Some clients and proxies send the absolute form.
  const target = url.replace(/^https?:\/\/[^/?#]*/i, '')
  const question = target.indexOf('?')
  if (question < 0) return { path: target, query: new URLSearchParams() }
  return { path: target.slice(0, question), query: new URLSearchParams(target.slice(question + 1)) }
}

/** Resolves to undefined if the body is too long; then the rest of it is not read. */
async function readAll(request: IncomingMessage): Promise<Buffer | undefined> {
  const chunks: Buffer[] = []
  let size = 0
  // A request without an encoding yields buffers.
  for await (const chunk of request.iterator({ destroyOnReturn: false }) as AsyncIterable<Buffer>) {
    size += chunk.length
    if (size > maxBodyBytes) return undefined
    chunks.push(chunk)
  }
  return Buffer.concat(chunks)
}

async function send(request: IncomingMessage, response: ServerResponse, answer: RestResponse): Promise<void> {
  const plain = Buffer.from(answer.body, answer.encoding)
  const acceptsGzip = /\bgzip\b/.test(String(request.headers['accept-encoding'] ?? ''))
  const isCompressed = acceptsGzip && plain.length > compressAbove
  const body = isCompressed ? await compress(plain) : plain
  const headers: Readonly<Record<string, string | number | readonly string[]>> = {
    'Content-Type': answer.type,
    'Cache-Control': 'no-cache, private',
    'X-Content-Type-Options': 'nosniff',
    ...answer.headers,
    ...(isCompressed ? { 'Content-Encoding': 'gzip' } : {}),
    'Content-Length': body.length,
  }
  for (const [name, value] of Object.entries(headers)) response.setHeader(name, value)
  response.socket?.setTimeout(unreadTimeoutMs)
  response.writeHead(answer.status)
  response.end(request.method === 'HEAD' ? undefined : body)
}

const compress = (bytes: Buffer): Promise<Buffer> =>
  new Promise((resolve, reject) =>
    gzip(bytes, { level: 1 }, (error, zipped) => (error === null ? resolve(zipped) : reject(error))),
  )

async function stream(answer: RestResponse, response: ServerResponse, stopped: AbortSignal): Promise<void> {
  const disconnected = new AbortController()
  const onClose = () => disconnected.abort()
  response.once('close', onClose)
  // A watch may have nothing to send for minutes.
  response.socket?.setTimeout(0)
  response.writeHead(answer.status, { 'Content-Type': answer.type, 'Cache-Control': 'no-cache, private' })
  response.flushHeaders()
  try {
    await answer.stream?.(createSink(response, answer.encoding), AbortSignal.any([disconnected.signal, stopped]))
  } finally {
    response.removeListener('close', onClose)
  }
  if (response.writableLength > maxUnsentBytes) response.destroy()
  else {
    response.socket?.setTimeout(unreadTimeoutMs)
    response.end()
  }
}

const createSink = (response: ServerResponse, encoding: BufferEncoding = 'utf8'): WatchSink => ({
  write: (text) => response.write(text, encoding),
  drained: () =>
    new Promise((resolve) => {
      if (response.destroyed || !response.writableNeedDrain) {
        resolve()
        return
      }
      const onDrained = () => {
        response.removeListener('drain', onDrained)
        response.removeListener('close', onDrained)
        resolve()
      }
      response.once('drain', onDrained).once('close', onDrained)
    }),
  get buffered() {
    return response.writableLength
  },
})
