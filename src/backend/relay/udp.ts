// The UDP relay: copies datagrams between clients and endpoints, with one connected socket per client that closes when idle.

import { createSocket, type RemoteInfo, type Socket, type SocketOptions } from 'node:dgram'
import { hasErrno, ProxyError } from '../../lib/errors.ts'
import { hostPort, splitHostPort } from '../../lib/ip.ts'
import type { RelayedFlow, RelayTotals } from '../relayed-flows.ts'
import { busyPoll } from './busy-poll.ts'
import { judgeUdpEnd, turnedAway, type UdpEnd } from './flow-ends.ts'
import { type FlowHolder, FlowRecord } from './flow-reports.ts'
import { balancerFor, plainIp, type Relay, type RelayOptions, type ShedReason } from './relay.ts'

export interface UdpRelayOptions extends RelayOptions {
  /** A client that is silent in both directions for so long gets a new endpoint. */
  readonly idleMs: number
}

/** Each flow needs a descriptor. */
const maxFlows = 16_384
/** Datagrams that are kept for a flow until its socket is connected. */
const maxPending = 64
/**
 * All clients send to one socket, and by default it holds 277 small datagrams: a burst of new clients would lose the rest. The kernel
 * grants at most net.core.rmem_max.
 */
const listenBufferBytes = 4 * 1024 * 1024

export async function relayUdp(options: UdpRelayOptions): Promise<Relay> {
  const relay = new UdpRelay(options)
  await relay.listen()
  return relay
}

class UdpRelay implements Relay, FlowHolder {
  readonly #options: UdpRelayOptions
  readonly #socket: Socket
  /** The key is the client's `ip:port`. */
  readonly #flows = new Map<string, UdpFlow>()
  #port = 0
  #isClosed = false

  constructor(options: UdpRelayOptions) {
    this.#options = options
    this.#socket = openSocket(options.host, listenBufferBytes)
  }

  get port(): number {
    return this.#port
  }

  get active(): number {
    return this.#flows.size
  }

