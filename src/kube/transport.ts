// Sockets to the API server: keep-alive, TLS material that is read again when it changes, tunnels through proxies.

import { existsSync, readFileSync } from 'node:fs'
import { readFile } from 'node:fs/promises'
import { type ClientRequest, Agent as HttpAgent, request as httpRequest, type IncomingMessage } from 'node:http'
import { Agent as HttpsAgent, request as httpsRequest } from 'node:https'
import { isIP } from 'node:net'
import type { Duplex } from 'node:stream'
import { type ConnectionOptions, checkServerIdentity, connect, createSecureContext, type SecureContext } from 'node:tls'
import { ProxyError } from '../lib/errors.ts'
import type { Logger } from '../lib/log.ts'
import type { Clock } from '../lib/time.ts'
import { networkError } from './api-errors.ts'
import type { Connection, Source } from './connection.ts'
import type { Credential } from './exec-plugin.ts'
import { hostOf, openTunnel, portOf, proxyAuthorization } from './http-proxy.ts'

const recheckMs = 60_000
/** A peer that is gone without a word is found out in this time plus ten probes a second apart (libuv's choice). */
const keepAliveMs = 30_000
/** Each takes a connection out of the pool, so a new one comes long before. */
const staleTries = 20

export interface Sending {
  readonly method: string
  /** With query. */
  readonly path: string
  readonly headers: Readonly<Record<string, string | string[] | number>>
  readonly body: Buffer | undefined
  readonly certificate: Credential['certificate']
  readonly signal: AbortSignal | undefined
}

interface Material {
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
  #material: Material | undefined
  #checked = Number.NEGATIVE_INFINITY
  #closed = false

  constructor(connection: Connection, clock: Clock, log: Logger) {
    this.#connection = connection
    this.#clock = clock
    this.#log = log
  }

  /** Resolves with the response's head. A body that breaks off rejects in the reader. */
  async send(sending: Sending): Promise<IncomingMessage> {
    const agent = await this.#currentAgent(sending.certificate)
    for (let stale = 0; ; stale++) {
      try {
        return await this.#attempt(sending, agent)
      } catch (error) {
        if (!(error instanceof StaleSocket)) throw error
        // The server closed an idle connection just as we took it from the pool: nothing was processed. Others there may be like it.
        if (sending.method !== 'GET' || stale === staleTries) throw error.error
      }
    }
  }

  /** Certificates or keys may have been replaced: look before the next request. */
  recheck(): void {
    this.#checked = Number.NEGATIVE_INFINITY
  }

