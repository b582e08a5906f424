// Lists the chains of nf_tables with their use counts, and reads the generation, a cheap sign that some process changed something.

import type { Family } from '../../../lib/ip.ts'
import { familyNumber } from '../../ip-numbers.ts'
import { AttributeReader, type MessageReader } from '../message.ts'
import type { MessageWriter } from '../message-writer.ts'
import { malformed } from '../netlink-errors.ts'
import { NetlinkSocket, type Wait } from '../socket.ts'
import { NFTA_CHAIN } from './attributes.ts'
import { messageTypes } from './nft-types.ts'
import { decodeGeneration } from './read-objects.ts'

const purpose = 'nf_tables'

export class ChainTable {
  #opened: NetlinkSocket | undefined

  /** Maps `nat KUBE-SERVICES` to the number of its rules and of jumps to it, for all tables of a family. */
  async list(family: Family, wait: Wait = {}): Promise<ReadonlyMap<string, number>> {
    const op = 'list chains'
    const body = (writer: MessageWriter) => writer.netfilter(familyNumber(family))
    // An interrupted dump may lack chains; a whole one comes as soon as the writers pause.
    for (;;) {
      const uses = new Map<string, number>()
      const reader = new AttributeReader()
      const visit = (message: MessageReader) => {
        const [name, use] = readUse(message, reader)
        if (reader.error !== undefined) throw malformed(purpose, op, reader.error)
        uses.set(name, use)
      }
      const { interrupted } = await this.#socket().dump({ op, type: messageTypes.chain.get, body }, visit, wait)
      if (!interrupted) return uses
      wait.signal?.throwIfAborted()
    }
  }

  /** Grows by one with every change of any nf_tables ruleset of the network namespace. */
  async generation(): Promise<number> {
    const op = 'read the generation'
    const reader = new AttributeReader()
    let generation: number | undefined
    const body = (writer: MessageWriter) => writer.netfilter(0)
    await this.#socket().request({ op, type: messageTypes.generation.get, body }, (message) => {
      generation = decodeGeneration(message, reader)?.id
    })
    if (generation === undefined) throw malformed(purpose, op, 'no generation')
    return generation
  }

  close(): void {
    this.#opened?.close()
    this.#opened = undefined
  }

  #socket(): NetlinkSocket {
    this.#opened ??= new NetlinkSocket({ protocol: 'netfilter', purpose, receiveBufferBytes: 4 << 20 })
    return this.#opened
  }
}

function readUse(message: MessageReader, reader: AttributeReader): readonly [name: string, use: number] {
  let table = ''
  let name = ''
  let use = 0
  message.attributes(4, reader)
  while (reader.next()) {
    if (reader.type === NFTA_CHAIN.TABLE) table = reader.text()
    else if (reader.type === NFTA_CHAIN.NAME) name = reader.text()
    else if (reader.type === NFTA_CHAIN.USE) use = reader.u32()
  }
  return [`${table} ${name}`, use]
}
