// Talks to nf_tables over netlink: commits transactions, lists what is there, and reports who changes it. Other files here have the codecs.

import { ProxyError } from '../../../lib/errors.ts'
import type { Family } from '../../../lib/ip.ts'
import { type Clock, sleep, systemClock } from '../../../lib/time.ts'
import { familyNumber } from '../../ip-numbers.ts'
import { AttributeReader, type MessageReader } from '../message.ts'
import type { MessageWriter } from '../message-writer.ts'
import { malformed } from '../netlink-errors.ts'
import {
  type BatchOutcome,
  type BatchWait,
  type MessageFailure,
  type NetlinkRequest,
  NetlinkSocket,
  type Wait,
} from '../socket.ts'
import { type Subscription, subscribe } from '../subscribe.ts'
import { NFTA_CHAIN, NFTA_RULE, NFTA_SET_ELEM_LIST } from './attributes.ts'
import { DuplicateFilter } from './duplicate-filter.ts'
import { decodeElements, type ListedElement, visitElements } from './elements.ts'
import {
  type Chain,
  type Elements,
  messageTypes,
  type NamedCounter,
  NFNLGRP_NFTABLES,
  type NftSet,
  type SetName,
  type Table,
} from './nft-types.ts'
import {
  type Decode,
  decodeChain,
  decodeNamedCounter,
  decodeNotice,
  decodeRule,
  decodeSet,
  decodeTable,
  type ListedRule,
  type Notice,
  type RuleSelection,
  visitRuleCounter,
} from './read-objects.ts'

const purpose = 'nftables'
/** A transaction is one datagram and must fit; nft uses the same size. */
const sendBufferBytes = 64 << 20
/** This is a limit and takes no memory by itself. When a table is exchanged, the kernel reports all counters of the old one at once. */
const receiveBufferBytes = 64 << 20
/** How often a dump is tried that commits of other processes interrupt. */
const attempts = 10
/** A resize of 100,000 elements takes about this long on a busy machine. */
const resizeMs = 20

/** A socket for nf_tables. It owns the tables that it makes with TABLE_OWNER until it is closed. */
export class Nftables {
  readonly #socket: NetlinkSocket
  readonly #reader = new AttributeReader()
  readonly #clock: Clock

  constructor({ clock = systemClock }: { readonly clock?: Clock } = {}) {
    this.#clock = clock
    this.#socket = new NetlinkSocket({ protocol: 'netfilter', purpose, sendBufferBytes, receiveBufferBytes, clock })
  }

  /** The number of this socket, by which notifications name the sender of a commit. */
  get port(): number {
    return this.#socket.port
  }

  /** How often the socket was opened: a socket that is opened again owns no table. */
  get timesOpened(): number {
    return this.#socket.timesOpened
  }

  /** Whether the descriptor is not ours any more: then we own no table. */
  get isLost(): boolean {
    return this.#socket.isLost
  }

  /** Commits all of the transaction or, with any failure, nothing. `last` is what `endBatch` returned. */
  commit(writer: MessageWriter, last: number, wait?: BatchWait): Promise<BatchOutcome> {
    return this.#socket.batch('commit', writer, last, wait)
  }

