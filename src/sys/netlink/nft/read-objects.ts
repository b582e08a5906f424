// Reads tables, chains, rules and sets from the kernel's messages; also who committed what, from its notifications.

import type { Family } from '../../../lib/ip.ts'
import type { AttributeReader, MessageReader } from '../message.ts'
import { type OtherExpression, readExpressions } from './disassemble.ts'
import type { Expression } from './expressions.ts'
import {
  type Chain,
  familyOfNumber,
  type Hook,
  hooks,
  message as messages,
  type NftSet,
  type Rule,
  type Table,
} from './nft-types.ts'
import { readComment, readTag } from './userdata.ts'
import { CHAIN, RULE, SET, TABLE } from './write-objects.ts'

/** All decoders: undefined if the object is of another family than ours, or if `reader.error` is set. */
export type Decode<T> = (message: MessageReader, reader: AttributeReader) => T | undefined

const family = (message: MessageReader): Family | undefined =>
  message.end > message.start ? familyOfNumber(message.bytes[message.start] as number) : undefined

export const decodeTable: Decode<Table> = (message, reader) => {
  const of = family(message)
  if (of === undefined) return undefined
  let name = ''
  let flags = 0
  let comment: string | undefined
  message.attributes(4, reader)
  while (reader.next()) {
    if (reader.type === TABLE.name) name = reader.text()
    else if (reader.type === TABLE.flags) flags = reader.u32()
    else if (reader.type === TABLE.userdata) comment = readComment(reader.raw())
  }
  if (reader.error !== undefined) return undefined
  return { kind: 'table', family: of, name, flags, ...(comment === undefined ? {} : { comment }) }
}

export const decodeChain: Decode<Chain> = (message, reader) => {
  const of = family(message)
  if (of === undefined) return undefined
  let table = ''
  let name = ''
  let type = ''
  let policy: number | undefined
  let hook: { hook: Hook | undefined; priority: number } | undefined
  let comment: string | undefined
  message.attributes(4, reader)
  while (reader.next()) {
    if (reader.type === CHAIN.table) table = reader.text()
    else if (reader.type === CHAIN.name) name = reader.text()
    else if (reader.type === CHAIN.type) type = reader.text()
    else if (reader.type === CHAIN.policy) policy = reader.u32()
    else if (reader.type === CHAIN.hook) hook = readHook(reader)
    else if (reader.type === CHAIN.userdata) comment = readComment(reader.raw())
  }
  if (reader.error !== undefined) return undefined
  const base =
    hook?.hook !== undefined && isChainType(type) ? { type, hook: hook.hook, priority: hook.priority } : undefined
  return {
    kind: 'chain',
    family: of,
    table,
    name,
    ...(base === undefined
      ? {}
      : { base: policy === undefined ? base : { ...base, policy: policy === 1 ? 'accept' : 'drop' } }),
    ...(comment === undefined ? {} : { comment }),
  }
}

function readHook(reader: AttributeReader): { hook: Hook | undefined; priority: number } {
  let number = -1
  let priority = 0
  reader.enter()
  while (reader.next()) {
    if (reader.type === 1) number = reader.u32()
    else if (reader.type === 2) priority = reader.i32()
  }
  reader.leave()
  const hook = (Object.keys(hooks) as Hook[]).find((name) => hooks[name] === number)
  return { hook, priority }
}

const isChainType = (type: string): type is 'filter' | 'nat' | 'route' => ['filter', 'nat', 'route'].includes(type)

export interface ListedRule extends Omit<Rule, 'expressions' | 'handle'> {
  readonly handle: number
  readonly expressions: readonly (Expression | OtherExpression)[]
}

