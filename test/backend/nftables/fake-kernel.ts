// A kernel made of maps. It reads our real messages and is as strict as the real kernel about objects that are missing or in use.

import { ProxyError } from '../../../src/lib/errors.ts'
import type { Family } from '../../../src/lib/ip.ts'
import { EBUSY, EEXIST, ENOENT, EPERM } from '../../../src/sys/errno.ts'
import { AttributeReader, MessageReader } from '../../../src/sys/netlink/message.ts'
import { MessageWriter } from '../../../src/sys/netlink/message-writer.ts'
import {
  decodeElements,
  type ListedElement,
  visitElements,
  writeElements,
} from '../../../src/sys/netlink/nft/elements.ts'
import {
  type Chain,
  type Element,
  messageTypes,
  type NftSet,
  SET_ANONYMOUS,
  type SetName,
} from '../../../src/sys/netlink/nft/nft-types.ts'
import type { NftablesSocket } from '../../../src/sys/netlink/nft/nftables.ts'
import { decodeChain, decodeSet, decodeTable } from '../../../src/sys/netlink/nft/read-objects.ts'
import type { BatchOutcome, MessageFailure } from '../../../src/sys/netlink/socket.ts'
import { type DisassembledRule, disassembleRule } from '../../sys/netlink/nft/disassemble.ts'

export interface State {
  exists: boolean
  flags: number
  readonly chains: Map<string, Chain>
  readonly rules: Map<string, DisassembledRule[]>
  readonly sets: Map<string, NftSet>
  readonly elements: Map<string, Map<string, Element>>
  /** Names of anonymous sets by their id in the batch. */
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

/** The kernel, which outlives its sockets. It has one table of one family. */
export class FakeKernel {
  state = empty()
  owner = 0
  generation = 1
  /** The number of dumps that were requested. */
  reads = 0
  /** The messages of each committed batch, without those about the table itself. */
  readonly batches: string[][] = []
  /** The number of elements in each batch, also in refused ones. */
  readonly sizes: number[] = []
  /** The errnos that the next batches fail with, instead of the kernel's own answer. */
  readonly script: number[] = []
  /** Returns the errno if the kernel refuses messages of this text. */
  refuses: (text: string) => number | undefined = () => undefined
  /** Called with every state that packets may meet, and the state before it. */
  onCommit: (before: State, after: State) => void = () => {}
  #anonymous = 0
  #ports = 100

  open(family: Family): FakeNftables {
    return new FakeNftables(this, family, this.#ports++)
  }

  /** Changes the state as another process would. */
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

  #apply(state: State, reader: MessageReader): Outcome {
    const attributes = new AttributeReader()
    switch (reader.type) {
      case messageTypes.table.add:
        state.exists = true
        state.flags = decodeTable(reader, attributes)?.flags ?? 0
        return { text: 'add table' }
      case messageTypes.table.delete: {
        const { exists } = state
        Object.assign(state, empty())
        return { text: 'delete table', errno: exists ? undefined : ENOENT }
      }
      case messageTypes.chain.add:
      case messageTypes.chain.delete:
        return applyChain(state, decodeChain(reader, attributes) as Chain, reader.type === messageTypes.chain.add)
      case messageTypes.rule.add:
      case messageTypes.rule.delete:
        return applyRule(
          state,
          disassembleRule(reader, attributes) as DisassembledRule,
          reader.type === messageTypes.rule.add,
        )
      case messageTypes.set.add:
      case messageTypes.set.delete:
        return this.#applySet(state, decodeSet(reader, attributes) as NftSet, reader.type === messageTypes.set.add)
      default:
        return this.#applyElements(state, reader)
    }
  }

  #applySet(state: State, set: NftSet, add: boolean): Outcome {
    const isAnonymous = (set.flags & SET_ANONYMOUS) !== 0
    const name = isAnonymous ? `__map${this.#anonymous++}` : set.name
    if (isAnonymous) state.numbered.set(set.id, name)
    return applySet(state, { ...set, name }, add)
  }