  /** As `commit`, and adds to `removed` what deletions with `echo` report. */
  commitCounted(writer: MessageWriter, last: number, removed: RemovedObjects, isSlow = false): Promise<BatchOutcome> {
    const decode = (message: MessageReader) => {
      const list = message.type === messageTypes.elements.delete ? decodeElements(message, this.#reader) : undefined
      const rule = message.type === messageTypes.rule.delete ? decodeRule(message, this.#reader) : undefined
      if (list !== undefined) removed.elements.push(list)
      if (rule !== undefined) removed.rules.push(rule)
    }
    return this.#socket.batch('commit', writer, last, { visit: decode, isSlow })
  }

  /** Makes the error for a failure of a commit. */
  failure(op: string, failure: MessageFailure): ProxyError {
    return this.#socket.failure(op, failure)
  }

  /** Lists the tables of both families. */
  tables(wait?: Wait): Promise<readonly Table[]> {
    return this.#list({ op: 'list tables', type: messageTypes.table.get, body: requestBody(0) }, decodeTable, wait)
  }

  chains(family: Family, table: string, wait?: Wait): Promise<readonly Chain[]> {
    // The kernel filters rules and sets by table, but not chains.
    const request = { op: `list chains of ${table}`, type: messageTypes.chain.get, body: tableBody(family, table) }
    return this.#list(request, filterByTable(table, decodeChain), wait)
  }

  sets(family: Family, table: string, wait?: Wait): Promise<readonly NftSet[]> {
    const request = { op: `list sets of ${table}`, type: messageTypes.set.get, body: tableBody(family, table) }
    return this.#list(request, decodeSet, wait)
  }

  rules(family: Family, table: string, wait?: Wait): Promise<readonly ListedRule[]> {
    const request = { op: `list rules of ${table}`, type: messageTypes.rule.get, body: tableBody(family, table) }
    return this.#list(request, filterByTable(table, decodeRule), wait)
  }

  /**
   * Visits the packets that each selected rule has counted, in one dump. Resolves false if a commit of another process interrupted it:
   * some may be missing or occur twice.
   */
  ruleCountersOnce(
    family: Family,
    selection: RuleSelection,
    visit: (chain: string, packets: number) => void,
    wait?: Wait,
  ): Promise<boolean> {
    const { table } = selection
    const request = { op: `list rules of ${table}`, type: messageTypes.rule.get, body: tableBody(family, table) }
    const collect: Collect = (answer, reader) => visitRuleCounter(answer, reader, selection, visit)
    return this.#dump(request, collect, wait)
  }

  /** Lists the rules of one chain of any family, by the kernel's number of the family. */
  chainRules<T>(family: number, table: string, chain: string, decode: Decode<T>): Promise<readonly T[]> {
    const body = (writer: MessageWriter) => {
      writer.netfilter(family)
      writer.text(NFTA_RULE.TABLE, table)
      writer.text(NFTA_RULE.CHAIN, chain)
    }
    return this.#list({ op: `list rules of ${chain}`, type: messageTypes.rule.get, body }, decode)
  }

  /** Lists the rules of one chain. */
  rulesOf(family: Family, table: string, chain: string): Promise<readonly ListedRule[]> {
    const body = (writer: MessageWriter) => {
      tableBody(family, table)(writer)
      writer.text(NFTA_RULE.CHAIN, chain)
    }
    return this.#list({ op: `list rules of ${chain}`, type: messageTypes.rule.get, body }, decodeRule)
  }

  /**
   * Lists all elements of a set, each converted at once, so that only the results of a hundred thousand elements are kept. An element is
   * valid only while it is converted.
   *
   * The kernel's dump counts positions. While the hash table is resized, some time after many elements came or went, elements change
   * places: the dump then contains some of them twice and as many not at all, and the kernel does not say so (seen on 6.18). Therefore
   * a dump with duplicates is repeated.
   */
  async elements<T>(name: SetName, convert: (element: ListedElement) => T, wait?: Wait): Promise<readonly T[]> {
    const request = elementRequest(`list elements of ${name.set}`, name)
    for (let attempt = 1; attempt <= attempts; attempt++) {
      const converted: T[] = []
      const seen = new DuplicateFilter(attempt)
      let hasDuplicates = false
      const collect = forEachElement((element) => {
        converted.push(convert(element))
        if (!seen.add(element)) hasDuplicates = true
      })
      if ((await this.#dump(request, collect, wait)) && !hasDuplicates) return converted
      await sleep(this.#clock, resizeMs * attempt, wait?.signal)
    }
    throw tooManyChanges(request.op)
  }

  /**
   * Lists the keys that a single dump contains, each once. For sets that packets fill: they may never hold still for `elements`. Some keys
   * may be missing.
   */
  async keysOnce(name: SetName, wait?: Wait): Promise<readonly Uint8Array[]> {
    const found = new Map<string, Uint8Array>()
    const collect = forEachElement((element) => {
      const { key } = element.copy()
      found.set(Buffer.from(key).toString('latin1'), key)
    })
    await this.#dump(elementRequest(`list members of ${name.set}`, name), collect, wait)
    return [...found.values()]
  }

  namedCounters(family: Family, table: string, wait?: Wait): Promise<readonly NamedCounter[]> {
    const request = { op: `list counters of ${table}`, type: messageTypes.object.get, body: tableBody(family, table) }
    return this.#list(request, filterByTable(table, decodeNamedCounter), wait)
  }

  close(): void {
    this.#socket.close()
  }

  /**
   * Repeats a dump until no commit interrupts it, or until two dumps in a row are equal: where other processes commit to their own tables
   * all the time, every dump is interrupted.
   */
  async #list<T>(request: NetlinkRequest, decode: Decode<T>, wait?: Wait): Promise<readonly T[]> {
    let before: string | undefined
    for (let attempt = 1; attempt <= attempts; attempt++) {
      const found: T[] = []
      const collect: Collect = (answer, reader) => {
        const object = decode(answer, reader)
        if (object !== undefined) found.push(object)
      }
      if (await this.#dump(request, collect, wait)) return found
      const now = JSON.stringify(found)
      if (now === before) return found
      before = now
    }
    throw tooManyChanges(request.op)
  }

  /** Resolves false if a commit of another process interrupted the dump. */
  async #dump(request: NetlinkRequest, collect: Collect, wait?: Wait): Promise<boolean> {
    const visit = (answer: MessageReader) => {
      collect(answer, this.#reader)
      if (this.#reader.error !== undefined) throw malformed(purpose, request.op, this.#reader.error)
    }
    const { interrupted } = await this.#socket.dump(request, visit, wait)
    return !interrupted
  }
}

/** What a commit removed, as far as it asked for reports. */
export interface RemovedObjects {
  readonly elements: Elements[]
  readonly rules: ListedRule[]
}

/** The public part of Nftables, which tests replace by a fake. */
export type NftablesSocket = Omit<Pick<Nftables, keyof Nftables>, 'chainRules' | 'ruleCountersOnce'>

type Collect = (answer: MessageReader, reader: AttributeReader) => void

const tooManyChanges = (op: string): ProxyError =>
  new ProxyError('netlink', `${purpose}: ${op}: it kept changing during ${attempts} attempts`, {
    fields: { op, errno: 'EINTR' },
  })

const filterByTable =
  <T extends { readonly table: string }>(table: string, decode: Decode<T>): Decode<T> =>
  (answer, reader) => {
    const object = decode(answer, reader)
    return object?.table === table ? object : undefined
  }

const forEachElement =
  (visit: (element: ListedElement) => void): Collect =>
  (answer, reader) =>
    void visitElements(answer, reader, visit)

const requestBody = (family: number) => (writer: MessageWriter) => writer.netfilter(family)

/** The table's name has the same attribute number in requests for chains, rules and sets. */
const tableBody = (family: Family, table: string) => (writer: MessageWriter) => {
  writer.netfilter(familyNumber(family))
  writer.text(NFTA_CHAIN.TABLE, table)
}

const elementRequest = (op: string, { family, table, set }: SetName): NetlinkRequest => ({
  op,
  type: messageTypes.elements.get,
  body(writer) {
    writer.netfilter(familyNumber(family))
    writer.text(NFTA_SET_ELEM_LIST.TABLE, table)
    writer.text(NFTA_SET_ELEM_LIST.SET, set)
  },
})

export interface RulesetListener {
  notice(notice: Notice): void
  /** Called when notifications were lost: anything may have changed. */
  lost(reason: string): void
}

/** Reports every change that any process makes in nf_tables, this process included. */
export function watchRuleset(listener: RulesetListener): Subscription {
  const reader = new AttributeReader()
  const options = { protocol: 'netfilter', purpose, receiveBufferBytes: 16 << 20 } as const
  return subscribe(options, [NFNLGRP_NFTABLES], {
    message(message) {
      const notice = decodeNotice(message, reader)
      if (notice !== undefined) listener.notice(notice)
      else if (reader.error !== undefined) listener.lost(`a notification is not valid: ${reader.error}`)
    },
    lost: (reason) => listener.lost(reason),
  })
}