export const decodeRule: Decode<ListedRule> = (message, reader) => {
  const of = family(message)
  if (of === undefined) return undefined
  let table = ''
  let chain = ''
  let handle = 0
  let expressions: (Expression | OtherExpression)[] = []
  let userdata: Uint8Array | undefined
  message.attributes(4, reader)
  while (reader.next()) {
    if (reader.type === RULE.table) table = reader.text()
    else if (reader.type === RULE.chain) chain = reader.text()
    else if (reader.type === RULE.handle) handle = reader.u64()
    else if (reader.type === RULE.expressions) expressions = readExpressions(reader)
    else if (reader.type === RULE.userdata) userdata = reader.raw()
  }
  if (reader.error !== undefined) return undefined
  const comment = readComment(userdata)
  const tag = readTag(userdata)
  return {
    kind: 'rule',
    family: of,
    table,
    chain,
    handle,
    expressions,
    ...(comment === undefined ? {} : { comment }),
    ...(tag === undefined ? {} : { tag }),
  }
}

export const decodeSet: Decode<NftSet> = (message, reader) => {
  const of = family(message)
  if (of === undefined) return undefined
  let [table, name] = ['', '']
  let [flags, keyType, keyLength, id] = [0, 0, 0, 0]
  const optional: { -readonly [K in keyof NftSet]?: NftSet[K] } = {}
  message.attributes(4, reader)
  while (reader.next()) {
    if (reader.type === SET.table) table = reader.text()
    else if (reader.type === SET.name) name = reader.text()
    else if (reader.type === SET.flags) flags = reader.u32()
    else if (reader.type === SET.keyType) keyType = reader.u32()
    else if (reader.type === SET.keyLength) keyLength = reader.u32()
    else if (reader.type === SET.id) id = reader.u32()
    else if (reader.type === SET.dataType) optional.dataType = reader.u32()
    else if (reader.type === SET.dataLength) optional.dataLength = reader.u32()
    else if (reader.type === SET.timeout) optional.timeoutMs = reader.u64()
    else if (reader.type === SET.gcInterval) optional.gcIntervalMs = reader.u32()
    else if (reader.type === SET.userdata) optional.userdata = reader.raw()
    else if (reader.type === SET.description) readDescription(reader, optional)
  }
  if (reader.error !== undefined) return undefined
  // The kernel does not tell a verdict map's data length.
  if (optional.dataType !== undefined) optional.dataLength ??= 0
  return { kind: 'set', family: of, table, name, id, flags, keyType, keyLength, ...optional }
}

function readDescription(reader: AttributeReader, into: { size?: number; fieldLengths?: readonly number[] }): void {
  reader.enter()
  while (reader.next()) {
    if (reader.type === 1) into.size = reader.u32()
    else if (reader.type === 2) into.fieldLengths = readFieldLengths(reader)
  }
  reader.leave()
}

function readFieldLengths(reader: AttributeReader): number[] {
  const lengths: number[] = []
  reader.enter()
  while (reader.next()) {
    reader.enter()
    while (reader.next()) if (reader.type === 1) lengths.push(reader.u32())
    reader.leave()
  }
  reader.leave()
  return lengths
}

/** The ruleset's version: it grows with every commit of anybody. */
export interface Generation {
  readonly id: number
  /** In a notice: process and program of the commit. In an answer: ourselves. */
  readonly pid: number
  readonly program: string
}

export function decodeGeneration(message: MessageReader, reader: AttributeReader): Generation | undefined {
  let [id, pid, program] = [0, 0, '']
  message.attributes(4, reader)
  while (reader.next()) {
    if (reader.type === 1) id = reader.u32()
    else if (reader.type === 2) pid = reader.u32()
    else if (reader.type === 3) program = reader.text()
  }
  return reader.error === undefined ? { id, pid, program } : undefined
}

/** One message of a commit, as told to everybody: changes, and at the end the new generation. `port` is the sender's socket. */
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
  if (type === messages.generation.add) {
    const generation = decodeGeneration(message, reader)
    return generation === undefined ? undefined : { kind: 'commit', port, ...generation }
  }
  // Attribute 1 is the table in all kinds of objects.
  message.attributes(4, reader)
  while (reader.next()) {
    if (reader.type !== 1) continue
    return { kind: 'change', type, family: message.bytes[message.start] as number, table: reader.text(), port }
  }
  return undefined
}
