// A clock that stands still until moved, a client that shows every byte, and free ports.

import { request } from 'node:http'
import { type AddressInfo, connect, createServer } from 'node:net'
import { networkInterfaces } from 'node:os'
import type { Fields, Logger } from '../../src/lib/log.ts'
import { silentLogger } from '../../src/lib/log.ts'
import type { Clock } from '../../src/lib/time.ts'

export class ManualClock implements Clock {
  #at: number
  readonly #timers: { due: number; run: () => void }[] = []

  constructor(at = Date.UTC(2026, 0, 2, 3, 4, 5)) {
    this.#at = at
  }

  now = () => this.#at
  monotonic = () => this.#at
  after = (ms: number, run: () => void) => {
    const timer = { due: this.#at + ms, run }
    this.#timers.push(timer)
    return {
      cancel: () => {
        const i = this.#timers.indexOf(timer)
        if (i >= 0) this.#timers.splice(i, 1)
      },
    }
  }

  /** Due times of what waits, from now. */
  waiting = () => this.#timers.map(({ due }) => due - this.#at)

  advance(ms: number): void {
    this.#at += ms
    for (const timer of this.#timers.filter(({ due }) => due <= this.#at)) {
      this.#timers.splice(this.#timers.indexOf(timer), 1)
      timer.run()
    }
  }
}

export interface Answer {
  readonly status: number
  readonly headers: Readonly<Record<string, string | string[] | undefined>>
  readonly body: string
}

export interface Ask {
  readonly method?: string
  readonly headers?: Readonly<Record<string, string>>
  readonly body?: string
}

/** `where` is `host:port/path`. A connection of its own for each request. */
export function ask(where: string, { method = 'GET', headers = {}, body }: Ask = {}): Promise<Answer> {
  return new Promise((resolve, reject) => {
    const outgoing = request(`http://${where}`, { method, headers, agent: false }, (incoming) => {
      const chunks: Buffer[] = []
      incoming.on('data', (chunk: Buffer) => chunks.push(chunk))
      incoming.on('error', reject)
      incoming.on('end', () =>
        resolve({
          status: incoming.statusCode ?? 0,
          headers: incoming.headers,
          body: Buffer.concat(chunks).toString('utf8'),
        }),
      )
    })
    outgoing.on('error', reject)
    outgoing.end(body)
  })
}

/** Sends bytes as they are and returns all that comes back until the server closes. */
export function sendRaw(port: number, bytes: string): Promise<string> {
  return new Promise((resolve) => {
    const socket = connect(port, '127.0.0.1', () => socket.write(bytes))
    let seen = ''
    socket.on('data', (chunk) => {
      seen += chunk.toString('latin1')
    })
    socket.on('error', () => {})
    socket.on('close', () => resolve(seen))
  })
}

export function freePort(): Promise<number> {
  return new Promise((resolve) => {
    const server = createServer().listen(0, '127.0.0.1', () => {
      const { port } = server.address() as AddressInfo
      server.close(() => resolve(port))
    })
  })
}

/** Takes a port of 127.0.0.1 away from others. */
export function occupy(port = 0): Promise<{ port: number; release(): Promise<void> }> {
  return new Promise((resolve, reject) => {
    const server = createServer().listen(port, '127.0.0.1', () =>
      resolve({
        port: (server.address() as AddressInfo).port,
        release: () => new Promise((done) => server.close(() => done())),
      }),
    )
    server.on('error', reject)
  })
}

export const hasIpv6 = Object.values(networkInterfaces()).some((list) => list?.some(({ address }) => address === '::1'))

export function recordingLogger(): Logger & { readonly lines: string[] } {
  const lines: string[] = []
  const add = (message: string, fields?: Fields) => {
    lines.push(`${message} ${JSON.stringify(fields ?? {})}`)
  }
  const log = { ...silentLogger, info: add, warn: add, error: add, lines }
  return { ...log, named: () => log }
}

/** Waits for something that other tasks of the event loop bring about. */
export async function until(done: () => boolean): Promise<void> {
  for (const end = Date.now() + 10_000; !done(); ) {
    if (Date.now() > end) throw new Error('it did not happen')
    await new Promise((resolve) => setTimeout(resolve, 5))
  }
}
