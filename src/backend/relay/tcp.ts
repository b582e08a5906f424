// Copies TCP connections between clients and endpoints: retries dead endpoints, honours half-close, never buffers without bound.

import { createConnection, createServer, type Server, type Socket } from 'node:net'
import { ProxyError } from '../../lib/errors.ts'
import { hostPort, splitHostPort } from '../../lib/ip.ts'
import type { Logger } from '../../lib/log.ts'
import type { Balancer } from './balance.ts'

/** How long each attempt may take; each goes to the next endpoint. */
export const dialTimeoutsMs: readonly number[] = [250, 500, 1000, 2000]

export interface RelayOptions {
  readonly host: string
  /** 0: the kernel chooses. */
  readonly port: number
  readonly balancer: Balancer
  readonly log: Logger
  /** Where a client may come from; everyone if absent. */
  readonly admits?: (clientIp: string) => boolean
  /** Load was turned away: `files` (no descriptors left), `dial` (no endpoint answered), `flows` (too many UDP clients). */
  readonly onShed?: (why: 'files' | 'dial' | 'flows') => void
}

export interface Relay {
  readonly port: number
  /** Stops accepting; connections under way live on unless they are to be cut. */
  close(cut?: boolean): Promise<void>
  /** Connections or flows under way. */
  readonly active: () => number
}

export async function relayTcp(options: RelayOptions): Promise<Relay> {
  const clients = new Set<Socket>()
  const server = createServer({ allowHalfOpen: true, pauseOnConnect: true, noDelay: true }, (client) => {
    if (options.admits?.(plainIp(client.remoteAddress)) === false) return client.resetAndDestroy()
    clients.add(client)
    client.once('close', () => clients.delete(client))
    connect(client, options).catch((error) => {
      options.log.v(4, 'relay ended', { error })
      client.destroy()
    })
  })
  await listening(server, options)
  server.on('error', () => options.onShed?.('files'))
  const address = server.address()
  return {
    port: typeof address === 'object' && address !== null ? address.port : options.port,
    active: () => clients.size,
    async close(cut = false) {
      const closed = new Promise<void>((resolve) => server.close(() => resolve()))
      if (cut) for (const client of clients) client.destroy()
      // Node waits for connections before it calls back; they are meant to live on.
      if (clients.size === 0) await closed
    },
  }
}

function listening(server: Server, { host, port }: RelayOptions): Promise<void> {
  return new Promise((resolve, reject) => {
    const fail = (cause: Error) =>
      reject(new ProxyError('listen', `cannot listen on ${hostPort(host, port)}/tcp`, { cause }))
    server.once('error', fail)
    server.listen({ host, port, backlog: 4096, ipv6Only: host.includes(':') }, () => {
      server.off('error', fail)
      resolve()
    })
  })
}

async function connect(client: Socket, options: RelayOptions): Promise<void> {
  // A client that goes away while we dial must not be an unhandled error.
  client.on('error', () => client.destroy())
  const clientIp = plainIp(client.remoteAddress)
  const failed = new Set<string>()
  for (const timeoutMs of dialTimeoutsMs) {
    if (client.destroyed) return
    const endpoint = options.balancer.pick(clientIp, failed)
    if (endpoint === undefined) break
    try {
      return join(client, await dial(endpoint, timeoutMs))
    } catch (error) {
      if (outOfFiles(error)) {
        options.onShed?.('files')
        client.destroy()
        return
      }
      options.log.v(2, 'endpoint did not answer', { endpoint, error })
      failed.add(endpoint)
    }
  }
  options.onShed?.('dial')
  client.resetAndDestroy()
}

function dial(endpoint: string, timeoutMs: number): Promise<Socket> {
  const target = splitHostPort(endpoint)
  if (target === undefined) return Promise.reject(new ProxyError('relay', `${endpoint} is not ip:port`))
  return new Promise((resolve, reject) => {
    const socket = createConnection({ ...target, allowHalfOpen: true, noDelay: true })
    const timer = setTimeout(() => {
      socket.destroy()
      reject(new ProxyError('relay', `${endpoint} did not answer within ${timeoutMs} ms`))
    }, timeoutMs)
    const fail = (error: Error) => {
      clearTimeout(timer)
      reject(error)
    }
    socket.once('error', fail)
    socket.once('connect', () => {
      clearTimeout(timer)
      socket.off('error', fail)
      resolve(socket)
    })
  })
}

/** `pipe` brings back-pressure, and passes each side's end on as a half-close. */
function join(client: Socket, endpoint: Socket): void {
  const end = () => {
    client.destroy()
    endpoint.destroy()
  }
  endpoint.on('error', end)
  client.on('close', () => endpoint.destroy())
  endpoint.on('close', () => client.destroySoon())
  client.pipe(endpoint)
  endpoint.pipe(client)
}

const outOfFiles = (error: unknown): boolean =>
  error instanceof Error && 'code' in error && (error.code === 'EMFILE' || error.code === 'ENFILE')

/** `::ffff:10.0.0.1` is how a dual-stack socket shows an IPv4 client. */
export const plainIp = (ip: string | undefined): string =>
  (ip ?? '').replace(/^::ffff:(?=\d+\.)/, '').replace(/%.*$/, '')
