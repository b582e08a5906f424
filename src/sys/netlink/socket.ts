// A netlink socket for requests, dumps and batches. Notifications are in subscribe.ts.
//
// 1. The kernel works inside `send`: acknowledgements, errors and the first part of a dump are there when it returns. Therefore every
//    operation reads at once, and waits for the event loop only if nothing is there, and never longer than the deadline.
// 2. A socket runs one operation at a time; the others queue. The kernel would refuse a second dump (EBUSY), and answers would mix.
// 3. A datagram that is so large that the kernel would hold the event loop is sent from another thread. The kernel makes all other senders
//    wait until it is done, so no socket of this process sends meanwhile. A dump of a table that the kernel walks for long is asked for
//    from another thread, too, and keeps nobody waiting.
// 4. When a wait is given up, its late answers are discarded before the next operation.
// 5. A socket that is lost (its descriptor is not ours any more) fails one operation, and is opened again before the next.

import { ProxyError } from '../../lib/errors.ts'
import { Mutex } from '../../lib/mutex.ts'
import { type Clock, nextTurn, systemClock } from '../../lib/time.ts'
import { BackgroundSend } from '../background-send.ts'
import * as errno from '../errno.ts'
import * as libc from '../libc.ts'
import {
  decodeAnswer,
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
import { isTracing, openNetlink, readPort, receiveBytes, type SocketOptions, trace } from './open-socket.ts'

/** After this time of a dump the event loop may do other work. */
const sliceMs = 4
const defaultDeadlineMs = 30_000
/** Larger datagrams are sent in the background: the kernel needs some milliseconds for this size. */
const foregroundBytes = 64 << 10
const maxSendAttempts = 5

export interface Wait {
  readonly signal?: AbortSignal | undefined
  readonly deadlineMs?: number
}

export interface BatchWait extends Wait {
  /** Gets the messages that are not answers: what the kernel reports of changes with NLM_F_ECHO. */
  readonly visit?: Visit
  /** True if the kernel works for milliseconds on a short batch: then another thread sends it. */
  readonly isSlow?: boolean
}

/** One message. The socket adds the sequence number and the flags of the operation. */
export interface NetlinkRequest {
  /** The operation, as errors name it: `list conntrack entries`. */
  readonly op: string
  readonly type: number
  readonly flags?: number
  readonly body?: (writer: MessageWriter) => void
  /** True if the kernel works for tens of milliseconds before it answers: then another thread sends the request. */
  readonly isSlow?: boolean
}

export type Visit = (message: MessageReader) => void

export interface MessageFailure extends NetlinkAnswer {
  readonly sequence: number
}

export interface BatchOutcome {
  /** The messages that the kernel refused, in the order of its answers. */
  readonly failures: readonly MessageFailure[]
  /** True if the answers did not fit into the receive buffer: failures may be missing. */
  readonly overflow: boolean
}

/** The answers to a batch that have been read so far. */
interface BatchAnswers {
  /** The sequence number of the last message. */
  readonly last: number
  readonly visit: Visit | undefined
  readonly failures: MessageFailure[]
  overflow: boolean
  /** The answer to the last message has been read. */
  isComplete: boolean
}

const outcomeOf = ({ failures, overflow }: BatchAnswers): BatchOutcome => ({ failures, overflow })
const isDecided = ({ isComplete, failures, overflow }: BatchAnswers): boolean =>
  isComplete || failures.length > 0 || overflow

const processSend = new BackgroundSend()

export class NetlinkSocket {
  #fd: number
  #port: number
  #timesOpened = 1
  readonly #options: SocketOptions
  readonly #purpose: string
  readonly #isTracing = isTracing()
  readonly #clock: Clock
  readonly #writer = new MessageWriter()
  #buffer = Buffer.allocUnsafe(receiveBytes)
  readonly #mutex = new Mutex()
  readonly #background: BackgroundSend
  /** The send of this socket in the background: another thread uses the fd. */
  #sending: Promise<number> | undefined
  #isClosed = false
  /** True after a failed operation: some of its answers may still arrive. */
  #hasStaleAnswers = false
  /** Closing the descriptor of a lost socket could close a file of someone else. */
  #isLost = false
  /** Ends the current wait for the kernel. */
  #giveUp: (() => void) | undefined

  constructor(options: SocketOptions, background = processSend) {
    this.#options = options
    this.#purpose = options.purpose
    this.#clock = options.clock ?? systemClock
    this.#background = background
    this.#fd = openNetlink(options)
    this.#port = readPort(this.#fd)
  }

  /** The kernel's number for this socket, by which notifications name the sender. It changes when a lost socket is opened again. */
  get port(): number {
    return this.#port
  }

  /** How often the socket was opened. The number of a socket that is opened again may be that of the lost one. */
  get timesOpened(): number {
    return this.#timesOpened
  }

  /** Whether the descriptor is not ours any more. Then the next operation fails, and the one after it opens a new socket. */
  get isLost(): boolean {
    return !this.#isClosed && (this.#isLost || readPort(this.#fd) !== this.#port)
  }

  /** Sends one message and waits for its acknowledgement. Messages that precede it are passed to `visit`. */
  request(request: NetlinkRequest, visit?: Visit, wait: Wait = {}): Promise<void> {
    return this.#exclusively(async () => {
      const sequence = this.#writeOne(request, NLM_F_REQUEST | NLM_F_ACK)
      this.#send(request.op, this.#writer)
      await this.#readUntil(request.op, sequence, wait, (message) => {
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

  /** Visits every message of a dump, and lets the event loop run in between. If `interrupted`, some may be missing or occur twice. */
  dump(request: NetlinkRequest, visit: Visit, wait: Wait = {}): Promise<{ readonly interrupted: boolean }> {
    return this.#exclusively(async () => {
      const sequence = this.#writeOne(request, NLM_F_REQUEST | NLM_F_DUMP)
      if (request.isSlow === true) await this.#sendAside(request.op, this.#writer, libc.sendInBackground)
      else this.#send(request.op, this.#writer)
      let interrupted = false
      await this.#readUntil(request.op, sequence, wait, (message) => {
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
   * Sends all messages of the writer in one datagram. The caller must not touch the writer until this resolves. The kernel always reports
   * failures. It reports success if the last message that can be acknowledged, with sequence number `last`, has NLM_F_ACK.
   */
  batch(op: string, writer: MessageWriter, last: number, wait: BatchWait = {}): Promise<BatchOutcome> {
    return this.#exclusively(() => {
      const { visit, isSlow = false } = wait
      const answers: BatchAnswers = { last, visit, failures: [], overflow: false, isComplete: false }
      if (isSlow || writer.length > foregroundBytes) return this.#batchInBackground(op, writer, answers, wait)
      this.#send(op, writer)
      this.#readBatch(op, answers)
      return isDecided(answers) ? outcomeOf(answers) : this.#awaitBatch(op, answers, wait)
    })
  }

  async #batchInBackground(
    op: string,
    writer: MessageWriter,
    answers: BatchAnswers,
    wait: Wait,
  ): Promise<BatchOutcome> {
    await this.#sendAside(op, writer, (fd) => this.#background.run(fd, writer))
    this.#readBatch(op, answers)
    return this.#awaitBatch(op, answers, wait)
  }

  async #awaitBatch(op: string, answers: BatchAnswers, wait: Wait): Promise<BatchOutcome> {
    while (!isDecided(answers)) {
      await this.#waitReadable(op, wait)
      this.#readBatch(op, answers)
    }
    return outcomeOf(answers)
  }

  /** Reads the answers that are there. The answer to the last message is the last answer: before it there may be more. */
  #readBatch(op: string, answers: BatchAnswers): void {
    while (!answers.isComplete) {
      const length = this.#receive(op)
      if (length === undefined) return
      if (length === 'overflow') answers.overflow = true
      else this.#readAnswers(length, answers)
    }
  }

  #readAnswers(length: number, answers: BatchAnswers): void {
    const message = new MessageReader(this.#buffer, 0, length)
    while (message.next()) {
      if (message.type !== NLMSG_ERROR) answers.visit?.(message)
      if (message.type !== NLMSG_ERROR) continue
      const answer = decodeAnswer(message)
      if (answer.errno !== 0) answers.failures.push({ ...answer, sequence: message.sequence })
      if (message.sequence === answers.last) answers.isComplete = true
    }
  }

  /** Makes the error for a refused message of a batch. */
  failure(op: string, failure: MessageFailure): ProxyError {
    return netlinkError(this.#purpose, op, failure, failure.sequence)
  }

  close(): void {
    if (this.#isClosed) return
    this.#isClosed = true
    this.#giveUp?.()
    const close = () => (this.#isLost ? 0 : libc.close(this.#fd))
    // If the fd were closed during a send in the background, the other thread might send to another file that has got the same number.
    if (this.#sending === undefined) close()
    else this.#sending.then(close, close)
  }

  #exclusively<T>(run: () => T | Promise<T>): Promise<T> {
    return this.#mutex.run(() => this.#operate(run))
  }

  async #operate<T>(run: () => T | Promise<T>): Promise<T> {
    if (!this.#background.isIdle) await this.#background.whenIdle()
    if (this.#isClosed) throw this.#closedError()
    if (this.#isLost) this.#reopen()
    else if (this.isLost) this.#check('find the socket', -errno.EBADF)
    if (this.#hasStaleAnswers) await this.#discardAnswers()
    try {
      const result = run()
      // A result that is there at once is not worth a promise.
      return result instanceof Promise ? await result : result
    } catch (error) {
      this.#hasStaleAnswers = true
      throw error
    }
  }

  #writeOne(request: NetlinkRequest, flags: number): number {
    const writer = this.#writer
    writer.clear()
    const sequence = writer.begin(request.type, flags | (request.flags ?? 0))
    request.body?.(writer)
    writer.end()
    return sequence
  }

  /** Waits for a send of this socket by another thread. */
  async #sendAside(op: string, writer: MessageWriter, send: typeof libc.sendInBackground): Promise<void> {
    if (this.#isTracing) trace('send', this.#options, writer.bytes, writer.length)
    this.#sending = send(this.#fd, writer.bytes, writer.length)
    try {
      const sent = await this.#sending
      if (this.#isClosed) throw this.#closedError()
      this.#check(op, sent)
    } finally {
      this.#sending = undefined
    }
  }

  #send(op: string, writer: MessageWriter): void {
    if (this.#isTracing) trace('send', this.#options, writer.bytes, writer.length)
    for (let attempt = 1; ; attempt++) {
      const sent = libc.send(this.#fd, writer.bytes, writer.length)
      if (sent >= 0) return
      if (-sent !== errno.EINTR || attempt === maxSendAttempts) this.#check(op, sent)
    }
  }

  /** Passes messages with this sequence number to `isLast` until it returns true. */
  async #readUntil(
    op: string,
    sequence: number,
    wait: Wait,
    isLast: (message: MessageReader) => boolean,
  ): Promise<void> {
    let sliceEnd = this.#clock.monotonic() + sliceMs
    for (;;) {
      wait.signal?.throwIfAborted()
      if (this.#isClosed) throw this.#closedError()
      const length = this.#receive(op)
      if (length === 'overflow') throw callError(this.#purpose, op, errno.ENOBUFS)
      if (length === undefined) {
        await this.#waitReadable(op, wait)
        continue
      }
      const message = new MessageReader(this.#buffer, 0, length)
      while (message.next()) if (message.sequence === sequence && isLast(message)) return
      if (message.error !== undefined) throw malformed(this.#purpose, op, message.error)
      if (this.#clock.monotonic() > sliceEnd) {
        await nextTurn()
        sliceEnd = this.#clock.monotonic() + sliceMs
      }
    }
  }

  /** Returns the length of the datagram in the buffer; undefined if there is none; `overflow` if the kernel dropped some. */
  #receive(op: string): number | 'overflow' | undefined {
    for (;;) {
      const length = libc.recv(this.#fd, this.#buffer, libc.MSG_DONTWAIT | libc.MSG_TRUNC)
      if (length > this.#buffer.length) {
        const had = this.#buffer.length
        this.#buffer = Buffer.allocUnsafe(length)
        const words = `an answer of ${length} bytes was cut to ${had}; the next attempt has room for it`
        throw malformed(this.#purpose, op, words)
      }
      if (length >= 0) {
        if (this.#isTracing) trace('receive', this.#options, this.#buffer, length)
        return length
      }
      if (length === -errno.EAGAIN) return undefined
      if (length === -errno.ENOBUFS) return 'overflow'
      if (length !== -errno.EINTR) this.#check(op, length)
    }
  }

  /** The remaining answers to an operation that was given up must not be read as answers to the next one. */
  async #discardAnswers(): Promise<void> {
    for (let count = 1; !this.#isClosed; count++) {
      const length = libc.recv(this.#fd, this.#buffer, libc.MSG_DONTWAIT)
      if (length < 0 && length !== -errno.ENOBUFS && length !== -errno.EINTR) break
      if (count % 64 === 0) await nextTurn()
    }
    this.#hasStaleAnswers = false
  }

  #waitReadable(op: string, wait: Wait): Promise<void> {
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
          reject(
            new ProxyError('netlink', `${this.#purpose}: ${op}: the kernel did not answer within ${deadlineMs} ms`),
          ),
        ),
      )
      this.#giveUp = () => settle(() => reject(this.#closedError()))
      const readiness = libc.watchReadable(this.#fd, () => settle(resolve))
      if (wait.signal?.aborted) onAbort()
      else wait.signal?.addEventListener('abort', onAbort, { once: true })
    })
  }

  #closedError(): ProxyError {
    return new ProxyError('netlink', `${this.#purpose}: the netlink socket is closed`)
  }

  /** Throws if there is no free descriptor; then the next operation tries again. */
  #reopen(): void {
    this.#fd = openNetlink(this.#options)
    this.#port = readPort(this.#fd)
    this.#timesOpened++
    this.#isLost = false
    this.#hasStaleAnswers = false
  }

  #check(op: string, returned: number): void {
    if (returned >= 0) return
    if (returned === -errno.EBADF || returned === -errno.ENOTSOCK) this.#isLost = true
    throw callError(this.#purpose, op, -returned)
  }
}
