// A netlink socket: requests, dumps, batches and notifications, with the kernel's own words in the errors.
//
// 1. The kernel works inside `send`: acknowledgements, errors and the first part of a dump are there when it returns. So everything
//    reads without waiting first; the event loop is only waited for when nothing is there, and never longer than the deadline.
// 2. One operation at a time per socket: a second dump would be refused (EBUSY) and answers would mix. Others queue.
// 3. A datagram so large that the kernel would hold the event loop with it is sent from another thread. The kernel makes everybody else
//    wait until it is done, so no socket sends meanwhile.
// 4. After a wait that was given up, its late answers are thrown away before the next operation.

import { ProxyError } from '../../lib/errors.ts'
import { Mutex } from '../../lib/mutex.ts'
import { type Clock, nextTurn, systemClock } from '../../lib/time.ts'
import * as errno from '../errno.ts'
import * as libc from '../libc.ts'
import {
  decodeAnswer,
  hostU32,
  MessageReader,
  type NetlinkAnswer,
  NLM_F_ACK,
  NLM_F_DUMP,
  NLM_F_DUMP_INTR,
  NLM_F_REQUEST,
  NLMSG_DONE,
  NLMSG_ERROR,
} from './message.ts'
import { MessageWriter } from './message-writer.ts'
import { callError, malformed, netlinkError } from './netlink-errors.ts'
import { debugging, openNetlink, receiveBytes, type SocketOptions, trace } from './open-socket.ts'

/** The event loop gets its turn after this much of a dump. */
const sliceMs = 4
const defaultDeadlineMs = 30_000
/** More than this is sent in the background: some ten milliseconds of the kernel's time. */
const foregroundBytes = 256 << 10
/** The one send in the background, of any socket. */
let background: Promise<unknown> | undefined

export interface Wait {
  readonly signal?: AbortSignal | undefined
  readonly deadlineMs?: number
}

/** One message: the socket adds sequence number and the flags that the kind of call needs. */
export interface NetlinkRequest {
  /** What is being done, for errors: `list conntrack entries`. */
  readonly op: string
  readonly type: number
  readonly flags?: number
  readonly body?: (writer: MessageWriter) => void
}

export type Visit = (message: MessageReader) => void

export interface MessageFailure extends NetlinkAnswer {
  readonly sequence: number
}

export interface BatchOutcome {
  /** Messages that the kernel refused, in its order. */
  readonly failures: readonly MessageFailure[]
  /** More answers came than the receive buffer holds: failures may be missing. */
  readonly overflow: boolean
}

interface BatchReading extends BatchOutcome {
  readonly last: number
  readonly failures: MessageFailure[]
  overflow: boolean
  done: boolean
}

const outcomeOf = ({ failures, overflow }: BatchReading): BatchOutcome => ({ failures, overflow })

const settled = ({ done, failures, overflow }: BatchReading): boolean => done || failures.length > 0 || overflow

export class NetlinkSocket {
  readonly #fd: number
  readonly #options: SocketOptions
  readonly #purpose: string
  readonly #clock: Clock
  readonly #writer = new MessageWriter()
  #buffer = Buffer.allocUnsafe(receiveBytes)
  readonly #turns = new Mutex()
  /** Of this socket: its fd is in use by another thread. */
  #sending: Promise<number> | undefined
  #closed = false
  /** An operation failed: some of its answers may still be to come. */
  #stale = false
  /** Ends the wait for the kernel, if there is one. */
  #giveUp: (() => void) | undefined

  constructor(options: SocketOptions) {
    this.#options = options
    this.#purpose = options.purpose
    this.#clock = options.clock ?? systemClock
    this.#fd = openNetlink(options)
  }

  /** The kernel's number for this socket: the sender in notifications of what we do here. */
  get port(): number {
    const address = Buffer.alloc(12)
    this.#check('read the socket address', libc.getsockname(this.#fd, address))
    return hostU32(address, 4)
  }

