// Lists and deletes flows of the kernel's connection tracking table. The callers decide which flows are deleted.

import { nextTurn } from '../../lib/time.ts'
import { EINTR, ENOENT } from '../errno.ts'
import { AddressCache } from './address-codec.ts'
import {
  FlowDecoder,
  type FlowFilter,
  type FlowMatch,
  type ReplyTuple,
  type TrackedFlow,
  writeDelete,
  writeDump,
  writeFind,
  writeMatch,
} from './conntrack-codec.ts'
import { type MessageReader, NLM_F_ACK, NLM_F_REQUEST } from './message.ts'
import { MessageWriter } from './message-writer.ts'
import { isRefusedWith, malformed } from './netlink-errors.ts'
import { NetlinkSocket, type Wait } from './socket.ts'

const IPCTNL_MSG_CT_GET = 0x101
const IPCTNL_MSG_CT_DELETE = 0x102
/** No flow has this IP protocol. */
const unassignedProtocol = 255

const chunkFlows = 512
/** Deletions per send: all answers must fit into the receive buffer, and the event loop waits for the send. */
const chunkDeletes = 1000
/** From this number on, one message for all flows with the same addresses is cheaper than one each, although it scans the whole table. */
const manyFlows = 2000
/** kube-proxy tries as often when the kernel answers EINTR. */
const maxAttempts = 5

/** Opens its socket at the first use. One per process is enough. */
export class ConntrackTable {
  #opened: NetlinkSocket | undefined
  readonly #writer = new MessageWriter(64 * 1024)
  readonly #addresses = new AddressCache()
  /** Kernels before 5.8 ignore or refuse filters. Flows are filtered here too, so nothing depends on it but speed. */
  #filters: boolean

  constructor({ filters = true }: { readonly filters?: boolean } = {}) {
    this.#filters = filters
  }

