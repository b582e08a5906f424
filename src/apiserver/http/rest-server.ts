// The API over HTTP and HTTPS: who may ask, how much they may send, and watches that never block the others.

import { createServer as createHttp, type IncomingMessage, type Server, type ServerResponse } from 'node:http'
import { createServer as createHttps } from 'node:https'
import type { AddressInfo } from 'node:net'
import { gzip } from 'node:zlib'
import { describeError, ProxyError } from '../../lib/errors.ts'
import { hostPort } from '../../lib/ip.ts'
import type { Logger } from '../../lib/log.ts'
import type { WatchSink } from '../requests/watch.ts'
import { badRequest, tooLarge, unauthorized } from '../schema/api-status.ts'
import type { KeyPair } from './certificate.ts'
import { type Api, type ApiAnswer, isPublic, refusalAnswer } from './router.ts'

export interface RestListenOptions {
  readonly api: Api
  readonly address: string
  readonly port: number
  /** undefined: plain HTTP. */
  readonly pair: KeyPair | undefined
  /** undefined: everybody may. */
  readonly authorized: ((authorization: string | undefined) => boolean) | undefined
  readonly log: Logger
}

export interface ApiListener {
  readonly port: number
  close(): Promise<void>
}

/** As the real server: somewhat more than an object may have. */
const maxBodyBytes = 3 << 20
const maxConnections = 4096
const compressAbove = 128 << 10

/** Rejects with a ProxyError `listen`. */
export async function listenApi(options: RestListenOptions): Promise<ApiListener> {
  const stopped = new AbortController()
  const handle = (request: IncomingMessage, response: ServerResponse) => {
    // A client that leaves in the middle is no news.
    response.on('error', () => {})
    serve(options, request, response, stopped.signal).catch((error: unknown) => {
      options.log.error('A request failed', { url: request.url, error: describeError(error) })
      response.destroy()
    })
  }
  const limits = { headersTimeout: 20_000, requestTimeout: 60_000, keepAliveTimeout: 120_000, maxHeaderSize: 32_768 }
  const server: Server =
    options.pair === undefined ? createHttp(limits, handle) : createHttps({ ...limits, ...options.pair }, handle)
  server.maxConnections = maxConnections
  server.on('clientError', (_error, socket) => {
    if (!socket.writable) {
      socket.destroy()
      return
    }
    const { body } = refusalAnswer(badRequest('this is no HTTP request').refusal)
    const head = `Content-Type: application/json\r\nContent-Length: ${Buffer.byteLength(body)}\r\nConnection: close`
    socket.end(`HTTP/1.1 400 Bad Request\r\n${head}\r\n\r\n${body}`)
  })
  await new Promise<void>((resolve, reject) => {
    server.once('error', (error) =>
      reject(new ProxyError('listen', `cannot listen on ${hostPort(options.address, options.port)}`, { cause: error })),
    )
    server.listen({ host: options.address, port: options.port }, resolve)
  })
  server.on('error', (error) => options.log.error('Cannot accept a connection', { error: describeError(error) }))
  return {
    port: (server.address() as AddressInfo).port,
    close() {
      stopped.abort()
      return new Promise((resolve) => {
        const timer = setTimeout(() => server.closeAllConnections(), 500)
        server.close(() => {
          clearTimeout(timer)
          resolve()
        })
        server.closeIdleConnections()
      })
    },
  }
}

async function serve(
  options: RestListenOptions,
  request: IncomingMessage,
  response: ServerResponse,
  stopped: AbortSignal,
): Promise<void> {
  // Some clients and proxies send the absolute form.
  const target = (request.url ?? '/').replace(/^https?:\/\/[^/?#]*/i, '')
  const mark = target.indexOf('?')
  const path = mark < 0 ? target : target.slice(0, mark)
  if (options.authorized !== undefined && !isPublic(path) && !options.authorized(request.headers.authorization)) {
    return send(request, response, refusalAnswer(unauthorized().refusal))
  }
  const body = await readBody(request)
  if (body === undefined) {
    response.setHeader('Connection', 'close')
    return send(request, response, refusalAnswer(tooLarge(maxBodyBytes).refusal))
  }
  const answer = await options.api.answer({
    method: request.method ?? 'GET',
    path: path === '' ? '/' : path,
    query: new URLSearchParams(mark < 0 ? '' : target.slice(mark + 1)),
    accept: request.headers.accept ?? '',
    contentType: request.headers['content-type'] ?? '',
    body,
  })
  if (answer.stream === undefined) return send(request, response, answer)
  if (request.method === 'HEAD') return send(request, response, answer)
  await stream(answer, response, stopped)
}

/** undefined if it is too long; then the rest is not read. */
async function readBody(request: IncomingMessage): Promise<Buffer | undefined> {
  const chunks: Buffer[] = []
  let size = 0
  for await (const chunk of request.iterator({ destroyOnReturn: false }) as AsyncIterable<Buffer>) {
    size += chunk.length
    if (size > maxBodyBytes) return undefined
    chunks.push(chunk)
  }
  return Buffer.concat(chunks)
}

async function send(request: IncomingMessage, response: ServerResponse, answer: ApiAnswer): Promise<void> {
  let body = Buffer.from(answer.body)
  const headers: Record<string, string | number | readonly string[]> = {
    'Content-Type': answer.type,
    'Cache-Control': 'no-cache, private',
    'X-Content-Type-Options': 'nosniff',
    ...answer.headers,
  }
  const accepts = /\bgzip\b/.test(String(request.headers['accept-encoding'] ?? ''))
  if (accepts && body.length > compressAbove) {
    body = await compress(body)
    headers['Content-Encoding'] = 'gzip'
  }
  response.writeHead(answer.status, { ...headers, 'Content-Length': body.length } as Record<
    string,
    string | number | string[]
  >)
  response.end(request.method === 'HEAD' ? undefined : body)
}

const compress = (bytes: Buffer): Promise<Buffer<ArrayBuffer>> =>
  new Promise((resolve, reject) =>
    gzip(bytes, { level: 1 }, (error, zipped) =>
      error === null ? resolve(zipped as Buffer<ArrayBuffer>) : reject(error),
    ),
  )

async function stream(answer: ApiAnswer, response: ServerResponse, stopped: AbortSignal): Promise<void> {
  const gone = new AbortController()
  const leave = () => gone.abort()
  response.once('close', leave)
  response.writeHead(answer.status, { 'Content-Type': answer.type, 'Cache-Control': 'no-cache, private' })
  response.flushHeaders()
  const sink: WatchSink = {
    write: (text) => response.write(text),
    drained: () =>
      new Promise((resolve) => {
        const done = () => {
          response.removeListener('drain', done)
          response.removeListener('close', done)
          resolve()
        }
        if (response.destroyed || !response.writableNeedDrain) resolve()
        else response.once('drain', done).once('close', done)
      }),
    get waiting() {
      return response.writableLength
    },
  }
  try {
    await answer.stream?.(sink, AbortSignal.any([gone.signal, stopped]))
  } finally {
    response.removeListener('close', leave)
  }
  if (response.writableLength > 1 << 20) response.destroy()
  else response.end()
}
