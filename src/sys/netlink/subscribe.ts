// Receives netlink's multicast notifications: what changed in the kernel and who changed it. Reports also when notifications were lost.

import { EAGAIN, EINTR } from '../errno.ts'
import * as libc from '../libc.ts'
import { MessageReader, NLMSG_OVERRUN } from './message.ts'
import { debugging, openNetlink, receiveBytes, type SocketOptions, trace } from './open-socket.ts'

export interface Subscription {
  close(): void
}

export interface NotificationListener {
  /** Called for every message. The reader is valid during the call. */
  message(message: MessageReader): void
  /** Called when messages were lost, because we were too slow or the buffer is too small. What was derived from them is in doubt. */
  lost(): void
}

/** Datagrams to read before the event loop may do other work. The fd stays readable, so the reader is called again. */
const maxDatagrams = 64

/** Joins multicast groups on a socket of its own, so that a flood of notifications never displaces answers. */
export function subscribe(
  options: SocketOptions,
  groups: readonly number[],
  listener: NotificationListener,
): Subscription {
  const subscriber = new Subscriber(options, groups, listener)
  return { close: () => subscriber.close() }
}

class Subscriber {
  readonly #options: SocketOptions
  readonly #listener: NotificationListener
  readonly #fd: number
  readonly #buffer = Buffer.allocUnsafe(receiveBytes)
  readonly #readiness: libc.Readiness
  #isClosed = false

  constructor(options: SocketOptions, groups: readonly number[], listener: NotificationListener) {
    this.#options = options
    this.#listener = listener
    this.#fd = openNetlink(options, groups)
    this.#readiness = libc.watchReadable(this.#fd, () => this.#read())
  }

  close(): void {
    if (this.#isClosed) return
    this.#isClosed = true
    this.#readiness.close()
    libc.close(this.#fd)
  }

  #read(): void {
    for (let left = maxDatagrams; left > 0 && !this.#isClosed; left--) {
      const length = libc.recv(this.#fd, this.#buffer, libc.MSG_DONTWAIT | libc.MSG_TRUNC)
      if (length === -EAGAIN) return
      if (length === -EINTR) continue
      if (length < 0 || length > this.#buffer.length) this.#listener.lost()
      else this.#deliver(length)
    }
  }

  #deliver(length: number): void {
    if (debugging) trace('notice', this.#options, this.#buffer, length)
    const message = new MessageReader(this.#buffer, 0, length)
    while (!this.#isClosed && message.next()) {
      if (message.type === NLMSG_OVERRUN) this.#listener.lost()
      else this.#listener.message(message)
    }
    if (message.error !== undefined) this.#listener.lost()
  }
}
