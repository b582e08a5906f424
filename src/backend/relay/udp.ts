// Copies datagrams between clients and endpoints: one connected socket per client, forgotten when idle.

import { createSocket, type Socket, type SocketOptions } from 'node:dgram'
import { ProxyError } from '../../lib/errors.ts'
import { hostPort, splitHostPort } from '../../lib/ip.ts'
import { busyPoll } from './busy-poll.ts'
import type { Relay, RelayOptions } from './tcp.ts'
import { balancerFor, plainIp } from './tcp.ts'

export interface UdpRelayOptions extends RelayOptions {
  /** A client that is silent in both directions for so long gets an endpoint anew. */
  readonly idleMs: number
}

interface Flow {
  readonly endpoint: string
  readonly socket: Socket
  readonly timer: NodeJS.Timeout
  /** Datagrams that came before the socket was connected; undefined once it is. */
  waiting: Uint8Array[] | undefined
}

/** Each flow holds a descriptor. */
const mostFlows = 16_384
const mostWaiting = 64
/**
 * All clients send to one socket, and by default it holds 277 small datagrams: a burst of new clients would lose the rest. The kernel
 * gives no more than net.core.rmem_max.
 */
const frontBuffer = 4 * 1024 * 1024

export async function relayUdp(options: UdpRelayOptions): Promise<Relay> {
  const flows = new Map<string, Flow>()
  const front = openSocket(options.host, frontBuffer)
  await bound(front, options)
  front.on('error', (error) => options.log.v(2, 'relay socket failed', { error }))
  let closed = false

  const forget = (client: string) => {
    const flow = flows.get(client)
    if (flow === undefined) return
    clearTimeout(flow.timer)
    flows.delete(client)
    flow.socket.close()
    options.budget?.release(1)
  }

  front.on('message', (datagram, from) => {
    const clientIp = plainIp(from.address)
    if (options.admits?.(clientIp) === false) return
    const client = hostPort(clientIp, from.port)
    const flow = flows.get(client) ?? begin(client, clientIp, from)
    if (flow === undefined) return
    flow.timer.refresh()
    busyPoll.noteRelayed(datagram.length)
    if (flow.waiting === undefined) flow.socket.send(datagram)
    else if (flow.waiting.length < mostWaiting) flow.waiting.push(datagram)
  })

  const begin = (client: string, ip: string, from: { address: string; port: number }): Flow | undefined => {
    const balancer = balancerFor(options, ip)
    const endpoint = balancer.pick(ip)
    const target = endpoint === undefined ? undefined : splitHostPort(endpoint)
    if (endpoint === undefined || target === undefined || flows.size >= mostFlows) {
      options.onShed?.(endpoint === undefined ? 'dial' : 'flows')
      return undefined
    }
    if (options.budget?.acquire(1) === false) {
      options.onShed?.('files')
      return undefined
    }
    const socket = openSocket(target.host)
    const flow: Flow = { endpoint, socket, timer: setTimeout(() => forget(client), options.idleMs), waiting: [] }
    flow.timer.unref()
    // Refused by the endpoint, or no descriptor left: the client's next datagram starts anew, elsewhere if it can.
    socket.on('error', (error) => {
      if ('code' in error && error.code === 'EMFILE') options.onShed?.('files')
      else balancer.forgetAffinity(ip, endpoint)
      if (flows.get(client) === flow) forget(client)
    })
    socket.on('message', (answer) => {
      flow.timer.refresh()
      busyPoll.noteRelayed(answer.length)
      if (!closed) front.send(answer, from.port, from.address)
    })
    socket.once('connect', () => {
      const waiting = flow.waiting ?? []
      flow.waiting = undefined
      for (const datagram of waiting) socket.send(datagram)
    })
    flows.set(client, flow)
    socket.connect(target.port, target.host)
    return flow
  }

  return {
    port: front.address().port,
    active: () => flows.size,
    keepOnly(endpoints) {
      for (const [client, { endpoint }] of [...flows]) if (!endpoints.has(endpoint)) forget(client)
    },
    async close() {
      closed = true
      for (const client of [...flows.keys()]) forget(client)
      await new Promise<void>((resolve) => front.close(() => resolve()))
    },
  }
}

/** Addresses need no looking up, so sends need not wait a turn for it. */
function openSocket(ip: string, recvBufferSize?: number): Socket {
  const six = ip.includes(':')
  const lookup: NonNullable<SocketOptions['lookup']> = (host, _options, done) => done(null, host, six ? 6 : 4)
  const type = six ? 'udp6' : 'udp4'
  return createSocket({ type, ipv6Only: six, lookup, ...(recvBufferSize && { recvBufferSize }) })
}

function bound(socket: Socket, { host, port }: RelayOptions): Promise<void> {
  return new Promise((resolve, reject) => {
    const fail = (cause: Error) =>
      reject(new ProxyError('listen', `cannot listen on ${hostPort(host, port)}/udp`, { cause }))
    socket.once('error', fail)
    socket.bind({ address: host, port, exclusive: true }, () => {
      socket.off('error', fail)
      resolve()
    })
  })
}
