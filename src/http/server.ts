// Starts HTTP servers: binds addresses as Go does, limits slow and broken clients, and retries until a port is free.

import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http'
import type { AddressInfo, Socket } from 'node:net'
import { ConnectionLimit } from '../lib/connection-limit.ts'
import { describeError, hasErrno, ProxyError } from '../lib/errors.ts'
import { hostPort, isUnspecified, splitHostPort } from '../lib/ip.ts'
import type { Logger } from '../lib/log.ts'
import { type Clock, systemClock, type Timer } from '../lib/time.ts'
import { platform } from '../sys/platform/platform.ts'

export type Handler = (request: IncomingMessage, response: ServerResponse) => void | Promise<void>

interface Limits {
  readonly headersTimeoutMs: number
  readonly requestTimeoutMs: number
}

const defaultLimits: Limits = {
  headersTimeoutMs: 10_000,
  requestTimeoutMs: 30_000,
}

/** Health ports are open to everyone who reaches the node, and their clients send a small request at once. */
export const healthLimits: Limits = { headersTimeoutMs: 2_000, requestTimeoutMs: 5_000 }

/** How long an idle connection may wait for its next request. */
const keepAliveMs = 75_000

/** Node checks its timeouts at an interval, also without a connection: that wakes an idle proxy all the time. */
const neverMs = 2 ** 31 - 1

const defaultMaxConnections = 1024

export interface HttpListenOptions {
  /** `ip:port`; with port 0 the kernel chooses a port. */
  readonly address: string
  readonly handler: Handler
  /** Go's names: `tcp` serves both families on a wildcard address, `tcp4` and `tcp6` only one. */
  readonly network?: 'tcp' | 'tcp4' | 'tcp6'
  readonly log: Logger
  readonly limits?: Partial<Limits>
  /** Several servers may share one limit. */
  readonly connections?: ConnectionLimit
}

export interface HttpListener {
  /** The address as bound. */
  readonly address: string
  readonly port: number
  /** Gives requests that are being answered `graceMs` to finish. */
  close(graceMs?: number): Promise<void>
}

/** Resolves once requests are accepted; rejects with a ProxyError `listen` that names the address. */
export async function listen(options: HttpListenOptions): Promise<HttpListener> {
  const target = splitHostPort(options.address)
  if (target === undefined) throw new ProxyError('listen', `cannot listen on "${options.address}": not an ip:port`)
  let failure: unknown
  for (const { host, ipv6Only } of bindHosts(target.host, options.network ?? 'tcp')) {
    const server = makeServer(options)
    try {
      await bind(server, { host, port: target.port, ipv6Only })
      return makeListener(server, options.log)
    } catch (error) {
      failure = error
      if (!isFamilyMissing(error)) break
    }
  }
  throw new ProxyError('listen', `cannot listen on ${options.address}`, {
    cause: failure,
    fields: { address: options.address },
  })
}

export interface ServeOptions extends HttpListenOptions {
  /** The name of the server in log lines: `health server`. */
  readonly name: string
  /** Report the first failure and stop, instead of trying again every five seconds. */
  readonly hardFail?: boolean
  readonly onFatal?: (error: ProxyError) => void
  readonly onListening?: (listener: HttpListener) => void
  readonly clock?: Clock
}

const retryMs = 5_000

/** Listens now or, if the address is not free, later. The caller never waits for the port. */
export function serveWithRetry(options: ServeOptions): { close(): Promise<void> } {
  const clock = options.clock ?? systemClock
  let isClosed = false
  let timer: Timer | undefined
  let listener: HttpListener | undefined

  const attempt = async (): Promise<void> => {
    try {
      listener = await listen(options)
    } catch (error) {
      if (!isClosed) fail(error instanceof ProxyError ? error : new ProxyError('listen', describeError(error)))
      return
    }
    if (isClosed) return listener.close()
    options.log.info('Listening', { server: options.name, address: listener.address })
    options.onListening?.(listener)
  }

  const fail = (error: ProxyError): void => {
    if (options.hardFail) {
      options.onFatal?.(error)
      return
    }
    options.log.error('Cannot listen, trying again in 5s', { server: options.name, error: describeError(error) })
    timer = clock.after(retryMs, () => {
      current = attempt()
    })
  }

  let current = attempt()
  return {
    async close() {
      isClosed = true
      timer?.cancel()
      await current
      await listener?.close()
    },
  }
}

