// The API client: credentials, rate limit, retries, and answers as JSON or protobuf, whole or as a stream of messages.

import type { IncomingMessage } from 'node:http'
import { parseBounded } from '../lib/bounded-json.ts'
import { ProxyError } from '../lib/errors.ts'
import type { Logger } from '../lib/log.ts'
import { type Clock, sleep } from '../lib/time.ts'
import { readBody } from './answer-body.ts'
import { makeNetworkError, makeStatusError, readRetryAfter } from './api-errors.ts'
import type { Connection } from './connection.ts'
import { ClientCredentials } from './credentials.ts'
import { Deadline } from './deadline.ts'
import { DialedAddresses } from './dialed-addresses.ts'
import { type MessageBatches, readFrames, readLines } from './message-stream.ts'
import { jsonType } from './protobuf/accept-types.ts'
import { isProtobufType, readStatus } from './protobuf/read-body.ts'
import { TokenBucket } from './rate-limiter.ts'
import { Transport, type UpgradedConnection } from './transport.ts'

/** Receives the figures of the rest_client_* metrics. */
export interface RequestObserver {
  request(measured: {
    readonly verb: string
    readonly host: string
    /** The HTTP status, or '<error>' if there was no answer. */
    readonly code: string
    readonly durationMs: number
    readonly requestBytes: number
    readonly responseBytes: number
    /** True for a stream: the duration ends at its first byte, and its size is unknown. */
    readonly watch: boolean
  }): void
  throttled(verb: string, host: string, ms: number): void
  retried(verb: string, host: string, code: string): void
}

export interface ClientOptions {
  readonly qps: number
  readonly burst: number
  readonly userAgent: string
  readonly log: Logger
  readonly clock: Clock
  readonly observer?: RequestObserver
  /** The Accept header of requests whose caller also reads protobuf; by default JSON alone. */
  readonly accept?: string
  /** Learns the addresses that the client dials. */
  readonly dialed?: DialedAddresses
  /** Called whenever the API server sends something: the head of an answer, or a part of a body or a watch. */
  readonly onHeard?: () => void
}

export interface RequestCall {
  readonly path: string
  /** A list gives the parameter several times. */
  readonly query?: Readonly<Record<string, string | readonly string[] | undefined>>
  readonly signal?: AbortSignal
  /** True if the caller also reads protobuf. The server then chooses among the types that `ClientOptions.accept` names. */
  readonly readsProtobuf?: boolean
}

/** The answer to a request. A server may answer in JSON although protobuf was asked for. */
export interface ApiAnswer {
  readonly status: number
  /** Undefined if the answer is empty, or in protobuf. */
  readonly json: unknown
  readonly protobuf?: Buffer
}

export interface ApiRequest extends RequestCall {
  readonly method?: string
  readonly body?: unknown
  readonly contentType?: string
}

export const defaultUserAgent = 'kube-proxy/v1.36.4 (linux/amd64) sluice'

/** Limit until the head of an answer. The API server queues a request for at most a minute. */
const headMs = 75_000
/** An exec plugin has a shorter limit of its own. This one is for a token file on a file system that hangs. */
const credentialsMs = 75_000
/** An object has at most 1.5 MiB in etcd; JSON makes it larger. */
const maxMessageBytes = 16 << 20
const maxRetries = 10
const maxRetryAfterMs = 60_000

export class Client {
  readonly #connection: Connection
  readonly #options: ClientOptions
  readonly #credentials: ClientCredentials
  readonly #transport: Transport
  readonly #bucket: TokenBucket

  constructor(connection: Connection, options: ClientOptions) {
    this.#connection = connection
    this.#options = options
    this.#credentials = new ClientCredentials(connection.auth, options.clock, options.log)
    const { clock, log, dialed = new DialedAddresses(clock) } = options
    this.#transport = new Transport(connection, clock, log, dialed)
    this.#bucket = new TokenBucket(options.qps, options.burst, options.clock)
  }

  get server(): string {
    return this.#connection.server.origin
  }

