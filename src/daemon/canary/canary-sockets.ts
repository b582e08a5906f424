// The sockets of the canary: a listener that says which one it is, and a client that asks who answers.

import { type AddressInfo, connect, createServer } from 'node:net'
import { readSystemCode } from '../../lib/errors.ts'

export interface CanaryListener {
  readonly ip: string
  readonly port: number
  close(): void
}

/** Listens on a loopback address. Every client gets the name and is disconnected. */
export async function listenCanary(ip: string, name: string): Promise<CanaryListener> {
  const server = createServer((socket) => {
    socket.on('error', () => {})
    socket.setTimeout(dialLimitMs, () => socket.destroy())
    socket.end(name)
    socket.resume()
  })
  server.maxConnections = maxClients
  await new Promise<void>((resolve, reject) => {
    server.once('error', reject)
    server.listen({ host: ip, port: 0 }, () => {
      server.off('error', reject)
      resolve()
    })
  })
  server.on('error', () => {})
  return { ip, port: (server.address() as AddressInfo).port, close: () => void server.close() }
}

/** Only this proxy has a reason to connect. */
const maxClients = 16
/** Without an answer for this long the data path does not work. */
export const dialLimitMs = 1_000
const maxNameBytes = 64

export type CanaryAnswer =
  /** `connectMs`: the time until the connection was there. */
  { readonly name: string; readonly connectMs: number } | { readonly failure: string }

/** Never rejects. */
export function askCanary(host: string, port: number, monotonic: () => number): Promise<CanaryAnswer> {
  return new Promise((resolve) => {
    const began = monotonic()
    const socket = connect({ host, port })
    let connectMs = 0
    let name = ''
    const finish = (answer: CanaryAnswer) => {
      clearTimeout(timer)
      socket.destroy()
      resolve(answer)
    }
    // If this process itself is late, the answer has already arrived, and the event loop reads it before it runs the immediate.
    const timer = setTimeout(
      () => setImmediate(() => finish({ failure: `no answer within ${dialLimitMs} ms` })),
      dialLimitMs,
    )
    socket.once('connect', () => {
      connectMs = monotonic() - began
    })
    socket.on('data', (bytes) => {
      name = (name + bytes.toString()).slice(0, maxNameBytes)
    })
    socket.once('end', () => finish({ name, connectMs }))
    socket.once('error', (error) => finish({ failure: readSystemCode(error) || error.message }))
  })
}