  /**
   * Visits the flows in chunks, and lets the event loop run in between. It needs memory for one chunk, however large the table is. If the
   * outcome is `interrupted`, the table changed during the dump: flows may be missing or occur twice.
   */
  async list(
    filter: FlowFilter,
    visit: (flows: readonly TrackedFlow[]) => void,
    wait: Wait = {},
  ): Promise<{ readonly interrupted: boolean }> {
    const decoder = new FlowDecoder(filter, this.#addresses)
    let chunk: TrackedFlow[] = []
    const outcome = await this.#dump(filter, wait, (message) => {
      const flow = decoder.decode(message)
      if (decoder.error !== undefined) throw malformed('conntrack', 'list flows', decoder.error)
      if (flow === undefined) return
      chunk.push(flow)
      if (chunk.length < chunkFlows) return
      visit(chunk)
      chunk = []
    })
    if (chunk.length > 0) visit(chunk)
    return outcome
  }

  /** Passes every message of a dump to `visit`, for callers that read more of a flow than `list` does. */
  dump(filter: FlowFilter, visit: (message: MessageReader) => void, wait: Wait = {}) {
    return this.#dump(filter, wait, visit)
  }

  /** Finds one flow by the direction of its replies. Resolves undefined if the kernel tracks no such flow. */
  async findByReply(reply: ReplyTuple, wait: Wait = {}): Promise<TrackedFlow | undefined> {
    const decoder = new FlowDecoder({ family: reply.family }, this.#addresses)
    let found: TrackedFlow | undefined
    const body = (writer: MessageWriter) => writeFind(writer, reply)
    const visit = (message: MessageReader) => {
      found = decoder.decode(message)
      if (decoder.error !== undefined) throw malformed('conntrack', 'find a flow', decoder.error)
    }
    try {
      await this.#socket().request({ op: 'find a flow', type: IPCTNL_MSG_CT_GET, body }, visit, wait)
    } catch (error) {
      if (!isRefusedWith(error, 'ENOENT')) throw error
    }
    return found
  }

  /** Finds out what this kernel can do. Its requests match no flow, so they change nothing. */
  async features(wait: Wait = {}): Promise<{ readonly filteredList: boolean; readonly filteredDelete: boolean }> {
    let ignoresFilter = false
    await this.#dump({ family: 4, protocol: unassignedProtocol }, wait, () => {
      ignoresFilter = true
    })
    const nowhere = {
      family: 4,
      protocol: unassignedProtocol,
      destination: '255.255.255.255',
      destinationPort: 0,
    } as const
    return { filteredList: this.#filters && !ignoresFilter, filteredDelete: await this.#removeMatching(nowhere, wait) }
  }

  /** Deletes the flows. Returns how many of them still existed. */
  async remove(flows: readonly TrackedFlow[], wait: Wait = {}): Promise<number> {
    let removed = 0
    let single = flows
    if (flows.length >= manyFlows) {
      const left: TrackedFlow[] = []
      for (const alike of groupByAddresses(flows).values()) {
        const [first] = alike
        const isDone = first !== undefined && alike.length >= manyFlows && (await this.#removeMatching(first, wait))
        if (isDone) removed += alike.length
        else left.push(...alike)
      }
      single = left
    }
    for (let start = 0; start < single.length; start += chunkDeletes) {
      wait.signal?.throwIfAborted()
      removed += await this.#removeChunk(single.slice(start, start + chunkDeletes), wait)
      await nextTurn()
    }
    return removed
  }

  close(): void {
    this.#opened?.close()
  }

  /**
   * Deletes all flows that match with one message. Resolves false if this kernel cannot: then every flow needs a message. Never used for
   * IPv6: there the kernel inverts the comparison of addresses and deletes all flows except those that match (seen on 6.18).
   */
  async #removeMatching(match: FlowMatch, wait: Wait): Promise<boolean> {
    if (match.family === 6) return false
    const body = (writer: MessageWriter) => writeMatch(writer, match)
    try {
      await this.#socket().request({ op: 'delete matching flows', type: IPCTNL_MSG_CT_DELETE, body }, undefined, wait)
      return true
    } catch (error) {
      // Older kernels read the tuple as that of a single flow, which does not exist.
      if (isRefusedWith(error, 'EOPNOTSUPP', 'EINVAL', 'ENOENT')) return false
      throw error
    }
  }

  #socket(): NetlinkSocket {
    this.#opened ??= new NetlinkSocket({ protocol: 'netfilter', purpose: 'conntrack', receiveBufferBytes: 4 << 20 })
    return this.#opened
  }

  async #dump(filter: FlowFilter, wait: Wait, visit: (message: MessageReader) => void) {
    const dump = (filtered: boolean) => {
      const body = (writer: MessageWriter) => writeDump(writer, filter, filtered)
      // The kernel walks all buckets before it answers, if few flows match: 10 to 35 ms for 262,144 buckets, even if all are empty.
      const request = { op: 'list flows', type: IPCTNL_MSG_CT_GET, body, isSlow: true }
      return this.#socket().dump(request, visit, wait)
    }
    try {
      return await dump(this.#filters)
    } catch (error) {
      if (!this.#filters || !isRefusedWith(error, 'EOPNOTSUPP', 'EINVAL')) throw error
      this.#filters = false
      return await dump(false)
    }
  }

  async #removeChunk(flows: readonly TrackedFlow[], wait: Wait): Promise<number> {
    const op = 'delete flows'
    let removed = 0
    let left = flows
    for (let attempt = 1; left.length > 0 && attempt <= maxAttempts; attempt++) {
      const writer = this.#writer
      writer.clear()
      const first = writer.sequence
      let last = first
      for (const [i, flow] of left.entries()) {
        // The kernel answers only failures and the last message. A message without an answer has succeeded.
        last = writer.begin(IPCTNL_MSG_CT_DELETE, i === left.length - 1 ? NLM_F_REQUEST | NLM_F_ACK : NLM_F_REQUEST)
        writeDelete(writer, flow)
        writer.end()
      }
      const { failures, overflow } = await this.#socket().batch(op, writer, last, wait)
      const fatal = failures.find(({ errno }) => errno !== ENOENT && errno !== EINTR)
      if (fatal !== undefined) throw this.#socket().failure(op, fatal)
      // Answers overflow only if nearly all flows were gone already.
      if (!overflow) removed += left.length - failures.length
      const again = new Set(failures.filter(({ errno }) => errno === EINTR).map(({ sequence }) => sequence))
      left = left.filter((_, i) => again.has(first + i))
    }
    return removed
  }
}

/** Groups flows by their destination and by the source of their replies. */
function groupByAddresses(flows: readonly TrackedFlow[]): Map<string, TrackedFlow[]> {
  const groups = new Map<string, TrackedFlow[]>()
  for (const flow of flows) {
    const key = `${flow.destination} ${flow.destinationPort} ${flow.replySource} ${flow.replySourcePort}`
    const group = groups.get(key)
    if (group === undefined) groups.set(key, [flow])
    else group.push(flow)
  }
  return groups
}
