// Echo servers: they answer a connection or a datagram with one line of JSON that names the server and the source it saw.

import { createSocket } from 'node:dgram'
import { createServer, type Socket } from 'node:net'
import { familyOf, hostPort } from '../../src/lib/ip.ts'
import type { Protocol } from '../../src/model/types.ts'
import type { Namespace } from './namespace.ts'
import { serveSctp } from './sctp.ts'

export interface Answer {
  readonly server: string
  readonly peer: string
  /** '' for an endpoint; otherwise the name of the sink that received a packet which was not redirected. */
  readonly sink: string
}

export interface Address {
  readonly ip: string
  readonly port: number
  readonly protocol: Protocol
}

/** Ids of datagrams that a server received: a client that gets no answer cannot know this. */
export type Arrivals = Set<string>

export interface Server {
  close(): Promise<void>
}

export function serve(namespace: Namespace, address: Address, sink: string, arrivals: Arrivals): Promise<Server> {
  const { ip, port, protocol } = address
  if (protocol === 'sctp') return Promise.resolve(serveSctp(namespace, address, sink))
  const fd = namespace.openSocket(protocol, ip, port)
  return protocol === 'tcp' ? serveTcp(fd, sink) : serveUdp(fd, address, sink, arrivals)
}

function serveTcp(fd: number, sink: string): Promise<Server> {
  const open = new Set<Socket>()
  const server = createServer((socket) => {
    open.add(socket)
    socket.on('close', () => open.delete(socket))
    const { localAddress, localPort, remoteAddress, remotePort } = socket
    // The client closes as soon as it has its line.
    socket.on('error', () => undefined)
    if (localAddress === undefined || remoteAddress === undefined) {
      socket.destroy()
      return
    }
    socket.end(answer(hostPort(localAddress, localPort ?? 0), hostPort(remoteAddress, remotePort ?? 0), sink))
  })
  return new Promise((resolve, reject) => {
    server.once('error', reject)
    server.listen({ fd, backlog: 511 }, () =>
      resolve({
        close: () =>
          new Promise((closed) => {
            server.close(() => closed())
            // The FIN of a client may never arrive after its service is gone.
            for (const socket of open) socket.destroy()
          }),
      }),
    )
  })
}

function serveUdp(fd: number, address: Address, sink: string, arrivals: Arrivals): Promise<Server> {
  const socket = createSocket(familyOf(address.ip) === 6 ? 'udp6' : 'udp4')
  const self = hostPort(address.ip, address.port)
  socket.on('message', (message, from) => {
    arrivals.add(message.toString())
    socket.send(answer(self, hostPort(from.address, from.port), sink), from.port, from.address, () => undefined)
  })
  // Errors come from ICMP, for answers to clients that are gone.
  socket.on('error', () => undefined)
  return new Promise((resolve) => {
    socket.bind({ fd }, () => resolve({ close: () => new Promise((closed) => socket.close(() => closed())) }))
  })
}

function answer(server: string, peer: string, sink: string): string {
  return JSON.stringify({ server, peer, sink } satisfies Answer)
}