  /** Throws a ProxyError whose code says the reason; see api-errors.ts. */
  async request(request: ApiRequest): Promise<ApiAnswer> {
    const method = request.method ?? 'GET'
    const waitedMs = await this.#bucket.acquire(request.signal)
    this.#options.observer?.throttled(method, this.#host, waitedMs)
    const deadline = new Deadline(this.#options.clock, request.signal)
    try {
      const { response, report } = await this.#exchange(request, deadline, false)
      const body = await this.#readBody(response, deadline, this.#describe(request))
      report(body.length)
      const status = response.statusCode ?? 0
      if (isProtobufType(response.headers['content-type'])) return { status, json: undefined, protobuf: body }
      return { status, json: body.length === 0 ? undefined : parseBody(body.toString('utf8'), this.#describe(request)) }
    } finally {
      deadline.end()
    }
  }

  /**
   * Resolves when the server has accepted the request; then yields arrays of complete messages as they come. Ends when the server ends the
   * stream, throws when the connection breaks. As in client-go, watches are not rate limited.
   */
  async stream(call: RequestCall): Promise<MessageBatches> {
    const deadline = new Deadline(this.#options.clock, call.signal)
    try {
      const { response, report } = await this.#exchange(call, deadline, true)
      report(0)
      deadline.stop()
      return this.#readMessages(response, deadline, this.#describe(call))
    } catch (error) {
      deadline.end()
      throw error
    }
  }

  /** Asks the server to go on in another protocol on the same connection. Throws a ProxyError if it does not. */
  async upgrade(call: RequestCall, headers: Readonly<Record<string, string>>): Promise<UpgradedConnection> {
    const deadline = new Deadline(this.#options.clock, call.signal)
    const what = this.#describe(call)
    try {
      deadline.start(headMs, () => new ProxyError('timeout', `${what}: no answer in ${headMs / 1000} s`))
      const { authorization, certificate } = await deadline.race(this.#credentials.identity())
      const answer = await this.#transport.upgrade({
        method: 'GET',
        path: this.#path(call),
        headers: {
          'user-agent': this.#options.userAgent,
          ...this.#connection.headers,
          ...(authorization === '' ? {} : { authorization }),
          ...headers,
        },
        body: undefined,
        certificate,
        signal: deadline.signal,
      })
      if ('socket' in answer && 'head' in answer) return answer
      const refusal = await this.#readBody(answer, deadline, what)
      throw makeStatusError({ status: answer.statusCode ?? 0, body: parseRefusal(answer, refusal), what })
    } finally {
      deadline.end()
    }
  }

  close(): void {
    this.#credentials.close()
    this.#transport.close()
  }

  #readMessages(response: IncomingMessage, deadline: Deadline, what: string): MessageBatches {
    const read = isProtobufType(response.headers['content-type']) ? readFrames : readLines
    return read(response, {
      maxBytes: maxMessageBytes,
      onHeard: this.#options.onHeard,
      explain: (error) => deadline.reason ?? makeNetworkError(what, error),
      done: () => deadline.end(),
    })
  }

  /** Sends the request until it succeeds, or fails in a way that another attempt will not change. */
  async #exchange(request: ApiRequest, deadline: Deadline, watch: boolean): Promise<Exchange> {
    const body = request.body === undefined ? undefined : Buffer.from(JSON.stringify(request.body))
    let isRenewed = false
    for (let retries = 0; ; ) {
      deadline.start(credentialsMs, () => new ProxyError('credentials', `no credentials in ${credentialsMs / 1000} s`))
      const identity = await deadline.race(this.#credentials.identity())
      const { response, report } = await this.#send({ request, body, watch, identity }, deadline)
      const status = response.statusCode ?? 0
      if (status >= 200 && status < 300) return { response, report }
      const refusal = await this.#readBody(response, deadline, this.#describe(request))
      report(refusal.length)
      const retryAfterMs = readRetryAfter(response.headers['retry-after'])
      const verb = request.method ?? 'GET'
      if (status === 401 && !isRenewed && this.#credentials.reject(identity)) {
        isRenewed = true
        this.#transport.recheck()
        this.#options.observer?.retried(verb, this.#host, '401')
      } else if (retryAfterMs !== undefined && (status === 429 || status >= 500) && retries < maxRetries) {
        retries++
        this.#options.observer?.retried(verb, this.#host, String(status))
        this.#options.log.v(2, 'The API server asks to retry later', { path: request.path, status, retryAfterMs })
        deadline.stop()
        await sleep(this.#options.clock, Math.min(retryAfterMs, maxRetryAfterMs), request.signal)
      } else {
        if (status === 401) this.#transport.recheck()
        throw makeStatusError({
          status,
          body: parseRefusal(response, refusal),
          what: this.#describe(request),
          retryAfterMs,
        })
      }
    }
  }

  async #send(attempt: Attempt, deadline: Deadline): Promise<Exchange> {
    const { request, body, watch, identity } = attempt
    const { observer, clock, userAgent } = this.#options
    const verb = request.method ?? 'GET'
    const started = clock.monotonic()
    const report = (code: string) => (responseBytes: number) =>
      observer?.request({
        verb,
        host: this.#host,
        code,
        durationMs: clock.monotonic() - started,
        requestBytes: body?.length ?? 0,
        responseBytes,
        watch,
      })
    const gzip = !watch && this.#connection.compression
    deadline.start(
      headMs,
      () => new ProxyError('timeout', `${this.#describe(request)}: no answer in ${headMs / 1000} s`),
    )
    try {
      const response = await this.#transport.send({
        method: verb,
        path: this.#path(request),
        headers: {
          accept: (request.readsProtobuf === true ? this.#options.accept : undefined) ?? jsonType,
          'user-agent': userAgent,
          ...this.#connection.headers,
          ...(gzip ? { 'accept-encoding': 'gzip' } : {}),
          ...(identity.authorization === '' ? {} : { authorization: identity.authorization }),
          ...(body === undefined
            ? {}
            : { 'content-type': request.contentType ?? jsonType, 'content-length': body.length }),
        },
        body,
        certificate: identity.certificate,
        signal: deadline.signal,
      })
      this.#options.onHeard?.()
      return { response, report: report(String(response.statusCode)) }
    } catch (error) {
      report('<error>')(0)
      throw error
    }
  }

  #readBody(response: IncomingMessage, deadline: Deadline, what: string): Promise<Buffer> {
    const { clock, onHeard } = this.#options
    return readBody(response, { clock, deadline, what, onHeard })
  }

  get #host(): string {
    return this.#connection.server.host
  }

