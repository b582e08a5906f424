// Packet counters of the kernel that iptables rules feed (nfacct): make one, read it, or learn that this kernel has none.

import { EBUSY, EEXIST, errnoName } from '../errno.ts'
import { NLM_F_CREATE } from './message.ts'
import type { MessageWriter } from './message-writer.ts'
import { errnoOf } from './netlink-errors.ts'
import { NetlinkSocket } from './socket.ts'

const NEW = 0x700
const GET = 0x701
/** Not an address family: nfacct's own header asks for it. */
const family = 16
const attribute = { name: 1, packets: 2 } as const

/** One per process; the socket is opened at the first use. */
export class PacketCounters {
  #opened: NetlinkSocket | undefined

  /** Packets counted; undefined if there is no such counter. Throws where the kernel has no nfacct. */
  async read(name: string): Promise<number | undefined> {
    let packets: number | undefined
    try {
      await this.#socket().request({ op: `read counter ${name}`, type: GET, body: about(name) }, (message) => {
        const reader = message.attributes(4)
        while (reader.next()) if (reader.type === attribute.packets) packets = reader.u64()
      })
    } catch (error) {
      if (errnoOf(error) === 'ENOENT') return undefined
      throw error
    }
    return packets
  }

  /** Makes the counter unless it exists; what it has counted stays. */
  async ensure(name: string): Promise<void> {
    if ((await this.read(name)) !== undefined) return
    try {
      await this.#socket().request({ op: `make counter ${name}`, type: NEW, flags: NLM_F_CREATE, body: about(name) })
    } catch (error) {
      // Somebody was faster.
      if (![EBUSY, EEXIST].map(errnoName).includes(errnoOf(error))) throw error
    }
  }

  /** Whether this kernel counts at all. */
  async supported(): Promise<boolean> {
    try {
      await this.read('sluice_probe')
      return true
    } catch {
      return false
    }
  }

  close(): void {
    this.#opened?.close()
    this.#opened = undefined
  }

  #socket(): NetlinkSocket {
    this.#opened ??= new NetlinkSocket({ protocol: 'netfilter', purpose: 'nfacct' })
    return this.#opened
  }
}

const about =
  (name: string) =>
  (writer: MessageWriter): void => {
    writer.netfilter(family)
    writer.text(attribute.name, name)
  }
