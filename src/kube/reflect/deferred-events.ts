// Holds back the events of a namespace that has very many at once, so that events of others which follow in the same watch do not wait for
// them. Only the last event of an object is kept: the others are history when it is applied. No I/O.

import { type Clock, nextTurn } from '../../lib/time.ts'
import type { MessageBatches } from '../message-stream.ts'
import type { WatchMessage } from './watch-messages.ts'

/** Characters or bytes of events of one namespace that are not held back, in each second. A longer one is not held back: it would be parsed twice. */
const promptLength = 256 << 10
const windowMs = 1_000
/** A short event counts as if it had so many more: about what it costs besides reading it. */
const eventLength = 2 << 10
/** Characters or bytes of all messages that are held back. */
const maxLength = 4 << 20
/** After this time messages that are held back and new ones take turns. */
const overdueMs = 250

export class DeferredEvents {
  readonly #clock: Pick<Clock, 'monotonic'>
  /** The length of all events of each namespace in this second. */
  readonly #lengths = new Map<string, number>()
  #windowEnd = 0
  /** Messages by namespace and name of the object. */
  readonly #waiting = new Map<string, Map<string, WatchMessage>>()
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

  /** Called for every event of an object. Returns true if its message is held back; otherwise the caller applies it now. */
  take(namespace: string, name: string, message: WatchMessage): boolean {
    const now = this.#clock.monotonic()
    if (now >= this.#windowEnd) {
      this.#lengths.clear()
      this.#windowEnd = now + windowMs
    }
    const length = (this.#lengths.get(namespace) ?? 0) + message.length + eventLength
    this.#lengths.set(namespace, length)
    let messages = this.#waiting.get(namespace)
    // Events of one object never overtake each other: if one of a namespace waits, all that follow wait.
    const isPrompt = length <= promptLength || message.length > promptLength
    if (isPrompt && messages === undefined) return false
    if (this.isEmpty) this.#since = now
    if (messages === undefined) {
      messages = new Map()
      this.#waiting.set(namespace, messages)
    }
    this.#length += message.length - (messages.get(name)?.length ?? 0)
    // A frame is a part of a buffer that is much larger, and would keep all of it in memory.
    messages.set(name, typeof message === 'string' ? message : Buffer.from(message))
    return true
  }

  /** Returns a message to apply now; namespaces take turns. */
  shift(): WatchMessage | undefined {
    for (const [namespace, messages] of this.#waiting) {
      this.#waiting.delete(namespace)
      for (const [name, message] of messages) {
        messages.delete(name)
        if (messages.size > 0) this.#waiting.set(namespace, messages)
        this.#length -= message.length
        return message
      }
    }
    return undefined
  }
}

type Offers<T> = AsyncGenerator<readonly WatchMessage[] | undefined, T, void>
type Deferred = Pick<DeferredEvents, 'isEmpty' | 'isOverdue'>
type Next = IteratorResult<readonly WatchMessage[], unknown>

/** Passes batches on. `undefined` stands for a time in which the reader may apply messages that are held back. */
export async function* readInTurns(batches: MessageBatches, deferred: Deferred): Offers<void> {
  try {
    for (;;) {
      const next: Next = yield* offerTime(batches.next(), deferred)
      if (next.done === true) return
      yield next.value
      if (deferred.isOverdue) yield undefined
    }
  } finally {
    await batches.return?.()
  }
}

/** Offers a time in each turn of the event loop until the next batch is there. */
async function* offerTime(next: Promise<Next>, deferred: Deferred): Offers<Next> {
  while (!deferred.isEmpty) {
    const result = await Promise.race([next, nextTurn().then(noBatch)])
    if (result !== undefined) return result
    yield undefined
  }
  return next
}

const noBatch = (): undefined => undefined
