// The TCP relay: accepts clients, connects each one to an endpoint (tcp-dial.ts), and copies between the two (tcp-copy.ts).

import { createServer, type Server, type Socket } from 'node:net'
import { ProxyError } from '../../lib/errors.ts'
import { hostPort } from '../../lib/ip.ts'
import { balancerFor, plainIp, type Relay, type RelayOptions, type ShedReason } from './relay.ts'
import { joinSockets } from './tcp-copy.ts'
import { dialAnyEndpoint, socketOptions } from './tcp-dial.ts'

/** The client's descriptor and the endpoint's. */
const descriptorsPerClient = 2

export async function relayTcp(options: RelayOptions): Promise<Relay> {
  const relay = new TcpRelay(options)
  await relay.listen()
  return relay
}

class TcpRelay implements Relay {
  readonly #options: RelayOptions
  readonly #server: Server
  readonly #clients = new Set<Socket>()
  #port = 0

  constructor(options: RelayOptions) {
    this.#options = options
    this.#server = createServer({ ...socketOptions, pauseOnConnect: true }, (client) => this.#accept(client))
  }

  get port(): number {
    return this.#port
  }

  get active(): number {
    return this.#clients.size
  }

  listen(): Promise<void> {
    const { host, port, onShed } = this.#options
    return new Promise((resolve, reject) => {
      const fail = (cause: Error) =>
        reject(new ProxyError('listen', `cannot listen on ${hostPort(host, port)}/tcp`, { cause }))
      this.#server.once('error', fail)
      this.#server.listen({ host, port, backlog: 4096, ipv6Only: host.includes(':') }, () => {
        this.#server.off('error', fail)
        const address = this.#server.address()
        this.#port = typeof address === 'object' && address !== null ? address.port : port
        this.#server.on('error', () => onShed?.('files'))
        resolve()
      })
    })
  }

  keepOnly(): void {}

  async close(cut = false): Promise<void> {
    const closed = new Promise<void>((resolve) => this.#server.close(() => resolve()))
    if (cut) for (const client of this.#clients) client.destroy()
    // Node calls back only after the last connection has ended, and connections may stay open for long.
    if (this.#clients.size === 0) await closed
  }

  #accept(client: Socket): void {
    const { admits, budget, log } = this.#options
    if (admits?.(plainIp(client.remoteAddress)) === false) {
      client.resetAndDestroy()
      return
    }
    if (budget?.acquire(descriptorsPerClient) === false) {
      this.#shed(client, 'files')
      return
    }
    this.#clients.add(client)
    client.once('close', () => {
      this.#clients.delete(client)
      budget?.release(descriptorsPerClient)
    })
    this.#connect(client).catch((error: unknown) => {
      log.v(4, 'A relayed connection failed', { error })
      client.destroy()
    })
  }

  async #connect(client: Socket): Promise<void> {
    // Without a listener, a client that closes while an endpoint is dialled would be an unhandled error.
    client.on('error', () => client.destroy())
    const clientIp = plainIp(client.remoteAddress)
    const { log, dials } = this.#options
    const balancer = balancerFor(this.#options, clientIp)
    const dialled = await dialAnyEndpoint({ client, clientIp, balancer, dials, log })
    if (typeof dialled === 'string') this.#shed(client, dialled)
    else if (dialled !== undefined) {
      this.#count(client, dialled)
      joinSockets(client, dialled)
    }
  }

  #count(client: Socket, endpoint: Socket): void {
    const { onServed, onEnded } = this.#options
    const { remoteAddress, remotePort } = endpoint
    if (remoteAddress === undefined || remotePort === undefined) return
    const address = hostPort(remoteAddress, remotePort)
    onServed?.(address)
    client.once('close', () => onEnded?.(address, { bytesIn: client.bytesRead, bytesOut: client.bytesWritten }))
  }

  #shed(client: Socket, why: ShedReason): void {
    this.#options.onShed?.(why)
    client.resetAndDestroy()
  }
}
