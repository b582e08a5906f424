// Holds back the events of a namespace that has very many at once, so that events of others which follow in the same watch do not wait for
// them. Only the last event of an object is kept: the others are history when it is applied. No I/O.

import { type Clock, nextTurn } from '../../lib/time.ts'
import type { MessageBatches } from '../message-stream.ts'
import { identifyEvent, identifyObject, isChange, type WatchEvent, type WatchMessage } from './watch-messages.ts'

/** Characters or bytes of events of one namespace that are not held back, in each second. A longer one is not held back: it would be parsed twice. */
const promptLength = 256 << 10
const windowMs = 1_000
/** A short event counts as if it had so many more: about what it costs besides reading it. */
const eventLength = 2 << 10
/** Characters or bytes of all messages that are held back. */
const maxLength = 4 << 20
/** After this time messages that are held back and new ones take turns. */
const overdueMs = 250

interface WaitingMessages {
  /** By name of the object. */
  readonly messages: Map<string, WatchMessage>
  /** Goes through the messages once: a new iterator would pass all those that have been removed. */
  readonly order: IterableIterator<[string, WatchMessage]>
}

export class DeferredEvents {
  readonly #clock: Pick<Clock, 'monotonic'>
  /** The length of all events of each namespace in this second. */
  readonly #lengths = new Map<string, number>()
  #windowEnd = 0
  /** Messages by namespace. */
  readonly #waiting = new Map<string, WaitingMessages>()
  #length = 0
  /** When the first message was held back. */
  #since = 0

  constructor(clock: Pick<Clock, 'monotonic'>) {
    this.#clock = clock
  }

  get isEmpty(): boolean {
    return this.#waiting.size === 0
  }

  /** True if all messages must be applied before another one is held back. */
  get isFull(): boolean {
    return this.#length >= maxLength
  }

  get isOverdue(): boolean {
    return !this.isEmpty && this.#clock.monotonic() - this.#since >= overdueMs
  }

  /** Holds a message back without reading all of it if others of its namespace wait. Returns its version; undefined if it is not held back. */
  takeUnread(message: WatchMessage): string | undefined {
    if (this.isEmpty) return undefined
    const identity = identifyEvent(message)
    if (identity === undefined || !this.#waiting.has(identity.namespace)) return undefined
    return this.take(identity.namespace, identity.name, message) ? identity.version : undefined
  }

  /** As `takeUnread`, for the message of an event that has been read. */
  takeRead(message: WatchMessage, { type, object }: WatchEvent): string | undefined {
    const identity = isChange(type) ? identifyObject(object) : undefined
    if (identity === undefined || !this.take(identity.namespace, identity.name, message)) return undefined
    return identity.version
  }

  /** Called for every event of an object. Returns true if its message is held back; otherwise the caller applies it now. */
  take(namespace: string, name: string, message: WatchMessage): boolean {
    const now = this.#clock.monotonic()
    if (now >= this.#windowEnd) {
      this.#lengths.clear()
      this.#windowEnd = now + windowMs
    }
    const length = (this.#lengths.get(namespace) ?? 0) + message.length + eventLength
    this.#lengths.set(namespace, length)
    const waiting = this.#waiting.get(namespace)
    // Events of one object never overtake each other: if one of a namespace waits, all that follow wait.
    const isPrompt = length <= promptLength || message.length > promptLength
    if (isPrompt && waiting === undefined) return false
    if (this.isEmpty) this.#since = now
    const { messages } = waiting ?? this.#begin(namespace)
    this.#length += message.length - (messages.get(name)?.length ?? 0)
    // A frame is a part of a buffer that is much larger, and would keep all of it in memory.
    messages.set(name, typeof message === 'string' ? message : Buffer.from(message))
    return true
  }

  /** Returns a message to apply now; namespaces take turns. */
  shift(): WatchMessage | undefined {
    for (const [namespace, waiting] of this.#waiting) {
      const { messages, order } = waiting
      const next = order.next()
      this.#waiting.delete(namespace)
      if (next.done === true) continue
      const [name, message] = next.value
      messages.delete(name)
      if (messages.size > 0) this.#waiting.set(namespace, waiting)
      this.#length -= message.length
      return message
    }
    return undefined
  }

  #begin(namespace: string): WaitingMessages {
    const messages = new Map<string, WatchMessage>()
    const waiting = { messages, order: messages.entries() }
    this.#waiting.set(namespace, waiting)
    return waiting
  }
}

/** `undefined` stands for a time in which the reader may apply messages that are held back. */
type Turn = readonly WatchMessage[] | undefined
type Deferred = Pick<DeferredEvents, 'isEmpty' | 'isOverdue'>
type Next = IteratorResult<readonly WatchMessage[], unknown>

/** Passes batches on, and offers times between them while messages are held back. */
export const readInTurns = (batches: MessageBatches, deferred: Deferred): AsyncIterableIterator<Turn> =>
  new BatchTurns(batches, deferred)

/** No generator: its promises would cost a lone change more than reading it does. */
class BatchTurns implements AsyncIterableIterator<Turn> {
  readonly #batches: MessageBatches
  readonly #deferred: Deferred
  /** A batch that was asked for and is not passed on. */
  #next: Promise<Next> | undefined
  /** Whether the last turn was a batch. */
  #wasBatch = false

  constructor(batches: MessageBatches, deferred: Deferred) {
    this.#batches = batches
    this.#deferred = deferred
  }

  next(): Promise<IteratorResult<Turn, unknown>> {
    if (this.#wasBatch && this.#deferred.isOverdue) return this.#offerTime()
    this.#next ??= this.#batches.next()
    return this.#deferred.isEmpty ? this.#passOn(this.#next) : this.#race(this.#next)
  }

  async return(): Promise<IteratorReturnResult<undefined>> {
    await this.#batches.return?.()
    return { done: true, value: undefined }
  }

  [Symbol.asyncIterator](): this {
    return this
  }

  /** Offers a time if no batch comes until the next turn of the event loop. */
  async #race(next: Promise<Next>): Promise<IteratorResult<Turn, unknown>> {
    const isThere = await Promise.race([next.then(yes), nextTurn().then(no)])
    return isThere ? this.#passOn(next) : this.#offerTime()
  }

  #passOn(next: Promise<Next>): Promise<Next> {
    this.#next = undefined
    this.#wasBatch = true
    return next
  }

  async #offerTime(): Promise<IteratorResult<Turn, unknown>> {
    this.#wasBatch = false
    return { done: false, value: undefined }
  }
}

const yes = (): boolean => true
const no = (): boolean => false
