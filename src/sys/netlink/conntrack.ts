// The kernel's connection tracking table: list the flows of a protocol, delete exactly the flows named. Which ones, is for others to say.

import { nextTurn } from '../../lib/time.ts'
import { EINTR, ENOENT } from '../errno.ts'
import { AddressCache } from './address-codec.ts'
import {
  decodeFlow,
  type FlowFilter,
  type FlowMatch,
  type TrackedFlow,
  writeDelete,
  writeDump,
  writeMatch,
} from './conntrack-codec.ts'
import { AttributeReader, type MessageReader, NLM_F_ACK, NLM_F_REQUEST } from './message.ts'
import { MessageWriter } from './message-writer.ts'
import { errnoOf, malformed } from './netlink-errors.ts'
import { NetlinkSocket, type Wait } from './socket.ts'

const CT_GET = 0x101
const CT_DELETE = 0x102
/** No flow has this IP protocol. */
const unassigned = 255

const chunkFlows = 512
/** Deletes per send: all their answers must fit the receive buffer, and the event loop waits for a send. */
const chunkDeletes = 1000
/** From here on, one message for all flows that go the same way is cheaper than one for each: it walks the whole table. */
const manyFlows = 2000
/** Attempts, as kube-proxy makes them, when the kernel says EINTR. */
const attempts = 5

/** One per process is enough; sockets are opened at the first use. */
export class ConntrackTable {
  #opened: NetlinkSocket | undefined
  readonly #writer = new MessageWriter(64 * 1024)
  readonly #addresses = new AddressCache()
  /** Kernels before 5.8 ignore or refuse filters; then we filter alone. */
  #filters: boolean

  constructor({ filters = true }: { readonly filters?: boolean } = {}) {
    this.#filters = filters
  }

  /**
   * Visits the flows in chunks, with turns for the event loop in between: memory is one chunk, whatever the table's size.
   * `interrupted`: the table changed underfoot, so flows may be missing or double.
   */
  async list(
    filter: FlowFilter,
    visit: (flows: readonly TrackedFlow[]) => void,
    wait: Wait = {},
  ): Promise<{ readonly interrupted: boolean }> {
    const reader = new AttributeReader()
    let chunk: TrackedFlow[] = []
    const outcome = await this.#dump(filter, wait, (message) => {
      const flow = decodeFlow(message, reader, filter, this.#addresses)
      if (reader.error !== undefined) throw malformed('conntrack', 'list flows', reader.error)
      if (flow === undefined) return
      chunk.push(flow)
      if (chunk.length < chunkFlows) return
      visit(chunk)
      chunk = []
    })
    if (chunk.length > 0) visit(chunk)
    return outcome
  }

  /** What this kernel can do for us; nothing depends on it but speed. Matches no flow, so it changes nothing. */
  async features(wait: Wait = {}): Promise<{ readonly filteredList: boolean; readonly filteredDelete: boolean }> {
    let unasked = false
    await this.#dump({ family: 4, protocol: unassigned }, wait, () => {
      unasked = true
    })
    const nowhere = { family: 4, protocol: unassigned, destination: '255.255.255.255', destinationPort: 0 } as const
    return { filteredList: this.#filters && !unasked, filteredDelete: await this.#removeMatching(nowhere, wait) }
  }

  /** Deletes these flows; returns how many were still there. */
  async remove(flows: readonly TrackedFlow[], wait: Wait = {}): Promise<number> {
    let removed = 0
    let single = flows
    if (flows.length >= manyFlows) {
      const left: TrackedFlow[] = []
      for (const alike of grouped(flows).values()) {
        if (alike.length >= manyFlows && (await this.#removeMatching(alike[0] as TrackedFlow, wait)))
          removed += alike.length
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
   * One message for all flows that match. False if this kernel cannot: then each must be named.
   * Never in IPv6: there the kernel compares addresses the wrong way round and deletes all flows but those named (seen on 6.18).
   */
  async #removeMatching(match: FlowMatch, wait: Wait): Promise<boolean> {
    if (match.family === 6) return false
    const body = (writer: MessageWriter) => writeMatch(writer, match)
    try {
      await this.#socket().request({ op: 'delete matching flows', type: CT_DELETE, body }, undefined, wait)
      return true
    } catch (error) {
      // Older kernels take the tuple for that of one flow, which does not exist.
      if (['EOPNOTSUPP', 'EINVAL', 'ENOENT'].includes(errnoOf(error))) return false
      throw error
    }
  }

  #socket(): NetlinkSocket {
    this.#opened ??= new NetlinkSocket({ protocol: 'netfilter', purpose: 'conntrack', receiveBufferBytes: 4 << 20 })
    return this.#opened
  }

  async #dump(filter: FlowFilter, wait: Wait, take: (message: MessageReader) => void) {
    const dump = (filtered: boolean) => {
      const body = (writer: MessageWriter) => writeDump(writer, filter, filtered)
      return this.#socket().dump({ op: 'list flows', type: CT_GET, body }, take, wait)
    }
    try {
      return await dump(this.#filters)
    } catch (error) {
      if (!this.#filters || !['EOPNOTSUPP', 'EINVAL'].includes(errnoOf(error))) throw error
      this.#filters = false
      return await dump(false)
    }
  }

  async #removeChunk(flows: readonly TrackedFlow[], wait: Wait): Promise<number> {
    const op = 'delete flows'
    let removed = 0
    let left = flows
    for (let attempt = 1; left.length > 0 && attempt <= attempts; attempt++) {
      const writer = this.#writer
      writer.clear()
      const first = writer.sequence
      let last = first
      for (const [i, flow] of left.entries()) {
        // Only failures are answered, and the end; so what is not answered is done.
        last = writer.begin(CT_DELETE, i === left.length - 1 ? NLM_F_REQUEST | NLM_F_ACK : NLM_F_REQUEST)
        writeDelete(writer, flow)
        writer.end()
      }
      const { failures, overflow } = await this.#socket().batch(op, writer, last, wait)
      const fatal = failures.find(({ errno }) => errno !== ENOENT && errno !== EINTR)
      if (fatal !== undefined) throw this.#socket().failure(op, fatal)
      // Answers are lost only when nearly all flows were gone already.
      if (!overflow) removed += left.length - failures.length
      const again = new Set(failures.filter(({ errno }) => errno === EINTR).map(({ sequence }) => sequence))
      left = left.filter((_, i) => again.has(first + i))
    }
    return removed
  }
}

/** By where they were sent and who answers. */
function grouped(flows: readonly TrackedFlow[]): Map<string, TrackedFlow[]> {
  const groups = new Map<string, TrackedFlow[]>()
  for (const flow of flows) {
    const key = `${flow.destination} ${flow.destinationPort} ${flow.replySource} ${flow.replySourcePort}`
    const group = groups.get(key)
    if (group === undefined) groups.set(key, [flow])
    else group.push(flow)
  }
  return groups
}