  /** Sends one message and waits for its acknowledgement; data that comes before it goes to `visit`. */
  request(request: NetlinkRequest, visit?: Visit, wait: Wait = {}): Promise<void> {
    return this.#exclusively(async () => {
      const sequence = this.#sendOne(request, NLM_F_REQUEST | NLM_F_ACK)
      await this.#answers(request.op, sequence, wait, (message) => {
        if (message.type !== NLMSG_ERROR) {
          visit?.(message)
          return false
        }
        const answer = decodeAnswer(message)
        if (answer.errno !== 0) throw netlinkError(this.#purpose, request.op, answer, sequence)
        return true
      })
    })
  }

  /** Visits every message of a dump, with turns for the event loop in between. `interrupted`: some may be missing or double. */
  dump(request: NetlinkRequest, visit: Visit, wait: Wait = {}): Promise<{ readonly interrupted: boolean }> {
    return this.#exclusively(async () => {
      const sequence = this.#sendOne(request, NLM_F_REQUEST | NLM_F_DUMP)
      let interrupted = false
      await this.#answers(request.op, sequence, wait, (message) => {
        if (message.flags & NLM_F_DUMP_INTR) interrupted = true
        if (message.type !== NLMSG_DONE && message.type !== NLMSG_ERROR) {
          visit(message)
          return false
        }
        const answer = decodeAnswer(message)
        if (answer.errno === errno.EINTR) interrupted = true
        else if (answer.errno !== 0) throw netlinkError(this.#purpose, request.op, answer, sequence)
        return true
      })
      return { interrupted }
    })
  }

  /**
   * Sends all messages of the writer in one datagram; the writer is not to be touched until this is done. The kernel tells about failures by itself; for its success there must be
   * NLM_F_ACK on the last message that can be acknowledged, whose sequence number is `last`.
   */
  batch(op: string, writer: MessageWriter, last: number, wait: Wait = {}): Promise<BatchOutcome> {
    return this.#exclusively(() => {
      const reading = { last, failures: [], overflow: false, done: false }
      if (writer.length > foregroundBytes) return this.#longBatch(op, writer, reading, wait)
      this.#send(op, writer)
      this.#readBatch(op, reading)
      return settled(reading) ? outcomeOf(reading) : this.#awaitBatch(op, reading, wait)
    })
  }

  async #longBatch(op: string, writer: MessageWriter, reading: BatchReading, wait: Wait): Promise<BatchOutcome> {
    if (debugging) trace('send', this.#options, writer.bytes, writer.length)
    this.#sending = libc.sendInBackground(this.#fd, writer.bytes, writer.length)
    background = this.#sending
    let sent: number
    try {
      sent = await this.#sending
    } finally {
      background = undefined
      this.#sending = undefined
    }
    if (this.#closed) throw this.#gone()
    this.#check(op, sent)
    this.#readBatch(op, reading)
    return this.#awaitBatch(op, reading, wait)
  }

  async #awaitBatch(op: string, reading: BatchReading, wait: Wait): Promise<BatchOutcome> {
    while (!settled(reading)) {
      await this.#readable(op, wait)
      this.#readBatch(op, reading)
    }
    return outcomeOf(reading)
  }

  /** As far as answers are there. The one to the last message is the last one: without it there may be more. */
  #readBatch(op: string, reading: BatchReading): void {
    while (!reading.done) {
      const length = this.#receive(op)
      if (length === undefined) return
      if (length === 'overflow') {
        reading.overflow = true
        continue
      }
      const message = new MessageReader(this.#buffer, 0, length)
      while (message.next()) {
        if (message.type !== NLMSG_ERROR) continue
        const answer = decodeAnswer(message)
        if (answer.errno !== 0) reading.failures.push({ ...answer, sequence: message.sequence })
        if (message.sequence === reading.last) reading.done = true
      }
    }
  }

  /** Turns an answer of a batch into the error to throw. */
  failure(op: string, failure: MessageFailure): ProxyError {
    return netlinkError(this.#purpose, op, failure, failure.sequence)
  }

  close(): void {
    if (this.#closed) return
    this.#closed = true
    this.#giveUp?.()
    const close = () => libc.close(this.#fd)
    // A number that is free again may be another file's before the other thread gets to use it.
    if (this.#sending === undefined) close()
    else this.#sending.then(close, close)
  }

  #exclusively<T>(run: () => T | Promise<T>): Promise<T> {
    return this.#turns.run(() => this.#operate(run))
  }

  async #operate<T>(run: () => T | Promise<T>): Promise<T> {
    while (background !== undefined) await background.catch(() => {})
    if (this.#closed) throw this.#gone()
    if (this.#stale) await this.#discard()
    try {
      const result = run()
      // What is there at once is not worth a promise.
      return result instanceof Promise ? await result : result
    } catch (error) {
      this.#stale = true
      throw error
    }
  }

  #sendOne(request: NetlinkRequest, flags: number): number {
    const writer = this.#writer
    writer.clear()
    const sequence = writer.begin(request.type, flags | (request.flags ?? 0))
    request.body?.(writer)
    writer.end()
    this.#send(request.op, writer)
    return sequence
  }

  #send(op: string, writer: MessageWriter): void {
    if (debugging) trace('send', this.#options, writer.bytes, writer.length)
    for (let attempt = 1; ; attempt++) {
      const sent = libc.send(this.#fd, writer.bytes, writer.length)
      if (sent >= 0) return
      if (-sent !== errno.EINTR || attempt === 5) this.#check(op, sent)
    }
  }

  /** Feeds `take` with messages of this sequence number until it returns true. */
  async #answers(op: string, sequence: number, wait: Wait, take: (message: MessageReader) => boolean): Promise<void> {
    let sliceEnd = this.#clock.monotonic() + sliceMs
    for (;;) {
      wait.signal?.throwIfAborted()
      if (this.#closed) throw this.#gone()
      const length = this.#receive(op)
      if (length === 'overflow') throw callError(this.#purpose, op, errno.ENOBUFS)
      if (length === undefined) {
        await this.#readable(op, wait)
        continue
      }
      const message = new MessageReader(this.#buffer, 0, length)
      while (message.next()) if (message.sequence === sequence && take(message)) return
      if (message.error !== undefined) throw malformed(this.#purpose, op, message.error)
      if (this.#clock.monotonic() > sliceEnd) {
        await nextTurn()
        sliceEnd = this.#clock.monotonic() + sliceMs
      }
    }
  }

  /** Length of the datagram in the buffer; undefined if there is none; `overflow` if the kernel had to drop some. */
  #receive(op: string): number | 'overflow' | undefined {
    for (;;) {
      const length = libc.recv(this.#fd, this.#buffer, libc.MSG_DONTWAIT | libc.MSG_TRUNC)
      if (length > this.#buffer.length) {
        const had = this.#buffer.length
        this.#buffer = Buffer.allocUnsafe(length)
        throw malformed(this.#purpose, op, `answer of ${length} bytes was cut to ${had}; the next try has room`)
      }
      if (length >= 0) {
        if (debugging) trace('receive', this.#options, this.#buffer, length)
        return length
      }
      if (length === -errno.EAGAIN) return undefined
      if (length === -errno.ENOBUFS) return 'overflow'
      if (length !== -errno.EINTR) this.#check(op, length)
    }
  }

  /** What is left of an operation that was given up would be taken for answers to the next one. */
  async #discard(): Promise<void> {
    for (let count = 1; !this.#closed; count++) {
      const length = libc.recv(this.#fd, this.#buffer, libc.MSG_DONTWAIT)
      if (length < 0 && length !== -errno.ENOBUFS && length !== -errno.EINTR) break
      if (count % 64 === 0) await nextTurn()
    }
    this.#stale = false
  }

  #readable(op: string, wait: Wait): Promise<void> {
    const deadlineMs = wait.deadlineMs ?? defaultDeadlineMs
    return new Promise((resolve, reject) => {
      const settle = (then: () => void) => {
        this.#giveUp = undefined
        readiness.close()
        timer.cancel()
        wait.signal?.removeEventListener('abort', onAbort)
        then()
      }
      const onAbort = () => settle(() => reject(wait.signal?.reason))
      const timer = this.#clock.after(deadlineMs, () =>
        settle(() =>
          reject(new ProxyError('netlink', `${this.#purpose}: ${op}: no answer from the kernel in ${deadlineMs} ms`)),
        ),
      )
      this.#giveUp = () => settle(() => reject(this.#gone()))
      const readiness = libc.watchReadable(this.#fd, () => settle(resolve))
      if (wait.signal?.aborted) onAbort()
      else wait.signal?.addEventListener('abort', onAbort, { once: true })
    })
  }

  #gone(): ProxyError {
    return new ProxyError('netlink', `${this.#purpose}: the netlink socket is closed`)
  }

  #check(op: string, returned: number): void {
    if (returned < 0) throw callError(this.#purpose, op, -returned)
  }
}
