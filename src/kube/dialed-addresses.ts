// Remembers the addresses at which the client reaches the API server, or the HTTP proxy before it, so that no service may take them.

import type { Agent } from 'node:http'
import type { Socket } from 'node:net'
import { canonicalIp } from '../lib/ip.ts'
import type { Clock } from '../lib/time.ts'
import type { SocketAddress } from '../model/types.ts'

/** An address without a connection is kept this long: a name may have several addresses, and any of them may be dialled next. */
const keptMs = 3_600_000
/** A name server that gives another address each time must not fill the memory. */
const maxAddresses = 64

interface DialedAddress extends SocketAddress {
  open: number
  /** When the address was dialled, or its last connection was closed. */
  usedAt: number
}

type CreateConnection = (options: object, done?: (error: Error | null, socket?: Socket) => void) => Socket | undefined

export class DialedAddresses {
  readonly #clock: Pick<Clock, 'monotonic'>
  readonly #addresses = new Map<string, DialedAddress>()
  #onChange: (addresses: readonly SocketAddress[]) => void = () => {}

  constructor(clock: Pick<Clock, 'monotonic'>) {
    this.#clock = clock
  }

  /** Calls the listener with the current addresses, and at each change. */
  subscribe(onChange: (addresses: readonly SocketAddress[]) => void): void {
    this.#onChange = onChange
    onChange(this.#list())
  }

  /** Makes the agent report every address that it dials. Returns the agent. */
  observe<A extends Agent>(agent: A): A {
    const creator = agent as unknown as { createConnection: CreateConnection }
    const create = creator.createConnection.bind(agent)
    creator.createConnection = (options, done) => {
      const socket = create(options, done)
      if (socket !== undefined) this.#follow(socket)
      return socket
    }
    return agent
  }

  /**
   * Attempts count, too, before they succeed: rules may refuse the address now, and only a report of the attempt gets these rules removed.
   */
  #follow(socket: Socket): void {
    let dialed: DialedAddress | undefined
    socket.on('connectionAttempt', (ip: string, port: number) => {
      dialed = this.#add(ip, port)
    })
    socket.once('connect', () => {
      if (dialed === undefined) return
      const { ip, port } = dialed
      const connected = this.#add(socket.remoteAddress ?? ip, socket.remotePort ?? port)
      connected.open++
      socket.once('close', () => {
        connected.open--
        connected.usedAt = this.#clock.monotonic()
      })
    })
  }

  #add(text: string, port: number): DialedAddress {
    const ip = canonicalIp(text) ?? text
    const key = `${ip} ${port}`
    const known = this.#addresses.get(key)
    const now = this.#clock.monotonic()
    const address = known ?? { ip, port, open: 0, usedAt: now }
    address.usedAt = now
    const hasForgotten = this.#forgetUnused(now)
    if (known === undefined) this.#addresses.set(key, address)
    if (known === undefined || hasForgotten) this.#onChange(this.#list())
    return address
  }

  #forgetUnused(now: number): boolean {
    const before = this.#addresses.size
    for (const [key, { open, usedAt }] of this.#addresses) {
      const isFull = this.#addresses.size >= maxAddresses
      if (open === 0 && usedAt !== now && (isFull || now - usedAt >= keptMs)) this.#addresses.delete(key)
    }
    return this.#addresses.size < before
  }

  #list(): readonly SocketAddress[] {
    return [...this.#addresses.values()].map(({ ip, port }) => ({ ip, port }))
  }
}