  close(): void {
    this.#closed = true
    for (const request of this.#live) request.destroy()
    this.#agent?.destroy()
  }

  #attempt(sending: Sending, agent: HttpAgent | HttpsAgent): Promise<IncomingMessage> {
    if (this.#closed) return Promise.reject(new ProxyError('closed', 'the API client is closed'))
    if (sending.signal?.aborted) return Promise.reject(sending.signal.reason)
    const { server, proxy } = this.#connection
    const relayed = proxy !== undefined && server.protocol === 'http:'
    const url = `${server.origin}${sending.path}`
    return new Promise((resolve, reject) => {
      const make = server.protocol === 'https:' ? httpsRequest : httpRequest
      const request = make({
        host: hostOf(relayed ? proxy : server),
        port: portOf(relayed ? proxy : server),
        path: relayed ? url : sending.path,
        method: sending.method,
        headers: { host: server.host, ...sending.headers, ...(relayed ? proxyAuthorization(proxy) : {}) },
        agent,
      })
      const onAbort = () => request.destroy(asError(sending.signal?.reason))
      sending.signal?.addEventListener('abort', onAbort, { once: true })
      this.#live.add(request)
      request.once('close', () => {
        this.#live.delete(request)
        sending.signal?.removeEventListener('abort', onAbort)
      })
      request.once('socket', (socket) => socket.setKeepAlive(true, keepAliveMs))
      request.once('response', resolve)
      request.on('error', (error) => {
        if (sending.signal?.aborted) return reject(sending.signal.reason)
        const failure = networkError(`${sending.method} ${url.split('?')[0]}`, error)
        if (failure.code === 'tls') this.recheck()
        const stale = request.reusedSocket && (error as NodeJS.ErrnoException).code === 'ECONNRESET'
        reject(stale ? new StaleSocket(failure) : failure)
      })
      request.end(sending.body)
    })
  }

  async #currentAgent(certificate: Credential['certificate']): Promise<HttpAgent | HttpsAgent> {
    const { server } = this.#connection
    if (server.protocol === 'http:') {
      this.#agent ??= new HttpAgent({ keepAlive: true, keepAliveMsecs: keepAliveMs, ...addressing })
      return this.#agent
    }
    const due = this.#clock.monotonic() - this.#checked >= recheckMs
    if (this.#agent !== undefined && !due && (certificate === undefined || this.#material?.cert === certificate.cert)) {
      return this.#agent
    }
    try {
      const material = await this.#readMaterial(certificate)
      this.#checked = this.#clock.monotonic()
      if (this.#agent === undefined || !equal(material, this.#material)) this.#replaceAgent(material)
    } catch (error) {
      // Half-way through a rotation certificate and key need not fit; what we have goes on until they do.
      if (this.#agent === undefined) throw error
      this.#log.warn('TLS files cannot be used now; the last ones stay in use', { error })
    }
    return this.#agent as HttpsAgent
  }

  async #readMaterial(given: Credential['certificate']): Promise<Material> {
    const { ca, certificate } = this.#connection
    const pem = async (source: Source) => {
      if ('text' in source) return source.text
      try {
        return await readFile(source.file, 'utf8')
      } catch (error) {
        throw new ProxyError('tls', `${source.field}: cannot read ${source.file}`, { cause: error })
      }
    }
    return {
      ca: ca === undefined ? systemRoots() : await pem(ca),
      cert: given?.cert ?? (certificate && (await pem(certificate.cert))),
      key: given?.key ?? (certificate && (await pem(certificate.key))),
    }
  }

  /** Running requests stay on their connections; new ones make new connections. */
  #replaceAgent(material: Material): void {
    const agent = this.#makeAgent(material)
    const old = this.#agent
    if (old !== undefined) {
      this.#log.info('TLS material has changed', { server: this.#connection.server.origin })
      old.maxFreeSockets = 0
      for (const sockets of Object.values(old.freeSockets)) for (const socket of sockets ?? []) socket.destroy()
    }
    this.#agent = agent
    this.#material = material
  }

  #makeAgent(material: Material): HttpsAgent {
    const { server, serverName, insecure, proxy, origin } = this.#connection
    let secureContext: SecureContext
    try {
      // Like Go, and unlike OpenSSL's default, any certificate of the bundle is trusted, not only self-signed roots.
      const trust = { ca: material.ca, allowPartialTrustChain: true }
      secureContext = createSecureContext({ ...trust, cert: material.cert, key: material.key })
    } catch (error) {
      throw new ProxyError('tls', `${origin}: certificates cannot be used`, { cause: error })
    }
    const host = hostOf(server)
    const name = serverName || host
    const options: ConnectionOptions = {
      secureContext,
      rejectUnauthorized: !insecure,
      // SNI must not carry an address.
      servername: isIP(name) === 0 ? name : '',
      checkServerIdentity: (_, cert) => checkServerIdentity(name, cert),
    }
    const agent = new HttpsAgent({ keepAlive: true, keepAliveMsecs: keepAliveMs, ...addressing, ...options })
    if (proxy !== undefined) {
      const tunnelled: CreateConnection = (_, done) => {
        openTunnel(proxy, host, portOf(server)).then(
          (socket) => done(null, connect({ ...options, socket })),
          (error) => done(asError(error)),
        )
        return undefined
      }
      Object.assign(agent, { createConnection: tunnelled })
    }
    return agent
  }
}

type CreateConnection = (options: object, done: (error: Error | null, socket?: Duplex) => void) => undefined

/** Node gives up on an address after 250 ms when a name has several; an API server may be further away. */
const addressing = { autoSelectFamilyAttemptTimeout: 2_500 }

class StaleSocket {
  readonly error: ProxyError
  constructor(error: ProxyError) {
    this.error = error
  }
}

const asError = (reason: unknown): Error => (reason instanceof Error ? reason : new Error(String(reason)))

const equal = (a: Material, b: Material | undefined): boolean =>
  a.ca === b?.ca && a.cert === b?.cert && a.key === b?.key

/** Where distributions keep their roots. Node would use its own list, which knows no CA of a company. */
const rootFiles = ['/etc/ssl/certs/ca-certificates.crt', '/etc/pki/tls/certs/ca-bundle.crt', '/etc/ssl/cert.pem']

function systemRoots(): string | undefined {
  const file = rootFiles.find((path) => existsSync(path))
  return file === undefined ? undefined : readFileSync(file, 'utf8')
}
