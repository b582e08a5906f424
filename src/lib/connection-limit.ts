// Limits the open connections of one or more servers: a new connection takes the place of the oldest one that waits for a request.

/** The part of a socket that the limit needs. */
export interface LimitedSocket {
  readonly remoteAddress?: string | undefined
  readonly remotePort?: number | undefined
  readonly localAddress?: string | undefined
  readonly localPort?: number | undefined
  destroy(): unknown
  once(event: 'close', listener: () => void): unknown
}

/** Emits `close` when a response was sent or its connection is gone. */
interface ClosingResponse {
  once(event: 'close', listener: () => void): unknown
}

export interface ConnectionLimitOptions {
  readonly maxConnections: number
  /** What happens to a new connection while requests are served on all others. Watches, for example, must not end for it. */
  readonly whenBusy: 'close-oldest' | 'refuse-new'
}

interface LimitedConnection {
  readonly socket: LimitedSocket
  readonly source: string
  /** Requests that are served at this moment. HTTP allows several on one connection. */
  serving: number
}

/**
 * Most connections of a flood send nothing, or the start of a request. Refusing new connections would keep out those who ask something:
 * a load balancer would believe that the node is dead. A client that holds more than a quarter of all connections loses its own first.
 */
export class ConnectionLimit {
  readonly #options: ConnectionLimitOptions
  readonly #connections = new Map<string, LimitedConnection>()
  /** Connections on which no request is served, the one that waits longest first. */
  readonly #waiting = new Map<string, LimitedConnection>()
  /** The keys of the same connections, by the address of the client. */
  readonly #waitingBySource = new Map<string, Set<string>>()

  constructor(options: ConnectionLimitOptions) {
    this.#options = options
  }

  get size(): number {
    return this.#connections.size
  }

  /** Called for each new connection. Closes another one, or this one, if there are too many. */
  add(socket: LimitedSocket): void {
    const key = keyOf(socket)
    if (key === undefined) {
      socket.destroy()
      return
    }
    if (this.#connections.size >= this.#options.maxConnections && !this.#makeRoom(socket.remoteAddress ?? '')) {
      socket.destroy()
      return
    }
    const connection = { socket, source: socket.remoteAddress ?? '', serving: 0 }
    this.#connections.set(key, connection)
    this.#startWaiting(key, connection)
    socket.once('close', () => {
      // The key may belong to a later connection by now.
      if (this.#connections.get(key) === connection) this.#remove(key, connection)
    })
  }

  /**
   * Called when a request is worth its connection, until `response` closes. `socket` may be the TLS socket on top of the one that was
   * added: both have the same addresses.
   */
  serve(socket: LimitedSocket, response: ClosingResponse): void {
    const key = keyOf(socket)
    const connection = key === undefined ? undefined : this.#connections.get(key)
    if (key === undefined || connection === undefined) return
    connection.serving++
    this.#stopWaiting(key, connection)
    response.once('close', () => {
      connection.serving--
      if (connection.serving === 0 && this.#connections.get(key) === connection) this.#startWaiting(key, connection)
    })
  }

  /** Returns false if no connection can be closed. */
  #makeRoom(source: string): boolean {
    const own = this.#waitingBySource.get(source)
    const isGreedy = own !== undefined && own.size > this.#options.maxConnections / 4
    const key = firstOf(isGreedy ? own : this.#waiting.keys()) ?? this.#oldestServing()
    const connection = key === undefined ? undefined : this.#connections.get(key)
    if (key === undefined || connection === undefined) return false
    this.#remove(key, connection)
    connection.socket.destroy()
    return true
  }

  #oldestServing(): string | undefined {
    return this.#options.whenBusy === 'close-oldest' ? firstOf(this.#connections.keys()) : undefined
  }

  #remove(key: string, connection: LimitedConnection): void {
    this.#connections.delete(key)
    this.#stopWaiting(key, connection)
  }

  #startWaiting(key: string, connection: LimitedConnection): void {
    this.#waiting.set(key, connection)
    const own = this.#waitingBySource.get(connection.source)
    if (own === undefined) this.#waitingBySource.set(connection.source, new Set([key]))
    else own.add(key)
  }

  #stopWaiting(key: string, { source }: LimitedConnection): void {
    this.#waiting.delete(key)
    const own = this.#waitingBySource.get(source)
    own?.delete(key)
    if (own?.size === 0) this.#waitingBySource.delete(source)
  }
}

/** Returns undefined if the connection is already gone. No two open connections have the same four parts. */
function keyOf({ remoteAddress, remotePort, localAddress, localPort }: LimitedSocket): string | undefined {
  if (remoteAddress === undefined || remotePort === undefined) return undefined
  return `${remoteAddress} ${remotePort} ${localAddress} ${localPort}`
}

function firstOf(keys: Iterable<string>): string | undefined {
  for (const key of keys) return key
  return undefined
}
