// Stands for Node's http module in the rehearsal: servers get the requests of a monitoring system, and requests are answered at once.

import { EventEmitter } from 'node:events'
import { Readable } from 'node:stream'

export interface RehearsalAnswer {
  readonly status: number
  readonly type: string
  readonly body: Buffer
  /** True if the body goes on: nothing more comes, until the client ends it. */
  readonly isOpen?: boolean
  /** Comes when the body has been dealt with. */
  readonly later?: Buffer | undefined
}

/** Turns of the event loop in which a start has dealt with a body. */
const laterTurns = 100

interface RequestOptions {
  readonly method: string
  readonly path: string
}

/** What Sluice uses of the module until it serves. */
export const makeRehearsalHttp = (answer: (options: RequestOptions) => RehearsalAnswer) => ({
  Agent: RehearsalAgent,
  createServer: (_options: unknown, handle: Handler) => new RehearsalServer(handle),
  request: (options: RequestOptions) => new RehearsalRequest(answer(options)),
})

class RehearsalAgent {
  createConnection(): void {}
  destroy(): void {}
}

type Handler = (request: unknown, response: unknown) => void

class RehearsalServer extends EventEmitter {
  readonly #handle: Handler

  constructor(handle: Handler) {
    super()
    this.#handle = handle
  }

  listen(_where: unknown, onListening: () => void): void {
    queueMicrotask(onListening)
    for (const url of ['/healthz', '/metrics']) setImmediate(() => this.#ask(url))
  }

  #ask(url: string): void {
    const socket = Object.assign(new EventEmitter(), { remoteAddress: '192.0.2.2', remotePort: 1 })
    const request = { url, method: 'GET', headers: { host: '192.0.2.1' }, socket, complete: true }
    const response = Object.assign(new EventEmitter(), { writeHead() {}, setHeader() {}, end() {}, destroy() {} })
    this.emit('connection', socket)
    this.emit('request', request, response)
    this.#handle(request, response)
    socket.emit('close')
  }

  address() {
    return { address: '::', port: 1 }
  }

  close(onClosed: () => void): void {
    queueMicrotask(onClosed)
  }

  unref(): void {}
  closeIdleConnections(): void {}
  closeAllConnections(): void {}
}

class RehearsalRequest extends EventEmitter {
  readonly #answer: RehearsalAnswer
  readonly #response: Readable

  constructor(answer: RehearsalAnswer) {
    super()
    this.#answer = answer
    const head = { statusCode: answer.status, headers: { 'content-type': answer.type } }
    this.#response = Object.assign(new Readable({ read() {} }), head)
    this.#response.once('close', () => this.emit('close'))
  }

  end(): void {
    queueMicrotask(() => {
      this.emit('response', this.#response)
      this.#response.push(this.#answer.body)
      if (this.#answer.isOpen !== true) this.#response.push(null)
      const { later } = this.#answer
      if (later !== undefined) runAfterTurns(laterTurns, () => this.#response.push(later))
    })
  }

  destroy(): void {
    this.#response.destroy()
  }
}

function runAfterTurns(turns: number, run: () => void): void {
  if (turns === 0) run()
  else setImmediate(() => runAfterTurns(turns - 1, run))
}
