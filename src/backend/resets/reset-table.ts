// A table of nf_tables, beside those of all modes, that answers packets of connections whose endpoint is gone: TCP with a reset, UDP with
// an ICMP error. It exists only while there are such connections.
//
// 1. A connection is named by the addresses that its client uses, before any translation. So the table works with every mode whose
//    translation the kernel does, and needs no tracking entry: the entries are removed.
// 2. A reset needs the sequence numbers of the connection. The kernel reads them from the client's own packet, which is why the table
//    waits for one: a retransmission or a keepalive.
// 3. The table has an owner and does not persist: the kernel deletes it when this process ends, however it ends (Linux 5.12).

import { ProxyError } from '../../lib/errors.ts'
import type { Family } from '../../lib/ip.ts'
import type { Clock, Timer } from '../../lib/time.ts'
import { addressBytes } from '../../sys/netlink/address-codec.ts'
import { MessageWriter } from '../../sys/netlink/message-writer.ts'
import { writeElements } from '../../sys/netlink/nft/elements.ts'
import { SET_DYNAMIC, SET_TIMEOUT, TABLE_OWNER } from '../../sys/netlink/nft/nft-types.ts'
import { Nftables } from '../../sys/netlink/nft/nftables.ts'
import { describeSet } from '../../sys/netlink/nft/userdata.ts'
import {
  beginBatch,
  endBatch,
  writeChain,
  writeRule,
  writeSet,
  writeTable,
} from '../../sys/netlink/nft/write-objects.ts'
import { keyFields, type ResetProtocol, resetRule } from './reset-rules.ts'

/** The addresses of a connection as its client sees them. */
export interface ClientConnection {
  readonly source: string
  readonly sourcePort: number
  readonly destination: string
  readonly destinationPort: number
}

const tableName = 'sluice-resets'
/** Longer than the distance of two retransmissions. Afterwards the packets are new to the kernel, and another endpoint resets them. */
const keepMs = 3_600_000
/** The kernel limits a dynamic set to 65,535 elements. */
const maxElements = 50_000
const protocols: readonly ResetProtocol[] = ['tcp', 'udp']
/** Before translation, like the rules for source ranges. */
const priority = -110

export class ResetTable {
  readonly #clock: Clock
  #nft: Nftables | undefined
  /** The tables that exist, the elements that they may have, and when the last of these expires. */
  readonly #made = new Map<Family, { readonly elements: number; readonly timer: Timer }>()

  constructor(clock: Clock) {
    this.#clock = clock
  }

  /** Returns when packets of these connections are answered. Of very many, the rest is left out. */
  async add(family: Family, protocol: ResetProtocol, connections: readonly ClientConnection[]): Promise<void> {
    const made = this.#made.get(family)
    const room = maxElements - (made?.elements ?? 0)
    const chosen = connections.slice(0, Math.max(0, room))
    if (chosen.length === 0) return
    const elements = chosen.map((connection) => ({ key: keyOf(connection), timeoutMs: keepMs }))
    await this.#commit(`end connections of ${protocol}`, (writer) => {
      if (made === undefined) writeAll(writer, family)
      writeElements(writer, { family, table: tableName, set: setName(protocol), elements })
    })
    made?.timer.cancel()
    const timer = this.#clock.after(keepMs, () => this.#expire(family))
    this.#made.set(family, { elements: (made?.elements ?? 0) + chosen.length, timer })
  }

  /** Deletes the tables. */
  close(): void {
    for (const { timer } of this.#made.values()) timer.cancel()
    this.#made.clear()
    this.#nft?.close()
    this.#nft = undefined
  }

  #expire(family: Family): void {
    this.#made.delete(family)
    this.#commit('delete the table', (writer) => writeTable(writer, { family, name: tableName }, 'delete')).catch(
      () => undefined,
    )
  }

  async #commit(op: string, write: (writer: MessageWriter) => void): Promise<void> {
    this.#nft ??= new Nftables({ clock: this.#clock })
    const writer = new MessageWriter()
    beginBatch(writer)
    write(writer)
    const { failures } = await this.#nft.commit(writer, endBatch(writer))
    const [failure] = failures
    if (failure !== undefined) throw new ProxyError('nftables', op, { cause: this.#nft.failure(op, failure) })
  }
}

const setName = (protocol: ResetProtocol): string => `${protocol}-connections`

function writeAll(writer: MessageWriter, family: Family): void {
  const names = { family, table: tableName }
  writeTable(writer, { family, name: tableName, flags: TABLE_OWNER, comment: 'connections to endpoints that are gone' })
  for (const [i, protocol] of protocols.entries()) {
    const { fieldLengths: _, ...described } = describeSet({ key: keyFields(family) })
    const flags = SET_TIMEOUT | SET_DYNAMIC
    writeSet(writer, { ...names, name: setName(protocol), id: i + 1, flags, timeoutMs: keepMs, ...described })
  }
  for (const hook of ['prerouting', 'output'] as const) {
    writeChain(writer, { ...names, name: hook, base: { type: 'filter', hook, priority } })
    for (const protocol of protocols) {
      writeRule(writer, { ...names, chain: hook, expressions: resetRule(family, protocol, setName(protocol)) })
    }
  }
}

/** Every field is padded to 4 bytes. */
function keyOf({ source, sourcePort, destination, destinationPort }: ClientConnection): Uint8Array {
  return Buffer.concat([addressBytes(source), port(sourcePort), addressBytes(destination), port(destinationPort)])
}

const port = (number: number): Uint8Array => Uint8Array.of(number >> 8, number & 255, 0, 0)