  #path(call: RequestCall): string {
    const query = new URLSearchParams()
    for (const [name, value] of Object.entries(call.query ?? {})) {
      if (value === undefined) continue
      for (const one of typeof value === 'string' ? [value] : value) query.append(name, one)
    }
    const prefix = this.#connection.server.pathname.replace(/\/+$/, '')
    return `${prefix}${call.path}${query.size === 0 ? '' : `?${query}`}`
  }

  #describe(request: ApiRequest): string {
    return `${request.method ?? 'GET'} ${this.server}${request.path}`
  }
}

interface Exchange {
  readonly response: IncomingMessage
  /** Must be called once, when the size of the answer is known. */
  readonly report: (responseBytes: number) => void
}

interface Attempt {
  readonly request: ApiRequest
  readonly body: Buffer | undefined
  readonly watch: boolean
  readonly identity: Awaited<ReturnType<ClientCredentials['identity']>>
}

function parseBody(text: string, what: string): unknown {
  try {
    return parseBounded(text)
  } catch (error) {
    throw new ProxyError('bad-response', `${what}: the answer is not valid JSON`, { cause: error })
  }
}

/** Returns the Status of a refused request, or its text. */
function parseRefusal(response: IncomingMessage, body: Buffer): unknown {
  if (isProtobufType(response.headers['content-type'])) return readStatus(body)
  const text = body.toString('utf8')
  try {
    return parseBounded(text)
  } catch {
    return text
  }
}
