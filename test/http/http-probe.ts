// Provides for tests of HTTP servers: a client that shows every byte, free and occupied ports, and a logger that keeps its lines.

import { request } from 'node:http'
import { type AddressInfo, connect, createServer, type Socket } from 'node:net'
import { networkInterfaces } from 'node:os'
import type { Fields, Logger } from '../../src/lib/log.ts'
import { silentLogger } from '../../src/lib/log.ts'

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

/** Sends one request on its own connection. `where` is `host:port/path`. */
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

/** Sends the bytes unchanged and returns all that the server sends until it closes. */
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

export interface HeldConnections {
  /** How many of them the server has not closed. */
  open(): number
  release(): void
}

/** Opens connections, sends the bytes on each, and keeps them. Resolves when the server's kernel has accepted all of them. */
export async function hold({
  port,
  count,
  bytes = '',
}: {
  port: number
  count: number
  bytes?: string
}): Promise<HeldConnections> {
  const sockets: Socket[] = []
  let lost = 0
  for (let i = 0; i < count; i += 200) {
    const batch = Array.from({ length: Math.min(200, count - i) }, () => connect(port, '127.0.0.1'))
    sockets.push(...batch)
    await Promise.all(
      batch.map(
        (socket) =>
          new Promise<void>((resolve) => {
            socket.on('connect', () => {
              if (bytes !== '') socket.write(bytes)
              resolve()
            })
            socket.on('error', () => resolve())
            socket.on('close', () => lost++)
            socket.resume()
          }),
      ),
    )
  }
  return {
    open: () => count - lost,
    release() {
      for (const socket of sockets) socket.destroy()
    },
  }
}

export function freePort(): Promise<number> {
  return new Promise((resolve) => {
    const server = createServer().listen(0, '127.0.0.1', () => {
      const { port } = server.address() as AddressInfo
      server.close(() => resolve(port))
    })
  })
}

/** Listens on a port of 127.0.0.1 so that nothing else can. */
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
