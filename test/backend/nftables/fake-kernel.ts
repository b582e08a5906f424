// A kernel made of maps that reads our real messages, and is as strict as the real one about what is there and what is in use.

import { ProxyError } from '../../../src/lib/errors.ts'
import type { Family } from '../../../src/lib/ip.ts'
import { EBUSY, EEXIST, ENOENT, EPERM } from '../../../src/sys/errno.ts'
import { AttributeReader, MessageReader } from '../../../src/sys/netlink/message.ts'
import type { MessageWriter } from '../../../src/sys/netlink/message-writer.ts'
import { decodeElements } from '../../../src/sys/netlink/nft/elements.ts'
import {
  type Chain,
  type Element,
  message,
  type NftSet,
  SET_ANONYMOUS,
} from '../../../src/sys/netlink/nft/nft-types.ts'
import {
  decodeChain,
  decodeRule,
  decodeSet,
  decodeTable,
  type ListedRule,
} from '../../../src/sys/netlink/nft/read-objects.ts'
import type { BatchOutcome, MessageFailure } from '../../../src/sys/netlink/socket.ts'

export interface State {
  exists: boolean
  flags: number
  readonly chains: Map<string, Chain>
  readonly rules: Map<string, ListedRule[]>
  readonly sets: Map<string, NftSet>
  readonly elements: Map<string, Map<string, Element>>
  /** Names of anonymous sets by their number in the batch. */
  readonly numbered: Map<number, string>
}

const empty = (): State => ({
  exists: false,
  flags: 0,
  chains: new Map(),
  rules: new Map(),
  sets: new Map(),
  elements: new Map(),
  numbered: new Map(),
})

/** The kernel, which outlives its sockets. One table, one family. */
export class FakeKernel {
  state = empty()
  owner = 0
  generation = 1
  /** Lists that were asked for. */
  reads = 0
  /** Messages of the last batch that was taken, but the table's. */
  readonly batches: string[][] = []
  /** Elements that each batch brought or took, refused ones included. */
  readonly sizes: number[] = []
  /** Errnos for batches to come, in place of the kernel's own answer. */
  readonly script: number[] = []
  /** The errno for a message of this text, if it is to be refused. */
  refuses: (text: string) => number | undefined = () => undefined
  /** Sees every state that packets may meet, with the one before it. */
  onCommit: (before: State, after: State) => void = () => {}
  #anonymous = 0
  #ports = 100

  open(family: Family): FakeNftables {
    return new FakeNftables(this, family, this.#ports++)
  }

  /** By somebody else, behind our back. */
  tamper(change: (state: State) => void): void {
    change(this.state)
  }

  commit(writer: MessageWriter, port: number): BatchOutcome {
    const scripted = this.script.shift()
    if (scripted !== undefined) return { failures: [failure(scripted, 0)], overflow: false }
    const work = copy(this.state)
    const failures: MessageFailure[] = []
    const texts: string[] = []
    const reader = new MessageReader(Buffer.from(writer.toBytes()))
    this.sizes.push(0)
    while (reader.next()) {
      if (reader.type === 0x10 || reader.type === 0x11) continue
      if (this.state.exists && this.owner !== 0 && this.owner !== port) {
        failures.push(failure(EPERM, reader.sequence))
        continue
      }
      const { text, errno } = this.#apply(work, reader)
      const refused = errno ?? this.refuses(text)
      if (refused !== undefined) failures.push(failure(refused, reader.sequence))
      if (!text.includes('table')) texts.push(text)
    }
    if (reader.error !== undefined) throw new Error(reader.error)
    if (failures.length > 0) return { failures, overflow: false }
    this.onCommit(this.state, work)
    this.state = work
    this.owner = (work.flags & 2) === 0 ? 0 : port
    this.generation++
    this.batches.push(texts)
    return { failures: [], overflow: false }
  }

  #apply(state: State, reader: MessageReader): { text: string; errno?: number | undefined } {
    const attributes = new AttributeReader()
    const { type } = reader
    if (type === message.table.add) {
      state.exists = true
      state.flags = decodeTable(reader, attributes)?.flags ?? 0
      return { text: 'add table' }
    }
    if (type === message.table.delete) {
      const { exists } = state
      Object.assign(state, empty())
      return { text: 'delete table', errno: exists ? undefined : ENOENT }
    }
    if (type === message.chain.add || type === message.chain.delete) {
      return applyChain(state, decodeChain(reader, attributes) as Chain, type === message.chain.add)
    }
    if (type === message.rule.add || type === message.rule.delete) {
      return applyRule(state, decodeRule(reader, attributes) as ListedRule, type === message.rule.add)
    }
    if (type === message.set.add || type === message.set.delete) {
      const set = decodeSet(reader, attributes) as NftSet
      const anonymous = (set.flags & SET_ANONYMOUS) !== 0
      const name = anonymous ? `__map${this.#anonymous++}` : set.name
      if (anonymous) state.numbered.set(set.id, name)
      return applySet(state, { ...set, name }, type === message.set.add)
    }
    const list = decodeElements(reader, attributes)
    if (list === undefined) throw new Error(`message ${type} of ${attributes.error}`)
    const name = state.numbered.get(list.setId ?? -1) ?? list.set
    let errno: number | undefined
    this.sizes.push((this.sizes.pop() ?? 0) + list.elements.length)
    for (const element of list.elements) {
      errno ??= applyElement(state, name, copyElement(element), type === message.elements.add)
    }
    return { text: `${type === message.elements.add ? 'add' : 'delete'} element ${name}`, errno }
  }
}

