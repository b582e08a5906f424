// Makes and reads the kernel's packet counters that iptables rules increment (nfacct).

import { NLM_F_CREATE } from './message.ts'
import type { MessageWriter } from './message-writer.ts'
import { isRefusedWith } from './netlink-errors.ts'
import { NetlinkSocket } from './socket.ts'

const NFNL_MSG_ACCT_NEW = 0x700
const NFNL_MSG_ACCT_GET = 0x701
/** NFACCT_NAME and NFACCT_PKTS. */
const NFACCT = { NAME: 1, PKTS: 2 } as const
/** Stands where other messages have an address family. */
const headerFamily = 16

/** Opens its socket at the first use. One per process is enough. */
export class PacketCounters {
  #opened: NetlinkSocket | undefined

  /** Returns the number of packets; undefined if the counter does not exist. Throws if the kernel has no nfacct. */
  async read(name: string): Promise<number | undefined> {
    let packets: number | undefined
    const request = { op: `read counter ${name}`, type: NFNL_MSG_ACCT_GET, body: nameBody(name) }
    try {
      await this.#socket().request(request, (message) => {
        const reader = message.attributes(4)
        while (reader.next()) if (reader.type === NFACCT.PKTS) packets = reader.u64()
      })
    } catch (error) {
      if (isRefusedWith(error, 'ENOENT')) return undefined
      throw error
    }
    return packets
  }

  /** Makes the counter unless it exists. An existing counter keeps its number. */
  async ensure(name: string): Promise<void> {
    if ((await this.read(name)) !== undefined) return
    const request = { op: `make counter ${name}`, type: NFNL_MSG_ACCT_NEW, flags: NLM_F_CREATE, body: nameBody(name) }
    try {
      await this.#socket().request(request)
    } catch (error) {
      // Another process has made the counter in the meantime.
      if (!isRefusedWith(error, 'EBUSY', 'EEXIST')) throw error
    }
  }

  /** Returns false if this kernel has no nfacct. */
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

const nameBody = (name: string) => (writer: MessageWriter) => {
  writer.netfilter(headerFamily)
  writer.text(NFACCT.NAME, name)
}