interface BindHost {
  readonly host: string
  readonly ipv6Only: boolean
}

/** Returns the hosts to try in order. For a wildcard of plain `tcp`, Go opens one dual-stack socket; Node's 0.0.0.0 does not serve [::1]. */
function bindHosts(host: string, network: 'tcp' | 'tcp4' | 'tcp6'): readonly BindHost[] {
  if (network === 'tcp4') return [{ host: host || '0.0.0.0', ipv6Only: false }]
  if (network === 'tcp6') return [{ host: host || '::', ipv6Only: true }]
  if (host !== '' && !isUnspecified(host)) return [{ host, ipv6Only: false }]
  return [
    { host: '::', ipv6Only: false },
    { host: '0.0.0.0', ipv6Only: false },
  ]
}

/** True if this machine has no IPv6 or has it switched off. */
const isFamilyMissing = (error: unknown): boolean => hasErrno(error, 'EAFNOSUPPORT', 'EADDRNOTAVAIL')

function makeServer({ handler, log, limits, connections = makeConnectionLimit() }: HttpListenOptions): Server {
  const server = createServer(
    { connectionsCheckingInterval: neverMs, keepAliveTimeout: keepAliveMs, maxHeaderSize: 16_384 },
    (request, response) => {
      connections.serve(request.socket, response)
      // A client that disconnects before the end of the reply is not worth a log line.
      response.on('error', () => {})
      answer(handler, request, response).catch((error: unknown) => {
        log.error('Request failed', { url: request.url, error: describeError(error) })
        response.destroy()
      })
    },
  )
  server.on('connection', (socket) => connections.add(socket))
  limitSlowClients(server, { ...defaultLimits, ...limits })
  return server
}

/** Ends connections whose clients are slow, by a timer for each connection instead of Node's interval. */
function limitSlowClients(server: Server, { headersTimeoutMs, requestTimeoutMs }: Limits): void {
  const timers = new WeakMap<Socket, NodeJS.Timeout>()
  const latest = new WeakMap<Socket, IncomingMessage>()
  const disarm = (socket: Socket) => clearTimeout(timers.get(socket))
  const arm = (socket: Socket, ms: number, isDone = () => false) => {
    disarm(socket)
    timers.set(socket, setTimeout(() => isDone() || endSlowClient(socket), ms).unref())
  }
  server.on('connection', (socket: Socket) => {
    arm(socket, headersTimeoutMs)
    socket.once('close', () => disarm(socket))
  })
  server.on('request', (request, response) => {
    const { socket } = request
    latest.set(socket, request)
    // The body may still come; what the answer takes is not the client's fault.
    arm(socket, requestTimeoutMs, () => request.complete)
    response.once('close', () => {
      if (!socket.destroyed && latest.get(socket) === request) arm(socket, keepAliveMs + headersTimeoutMs)
    })
  })
}

function endSlowClient(socket: Socket): void {
  if (socket.writable) socket.write('HTTP/1.1 408 Request Timeout\r\nConnection: close\r\n\r\n')
  socket.destroySoon()
}

/** Netlink and the API client need file descriptors too, so each limit is at most a fifth of what the process may open. */
export function makeConnectionLimit(wanted = defaultMaxConnections): ConnectionLimit {
  const maxConnections = Math.max(1, Math.min(wanted, Math.floor(platform.openFileLimit() / 5)))
  return new ConnectionLimit({ maxConnections, whenBusy: 'close-oldest' })
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
  // After the bind, only a failed accept is reported here; open and later connections keep working.
  server.on('error', (error) => log.error('Cannot accept a connection', { error: describeError(error) }))
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
