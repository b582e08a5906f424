// Reads tables, chains, rules and sets from the kernel's messages, and from its notifications who committed what.

import type { Family } from '../../../lib/ip.ts'
import { familyOfNumber } from '../../ip-numbers.ts'
import type { AttributeReader, MessageReader } from '../message.ts'
import {
  NFTA_CHAIN,
  NFTA_GEN,
  NFTA_HOOK,
  NFTA_OBJ,
  NFTA_RULE,
  NFTA_SET,
  NFTA_SET_DESC,
  NFTA_SET_FIELD,
  NFTA_TABLE,
} from './attributes.ts'
import { readCount, readCounter } from './expressions.ts'
import {
  type Chain,
  type Hook,
  hooks,
  messageTypes,
  type NamedCounter,
  type NftSet,
  OBJECT_COUNTER,
  type Table,
} from './nft-types.ts'
import { readComment, readTag } from './userdata.ts'

/** A decoder returns undefined if the object belongs to another family than IPv4 and IPv6, or if `reader.error` is set. */
export type Decode<T> = (message: MessageReader, reader: AttributeReader) => T | undefined

const readFamily = (message: MessageReader): Family | undefined =>
  message.end > message.start ? familyOfNumber(message.bytes[message.start] as number) : undefined

export const decodeTable: Decode<Table> = (message, reader) => {
  const family = readFamily(message)
  if (family === undefined) return undefined
  let name = ''
  let flags = 0
  let comment: string | undefined
  message.attributes(4, reader)
  while (reader.next()) {
    if (reader.type === NFTA_TABLE.NAME) name = reader.text()
    else if (reader.type === NFTA_TABLE.FLAGS) flags = reader.u32()
    else if (reader.type === NFTA_TABLE.USERDATA) comment = readComment(reader.raw())
  }
  if (reader.error !== undefined) return undefined
  return { family, name, flags, ...(comment === undefined ? {} : { comment }) }
}

export const decodeChain: Decode<Chain> = (message, reader) => {
  const family = readFamily(message)
  if (family === undefined) return undefined
  const chain = { table: '', name: '' }
  const found: BaseAttributes = { type: '', hook: undefined, priority: 0, policy: undefined }
  let comment: string | undefined
  message.attributes(4, reader)
  while (reader.next()) {
    switch (reader.type) {
      case NFTA_CHAIN.TABLE:
        chain.table = reader.text()
        break
      case NFTA_CHAIN.NAME:
        chain.name = reader.text()
        break
      case NFTA_CHAIN.TYPE:
        found.type = reader.text()
        break
      case NFTA_CHAIN.POLICY:
        found.policy = reader.u32() === 1 ? 'accept' : 'drop'
        break
      case NFTA_CHAIN.HOOK:
        readHook(reader, found)
        break
      case NFTA_CHAIN.USERDATA:
        comment = readComment(reader.raw())
        break
    }
  }
  if (reader.error !== undefined) return undefined
  const base = baseOf(found)
  return { family, ...chain, ...(base === undefined ? {} : { base }), ...(comment === undefined ? {} : { comment }) }
}

interface BaseAttributes {
  type: string
  hook: Hook | undefined
  priority: number
  policy: 'accept' | 'drop' | undefined
}

function baseOf({ type, hook, priority, policy }: BaseAttributes): Chain['base'] {
  if (hook === undefined || !isChainType(type)) return undefined
  return policy === undefined ? { type, hook, priority } : { type, hook, priority, policy }
}

function readHook(reader: AttributeReader, found: BaseAttributes): void {
  let number = -1
  reader.enter()
  while (reader.next()) {
    if (reader.type === NFTA_HOOK.HOOKNUM) number = reader.u32()
    else if (reader.type === NFTA_HOOK.PRIORITY) found.priority = reader.i32()
  }
  reader.leave()
  found.hook = hookNames.find((name) => hooks[name] === number)
}

// Object.keys returns strings; `hooks` has no other keys than its type says.
const hookNames = Object.keys(hooks) as Hook[]

