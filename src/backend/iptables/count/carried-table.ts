// A table of nf_tables, beside those of iptables, whose counters keep what endpoints that are gone had counted. No rule uses them.
//
// The rules of this mode equal those of kube-proxy, so that no rule can keep these sums. The table lives as long as the rules: it survives
// the end of the proxy, and not a reboot. A kernel without nf_tables has none; there the sums end with the process.

import { ProxyError } from '../../../lib/errors.ts'
import type { Family } from '../../../lib/ip.ts'
import { MessageWriter } from '../../../sys/netlink/message-writer.ts'
import { isRefusedWith } from '../../../sys/netlink/netlink-errors.ts'
import { Nftables } from '../../../sys/netlink/nft/nftables.ts'
import { beginBatch, endBatch, writeNamedCounter, writeTable } from '../../../sys/netlink/nft/write-objects.ts'
import { hash32 } from '../../names.ts'

export const carriedTableName = 'sluice-counts'

/** A sum that the table keeps. */
export interface CarriedSum {
  /** `gone-HASH` for all endpoints of a port that are gone; the name of a chain for one that is about to be deleted. */
  readonly name: string
  /** Id of the port, `ns/name:port/tcp`. */
  readonly port: string
  readonly count: number
}

/** The name of the sum of a port. */
export const sumName = (port: string): string => `gone-${hash32(port, 16)}`

export class CarriedTable {
  readonly #family: Family
  #opened: Nftables | undefined
  /** What the table holds, by name; undefined if it was not read. */
  #held: ReadonlyMap<string, CarriedSum> | undefined
  #exists = false

  constructor(family: Family) {
    this.#family = family
  }

  /** Reads the table. Other programs may have deleted it. */
  async read(): Promise<readonly CarriedSum[]> {
    const sums = await this.#list()
    this.#exists = sums !== undefined
    this.#held = new Map((sums ?? []).map((sum) => [sum.name, sum]))
    return sums ?? []
  }

  /** Makes the table hold exactly these sums, in one transaction. Resolves false if it does already. */
  async write(sums: readonly CarriedSum[]): Promise<boolean> {
    if (this.#held === undefined) await this.read()
    const held = this.#held ?? new Map<string, CarriedSum>()
    const wanted = new Map(sums.map((sum) => [sum.name, sum]))
    const added = sums.filter((sum) => !isEqual(sum, held.get(sum.name)))
    const removed = [...held.values()].filter((sum) => !isEqual(sum, wanted.get(sum.name)))
    if (added.length + removed.length === 0) return false
    await this.#commit(added, removed)
    this.#held = wanted
    return true
  }

  close(): void {
    this.#opened?.close()
    this.#opened = undefined
  }

  async #commit(added: readonly CarriedSum[], removed: readonly CarriedSum[]): Promise<void> {
    const [family, table] = [this.#family, carriedTableName]
    const writer = new MessageWriter()
    beginBatch(writer)
    if (!this.#exists) writeTable(writer, { family, name: table, comment: 'connections to endpoints that are gone' })
    // A counter cannot be changed: it is deleted and made again.
    for (const { name } of removed) writeNamedCounter(writer, { family, table, name, packets: 0 }, 'delete')
    for (const { name, port, count } of added) {
      writeNamedCounter(writer, { family, table, name, packets: count, comment: port })
    }
    const nft = this.#nft()
    const { failures } = await nft.commit(writer, endBatch(writer))
    const [failure] = failures
    if (failure !== undefined) {
      this.#held = undefined
      throw new ProxyError('nftables', 'keep counts', { cause: nft.failure('keep counts', failure) })
    }
    this.#exists = true
  }

  /** Undefined if there is no table. */
  async #list(): Promise<readonly CarriedSum[] | undefined> {
    const nft = this.#nft()
    const tables = await nft.tables()
    if (!tables.some(({ family, name }) => family === this.#family && name === carriedTableName)) return undefined
    const counters = await nft.namedCounters(this.#family, carriedTableName)
    return counters.map(({ name, packets, comment = '' }) => ({ name, port: comment, count: packets }))
  }

  #nft(): Nftables {
    this.#opened ??= new Nftables()
    return this.#opened
  }
}

const isEqual = (a: CarriedSum, b: CarriedSum | undefined): boolean => a.count === b?.count && a.port === b.port

/** Deletes the tables of both families. */
export async function removeCarriedTables(): Promise<void> {
  let nft: Nftables
  try {
    nft = new Nftables()
  } catch {
    // This kernel has no nf_tables, so it has no tables.
    return
  }
  try {
    for (const { family, name } of await nft.tables()) {
      if (name !== carriedTableName) continue
      const writer = new MessageWriter()
      beginBatch(writer)
      writeTable(writer, { family, name }, 'delete')
      const { failures } = await nft.commit(writer, endBatch(writer))
      if (failures[0] !== undefined) throw nft.failure(`delete table ${name}`, failures[0])
    }
  } catch (error) {
    if (!isRefusedWith(error, 'ENOENT', 'EOPNOTSUPP', 'EINVAL')) throw error
  } finally {
    nft.close()
  }
}