type Outcome = { readonly text: string; readonly errno?: number | undefined }

function applyChain(state: State, chain: Chain, add: boolean): Outcome {
  const { name } = chain
  const text = `${add ? 'add' : 'delete'} chain ${name}`
  if (add) {
    if (!state.chains.has(name)) state.chains.set(name, chain)
    if (!state.rules.has(name)) state.rules.set(name, [])
    return { text }
  }
  if (!state.chains.has(name)) return { text, errno: ENOENT }
  if (entered(state, name)) return { text, errno: EBUSY }
  state.chains.delete(name)
  state.rules.delete(name)
  return { text }
}

/** Some rule or element leads into the chain. */
function entered(state: State, name: string): boolean {
  const leads = (data: unknown) => typeof data === 'object' && data !== null && 'chain' in data && data.chain === name
  for (const rules of state.rules.values()) if (rules.some((rule) => rule.expressions.some(leads))) return true
  for (const members of state.elements.values()) for (const { data } of members.values()) if (leads(data)) return true
  return false
}

function applyRule(state: State, rule: ListedRule, add: boolean): Outcome {
  const text = `${add ? 'add' : 'delete'} rule ${rule.chain}`
  const rules = state.rules.get(rule.chain)
  if (rules === undefined) return { text, errno: ENOENT }
  if (!add) {
    unbind(state, rules.splice(0))
    return { text }
  }
  const expressions = rule.expressions.map((expression) => {
    if (expression.expression !== 'lookup' || expression.setId === undefined) return expression
    const { setId, ...lookup } = expression
    return { ...lookup, set: state.numbered.get(setId) ?? lookup.set }
  })
  const bound = { ...rule, expressions }
  for (const expression of expressions) {
    if (expression.expression === 'verdict' && 'chain' in expression && !state.chains.has(expression.chain)) {
      return { text, errno: ENOENT }
    }
  }
  if (setsOf(bound).some((set) => !state.sets.has(set))) return { text, errno: ENOENT }
  rules.push(bound)
  return { text }
}

/** Anonymous sets go with the rules they were made for. */
export function unbind(state: State, rules: readonly ListedRule[]): void {
  for (const set of rules.flatMap(setsOf)) {
    if (!set.startsWith('__map')) continue
    state.sets.delete(set)
    state.elements.delete(set)
  }
}

const setsOf = (rule: ListedRule): readonly string[] =>
  rule.expressions.flatMap((expression) => ('set' in expression ? [expression.set] : []))

