// Receives netlink's multicast notifications: what changed in the kernel and who changed it. Also reports when notifications were lost,
// and opens a socket that is lost again.

import { type Clock, systemClock, type Timer } from '../../lib/time.ts'
import { EAGAIN, EINTR, ENOBUFS, errnoName } from '../errno.ts'
import * as libc from '../libc.ts'
import { MessageReader, NLMSG_OVERRUN } from './message.ts'
import { debugging, openNetlink, readPort, receiveBytes, type SocketOptions, trace } from './open-socket.ts'

export interface Subscription {
  close(): void
}

/** A subscription whose notifications the kernel filters before it queues them. */
export interface FilteredSubscription extends Subscription {
  /** Replaces the filter, a program of classic BPF. Returns false if the kernel does not take it: then all notifications come. */
  setFilter(program: Uint8Array): boolean
}

export interface NotificationListener {
  /** Called for every message. The reader is valid during the call. */
  message(message: MessageReader): void
  /**
   * Called when messages were lost, because we were too slow, because the buffer is too small, or because the socket was lost and is now
   * open again. What was derived from them is in doubt.
   */
  lost(reason: string): void
}

/** Datagrams to read before the event loop may do other work. The fd stays readable, so the reader is called again. */
const maxDatagrams = 64
/** A descriptor that is closed behind our back reports nothing, so it is looked at from time to time. */
const checkMs = 10_000
const firstRetryMs = 1_000
const lastRetryMs = 30_000

/** Joins multicast groups on a socket of its own, so that a flood of notifications never displaces answers. */
export function subscribe(
  options: SocketOptions,
  groups: readonly number[],
  listener: NotificationListener,
): FilteredSubscription {
  const subscriber = new Subscriber(options, groups, listener)
  return { close: () => subscriber.close(), setFilter: (program) => subscriber.setFilter(program) }
}

interface OpenSocket {
  readonly fd: number
  readonly port: number
  readonly readiness: libc.Readiness
}

class Subscriber {
  readonly #options: SocketOptions
  readonly #groups: readonly number[]
  readonly #listener: NotificationListener
  readonly #clock: Clock
  readonly #buffer = Buffer.allocUnsafe(receiveBytes)
  /** Undefined while a lost socket could not be opened again. */
  #socket: OpenSocket | undefined
  /** Checks the socket, or tries to open it again. */
  #timer: Timer
  #filter: Uint8Array | undefined
  #isClosed = false

  constructor(options: SocketOptions, groups: readonly number[], listener: NotificationListener) {
    this.#options = options
    this.#groups = groups
    this.#listener = listener
    this.#clock = options.clock ?? systemClock
    this.#socket = this.#open()
    this.#timer = this.#checkLater()
  }

  close(): void {
    if (this.#isClosed) return
    this.#isClosed = true
    this.#timer.cancel()
    this.#release()
  }

  setFilter(program: Uint8Array): boolean {
    this.#filter = program
    return this.#socket !== undefined && libc.attachFilter(this.#socket.fd, program) >= 0
  }

  #open(): OpenSocket {
    const fd = openNetlink(this.#options, this.#groups)
    if (this.#filter !== undefined) libc.attachFilter(fd, this.#filter)
    return { fd, port: readPort(fd), readiness: libc.watchReadable(fd, () => this.#read()) }
  }

  /** Closes the descriptor, unless it belongs to another file by now. */
  #release(): void {
    const socket = this.#socket
    this.#socket = undefined
    if (socket === undefined) return
    socket.readiness.close()
    if (readPort(socket.fd) === socket.port) libc.close(socket.fd)
  }

  #checkLater(): Timer {
    return this.#clock.after(checkMs, () => {
      const found = this.#socket === undefined ? 0 : readPort(this.#socket.fd)
      if (this.#socket !== undefined && found !== this.#socket.port) this.#reopen(describe(found))
      else this.#timer = this.#checkLater()
    })
  }

  /** Opens a new socket, now or when the kernel allows it, and then reports that notifications were lost. */
  #reopen(reason: string, retryMs = firstRetryMs): void {
    this.#timer.cancel()
    this.#release()
    try {
      this.#socket = this.#open()
      this.#timer = this.#checkLater()
    } catch {
      const next = Math.min(2 * retryMs, lastRetryMs)
      this.#timer = this.#clock.after(retryMs, () => this.#reopen(reason, next))
      return
    }
    this.#listener.lost(`the socket for notifications was lost (${reason}) and opened again`)
  }

  #read(): void {
    const socket = this.#socket
    for (let left = maxDatagrams; left > 0 && socket !== undefined && this.#socket === socket; left--) {
      const length = libc.recv(socket.fd, this.#buffer, libc.MSG_DONTWAIT | libc.MSG_TRUNC)
      if (length === -EAGAIN) return
      if (length === -EINTR) continue
      if (length === -ENOBUFS) this.#listener.lost('notifications were lost')
      else if (length < 0) this.#reopen(describe(length))
      else if (length > this.#buffer.length) this.#listener.lost(`a notification of ${length} bytes was cut`)
      else this.#deliver(length)
    }
  }

  #deliver(length: number): void {
    if (debugging) trace('notice', this.#options, this.#buffer, length)
    const message = new MessageReader(this.#buffer, 0, length)
    while (!this.#isClosed && message.next()) {
      if (message.type === NLMSG_OVERRUN) this.#listener.lost('notifications were lost')
      else this.#listener.message(message)
    }
    if (message.error !== undefined) this.#listener.lost(`a notification is not valid: ${message.error}`)
  }
}

/** Describes what the kernel returned instead of our socket. */
const describe = (returned: number): string =>
  returned < 0 ? errnoName(-returned) : 'another socket has its descriptor'