  #applyElements(state: State, reader: MessageReader): Outcome {
    const attributes = new AttributeReader()
    const list = decodeElements(reader, attributes)
    if (list === undefined) throw new Error(`cannot read message ${reader.type}: ${attributes.error}`)
    const name = state.numbered.get(list.setId ?? -1) ?? list.set
    const add = reader.type === messageTypes.elements.add
    let errno: number | undefined
    this.sizes.push((this.sizes.pop() ?? 0) + list.elements.length)
    for (const element of list.elements) errno ??= applyElement(state, name, element, add)
    return { text: `${add ? 'add' : 'delete'} element ${name}`, errno }
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
  if (isEntered(state, name)) return { text, errno: EBUSY }
  state.chains.delete(name)
  state.rules.delete(name)
  return { text }
}

/** True if a rule or an element leads into the chain. */
function isEntered(state: State, name: string): boolean {
  const leads = (data: unknown) => typeof data === 'object' && data !== null && 'chain' in data && data.chain === name
  for (const rules of state.rules.values()) if (rules.some((rule) => rule.expressions.some(leads))) return true
  for (const members of state.elements.values()) for (const { data } of members.values()) if (leads(data)) return true
  return false
}

function applyRule(state: State, rule: DisassembledRule, add: boolean): Outcome {
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

/** Deletes the anonymous sets of deleted rules. */
export function unbind(state: State, rules: readonly DisassembledRule[]): void {
  for (const set of rules.flatMap(setsOf)) {
    if (!set.startsWith('__map')) continue
    state.sets.delete(set)
    state.elements.delete(set)
  }
}

const setsOf = (rule: DisassembledRule): readonly string[] =>
  rule.expressions.flatMap((expression) => ('set' in expression ? [expression.set] : []))

function applySet(state: State, set: NftSet, add: boolean): Outcome {
  const { name } = set
  const text = `${add ? 'add' : 'delete'} set ${name}`
  const before = state.sets.get(name)
  if (add) {
    if (before !== undefined && (before.flags !== set.flags || before.keyType !== set.keyType)) {
      return { text, errno: EEXIST }
    }
    state.sets.set(name, set)
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

const keyOf = ({ key, keyEnd }: Element): string =>
  Buffer.from(key).toString('hex') + (keyEnd === undefined ? '' : `-${Buffer.from(keyEnd).toString('hex')}`)

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
export class FakeNftables implements NftablesSocket {
  readonly port: number
  timesOpened = 1
  isLost = false
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

  commitCounted(writer: MessageWriter): Promise<BatchOutcome> {
    return this.commit(writer)
  }

  /** This kernel counts nothing. */
  async namedCounters() {
    return []
  }

  async rulesOf() {
    return []
  }

  failure(op: string, { errno }: MessageFailure): ProxyError {
    return new ProxyError('netlink', `${op}: errno ${errno}`, { fields: { op, errno } })
  }

  async tables() {
    this.#kernel.reads++
    const { exists, flags } = this.#kernel.state
    const owned = this.#kernel.owner === 0 ? flags & ~2 : flags
    return exists ? [{ family: this.#family, name: 'kube-proxy', flags: owned }] : []
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

  async elements<T>(name: SetName, convert: (element: ListedElement) => T): Promise<readonly T[]> {
    const { set } = name
    // Packets add clients all the time, so an affinity set never holds still.
    if (set.startsWith('affinity-')) throw new ProxyError('netlink', `${set} kept changing`)
    const writer = new MessageWriter()
    writeElements(writer, { ...name, elements: this.#list(set) })
    const message = new MessageReader(writer.toBytes())
    const converted: T[] = []
    while (message.next()) {
      visitElements(message, new AttributeReader(), (element) => converted.push(convert(element)))
    }
    return converted
  }

  async keysOnce({ set }: SetName): Promise<readonly Uint8Array[]> {
    return this.#list(set).map(({ key }) => key)
  }

  close(): void {
    if (this.#kernel.owner === this.port) this.#kernel.owner = 0
  }

  #list(set: string): readonly Element[] {
    this.#kernel.reads++
    return [...(this.#kernel.state.elements.get(set)?.values() ?? [])]
  }
}