function applySet(state: State, set: NftSet, add: boolean): Outcome {
  const { name } = set
  const text = `${add ? 'add' : 'delete'} set ${name}`
  const before = state.sets.get(name)
  if (add) {
    if (before !== undefined && (before.flags !== set.flags || before.keyType !== set.keyType)) {
      return { text, errno: EEXIST }
    }
    const userdata = set.userdata === undefined ? {} : { userdata: Buffer.from(set.userdata) }
    state.sets.set(name, { ...set, ...userdata })
    if (before === undefined) state.elements.set(name, new Map())
    return { text }
  }
  if (before === undefined) return { text, errno: ENOENT }
  const inUse = [...state.rules.values()].some((rules) => rules.some((rule) => setsOf(rule).includes(name)))
  if (inUse) return { text, errno: EBUSY }
  state.sets.delete(name)
  state.elements.delete(name)
  return { text }
}

function applyElement(state: State, set: string, element: Element, add: boolean): number | undefined {
  const members = state.elements.get(set)
  if (members === undefined) return ENOENT
  const key = keyOf(element)
  const before = members.get(key)
  if (!add) return members.delete(key) ? undefined : ENOENT
  const { data } = element
  if (before !== undefined) return JSON.stringify(before.data) === JSON.stringify(data) ? undefined : EEXIST
  if (data !== undefined && 'chain' in data && !state.chains.has(data.chain)) return ENOENT
  members.set(key, element)
  return undefined
}

export const keyOf = ({ key, keyEnd }: Element): string =>
  Buffer.from(key).toString('hex') + (keyEnd === undefined ? '' : `-${Buffer.from(keyEnd).toString('hex')}`)

/** Decoders give views of the message's buffer. */
function copyElement(element: Element): Element {
  const { key, keyEnd, data } = element
  return {
    ...element,
    key: Buffer.from(key),
    ...(keyEnd === undefined ? {} : { keyEnd: Buffer.from(keyEnd) }),
    ...(data instanceof Uint8Array ? { data: Buffer.from(data) } : {}),
  }
}

function copy(state: State): State {
  const nested = <V>(map: ReadonlyMap<string, Map<string, V>>) =>
    new Map([...map].map(([name, inner]) => [name, new Map(inner)]))
  return {
    ...state,
    chains: new Map(state.chains),
    rules: new Map([...state.rules].map(([name, rules]) => [name, [...rules]])),
    sets: new Map(state.sets),
    elements: nested(state.elements),
    numbered: new Map(),
  }
}

const failure = (errno: number, sequence: number): MessageFailure => ({
  errno,
  sequence,
  text: '',
  offset: -1,
  about: 0,
})

/** One socket of the fake kernel. */
export class FakeNftables {
  readonly port: number
  readonly #kernel: FakeKernel
  readonly #family: Family

  constructor(kernel: FakeKernel, family: Family, port: number) {
    this.#kernel = kernel
    this.#family = family
    this.port = port
  }

  commit(writer: MessageWriter): Promise<BatchOutcome> {
    return Promise.resolve(this.#kernel.commit(writer, this.port))
  }

  failure(op: string, { errno }: MessageFailure): ProxyError {
    return new ProxyError('netlink', `${op}: errno ${errno}`, { fields: { op, errno } })
  }

  async tables() {
    this.#kernel.reads++
    const { exists, flags } = this.#kernel.state
    const owned = this.#kernel.owner === 0 ? flags & ~2 : flags
    return exists ? [{ kind: 'table' as const, family: this.#family, name: 'kube-proxy', flags: owned }] : []
  }

  async chains() {
    this.#kernel.reads++
    return [...this.#kernel.state.chains.values()]
  }

  async rules() {
    this.#kernel.reads++
    return [...this.#kernel.state.rules.values()].flat()
  }

  async sets() {
    this.#kernel.reads++
    return [...this.#kernel.state.sets.values()]
  }

  /** Clients never cease to come: such a set does not hold still. */
  async elementsAs<T>(
    family: Family,
    table: string,
    set: string,
    make: (element: Element) => T,
  ): Promise<readonly T[]> {
    return (await this.elements(family, table, set)).map(make)
  }

  async elements(family: Family, table: string, set: string) {
    if (set.startsWith('affinity-')) throw new ProxyError('netlink', `${set} kept changing`)
    return this.members(family, table, set)
  }

  async members(_family: Family, _table: string, set: string) {
    this.#kernel.reads++
    return [...(this.#kernel.state.elements.get(set)?.values() ?? [])]
  }

  close(): void {
    if (this.#kernel.owner === this.port) this.#kernel.owner = 0
  }
}
