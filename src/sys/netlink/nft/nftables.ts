// nf_tables over netlink: commit a transaction, list what is there, follow who changes it. The messages themselves are in nft/.

import { ProxyError } from '../../../lib/errors.ts'
import type { Family } from '../../../lib/ip.ts'
import { type Clock, sleep, systemClock } from '../../../lib/time.ts'
import { DuplicateFilter } from '../duplicate-filter.ts'
import { AttributeReader, type MessageReader } from '../message.ts'
import type { MessageWriter } from '../message-writer.ts'
import { malformed } from '../netlink-errors.ts'
import { type BatchOutcome, type MessageFailure, NetlinkSocket, type Wait } from '../socket.ts'
import { type Subscription, subscribe } from '../subscribe.ts'
import { decodeElements } from './elements.ts'
import { type Chain, type Element, familyNumber, message, type NftSet, type Table } from './nft-types.ts'
import {
  type Decode,
  decodeChain,
  decodeGeneration,
  decodeNotice,
  decodeRule,
  decodeSet,
  decodeTable,
  type ListedRule,
  type Notice,
} from './read-objects.ts'

const purpose = 'nftables'
const NFNLGRP_NFTABLES = 7
/** As large as nft's own; a transaction is one datagram. */
const bufferBytes = 64 << 20
/** A dump that somebody's commit interrupted is worth repeating this often. */
const attempts = 10
/** A resize of 100,000 elements takes about this long on a busy machine. */
const resizeMs = 20

/** One socket: it is the owner of the tables it makes with TABLE_OWNER, until it is closed. */
export class Nftables {
  readonly #socket: NetlinkSocket
  readonly #reader = new AttributeReader()
  readonly #clock: Clock

  constructor({ clock = systemClock }: { readonly clock?: Clock } = {}) {
    this.#clock = clock
    const buffers = { sendBufferBytes: bufferBytes, receiveBufferBytes: 4 << 20 }
    this.#socket = new NetlinkSocket({ protocol: 'netfilter', purpose, ...buffers, clock })
  }

  /** Of this socket, to tell our own commits in notices. */
  get port(): number {
    return this.#socket.port
  }

  /** All or nothing: with any failure nothing was changed. `last` is what `endBatch` returned. The kernel works while we wait. */
  commit(writer: MessageWriter, last: number, wait?: Wait): Promise<BatchOutcome> {
    return this.#socket.batch('commit', writer, last, wait)
  }

  /** The error for a failure of a commit. */
  failure(op: string, failure: MessageFailure): ProxyError {
    return this.#socket.failure(op, failure)
  }

