// Sends requests to the API server: keep-alive, TLS files that are read again when they change, and tunnels through proxies.

import { existsSync, readFileSync } from 'node:fs'
import { readFile } from 'node:fs/promises'
import { type ClientRequest, Agent as HttpAgent, request as httpRequest, type IncomingMessage } from 'node:http'
import { Agent as HttpsAgent, request as httpsRequest } from 'node:https'
import { isIP } from 'node:net'
import type { Duplex } from 'node:stream'
import { type ConnectionOptions, checkServerIdentity, connect, createSecureContext, type SecureContext } from 'node:tls'
import { hasErrno, ProxyError } from '../lib/errors.ts'
import type { Logger } from '../lib/log.ts'
import type { Clock } from '../lib/time.ts'
import { makeNetworkError } from './api-errors.ts'
import type { Connection, PemSource } from './connection.ts'
import type { DialedAddresses } from './dialed-addresses.ts'
import type { Credential } from './exec-plugin.ts'
import { getHost, getPort, makeProxyAuthorization, openTunnel } from './http-proxy.ts'

/** How often the TLS files are read again. */
const recheckMs = 60_000
/** A peer that disappeared without closing is detected after this time plus ten probes, one per second (libuv's choice). */
const keepAliveMs = 30_000
/** Each attempt removes a connection from the pool, so that a new connection is opened long before. */
const maxStaleSockets = 20

export interface OutgoingRequest {
  readonly method: string
  /** Path and query. */
  readonly path: string
  readonly headers: Readonly<Record<string, string | string[] | number>>
  readonly body: Buffer | undefined
  readonly certificate: Credential['certificate']
  readonly signal: AbortSignal | undefined
}

/** A connection that the server has handed over to another protocol. */
export interface UpgradedConnection {
  readonly response: IncomingMessage
  readonly socket: Duplex
  /** What the server sent already in the new protocol. */
  readonly head: Buffer
}

interface TlsMaterial {
  readonly ca: string | undefined
  readonly cert: string | undefined
  readonly key: string | undefined
}

export class Transport {
  readonly #connection: Connection
  readonly #clock: Clock
  readonly #log: Logger
  readonly #live = new Set<ClientRequest>()
  #agent: HttpAgent | HttpsAgent | undefined
  #material: TlsMaterial | undefined
  #checkedAt = Number.NEGATIVE_INFINITY
  #closed = false

  readonly #dialed: DialedAddresses

  constructor(connection: Connection, clock: Clock, log: Logger, dialed: DialedAddresses) {
    this.#connection = connection
    this.#clock = clock
    this.#log = log
    this.#dialed = dialed
  }

  /** Resolves with the head of the response. If the body breaks off, its reader gets the error. */
  async send(outgoing: OutgoingRequest): Promise<IncomingMessage> {
    const agent = await this.#currentAgent(outgoing.certificate)
    for (let stale = 0; ; stale++) {
      try {
        return await this.#attempt(outgoing, agent)
      } catch (error) {
        if (!(error instanceof StaleSocket)) throw error
        // The server closed an idle connection just as it was taken from the pool, so it processed nothing. Other idle connections may be
        // closed, too.
        if (outgoing.method !== 'GET' || stale === maxStaleSockets) throw error.error
      }
    }
  }

  /** Reads the TLS files again before the next request, since certificates or keys may have been replaced. */
  recheck(): void {
    this.#checkedAt = Number.NEGATIVE_INFINITY
  }

