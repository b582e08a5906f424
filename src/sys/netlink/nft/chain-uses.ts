// Chains of nf_tables by name, with how much each is in use; and the generation, which tells cheaply that somebody changed something.

import type { Family } from '../../../lib/ip.ts'
import { AttributeReader, type MessageReader } from '../message.ts'
import type { MessageWriter } from '../message-writer.ts'
import { malformed } from '../netlink-errors.ts'
import { NetlinkSocket, type Wait } from '../socket.ts'

const GETCHAIN = 0xa04
const GETGEN = 0xa10
const attribute = { table: 1, name: 3, use: 6 } as const
const generationId = 1
const families = { 4: 2, 6: 10 } as const

export class ChainTable {
  #opened: NetlinkSocket | undefined

  /** `nat KUBE-SERVICES` to the number of rules in it and jumps to it, of all tables of a family. */
  async list(family: Family, wait: Wait = {}): Promise<ReadonlyMap<string, number>> {
    // A dump that was interrupted may lack chains; a stable one is sure to come when writers pause.
    for (;;) {
      const uses = new Map<string, number>()
      const reader = new AttributeReader()
      const visit = (message: MessageReader) => {
        let table = ''
        let name = ''
        let use = 0
        message.attributes(4, reader)
        while (reader.next()) {
          if (reader.type === attribute.table) table = reader.text()
          else if (reader.type === attribute.name) name = reader.text()
          else if (reader.type === attribute.use) use = reader.u32()
        }
        if (reader.error !== undefined) throw malformed('nf_tables', 'list chains', reader.error)
        uses.set(`${table} ${name}`, use)
      }
      const request = {
        op: 'list chains',
        type: GETCHAIN,
        body: (writer: MessageWriter) => writer.netfilter(families[family]),
      }
      const { interrupted } = await this.#socket().dump(request, visit, wait)
      if (!interrupted) return uses
      wait.signal?.throwIfAborted()
    }
  }

  /** Grows by one with every change of any nf_tables ruleset of the network namespace. */
  async generation(): Promise<number> {
    let generation = 0
    const body = (writer: MessageWriter) => writer.netfilter(0)
    await this.#socket().request({ op: 'read the generation', type: GETGEN, body }, (message) => {
      const reader = message.attributes(4)
      while (reader.next()) if (reader.type === generationId) generation = reader.u32()
    })
    return generation
  }

  close(): void {
    this.#opened?.close()
    this.#opened = undefined
  }

  #socket(): NetlinkSocket {
    this.#opened ??= new NetlinkSocket({ protocol: 'netfilter', purpose: 'nf_tables', receiveBufferBytes: 4 << 20 })
    return this.#opened
  }
}
