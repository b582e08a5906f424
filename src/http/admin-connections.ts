// Limits the connections to the admin socket, so that a command gets its answer while others hold connections open.

import type { ServerResponse } from 'node:http'
import type { Socket } from 'node:net'
import type { LimitedSocket } from '../lib/connection-limit.ts'
import { makeConnectionLimit } from './server.ts'

/** Numbers the connections, since a Unix socket has no address. */
export class AdminConnections {
  readonly #limit = makeConnectionLimit(64)
  readonly #numbered = new WeakMap<Socket, LimitedSocket>()
  #count = 0

  add(socket: Socket): void {
    const numbered: LimitedSocket = {
      remoteAddress: 'admin socket',
      remotePort: ++this.#count,
      destroy: () => socket.destroy(),
      once: (event, listener) => socket.once(event, listener),
    }
    this.#numbered.set(socket, numbered)
    this.#limit.add(numbered)
  }

  serve(socket: Socket, response: ServerResponse): void {
    const numbered = this.#numbered.get(socket)
    if (numbered !== undefined) this.#limit.serve(numbered, response)
  }
}
