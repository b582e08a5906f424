// Many small netlink requests in few datagrams, and which of them the kernel refused.

import { ProxyError } from '../../lib/errors.ts'
import { nextTurn } from '../../lib/time.ts'
import { NLM_F_REQUEST } from '../../sys/netlink/message.ts'
import { MessageWriter } from '../../sys/netlink/message-writer.ts'
import type { MessageFailure, NetlinkSocket, Wait } from '../../sys/netlink/socket.ts'

/** The kernel works inside `send`, and the event loop waits for it: some hundred messages at a time. */
const datagramBytes = 48 * 1024
/** What one more message may take. */
const roomBytes = 512

export interface RefusedRequest<T> {
  readonly about: T
  readonly errno: number
  readonly error: ProxyError
}

export class NetlinkBatch<T> {
  readonly #socket: NetlinkSocket
  readonly #op: string
  readonly #wait: Wait
  readonly #full: MessageWriter[] = []
  #writer = new MessageWriter(roomBytes * 4)
  readonly #about = new Map<number, T>()

  constructor(socket: NetlinkSocket, op: string, wait: Wait) {
    this.#socket = socket
    this.#op = op
    this.#wait = wait
  }

  add(type: number, flags: number, about: T, body: (writer: MessageWriter) => void): void {
    if (this.#writer.length > datagramBytes) {
      this.#full.push(this.#writer)
      this.#writer = new MessageWriter(datagramBytes + roomBytes, this.#writer.sequence)
    }
    const writer = this.#writer
    this.#about.set(writer.begin(type, NLM_F_REQUEST | flags), about)
    body(writer)
    writer.end()
  }

  /** Sends everything; returns what was refused of it. */
  async send(): Promise<readonly RefusedRequest<T>[]> {
    const refused: RefusedRequest<T>[] = []
    for (const writer of [...this.#full, this.#writer]) {
      if (writer.count === 0) continue
      const last = writer.acknowledge()
      const { failures, overflow } = await this.#socket.batch(this.#op, writer, last, this.#wait)
      if (overflow) throw new ProxyError('netlink', `${this.#op}: more errors than the kernel could tell`)
      for (const failure of failures) this.#refuse(failure, refused)
      // Health probes are answered in between.
      if (this.#full.length > 0) await nextTurn()
    }
    return refused
  }

  #refuse(failure: MessageFailure, refused: RefusedRequest<T>[]): void {
    const about = this.#about.get(failure.sequence)
    if (about === undefined) return
    refused.push({ about, errno: failure.errno, error: this.#socket.failure(this.#op, failure) })
  }
}
