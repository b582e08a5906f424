// An HTTP(S) server whose answers the test scripts, down to half lines and hangs.

import { createServer, type IncomingMessage, type RequestListener, type Server, type ServerResponse } from 'node:http'
import { createServer as createTlsServer, type ServerOptions } from 'node:https'
import type { AddressInfo } from 'node:net'
import { Client, type ClientOptions } from '../../src/kube/client.ts'
import type { Connection } from '../../src/kube/connection.ts'
import { silentLogger } from '../../src/lib/log.ts'
import { type Clock, systemClock } from '../../src/lib/time.ts'

export interface Seen {
  readonly method: string
  readonly path: string
  readonly query: URLSearchParams
  readonly headers: IncomingMessage['headers']
  readonly raw: IncomingMessage
  readonly body: Promise<string>
}

export type Answer = (response: ServerResponse, seen: Seen) => void

export class ScriptServer {
  readonly seen: Seen[] = []
  readonly #server: Server
  readonly #answer: Answer
  url = ''
  port = 0

  /** A function answers each request; an array is used in order, and its last answer repeats. */
  constructor(answer: Answer | readonly Answer[], tls?: ServerOptions) {
    let next = 0
    this.#answer = (response, seen) => {
      const one = typeof answer === 'function' ? answer : (answer[Math.min(next++, answer.length - 1)] as Answer)
      one(response, seen)
    }
    const listener: RequestListener = (request, response) => {
      const url = new URL(request.url ?? '', 'http://server')
      const seen: Seen = {
        method: request.method ?? '',
        path: url.pathname,
        query: url.searchParams,
        headers: request.headers,
        raw: request,
        body: new Promise((resolve) => {
          let text = ''
          request.setEncoding('utf8').on('data', (part) => {
            text += part
          })
          request.on('end', () => resolve(text))
          request.on('error', () => resolve(text))
        }),
      }
      this.seen.push(seen)
      this.#answer(response, seen)
    }
    this.#server = (tls === undefined ? createServer(listener) : createTlsServer(tls, listener)) as Server
    this.url = tls === undefined ? 'http' : 'https'
  }

  async start(): Promise<this> {
    await new Promise<void>((resolve) => this.#server.listen(0, '127.0.0.1', resolve))
    this.port = (this.#server.address() as AddressInfo).port
    this.url = `${this.url}://127.0.0.1:${this.port}`
    return this
  }

  get server(): Server {
    return this.#server
  }

  async stop(): Promise<void> {
    this.#server.closeAllConnections()
    await new Promise((resolve) => this.#server.close(resolve))
  }
}

export const json =
  (body: unknown, status = 200, headers: Record<string, string> = {}): Answer =>
  (response) => {
    response.writeHead(status, { 'content-type': 'application/json', ...headers }).end(JSON.stringify(body))
  }

export const refuse = (code: number, reason: string, message = reason, more: object = {}): Answer =>
  json({ kind: 'Status', status: 'Failure', code, reason, message, ...more }, code)

export const hang: Answer = () => {}

export const hangUp: Answer = (response) => {
  response.socket?.destroy()
}

/** Answers with a stream of lines, given as events or as raw text, then leaves it open, ends it in good order, or cuts it. */
export function lines(parts: readonly (object | string)[], then: 'open' | 'end' | 'cut'): Answer {
  return (response) => {
    response.writeHead(200, { 'content-type': 'application/json' })
    response.flushHeaders()
    for (const part of parts) response.write(typeof part === 'string' ? part : `${JSON.stringify(part)}\n`)
    if (then === 'end') response.end()
    // The written bytes must be sent before the connection is destroyed.
    if (then === 'cut') setTimeout(() => response.socket?.destroy(), 5)
  }
}

export function connectionTo(url: string, more: Partial<Connection> = {}): Connection {
  return {
    origin: 'test',
    server: new URL(url),
    ca: undefined,
    insecure: false,
    serverName: '',
    proxy: undefined,
    compression: true,
    certificate: undefined,
    auth: { kind: 'none' },
    headers: {},
    warnings: [],
    ...more,
  }
}

export function clientTo(
  connection: Connection,
  clock: Clock = systemClock,
  more: Partial<ClientOptions> = {},
): Client {
  return new Client(connection, { qps: -1, burst: 0, userAgent: 'test', log: silentLogger, clock, ...more })
}
