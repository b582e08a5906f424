// A TCP relay in front of the API server, with which a test cuts the connections of one client without disturbing the server.

import { connect, createServer, type Socket } from 'node:net'

export interface Gate {
  /** 0 if it listens on a socket file. */
  readonly port: number
  /** Number of connections accepted since the start: it shows that a client has reconnected. */
  readonly accepted: number
  /** Cuts every connection at once and closes each new one. */
  shut(): void
  open(): void
  /** Lets nothing of the server through on the connections that are open now: they stay open and go silent. New connections work. */
  freeze(): void
  stop(): Promise<void>
}

/** Listens on loopback, or on a socket file, which processes in other network namespaces can reach too. */
export async function startGate(targetPort: number, path?: string): Promise<Gate> {
  const sockets = new Set<Socket>()
  const upstreams = new Map<Socket, Socket>()
  let passing = true
  let accepted = 0
  const keep = (socket: Socket) => {
    sockets.add(socket)
    socket.on('error', () => socket.destroy())
    socket.on('close', () => sockets.delete(socket))
  }
  const cut = () => {
    for (const socket of sockets) socket.destroy()
  }
  const server = createServer((client) => {
    keep(client)
    if (!passing) {
      client.destroy()
      return
    }
    accepted++
    const upstream = connect(targetPort, '127.0.0.1')
    keep(upstream)
    upstreams.set(upstream, client)
    upstream.on('close', () => upstreams.delete(upstream))
    client.pipe(upstream).pipe(client)
    client.on('close', () => upstream.destroy())
    upstream.on('close', () => client.destroy())
  })
  await new Promise<void>((resolve, reject) => {
    server.once('error', reject)
    if (path === undefined) server.listen(0, '127.0.0.1', resolve)
    else server.listen(path, resolve)
  })
  const bound = server.address()
  return {
    port: typeof bound === 'object' && bound !== null ? bound.port : 0,
    get accepted() {
      return accepted
    },
    shut() {
      passing = false
      cut()
    },
    open() {
      passing = true
    },
    freeze() {
      for (const [upstream, client] of upstreams) {
        upstream.unpipe(client)
        upstream.pause()
      }
    },
    stop() {
      cut()
      return new Promise((resolve) => server.close(() => resolve()))
    },
  }
}