const isChainType = (type: string): type is 'filter' | 'nat' | 'route' => ['filter', 'nat', 'route'].includes(type)

/** A rule as it is listed: its place, its tag and its counter. Other expressions are not read. */
export interface ListedRule {
  readonly table: string
  readonly chain: string
  readonly tag?: string
  readonly comment?: string
  /** The packets of its counter; absent if it has none. */
  readonly packets?: number
}

export const decodeRule: Decode<ListedRule> = (message, reader) => {
  if (readFamily(message) === undefined) return undefined
  let table = ''
  let chain = ''
  let userdata: Uint8Array | undefined
  let packets: number | undefined
  message.attributes(4, reader)
  while (reader.next()) {
    if (reader.type === NFTA_RULE.TABLE) table = reader.text()
    else if (reader.type === NFTA_RULE.CHAIN) chain = reader.text()
    else if (reader.type === NFTA_RULE.USERDATA) userdata = reader.raw()
    else if (reader.type === NFTA_RULE.EXPRESSIONS) packets = readRuleCounter(reader)
  }
  if (reader.error !== undefined) return undefined
  const tag = userdata && readTag(userdata)
  const rule = tag === undefined ? { table, chain } : { table, chain, tag }
  if (packets === undefined) return rule
  const comment = userdata && readComment(userdata)
  return { ...rule, packets, ...(comment === undefined ? {} : { comment }) }
}

export interface RuleSelection {
  readonly table: string
  /** With what the names of the chains begin. */
  readonly chains: string
}

/** Calls `visit` if the rule is selected. Costs a fraction of `decodeRule`, because it makes no text of anything else. */
export function visitRuleCounter(
  message: MessageReader,
  reader: AttributeReader,
  { table, chains }: RuleSelection,
  visit: (chain: string, packets: number) => void,
): void {
  let chain = ''
  let packets: number | undefined
  message.attributes(4, reader)
  while (reader.next()) {
    if (reader.type === NFTA_RULE.TABLE && !reader.is(table)) return
    if (reader.type === NFTA_RULE.CHAIN) {
      if (!reader.startsWith(chains)) return
      chain = reader.text()
    } else if (reader.type === NFTA_RULE.EXPRESSIONS) packets = readRuleCounter(reader)
  }
  if (reader.error === undefined) visit(chain, packets ?? 0)
}

function readRuleCounter(reader: AttributeReader): number | undefined {
  let packets: number | undefined
  reader.enter()
  while (reader.next()) packets = readCounter(reader) ?? packets
  reader.leave()
  return packets
}

export const decodeSet: Decode<NftSet> = (message, reader) => {
  const family = readFamily(message)
  if (family === undefined) return undefined
  const set: MutableSet = { family, table: '', name: '', id: 0, flags: 0, keyType: 0, keyLength: 0 }
  message.attributes(4, reader)
  while (reader.next()) setReaders[reader.type]?.(reader, set)
  if (reader.error !== undefined) return undefined
  // The kernel does not send the data length of a verdict map.
  if (set.dataType !== undefined) set.dataLength ??= 0
  return set
}

type MutableSet = { -readonly [K in keyof NftSet]: NftSet[K] }

const setReaders: Readonly<Record<number, (reader: AttributeReader, set: MutableSet) => void>> = {
  [NFTA_SET.TABLE]: (reader, set) => {
    set.table = reader.text()
  },
  [NFTA_SET.NAME]: (reader, set) => {
    set.name = reader.text()
  },
  [NFTA_SET.FLAGS]: (reader, set) => {
    set.flags = reader.u32()
  },
  [NFTA_SET.KEY_TYPE]: (reader, set) => {
    set.keyType = reader.u32()
  },
  [NFTA_SET.KEY_LEN]: (reader, set) => {
    set.keyLength = reader.u32()
  },
  [NFTA_SET.DATA_TYPE]: (reader, set) => {
    set.dataType = reader.u32()
  },
  [NFTA_SET.DATA_LEN]: (reader, set) => {
    set.dataLength = reader.u32()
  },
  [NFTA_SET.ID]: (reader, set) => {
    set.id = reader.u32()
  },
  [NFTA_SET.TIMEOUT]: (reader, set) => {
    set.timeoutMs = reader.u64()
  },
  [NFTA_SET.USERDATA]: (reader, set) => {
    set.userdata = reader.raw()
  },
  [NFTA_SET.EXPR]: (reader, set) => {
    if (readCounter(reader) !== undefined) set.counter = true
  },
  [NFTA_SET.DESC]: readDescription,
}

