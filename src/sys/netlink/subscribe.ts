// Receives netlink's multicast notifications: what changed in the kernel and who changed it. Also reports when notifications were lost,
// and opens a socket that is lost again.

import { type Clock, systemClock, type Timer } from '../../lib/time.ts'
import { EAGAIN, EINTR, ENOBUFS, errnoName } from '../errno.ts'
import * as libc from '../libc.ts'
import { MessageReader, NLMSG_OVERRUN } from './message.ts'
import { isTracing, openNetlink, readPort, receiveBytes, type SocketOptions, trace } from './open-socket.ts'

export interface Subscription {
  close(): void
}

export interface SubscriptionOptions extends SocketOptions {
  /** After a read the socket is left alone for this time, so that many messages are read at once. Absent: each is read when it comes. */
  readonly batchMs?: number
}

/** A subscription whose notifications the kernel filters before it queues them. */
export interface FilteredSubscription extends Subscription {
  /** Reads the messages that are there now. Returns false if there are more than one call reads. */
  readQueued(): boolean
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

/** Datagrams to read before the event loop may do other work, which are some milliseconds of work. */
const maxDatagrams = 64
const maxBatchDatagrams = 1024
/** How many datagrams one call receives, and the room for each: notifications that are read in batches are small. */
const slots = 64
const slotBytes = 2048
/** A descriptor that is closed behind our back reports nothing, so it is looked at from time to time. */
const checkMs = 10_000
const firstRetryMs = 1_000
const lastRetryMs = 30_000

/** Joins multicast groups on a socket of its own, so that a flood of notifications never displaces answers. */
export function subscribe(
  options: SubscriptionOptions,
  groups: readonly number[],
  listener: NotificationListener,
): FilteredSubscription {
  const subscriber = new Subscriber(options, groups, listener)
  return {
    close: () => subscriber.close(),
    setFilter: (program) => subscriber.setFilter(program),
    readQueued: () => subscriber.readQueued(),
  }
}

interface OpenSocket {
  readonly fd: number
  readonly port: number
  /** Reports that there is something to read. Undefined while the socket is left alone. */
  readiness: libc.Readiness | undefined
}

class Subscriber {
  readonly #options: SubscriptionOptions
  readonly #isTracing = isTracing()
  readonly #groups: readonly number[]
  readonly #listener: NotificationListener
  readonly #clock: Clock
  readonly #batch: libc.DatagramBatch
  readonly #reader: MessageReader
  /** Undefined while a lost socket could not be opened again. */
  #socket: OpenSocket | undefined
  /** Checks the socket, or tries to open it again. */
  #timer: Timer
  /** Ends the time for which the socket is left alone. */
  #batchTimer: Timer | undefined
  #filter: Uint8Array | undefined
  #isClosed = false

  constructor(options: SubscriptionOptions, groups: readonly number[], listener: NotificationListener) {
    this.#options = options
    this.#groups = groups
    this.#listener = listener
    this.#clock = options.clock ?? systemClock
    const isBatched = options.batchMs !== undefined
    this.#batch = isBatched ? new libc.DatagramBatch(slots, slotBytes) : new libc.DatagramBatch(1, receiveBytes)
    this.#reader = new MessageReader(this.#batch.bytes)
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
    return { fd, port: readPort(fd), readiness: this.#awaitReadable(fd) }
  }

  #awaitReadable(fd: number): libc.Readiness {
    if (this.#options.batchMs === undefined) return libc.watchReadable(fd, () => void this.#read(maxDatagrams))
    return libc.watchReadable(fd, () => this.#readBatch())
  }

  /** Closes the descriptor, unless it belongs to another file by now. */
  #release(): void {
    const socket = this.#socket
    this.#socket = undefined
    this.#batchTimer?.cancel()
    if (socket === undefined) return
    socket.readiness?.close()
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

  readQueued(): boolean {
    return this.#read(maxBatchDatagrams) < maxBatchDatagrams
  }

  /** While messages come, a timer reads them. Only after a pause does the kernel report the next one. */
  #readBatch(): void {
    const count = this.#read(maxBatchDatagrams)
    const socket = this.#socket
    if (socket === undefined) return
    if (count === 0) {
      socket.readiness ??= this.#awaitReadable(socket.fd)
      return
    }
    socket.readiness?.close()
    socket.readiness = undefined
    const pauseMs = count < maxBatchDatagrams ? (this.#options.batchMs ?? 0) : 0
    this.#batchTimer = this.#clock.after(pauseMs, () => this.#readBatch())
  }

  /** Reads at most so many datagrams, or a few more. Returns how many there were, or were lost. */
  #read(most: number): number {
    const socket = this.#socket
    let count = 0
    while (count < most && socket !== undefined && this.#socket === socket) {
      const received = this.#batch.receive(socket.fd, libc.MSG_DONTWAIT | libc.MSG_TRUNC)
      if (received === -EAGAIN) break
      count += Math.max(1, received)
      if (received === -ENOBUFS) this.#listener.lost('notifications were lost')
      else if (received >= 0) this.#deliver(received)
      else if (received !== -EINTR) this.#reopen(describe(received))
    }
    return count
  }

  #deliver(count: number): void {
    const { slotBytes } = this.#batch
    for (let i = 0; i < count && !this.#isClosed; i++) {
      const length = this.#batch.lengthOf(i)
      if (length > slotBytes) this.#listener.lost(`a notification of ${length} bytes was cut`)
      else this.#deliverDatagram(i * slotBytes, length)
    }
  }

  #deliverDatagram(start: number, length: number): void {
    if (this.#isTracing) trace('notice', this.#options, this.#batch.bytes.subarray(start), length)
    const message = this.#reader.reset(start, start + length)
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
