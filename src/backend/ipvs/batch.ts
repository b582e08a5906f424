// Many small netlink requests in few datagrams, and which of them the kernel refused.

import { ProxyError } from '../../lib/errors.ts'
import { NLM_F_REQUEST } from '../../sys/netlink/message.ts'
import type { Failure, NetlinkSocket, Wait } from '../../sys/netlink/socket.ts'
import { MessageWriter } from '../../sys/netlink/writer.ts'

/** The kernel works inside `send`, so the event loop waits: some hundred messages at a time. */
const datagramBytes = 48 * 1024

export interface Refused<T> {
  readonly about: T
  readonly errno: number
  readonly error: ProxyError
}

export class Batch<T> {
  readonly #socket: NetlinkSocket
  readonly #op: string
  readonly #writer = new MessageWriter(datagramBytes + 4096)
  readonly #about = new Map<number, T>()
  readonly #refused: Refused<T>[] = []
  readonly #wait: Wait
  /** Messages sent so far. */
  count = 0

  constructor(socket: NetlinkSocket, op: string, wait: Wait) {
    this.#socket = socket
    this.#op = op
    this.#wait = wait
  }

  /** Sends by itself when enough has come together. */
  async add(type: number, flags: number, about: T, body: (writer: MessageWriter) => void): Promise<void> {
    const writer = this.#writer
    this.#about.set(writer.begin(type, NLM_F_REQUEST | flags), about)
    body(writer)
    writer.end()
    this.count++
    if (writer.length > datagramBytes) await this.#flush()
  }

  /** Everything has been done but what is returned. */
  async finish(): Promise<readonly Refused<T>[]> {
    if (this.#about.size > 0) await this.#flush()
    return this.#refused
  }

  async #flush(): Promise<void> {
    const last = this.#writer.acknowledge()
    const { failures, overflow } = await this.#socket.batch(this.#op, this.#writer, last, this.#wait)
    if (overflow) throw new ProxyError('netlink', `${this.#op}: more errors than the kernel could tell`)
    for (const failure of failures) this.#refuse(failure)
    this.#writer.clear()
    this.#about.clear()
  }

  #refuse(failure: Failure): void {
    const about = this.#about.get(failure.sequence)
    if (about === undefined) return
    this.#refused.push({ about, errno: failure.errno, error: this.#socket.failure(this.#op, failure) })
  }
}