function readDescription(reader: AttributeReader, set: MutableSet): void {
  reader.enter()
  while (reader.next()) {
    if (reader.type === NFTA_SET_DESC.SIZE) set.size = reader.u32()
    else if (reader.type === NFTA_SET_DESC.CONCAT) set.fieldLengths = readFieldLengths(reader)
  }
  reader.leave()
}

function readFieldLengths(reader: AttributeReader): number[] {
  const lengths: number[] = []
  reader.enter()
  while (reader.next()) {
    reader.enter()
    while (reader.next()) if (reader.type === NFTA_SET_FIELD.LEN) lengths.push(reader.u32())
    reader.leave()
  }
  reader.leave()
  return lengths
}

/** Named objects of other kinds are not decoded. */
export const decodeNamedCounter: Decode<NamedCounter> = (message, reader) => {
  const family = readFamily(message)
  if (family === undefined) return undefined
  const found = { table: '', name: '', type: 0, packets: 0 }
  let comment: string | undefined
  message.attributes(4, reader)
  while (reader.next()) {
    if (reader.type === NFTA_OBJ.TABLE) found.table = reader.text()
    else if (reader.type === NFTA_OBJ.NAME) found.name = reader.text()
    else if (reader.type === NFTA_OBJ.TYPE) found.type = reader.u32()
    else if (reader.type === NFTA_OBJ.DATA && found.type === OBJECT_COUNTER) found.packets = readCount(reader)
    else if (reader.type === NFTA_OBJ.USERDATA) comment = readComment(reader.raw())
  }
  if (reader.error !== undefined || found.type !== OBJECT_COUNTER) return undefined
  const { table, name, packets } = found
  return { family, table, name, packets, ...(comment === undefined ? {} : { comment }) }
}

/** The version of the ruleset, which grows with every commit of any process. */
interface Generation {
  readonly id: number
  /** In a notification: process and program that committed. In an answer: the process that asks. */
  readonly pid: number
  readonly program: string
}

export function decodeGeneration(message: MessageReader, reader: AttributeReader): Generation | undefined {
  let [id, pid, program] = [0, 0, '']
  message.attributes(4, reader)
  while (reader.next()) {
    if (reader.type === NFTA_GEN.ID) id = reader.u32()
    else if (reader.type === NFTA_GEN.PROC_PID) pid = reader.u32()
    else if (reader.type === NFTA_GEN.PROC_NAME) program = reader.text()
  }
  return reader.error === undefined ? { id, pid, program } : undefined
}

/** A notification. A commit sends one per changed object, and at its end the new generation. `port` is the sender's socket. */
export type Notice =
  | {
      readonly kind: 'change'
      readonly type: number
      readonly family: number
      readonly table: string
      readonly port: number
    }
  | ({ readonly kind: 'commit'; readonly port: number } & Generation)

export function decodeNotice(message: MessageReader, reader: AttributeReader): Notice | undefined {
  const { type, port } = message
  if (type === messageTypes.generation.add) {
    const generation = decodeGeneration(message, reader)
    return generation === undefined ? undefined : { kind: 'commit', port, ...generation }
  }
  message.attributes(4, reader)
  while (reader.next()) {
    if (reader.type !== tableAttribute) continue
    return { kind: 'change', type, family: message.bytes[message.start] as number, table: reader.text(), port }
  }
  return undefined
}

/** The table's name has the same number in all kinds of objects: NFTA_TABLE_NAME, NFTA_CHAIN_TABLE, NFTA_RULE_TABLE and so on. */
const tableAttribute = NFTA_TABLE.NAME
