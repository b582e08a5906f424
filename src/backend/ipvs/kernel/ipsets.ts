// Creates the ipsets and changes their members, and counts the members, so that a change by someone else shows without listing a set.

import { ProxyError } from '../../../lib/errors.ts'
import type { Family } from '../../../lib/ip.ts'
import { AddressCache } from '../../../sys/netlink/address-codec.ts'
import {
  decodeSet,
  ipsetCommand,
  ipsetErrors,
  ipsetMessage,
  type ListedSet,
  type SetSpec,
  writeCreate,
  writeList,
  writeMember,
  writeSetName,
} from '../../../sys/netlink/ipset.ts'
import { AttributeReader } from '../../../sys/netlink/message.ts'
import { malformed } from '../../../sys/netlink/netlink-errors.ts'
import { NetlinkSocket, type Wait } from '../../../sys/netlink/socket.ts'
import type { Held, RefusedEntry } from '../../backend.ts'
import { describeSetDrift } from '../drift.ts'
import { memberEntry, splitMember } from '../entries.ts'
import { listSets } from '../set-definitions.ts'
import { NetlinkBatch } from './netlink-batch.ts'

const purpose = 'ipset'

interface SetVisitor {
  readonly onSet?: (set: ListedSet) => void
  readonly onMember?: (member: string) => void
}

export class Ipsets {
  readonly #socket = new NetlinkSocket({ protocol: 'netfilter', purpose, receiveBufferBytes: 4 << 20 })
  readonly #names: ReadonlySet<string>
  /** The number of members of each set: as last read, and changed by every request since. */
  readonly #sizes = new Map<string, number>()
  readonly #cache = new AddressCache()

  constructor(family: Family) {
    this.#names = new Set(listSets(family).map(({ name }) => name))
  }

  /** Our sets that exist, and their members. */
  async read(wait: Wait): Promise<readonly Held[]> {
    const held: Held[] = []
    this.#sizes.clear()
    for (const { name, type } of await this.#readHeaders(wait)) {
      held.push({ id: `set ${name}`, kind: 'set', digest: type })
      let size = 0
      const onMember = (member: string) => {
        size++
        held.push(memberEntry(name, member))
      }
      await this.#dump(name, wait, { onMember })
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
    return refused.map(({ subject, errno, error }) => ({ id: `set ${subject.name}`, error: explain(error, errno) }))
  }

  /** `ids` are the ids of member entries. */
  addMembers(ids: readonly string[], wait: Wait): Promise<readonly RefusedEntry[]> {
    const batch = new NetlinkBatch<string>(this.#socket, 'add members', wait)
    return this.#changeMembers(ids, batch, { type: ipsetMessage(ipsetCommand.add), growth: 1 })
  }

  /** `ids` are the ids of member entries. */
  deleteMembers(ids: readonly string[], wait: Wait): Promise<readonly RefusedEntry[]> {
    const batch = new NetlinkBatch<string>(this.#socket, 'delete members', wait)
    return this.#changeMembers(ids, batch, { type: ipsetMessage(ipsetCommand.delete), growth: -1 })
  }

  /** Returns what someone else changed, or ''. */
  async describeDrift(wait: Wait): Promise<string> {
    return describeSetDrift(this.#sizes, await this.#readHeaders(wait))
  }

  /** Destroys all our sets. The kernel refuses to destroy a set that a rule uses. */
  async destroy(wait: Wait): Promise<readonly ProxyError[]> {
    const batch = new NetlinkBatch<string>(this.#socket, 'destroy sets', wait)
    for (const { name } of await this.#readHeaders(wait)) {
      batch.add(ipsetMessage(ipsetCommand.destroy), 0, name, (writer) => writeSetName(writer, name))
    }
    return (await batch.send()).map(({ errno, error }) => explain(error, errno))
  }

  close(): void {
    this.#socket.close()
  }

  /** `growth`: by how much each request changes the size of its set. */
  async #changeMembers(
    ids: readonly string[],
    batch: NetlinkBatch<string>,
    { type, growth }: { readonly type: number; readonly growth: number },
  ): Promise<readonly RefusedEntry[]> {
    for (const id of ids) {
      const [set, member] = splitMember(id)
      batch.add(type, 0, id, (writer) => writeMember(writer, set, member))
      this.#addToSize(set, growth)
    }
    const refused = await batch.send()
    for (const { subject } of refused) this.#addToSize(splitMember(subject)[0], -growth)
    return refused.map(({ subject, errno, error }) => ({ id: subject, error: explain(error, errno) }))
  }

  #addToSize(set: string, growth: number): void {
    this.#sizes.set(set, (this.#sizes.get(set) ?? 0) + growth)
  }

  async #readHeaders(wait: Wait): Promise<readonly ListedSet[]> {
    const found: ListedSet[] = []
    await this.#dump(undefined, wait, { onSet: (set) => found.push(set) })
    return found.filter(({ name }) => this.#names.has(name))
  }

  /** `name`: the set whose members are dumped; undefined: the headers of all sets. */
  async #dump(name: string | undefined, wait: Wait, { onSet, onMember = () => undefined }: SetVisitor): Promise<void> {
    const op = name === undefined ? 'list sets' : `list ${name}`
    const reader = new AttributeReader()
    const body = (writer: Parameters<typeof writeList>[0]) => writeList(writer, name)
    await this.#socket.dump(
      { op, type: ipsetMessage(ipsetCommand.list), body },
      (message) => {
        const set = decodeSet(message, reader, this.#cache, onMember)
        if (reader.error !== undefined) throw malformed(purpose, op, reader.error)
        if (set !== undefined) onSet?.(set)
      },
      wait,
    )
  }
}

/** Adds the meaning of ipset's own error numbers. */
function explain(error: ProxyError, errno: number): ProxyError {
  const words = ipsetErrors[errno]
  return words === undefined ? error : new ProxyError('ipset', `${error.message}: ${words}`, { cause: error })
}