  /** The ruleset's version, which grows with every commit of anybody. (Who committed, only notices tell: here the kernel names the asker.) */
  async generation(wait?: Wait): Promise<number> {
    let found: number | undefined
    const request = { op: 'read generation', type: message.generation.get, body: header(0) }
    const visit = (answer: MessageReader) => {
      found = decodeGeneration(answer, this.#reader)?.id
    }
    await this.#socket.request(request, visit, wait)
    if (found === undefined) throw malformed(purpose, request.op, 'no generation')
    return found
  }

  /** Of both families. */
  tables(wait?: Wait): Promise<readonly Table[]> {
    return this.#list('list tables', message.table.get, header(0), decodeTable, wait)
  }

  chains(family: Family, table: string, wait?: Wait): Promise<readonly Chain[]> {
    // The kernel filters rules and sets by table, but not chains.
    const body = header(familyNumber(family), table)
    return this.#list(`list chains of ${table}`, message.chain.get, body, ofTable(table, decodeChain), wait)
  }

  sets(family: Family, table: string, wait?: Wait): Promise<readonly NftSet[]> {
    return this.#list(`list sets of ${table}`, message.set.get, header(familyNumber(family), table), decodeSet, wait)
  }

  rules(family: Family, table: string, wait?: Wait): Promise<readonly ListedRule[]> {
    const body = header(familyNumber(family), table)
    return this.#list(`list rules of ${table}`, message.rule.get, body, ofTable(table, decodeRule), wait)
  }

  /**
   * All elements of a set. The kernel's walk counts positions: while the hash table is being resized, some time after many elements
   * came or went, elements change places, and it tells some twice and as many not at all, without saying so (seen on 6.18). Hence
   * the look for doubles.
   */
  elements(family: Family, table: string, set: string, wait?: Wait): Promise<readonly Element[]> {
    return this.elementsAs(family, table, set, (element) => element, wait)
  }

  /** The same, each as what is made of it at once: nothing else of a hundred thousand is kept. */
  async elementsAs<T>(
    family: Family,
    table: string,
    set: string,
    make: (element: Element) => T,
    wait?: Wait,
  ): Promise<readonly T[]> {
    const op = `list elements of ${set}`
    const body = header(familyNumber(family), table, set)
    for (let attempt = 1; attempt <= attempts; attempt++) {
      const made: T[] = []
      const seen = new DuplicateFilter(attempt)
      let doubles = false
      const collect = each((element) => {
        made.push(make(element))
        // In sets of ranges the end of one and the start of the next have the same key.
        if (!seen.add(element.key, element.keyEnd, element.intervalEnd === true ? 1 : 0)) doubles = true
      })
      if ((await this.#dump(op, message.elements.get, body, collect, wait)) && !doubles) return made
      await sleep(this.#clock, resizeMs * attempt, wait?.signal)
    }
    throw this.#restless(op)
  }

  /** What one walk tells, each once: for a set that packets fill, which may never hold still for `elements`. Some may be missing. */
  async members(family: Family, table: string, set: string, wait?: Wait): Promise<readonly Element[]> {
    const found = new Map<string, Element>()
    const collect = each((element) => void found.set(identity(element), element))
    const body = header(familyNumber(family), table, set)
    await this.#dump(`list members of ${set}`, message.elements.get, body, collect, wait)
    return [...found.values()]
  }

  close(): void {
    this.#socket.close()
  }

  /** Where others commit all the time, to tables of their own, no dump is free of interruptions: one that says the same as the last is right, too. */
  async #list<T>(
    op: string,
    type: number,
    body: (writer: MessageWriter) => void,
    decode: Decode<T>,
    wait?: Wait,
  ): Promise<readonly T[]> {
    let before: string | undefined
    for (let attempt = 1; attempt <= attempts; attempt++) {
      const found: T[] = []
      const collect: Decode<T> = (answer, reader) => {
        const one = decode(answer, reader)
        if (one !== undefined) found.push(one)
        return undefined
      }
      if (await this.#dump(op, type, body, collect, wait)) return found
      const now = JSON.stringify(found)
      if (now === before) return found
      before = now
    }
    throw this.#restless(op)
  }

  /** False if somebody's commit came in between. */
  async #dump<T>(
    op: string,
    type: number,
    body: (writer: MessageWriter) => void,
    collect: Decode<T>,
    wait?: Wait,
  ): Promise<boolean> {
    const visit = (answer: MessageReader) => {
      collect(answer, this.#reader)
      if (this.#reader.error !== undefined) throw malformed(purpose, op, this.#reader.error)
    }
    const { interrupted } = await this.#socket.dump({ op, type, body }, visit, wait)
    return !interrupted
  }

  #restless(op: string): ProxyError {
    return new ProxyError('netlink', `${purpose}: ${op}: it kept changing during ${attempts} attempts`, {
      fields: { op, errno: 'EINTR' },
    })
  }
}

const ofTable =
  <T extends { readonly table: string }>(table: string, decode: Decode<T>): Decode<T> =>
  (answer, reader) => {
    const one = decode(answer, reader)
    return one?.table === table ? one : undefined
  }

const each =
  (visit: (element: Element) => void): Decode<Element> =>
  (answer, reader) => {
    for (const element of decodeElements(answer, reader)?.elements ?? []) visit(element)
    return undefined
  }

const latin1 = (bytes: Uint8Array): string =>
  (bytes instanceof Buffer ? bytes : Buffer.from(bytes.buffer, bytes.byteOffset, bytes.length)).toString('latin1')

/** In sets of ranges the end of one and the start of the next have the same key. */
function identity({ key, keyEnd, intervalEnd }: Element): string {
  const text = latin1(key)
  const end = keyEnd === undefined ? '' : latin1(keyEnd)
  return intervalEnd === true ? `${text}|` : `${text}${end}`
}

/** Family, and the first attributes of a listing: table, then set. */
function header(family: number, ...names: readonly string[]): (writer: MessageWriter) => void {
  return (writer) => {
    writer.netfilter(family)
    for (const [i, name] of names.entries()) writer.text(i + 1, name)
  }
}

export interface RulesetListener {
  notice(notice: Notice): void
  /** Notices were lost: anything may have changed. */
  lost(): void
}

/** Everything that anybody changes in nf_tables, ourselves included. */
export function watchRuleset(listener: RulesetListener): Subscription {
  const reader = new AttributeReader()
  const options = { protocol: 'netfilter', purpose, receiveBufferBytes: 16 << 20 } as const
  return subscribe(options, [NFNLGRP_NFTABLES], {
    message(message) {
      const notice = decodeNotice(message, reader)
      if (notice !== undefined) listener.notice(notice)
      else if (reader.error !== undefined) listener.lost()
    },
    lost: () => listener.lost(),
  })
}
