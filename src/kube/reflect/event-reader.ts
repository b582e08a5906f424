// Reads the messages of a watch. A large one, which takes tens of milliseconds, is parsed and decoded in time slices.

import { runSliced, type Steps, type TimeSlice } from '../../lib/yielding.ts'
import type { MessageTable } from '../protobuf/read-message.ts'
import { parseEvent, parseEventInSteps, type WatchEvent, type WatchMessage } from './watch-messages.ts'

/** Characters or bytes of a message that take milliseconds to parse. */
const largeMessage = 128 << 10

export class EventReader {
  readonly #table: MessageTable
  readonly #prepare: (object: unknown) => Steps<void>
  readonly #slice: TimeSlice

  /** `prepare` decodes an object. */
  constructor(table: MessageTable, prepare: (object: unknown) => Steps<void>, slice: TimeSlice) {
    this.#table = table
    this.#prepare = prepare
    this.#slice = slice
  }

  /** Returns a promise only for a large message: a promise costs as much as a small message. Both ways throw 'malformed-event'. */
  read(message: WatchMessage): WatchEvent | Promise<WatchEvent> {
    return message.length > largeMessage ? this.#readLarge(message) : parseEvent(message, this.#table)
  }

  async #readLarge(message: WatchMessage): Promise<WatchEvent> {
    // Receiving the message has held the event loop long enough.
    await this.#slice.yieldLoop()
    const event = await runSliced(parseEventInSteps(message, this.#table), this.#slice)
    // Node's parser of JSON cannot pause.
    await this.#slice.yieldLoop()
    if (event.type !== 'DELETED') await runSliced(this.#prepare(event.object), this.#slice)
    return event
  }
}
