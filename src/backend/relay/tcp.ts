// The TCP relay: accepts clients, connects each one to an endpoint (tcp-dial.ts), and copies between the two (tcp-copy.ts).

import { createServer, type Server, type Socket } from 'node:net'
import { ProxyError } from '../../lib/errors.ts'
import { hostPort } from '../../lib/ip.ts'
import type { RelayedFlow } from '../relayed-flows.ts'
import { judgeTcpEnd, turnedAway } from './flow-ends.ts'
import { type FlowHolder, FlowRecord } from './flow-reports.ts'
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

class TcpRelay implements Relay, FlowHolder {
  readonly #options: RelayOptions
  readonly #server: Server
  /** With what flows are described from, if they are reported. */
  readonly #clients = new Map<Socket, FlowRecord | undefined>()
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
        this.#options.flows?.reports.hold(this)
        resolve()
      })
    })
  }

  keepOnly(): void {}

  async close(cut = false): Promise<void> {
    const closed = new Promise<void>((resolve) => this.#server.close(() => resolve()))
    void closed.then(() => this.#options.flows?.reports.forget(this))
    if (cut) for (const client of this.#clients.keys()) client.destroy()
    // Node calls back only after the last connection has ended, and connections may stay open for long.
    if (this.#clients.size === 0) await closed
  }

  *listFlows(): Iterable<RelayedFlow> {
    for (const record of this.#clients.values()) {
      const flow = record?.describe()
      if (flow !== undefined) yield flow
    }
  }

  #accept(client: Socket): void {
    const { admits, budget, log } = this.#options
    const flow = this.#recordFlow(client)
    if (admits?.(plainIp(client.remoteAddress)) === false) {
      flow?.turnAway('rejected', turnedAway.source)
      client.resetAndDestroy()
      return
    }
    if (budget?.acquire(descriptorsPerClient) === false) {
      this.#shed(client, 'files', flow)
      return
    }
    this.#clients.set(client, flow)
    client.once('close', () => {
      this.#clients.delete(client)
      budget?.release(descriptorsPerClient)
      // The client went away before an endpoint had answered, unless the flow has ended already.
      flow?.end(() => judgeTcpEnd(client, undefined))
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
    const flow = this.#clients.get(client)
    const { log, dials } = this.#options
    const balancer = balancerFor(this.#options, clientIp)
    const dialled = await dialAnyEndpoint({ client, clientIp, balancer, dials, flow, log })
    if (typeof dialled === 'string') this.#shed(client, dialled, flow)
    else if (dialled !== undefined) {
      this.#count(client, dialled)
      // First of all listeners: the one of #accept knows no endpoint.
      client.prependOnceListener('close', () => flow?.end(() => judgeTcpEnd(client, dialled)))
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

  /** Undefined if flows are not reported, or if the client was gone before it was accepted: then the system does not know its address. */
  #recordFlow(client: Socket): FlowRecord | undefined {
    const { flows, host } = this.#options
    const { remoteAddress, remotePort } = client
    if (flows === undefined || remoteAddress === undefined || remotePort === undefined) return undefined
    let local: string | undefined
    return new FlowRecord(flows, { ip: plainIp(remoteAddress), port: remotePort }, () => {
      // A closed socket has no address any more. A socket that listens on all addresses has one for each client.
      local ??= plainIp(client.localAddress)
      const traffic = { bytesIn: client.bytesRead, bytesOut: client.bytesWritten, packetsIn: 0, packetsOut: 0 }
      return { local: local === '' ? host : local, localPort: this.#port, traffic }
    })
  }

  #shed(client: Socket, why: ShedReason, flow: FlowRecord | undefined): void {
    this.#options.onShed?.(why)
    // If endpoints were tried, each of them has a flow that says so.
    if (why !== 'dial' || flow?.hasBegun === false) flow?.turnAway('rejected', turnedAway[why])
    client.resetAndDestroy()
  }
}