  listen(): Promise<void> {
    const { host, port, log } = this.#options
    return new Promise((resolve, reject) => {
      const fail = (cause: Error) =>
        reject(new ProxyError('listen', `cannot listen on ${hostPort(host, port)}/udp`, { cause }))
      this.#socket.once('error', fail)
      this.#socket.bind({ address: host, port, exclusive: true }, () => {
        this.#socket.off('error', fail)
        this.#port = this.#socket.address().port
        this.#socket.on('error', (error) => log.v(2, 'The socket of a UDP relay failed', { error }))
        this.#socket.on('message', (datagram, from) => this.#receive(datagram, from))
        this.#options.flows?.reports.hold(this)
        resolve()
      })
    })
  }

  keepOnly(endpoints: ReadonlySet<string>): void {
    for (const [client, { endpoint }] of [...this.#flows]) if (!endpoints.has(endpoint)) this.#closeFlow(client, 'gone')
  }

  async close(): Promise<void> {
    this.#isClosed = true
    for (const client of [...this.#flows.keys()]) this.#closeFlow(client, 'gone')
    this.#options.flows?.reports.forget(this)
    await new Promise<void>((resolve) => this.#socket.close(() => resolve()))
  }

  *listFlows(): Iterable<RelayedFlow> {
    for (const { record } of this.#flows.values()) {
      const flow = record?.describe()
      if (flow !== undefined) yield flow
    }
  }

  #receive(datagram: Buffer, from: RemoteInfo): void {
    const clientIp = plainIp(from.address)
    if (this.#options.admits?.(clientIp) === false) {
      this.#drop(from, 'source')
      return
    }
    const client = hostPort(clientIp, from.port)
    const flow = this.#flows.get(client) ?? this.#openFlow(client, clientIp, from)
    flow?.send(datagram)
  }

  #openFlow(client: string, clientIp: string, from: RemoteInfo): UdpFlow | undefined {
    const { budget, idleMs } = this.#options
    const balancer = balancerFor(this.#options, clientIp)
    const endpoint = balancer.pick(clientIp)
    if (endpoint === undefined) return this.#shed('dial', from)
    const address = splitHostPort(endpoint)
    if (address === undefined || this.#flows.size >= maxFlows) return this.#shed('flows', from)
    if (budget?.acquire(1) === false) return this.#shed('files', from)
    const flow: UdpFlow = new UdpFlow({
      endpoint,
      address,
      idleMs,
      recordFlow: (relayed) => this.#recordFlow(from, relayed),
      onIdle: () => this.#closeFlow(client, 'idle'),
      onAnswer: (answer) => {
        if (!this.#isClosed) this.#socket.send(answer, from.port, from.address)
      },
      // The client's next datagram opens a new flow, to another endpoint if there is one.
      onError: (error) => {
        if (isOutOfDescriptors(error)) {
          this.#options.onShed?.('files')
          flow.record?.turnAway('dropped', turnedAway.files)
        } else balancer.forgetAffinity(clientIp, endpoint)
        if (this.#flows.get(client) === flow) this.#closeFlow(client, 'refused')
      },
    })
    this.#flows.set(client, flow)
    this.#options.onServed?.(endpoint)
    flow.record?.begin(endpoint)
    flow.connect()
    return flow
  }

  #closeFlow(client: string, end: UdpEnd): void {
    const flow = this.#flows.get(client)
    if (flow === undefined) return
    this.#flows.delete(client)
    flow.close()
    this.#options.budget?.release(1)
    this.#options.onEnded?.(flow.endpoint, flow.relayed)
    flow.record?.end(() => judgeUdpEnd(end, flow.relayed.packetsOut))
  }

  /** Undefined if flows are not reported. */
  #recordFlow(from: RemoteInfo, relayed: Readonly<RelayTotals>): FlowRecord | undefined {
    const { flows, host } = this.#options
    if (flows === undefined) return undefined
    const client = { ip: plainIp(from.address), port: from.port }
    return new FlowRecord(flows, client, () => ({ local: host, localPort: this.#port, traffic: { ...relayed } }))
  }

  #shed(why: ShedReason, from: RemoteInfo): undefined {
    this.#options.onShed?.(why)
    this.#drop(from, why)
  }

  #drop(from: RemoteInfo, why: ShedReason | 'source'): void {
    if (this.#options.flows?.reports.selects(from.port) !== true) return
    this.#recordFlow(from, nothing)?.turnAway('dropped', turnedAway[why])
  }
}

const nothing: RelayTotals = { bytesIn: 0, bytesOut: 0, packetsIn: 0, packetsOut: 0 }

interface UdpFlowOptions {
  readonly endpoint: string
  /** The endpoint, parsed. */
  readonly address: { readonly host: string; readonly port: number }
  readonly idleMs: number
  readonly recordFlow: (relayed: Readonly<RelayTotals>) => FlowRecord | undefined
  readonly onIdle: () => void
  readonly onAnswer: (datagram: Buffer) => void
  /** Called when the endpoint refuses, or when no descriptor is left for the socket. */
  readonly onError: (error: Error) => void
}

/** The socket of one client, connected to one endpoint. */
class UdpFlow {
  readonly endpoint: string
  readonly relayed = { ...nothing }
  /** Undefined if flows are not reported. */
  readonly record: FlowRecord | undefined
  readonly #address: UdpFlowOptions['address']
  readonly #socket: Socket
  readonly #idleTimer: NodeJS.Timeout
  /** Datagrams that came before the socket was connected; undefined once it is. */
  #pending: Uint8Array[] | undefined = []

  constructor({ endpoint, address, idleMs, recordFlow, onIdle, onAnswer, onError }: UdpFlowOptions) {
    this.endpoint = endpoint
    this.record = recordFlow(this.relayed)
    this.#address = address
    this.#socket = openSocket(address.host)
    this.#idleTimer = setTimeout(onIdle, idleMs)
    this.#idleTimer.unref()
    this.#socket.on('error', onError)
    this.#socket.on('message', (answer) => {
      this.#noteRelayed(answer)
      this.relayed.packetsOut++
      this.relayed.bytesOut += answer.length
      onAnswer(answer)
    })
  }

  connect(): void {
    this.#socket.once('connect', () => {
      const pending = this.#pending ?? []
      this.#pending = undefined
      for (const datagram of pending) this.#socket.send(datagram)
    })
    this.#socket.connect(this.#address.port, this.#address.host)
  }

  send(datagram: Uint8Array): void {
    this.#noteRelayed(datagram)
    if (this.#pending === undefined) this.#socket.send(datagram)
    else if (this.#pending.length < maxPending) this.#pending.push(datagram)
    else return
    this.relayed.packetsIn++
    this.relayed.bytesIn += datagram.length
  }

  close(): void {
    clearTimeout(this.#idleTimer)
    this.#socket.close()
  }

  #noteRelayed(datagram: Uint8Array): void {
    this.#idleTimer.refresh()
    busyPoll.noteRelayed(datagram.length)
  }
}

const isOutOfDescriptors = (error: Error): boolean => hasErrno(error, 'EMFILE')

/** The lookup answers at once, since all hosts are addresses: a send would otherwise wait for a turn of the event loop. */
function openSocket(ip: string, recvBufferSize?: number): Socket {
  const isIpv6 = ip.includes(':')
  const lookup: NonNullable<SocketOptions['lookup']> = (host, _options, done) => done(null, host, isIpv6 ? 6 : 4)
  const type = isIpv6 ? 'udp6' : 'udp4'
  return createSocket({ type, ipv6Only: isIpv6, lookup, ...(recvBufferSize && { recvBufferSize }) })
}
