// Reads the pages of a list, and adapts their size: smaller when an answer is too large, larger when the server forgets a list before its end.

import { describeError, ProxyError } from '../../lib/errors.ts'
import type { Logger } from '../../lib/log.ts'
import type { Client } from '../client.ts'
import type { MessageTable } from '../protobuf/read-message.ts'
import { type ListPage, parsePage, parseProtobufPage } from './watch-messages.ts'

/** A page of this many objects is parsed in some milliseconds, without a turn for the event loop. */
const firstPageSize = 250
const sizeFactor = 8
/** Larger pages end a list sooner. A list without pages cannot expire, but its size has no limit. */
const maxPageSize = firstPageSize * sizeFactor ** 2

interface PageReaderOptions {
  readonly client: Pick<Client, 'request'>
  readonly resource: string
  readonly kind: string
  /** The fields to read if the server answers in protobuf; without it JSON is asked for. */
  readonly protobuf?: MessageTable
  readonly log: Logger
}

export class PageReader {
  readonly #options: PageReaderOptions
  #pageSize = firstPageSize

  constructor(options: PageReaderOptions) {
    this.#options = options
  }

  /** Reads the page that the token `next` names, or the first page without a token. */
  async read(
    selectors: Readonly<Record<string, string | undefined>>,
    next: string | undefined,
    signal: AbortSignal,
  ): Promise<ListPage> {
    const { client, resource, protobuf } = this.#options
    for (;;) {
      const query = { ...selectors, limit: String(this.#pageSize), continue: next }
      try {
        const answer = await client.request({ path: resource, query, signal, readsProtobuf: protobuf !== undefined })
        if (protobuf === undefined || answer.protobuf === undefined) return parsePage(answer.json)
        return parseProtobufPage(answer.protobuf, protobuf)
      } catch (error) {
        if (!(error instanceof ProxyError) || !this.#adapt(error, next !== undefined)) throw error
      }
    }
  }

  /** Returns whether the same page can be read again. A list that has expired must start again, which the caller delays. */
  #adapt(error: ProxyError, hasStarted: boolean): boolean {
    const { kind, log } = this.#options
    const fields = { kind, error: describeError(error) }
    if (error.code === 'answer-too-large' && this.#pageSize > 1) {
      this.#pageSize = Math.ceil(this.#pageSize / sizeFactor)
      log.info('A page of a list is too large; it is read again in smaller pages', fields)
      return true
    }
    if (error.code === 'expired' && hasStarted) {
      this.#pageSize = Math.min(maxPageSize, this.#pageSize * sizeFactor)
      log.info('A paged list expired; it is read again in larger pages', fields)
    }
    return false
  }
}
