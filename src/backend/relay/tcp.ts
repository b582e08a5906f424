// Copies TCP connections between clients and endpoints: retries dead endpoints, honours half-close, never buffers without bound.

import { createConnection, createServer, type NetConnectOpts, type Server, type Socket } from 'node:net'
import { ProxyError } from '../../lib/errors.ts'
import { hostPort, splitHostPort } from '../../lib/ip.ts'
import type { Logger } from '../../lib/log.ts'
import type { Balancer } from './balancer.ts'
import { busyPoll } from './busy-poll.ts'
import { freeReadBuffer } from './read-buffers.ts'

/** How long each attempt may take; each goes to the next endpoint. */
export const dialTimeoutsMs: readonly number[] = [250, 500, 1000, 2000]

/** An endpoint that refuses at once costs no time, only a dial; a client must not make us dial hundreds. */
const mostDials = 16

/** Peers that vanished without a word are noticed: there is no other end to a relayed connection. */
const keepAliveMs = 15_000

/** `files`: no descriptors left. `dial`: no endpoint answered. `ports`: no local port left. `flows`: too many UDP clients. */
export type ShedReason = 'files' | 'dial' | 'ports' | 'flows'

/** Descriptors that relays of one process share, so that they leave some for everything else. */
export interface DescriptorBudget {
  acquire(descriptors: number): boolean
  release(descriptors: number): void
}

export interface RelayOptions {
  readonly host: string
  /** 0: the kernel chooses. */
  readonly port: number
  /** Or which one, by the client's address. */
  readonly balancer: Balancer | ((clientIp: string) => Balancer)
  readonly log: Logger
  /** Where a client may come from; everyone if absent. */
  readonly admits?: (clientIp: string) => boolean
  /** Load was turned away. */
  readonly onShed?: (why: ShedReason) => void
  readonly budget?: DescriptorBudget
}

export interface Relay {
  readonly port: number
  /** Stops accepting; connections under way live on unless they are to be cut. */
  close(cut?: boolean): Promise<void>
  /** Connections or flows under way. */
  readonly active: () => number
  /** Only these endpoints may go on answering: flows to others choose anew. TCP connections live on. */
  keepOnly(endpoints: ReadonlySet<string>): void
}

