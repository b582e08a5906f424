// A TCP relay in front of the API server: it lets a test cut the watches of one client without disturbing the server.

import { connect, createServer, type Socket } from 'node:net'

export interface Gate {
  readonly port: number
  /** Connections accepted since the start: shows that a client came back. */
  readonly accepted: number
  /** Cuts every connection at once and resets each new one. */
  shut(): void
  open(): void
  stop(): Promise<void>
}

export async function startGate(targetPort: number, address = '127.0.0.1'): Promise<Gate> {
  const sockets = new Set<Socket>()
  let passing = true
  let accepted = 0
  const keep = (socket: Socket) => {
    sockets.add(socket)
    socket.on('error', () => socket.destroy())
    socket.on('close', () => sockets.delete(socket))
  }
  const cut = () => {
    for (const socket of sockets) socket.resetAndDestroy()
  }
  const server = createServer((client) => {
    keep(client)
    if (!passing) {
      client.resetAndDestroy()
      return
    }
    accepted++
    const upstream = connect(targetPort, '127.0.0.1')
    keep(upstream)
    client.pipe(upstream).pipe(client)
    client.on('close', () => upstream.destroy())
    upstream.on('close', () => client.destroy())
  })
  await new Promise<void>((resolve, reject) => {
    server.once('error', reject)
    server.listen(0, address, resolve)
  })
  const bound = server.address()
  if (bound === null || typeof bound === 'string') throw new Error('gate has no port')
  return {
    port: bound.port,
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
    stop() {
      cut()
      return new Promise((resolve) => server.close(() => resolve()))
    },
  }
}