  close(): void {
    this.#closed = true
    for (const request of this.#live) request.destroy()
    this.#agent?.destroy()
  }

  /** Resolves with the connection once the server has switched protocols, or with the head of the answer if it has not. */
  async upgrade(outgoing: OutgoingRequest): Promise<UpgradedConnection | IncomingMessage> {
    const agent = await this.#currentAgent(outgoing.certificate)
    let upgraded: UpgradedConnection | undefined
    const onRequest = (request: ClientRequest, resolve: (response: IncomingMessage) => void) =>
      request.once('upgrade', (response, socket, head) => {
        upgraded = { response, socket, head }
        resolve(response)
      })
    const response = await this.#attempt(outgoing, agent, onRequest).catch((error: unknown) => {
      throw error instanceof StaleSocket ? error.error : error
    })
    return upgraded ?? response
  }

  #attempt(
    outgoing: OutgoingRequest,
    agent: HttpAgent | HttpsAgent,
    onRequest?: (request: ClientRequest, resolve: (response: IncomingMessage) => void) => void,
  ): Promise<IncomingMessage> {
    if (this.#closed) return Promise.reject(new ProxyError('closed', 'the API client is closed'))
    if (outgoing.signal?.aborted) return Promise.reject(outgoing.signal.reason)
    const url = `${this.#connection.server.origin}${outgoing.path}`
    return new Promise((resolve, reject) => {
      const request = this.#makeRequest(outgoing, agent)
      onRequest?.(request, resolve)
      const onAbort = () => request.destroy(toError(outgoing.signal?.reason))
      outgoing.signal?.addEventListener('abort', onAbort, { once: true })
      this.#live.add(request)
      request.once('close', () => {
        this.#live.delete(request)
        outgoing.signal?.removeEventListener('abort', onAbort)
        // Node closes a request without an error if the answer wants another protocol. After an answer this has no effect.
        reject(new ProxyError('connection', `${outgoing.method} ${url.split('?')[0]}: no usable answer`))
      })
      request.once('socket', (socket) => socket.setKeepAlive(true, keepAliveMs))
      request.once('response', resolve)
      request.on('error', (error) => {
        if (outgoing.signal?.aborted) return reject(outgoing.signal.reason)
        const failure = makeNetworkError(`${outgoing.method} ${url.split('?')[0]}`, error)
        if (failure.code === 'tls') this.recheck()
        const isStale = request.reusedSocket && hasErrno(error, 'ECONNRESET')
        reject(isStale ? new StaleSocket(failure) : failure)
      })
      request.end(outgoing.body)
    })
  }

  #makeRequest(outgoing: OutgoingRequest, agent: HttpAgent | HttpsAgent): ClientRequest {
    const { server, proxy } = this.#connection
    const isRelayed = proxy !== undefined && server.protocol === 'http:'
    const makeRequest = server.protocol === 'https:' ? httpsRequest : httpRequest
    return makeRequest({
      host: getHost(isRelayed ? proxy : server),
      port: getPort(isRelayed ? proxy : server),
      path: isRelayed ? `${server.origin}${outgoing.path}` : outgoing.path,
      method: outgoing.method,
      headers: { host: server.host, ...outgoing.headers, ...(isRelayed ? makeProxyAuthorization(proxy) : {}) },
      agent,
    })
  }

  async #currentAgent(certificate: Credential['certificate']): Promise<HttpAgent | HttpsAgent> {
    const { server } = this.#connection
    if (server.protocol === 'http:') {
      this.#agent ??= this.#dialed.observe(
        new HttpAgent({ keepAlive: true, keepAliveMsecs: keepAliveMs, ...addressOptions }),
      )
      return this.#agent
    }
    const isDue = this.#clock.monotonic() - this.#checkedAt >= recheckMs
    if (
      this.#agent !== undefined &&
      !isDue &&
      (certificate === undefined || this.#material?.cert === certificate.cert)
    ) {
      return this.#agent
    }
    try {
      const material = await this.#readMaterial(certificate)
      this.#checkedAt = this.#clock.monotonic()
      if (this.#agent !== undefined && areEqual(material, this.#material)) return this.#agent
      return this.#replaceAgent(material)
    } catch (error) {
      // In the middle of a rotation, certificate and key may not belong together. The last ones stay in use until they do.
      if (this.#agent === undefined) throw error
      this.#log.warn('The TLS files cannot be used now; the last ones stay in use', { error })
      return this.#agent
    }
  }

  async #readMaterial(given: Credential['certificate']): Promise<TlsMaterial> {
    const { ca, certificate } = this.#connection
    const pem = async (source: PemSource) => {
      if ('text' in source) return source.text
      try {
        return await readFile(source.file, 'utf8')
      } catch (error) {
        throw new ProxyError('tls', `${source.field}: cannot read ${source.file}`, { cause: error })
      }
    }
    return {
      ca: ca === undefined ? readSystemRoots() : await pem(ca),
      cert: given?.cert ?? (certificate && (await pem(certificate.cert))),
      key: given?.key ?? (certificate && (await pem(certificate.key))),
    }
  }

  /** Running requests keep their connections; new requests open new ones. */
  #replaceAgent(material: TlsMaterial): HttpsAgent {
    const agent = this.#makeAgent(material)
    const old = this.#agent
    if (old !== undefined) {
      this.#log.info('The TLS files have changed', { server: this.#connection.server.origin })
      old.maxFreeSockets = 0
      for (const sockets of Object.values(old.freeSockets)) for (const socket of sockets ?? []) socket.destroy()
    }
    this.#agent = agent
    this.#material = material
    return agent
  }

  #makeAgent(material: TlsMaterial): HttpsAgent {
    const { server, serverName, insecure, proxy, origin } = this.#connection
    let secureContext: SecureContext
    try {
      // As in Go, and unlike OpenSSL's default, any certificate of the bundle is trusted, not only self-signed roots.
      const trust = { ca: material.ca, allowPartialTrustChain: true }
      secureContext = createSecureContext({ ...trust, cert: material.cert, key: material.key })
    } catch (error) {
      throw new ProxyError('tls', `${origin}: certificates cannot be used`, { cause: error })
    }
    const host = getHost(server)
    const name = serverName || host
    const options: ConnectionOptions = {
      secureContext,
      rejectUnauthorized: !insecure,
      // SNI must not contain an address.
      servername: isIP(name) === 0 ? name : '',
      checkServerIdentity: (_, cert) => checkServerIdentity(name, cert),
    }
    const agent = new HttpsAgent({ keepAlive: true, keepAliveMsecs: keepAliveMs, ...addressOptions, ...options })
    if (proxy === undefined) this.#dialed.observe(agent)
    else {
      const tunnelled: CreateConnection = (_, done) => {
        openTunnel(proxy, host, getPort(server), (dialing) => this.#dialed.observe(dialing)).then(
          (socket) => done(null, connect({ ...options, socket })),
          (error) => done(toError(error)),
        )
        return undefined
      }
      Object.assign(agent, { createConnection: tunnelled })
    }
    return agent
  }
}

type CreateConnection = (options: object, done: (error: Error | null, socket?: Duplex) => void) => undefined

/** If a name has several addresses, Node gives up on one after 250 ms by default. An API server may be further away. */
const addressOptions = { autoSelectFamilyAttemptTimeout: 2_500 }

/** Thrown when the server has closed the idle connection that a request used. */
class StaleSocket {
  readonly error: ProxyError
  constructor(error: ProxyError) {
    this.error = error
  }
}

const toError = (reason: unknown): Error => (reason instanceof Error ? reason : new Error(String(reason)))

const areEqual = (a: TlsMaterial, b: TlsMaterial | undefined): boolean =>
  a.ca === b?.ca && a.cert === b?.cert && a.key === b?.key

/** Where distributions keep their roots. Node would use its own list, which does not contain the CA of a company. */
const rootFiles = ['/etc/ssl/certs/ca-certificates.crt', '/etc/pki/tls/certs/ca-bundle.crt', '/etc/ssl/cert.pem']

function readSystemRoots(): string | undefined {
  const file = rootFiles.find((path) => existsSync(path))
  return file === undefined ? undefined : readFileSync(file, 'utf8')
}
