// Sends many small netlink requests in few datagrams, and reports which of them the kernel refused.

import { ProxyError } from '../../../lib/errors.ts'
import { nextTurn } from '../../../lib/time.ts'
import { NLM_F_REQUEST } from '../../../sys/netlink/message.ts'
import { MessageWriter } from '../../../sys/netlink/message-writer.ts'
import type { MessageFailure, NetlinkSocket, Wait } from '../../../sys/netlink/socket.ts'

/** The kernel does its work inside `send`, while the event loop waits: so a datagram has some hundred messages, not all of them. */
const datagramBytes = 48 * 1024
/** The most bytes that one message needs. */
const maxMessageBytes = 512

export interface RefusedRequest<T> {
  /** What the caller passed to `add`. */
  readonly subject: T
  readonly errno: number
  readonly error: ProxyError
}

export class NetlinkBatch<T> {
  readonly #socket: NetlinkSocket
  readonly #op: string
  readonly #wait: Wait
  readonly #full: MessageWriter[] = []
  #writer = new MessageWriter(maxMessageBytes * 4)
  readonly #subjects = new Map<number, T>()

  constructor(socket: NetlinkSocket, op: string, wait: Wait) {
    this.#socket = socket
    this.#op = op
    this.#wait = wait
  }

  add(type: number, flags: number, subject: T, body: (writer: MessageWriter) => void): void {
    if (this.#writer.length > datagramBytes) {
      this.#full.push(this.#writer)
      this.#writer = new MessageWriter(datagramBytes + maxMessageBytes, this.#writer.sequence)
    }
    const writer = this.#writer
    this.#subjects.set(writer.begin(type, NLM_F_REQUEST | flags), subject)
    body(writer)
    writer.end()
  }

  /** Sends everything, and returns the requests that the kernel refused. */
  async send(): Promise<readonly RefusedRequest<T>[]> {
    const refused: RefusedRequest<T>[] = []
    for (const writer of [...this.#full, this.#writer]) {
      if (writer.count === 0) continue
      const last = writer.acknowledge()
      const { failures, overflow } = await this.#socket.batch(this.#op, writer, last, this.#wait)
      if (overflow) throw new ProxyError('netlink', `${this.#op}: the kernel had more errors than it could report`)
      for (const failure of failures) this.#refuse(failure, refused)
      // The event loop answers health probes in between.
      if (this.#full.length > 0) await nextTurn()
    }
    return refused
  }

  #refuse(failure: MessageFailure, refused: RefusedRequest<T>[]): void {
    const subject = this.#subjects.get(failure.sequence)
    if (subject === undefined) return
    refused.push({ subject, errno: failure.errno, error: this.#socket.failure(this.#op, failure) })
  }
}