export async function relayTcp(options: RelayOptions): Promise<Relay> {
  const clients = new Set<Socket>()
  const server = createServer(
    { allowHalfOpen: true, pauseOnConnect: true, noDelay: true, keepAlive: true, keepAliveInitialDelay: keepAliveMs },
    (client) => {
      if (options.admits?.(plainIp(client.remoteAddress)) === false) return client.resetAndDestroy()
      // Two: the client's and the endpoint's.
      if (options.budget?.acquire(2) === false) {
        options.onShed?.('files')
        return client.resetAndDestroy()
      }
      clients.add(client)
      client.once('close', () => {
        clients.delete(client)
        options.budget?.release(2)
      })
      connect(client, options).catch((error) => {
        options.log.v(4, 'relay ended', { error })
        client.destroy()
      })
    },
  )
  await listening(server, options)
  server.on('error', () => options.onShed?.('files'))
  const address = server.address()
  return {
    port: typeof address === 'object' && address !== null ? address.port : options.port,
    active: () => clients.size,
    keepOnly: () => {},
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

export const balancerFor = ({ balancer }: RelayOptions, clientIp: string): Balancer =>
  typeof balancer === 'function' ? balancer(clientIp) : balancer

async function connect(client: Socket, options: RelayOptions): Promise<void> {
  // A client that goes away while we dial must not be an unhandled error.
  client.on('error', () => client.destroy())
  const clientIp = plainIp(client.remoteAddress)
  const balancer = balancerFor(options, clientIp)
  const failed = new Set<string>()
  let attempt = 0
  for (let dials = 0; dials < mostDials && attempt < dialTimeoutsMs.length && !client.destroyed; dials++) {
    const endpoint = balancer.pick(clientIp, failed)
    if (endpoint === undefined) {
      // All refused: that is an answer. If one was only slow, it is asked again with more patience.
      if (attempt === 0 || failed.size === 0) break
      failed.clear()
      continue
    }
    try {
      const socket = await dial(endpoint, client, dialTimeoutsMs[attempt] as number)
      balancer.markResponsive(endpoint)
      return join(client, socket)
    } catch (error) {
      const own = ownFault(error)
      if (own !== undefined) {
        options.onShed?.(own)
        client.resetAndDestroy()
        return
      }
      options.log.v(2, 'endpoint did not answer', { endpoint, error })
      failed.add(endpoint)
      if (error instanceof ProxyError) {
        balancer.markUnresponsive(endpoint)
        attempt++
      }
    }
  }
  if (client.destroyed) return
  options.onShed?.('dial')
  client.resetAndDestroy()
}

/** Rejects with a ProxyError if there was no answer in time, else with what the system says. */
function dial(endpoint: string, client: Socket, timeoutMs: number): Promise<Socket> {
  const target = splitHostPort(endpoint)
  if (target === undefined) return Promise.reject(new ProxyError('relay', `${endpoint} is not ip:port`))
  return new Promise((resolve, reject) => {
    const socket: Socket = createConnection({
      ...target,
      allowHalfOpen: true,
      noDelay: true,
      keepAlive: true,
      keepAliveInitialDelay: keepAliveMs,
      onread: intake(client, () => socket),
    })
    let late: NodeJS.Immediate | undefined
    // If it is we who were late, the answer is there already, and is seen before the immediate.
    const timer = setTimeout(() => {
      late = setImmediate(() => {
        socket.destroy()
        reject(new ProxyError('relay', `${endpoint} did not answer within ${timeoutMs} ms`))
      })
    }, timeoutMs)
    const settle = () => {
      clearTimeout(timer)
      if (late !== undefined) clearImmediate(late)
    }
    const fail = (error: Error) => {
      settle()
      reject(error)
    }
    socket.once('error', fail)
    socket.once('connect', () => {
      settle()
      socket.off('error', fail)
      resolve(socket)
    })
  })
}

/** A reset on one side is a reset on the other: a cut-off answer must not look complete. */
function join(client: Socket, endpoint: Socket): void {
  client.on('error', () => endpoint.resetAndDestroy())
  endpoint.on('error', () => client.resetAndDestroy())
  client.on('close', () => endpoint.destroy())
  endpoint.on('close', () => client.destroySoon())
  if (client.destroyed) {
    endpoint.destroy()
    return
  }
  const unwritten: Buffer[] = []
  client.on('data', (chunk) => {
    const took = endpoint.write(chunk)
    busyPoll.noteRelayed(chunk.length)
    // What went out at once needs no pause, whatever the high-water mark says.
    if (endpoint.writableLength === 0) return freeReadBuffer(chunk)
    if (took) return
    unwritten.push(chunk)
    client.pause()
  })
  endpoint.on('drain', () => {
    for (const chunk of unwritten.splice(0)) freeReadBuffer(chunk)
    client.resume()
  })
  client.on('drain', () => endpoint.resume())
  client.on('end', () => endpoint.end())
  endpoint.on('end', () => client.end())
  client.resume()
}

const smallRead = 2 * 1024
const largeRead = 128 * 1024
/** Reads in a row that would have fitted a small buffer, until one is used again. */
const calmReads = 32

/**
 * Reads from an endpoint into a buffer that is used again as soon as its content is written, which halves the cost of Node's own
 * way, a new buffer per read. Small until a read fills it: idle connections must cost little. Accepted sockets cannot do this.
 */
function intake(to: Socket, from: () => Socket): NonNullable<NetConnectOpts['onread']> {
  let buffer = new Uint8Array(0)
  let size = smallRead
  let calm = 0
  return {
    buffer: () => {
      if (buffer.length !== size) buffer = Buffer.allocUnsafeSlow(size)
      return buffer
    },
    callback(bytes, filled) {
      const took = to.write(filled.subarray(0, bytes))
      busyPoll.noteRelayed(bytes)
      // What is not written yet still lies in this buffer.
      const pending = to.writableLength > 0
      if (pending) buffer = new Uint8Array(0)
      if (pending && !took) from().pause()
      if (bytes === filled.length) size = largeRead
      calm = bytes <= smallRead && size === largeRead ? calm + 1 : 0
      if (calm === calmReads) size = smallRead
      return true
    },
  }
}

/** What is wrong with us, not with the endpoint. */
function ownFault(error: unknown): ShedReason | undefined {
  const code = error instanceof Error && 'code' in error ? error.code : undefined
  if (code === 'EMFILE' || code === 'ENFILE') return 'files'
  return code === 'EADDRNOTAVAIL' ? 'ports' : undefined
}

/** `::ffff:10.0.0.1` is how a dual-stack socket shows an IPv4 client. */
export const plainIp = (ip: string | undefined): string =>
  (ip ?? '').replace(/^::ffff:(?=\d+\.)/, '').replace(/%.*$/, '')
