// The ipsets: makes them, keeps their members, and counts, so that tampering shows without reading them.

import { ProxyError } from '../../lib/errors.ts'
import type { Family } from '../../lib/ip.ts'
import { AddressCache } from '../../sys/netlink/address-codec.ts'
import {
  decodeSet,
  ipsetCommand,
  ipsetErrors,
  ipsetMessage,
  type SetSeen,
  type SetSpec,
  writeCreate,
  writeList,
  writeMember,
  writeSetName,
} from '../../sys/netlink/ipset.ts'
import { AttributeReader } from '../../sys/netlink/message.ts'
import { malformed } from '../../sys/netlink/netlink-errors.ts'
import { NetlinkSocket, type Wait } from '../../sys/netlink/socket.ts'
import type { Held, RefusedEntry } from '../backend.ts'
import { memberEntry, splitMember } from './entries.ts'
import { NetlinkBatch } from './netlink-batch.ts'
import { setsOf } from './set-definitions.ts'

const purpose = 'ipset'

export class Ipsets {
  readonly #socket = new NetlinkSocket({ protocol: 'netfilter', purpose, receiveBufferBytes: 4 << 20 })
  readonly #names: ReadonlySet<string>
  /** How many members each set has, by what was read and done since. */
  readonly #sizes = new Map<string, number>()
  readonly #cache = new AddressCache()

  constructor(family: Family) {
    this.#names = new Set(setsOf(family).map(({ name }) => name))
  }

  /** Sets of ours that exist, and their members. */
  async read(wait: Wait): Promise<readonly Held[]> {
    const held: Held[] = []
    this.#sizes.clear()
    for (const { name, type } of await this.#headers(wait)) {
      held.push({ id: `set ${name}`, kind: 'set', digest: type })
      let size = 0
      await this.#list(name, wait, (member) => {
        size++
        held.push(memberEntry(name, member))
      })
      this.#sizes.set(name, size)
    }
    return held
  }

  async create(sets: readonly SetSpec[], wait: Wait): Promise<readonly RefusedEntry[]> {
    const batch = new NetlinkBatch<SetSpec>(this.#socket, 'create sets', wait)
    for (const set of sets) {
      batch.add(ipsetMessage(ipsetCommand.create), 0, set, (writer) => writeCreate(writer, set))
      if (!this.#sizes.has(set.name)) this.#sizes.set(set.name, 0)
    }
    const refused = await batch.send()
    return refused.map(({ about, errno, error }) => ({ id: `set ${about.name}`, error: explain(error, errno) }))
  }

  /** Adds or deletes members, given by their ids. */
  async change(ids: readonly string[], add: boolean, wait: Wait): Promise<readonly RefusedEntry[]> {
    if (ids.length === 0) return []
    const batch = new NetlinkBatch<string>(this.#socket, add ? 'add members' : 'delete members', wait)
    const type = ipsetMessage(add ? ipsetCommand.add : ipsetCommand.delete)
    for (const id of ids) {
      const [set, member] = splitMember(id)
      batch.add(type, 0, id, (writer) => writeMember(writer, set, member))
      this.#count(set, add ? 1 : -1)
    }
    const refused = await batch.send()
    for (const { about } of refused) this.#count(splitMember(about)[0], add ? -1 : 1)
    return refused.map(({ about, errno, error }) => ({ id: about, error: explain(error, errno) }))
  }

  /** What is not as it was left, in words; '' if all is. */
  async check(wait: Wait): Promise<string> {
    const seen = new Map((await this.#headers(wait)).map((set) => [set.name, set]))
    for (const [name, size] of this.#sizes) {
      const set = seen.get(name)
      if (set === undefined) return `ipset ${name} is gone`
      // Kernels before 4.9 do not tell.
      if (set.elements !== undefined && set.elements !== size) {
        return `ipset ${name} has ${set.elements} members instead of ${size}`
      }
    }
    return ''
  }

  /** Removes all sets of ours; what rules still use stays. */
  async destroy(wait: Wait): Promise<readonly ProxyError[]> {
    const batch = new NetlinkBatch<string>(this.#socket, 'destroy sets', wait)
    for (const { name } of await this.#headers(wait)) {
      batch.add(ipsetMessage(ipsetCommand.destroy), 0, name, (writer) => writeSetName(writer, name))
    }
    return (await batch.send()).map(({ errno, error }) => explain(error, errno))
  }

  close(): void {
    this.#socket.close()
  }

  #count(set: string, by: number): void {
    this.#sizes.set(set, (this.#sizes.get(set) ?? 0) + by)
  }

  async #headers(wait: Wait): Promise<readonly SetSeen[]> {
    const found: SetSeen[] = []
    await this.#dump('list sets', undefined, wait, (set) => found.push(set))
    return found.filter(({ name }) => this.#names.has(name))
  }

  #list(name: string, wait: Wait, member: (text: string) => void): Promise<void> {
    return this.#dump(`list ${name}`, name, wait, () => undefined, member)
  }

  async #dump(
    op: string,
    name: string | undefined,
    wait: Wait,
    set: (seen: SetSeen) => void,
    member: (text: string) => void = () => undefined,
  ): Promise<void> {
    const reader = new AttributeReader()
    const body = (writer: Parameters<typeof writeList>[0]) => writeList(writer, name)
    await this.#socket.dump(
      { op, type: ipsetMessage(ipsetCommand.list), body },
      (message) => {
        const seen = decodeSet(message, reader, this.#cache, member)
        if (reader.error !== undefined) throw malformed(purpose, op, reader.error)
        if (seen !== undefined) set(seen)
      },
      wait,
    )
  }
}

function explain(error: ProxyError, errno: number): ProxyError {
  const words = ipsetErrors[errno]
  return words === undefined ? error : new ProxyError('ipset', `${error.message}: ${words}`, { cause: error })
}
