// Writes tables, chains, rules and sets into a transaction: one function per object, bytes as nft would send them.

import type { Family } from '../../../lib/ip.ts'
import { NLM_F_APPEND, NLM_F_CREATE, NLM_F_EXCL, NLM_F_REQUEST } from '../message.ts'
import type { MessageWriter } from '../message-writer.ts'
import { writeExpression } from './expressions.ts'
import { type Chain, familyNumber, hooks, message, type NftSet, type Rule, type Table, type Verb } from './nft-types.ts'
import { commentBytes, ruleUserdata } from './userdata.ts'

const BATCH_BEGIN = 0x10
const BATCH_END = 0x11
const NFTABLES = 10

/** Attribute numbers, by the kernel's names. */
export const TABLE = { name: 1, flags: 2, userdata: 6 } as const
export const CHAIN = { table: 1, name: 3, hook: 4, policy: 5, type: 7, userdata: 12 } as const
export const RULE = { table: 1, chain: 2, handle: 3, expressions: 4, userdata: 7 } as const
export const SET = {
  table: 1,
  name: 2,
  flags: 3,
  keyType: 4,
  keyLength: 5,
  dataType: 6,
  dataLength: 7,
  description: 9,
  id: 10,
  timeout: 11,
  gcInterval: 12,
  userdata: 13,
} as const

/** Starts a transaction. With a generation: it fails with ERESTART if anything was committed since. */
export function beginBatch(writer: MessageWriter, generation?: number): void {
  writer.begin(BATCH_BEGIN, NLM_F_REQUEST)
  writer.netfilter(0, NFTABLES)
  if (generation !== undefined) writer.u32(1, generation)
  writer.end()
}

/** Ends it; returns the sequence number whose acknowledgement tells that all went in. */
export function endBatch(writer: MessageWriter): number {
  const last = writer.acknowledge()
  writer.begin(BATCH_END, NLM_F_REQUEST)
  writer.netfilter(0, NFTABLES)
  writer.end()
  return last
}

/** Header of a change; returns its sequence number, by which the kernel tells what it refused. */
export function beginChange(writer: MessageWriter, kind: keyof typeof message, verb: Verb, family: Family): number {
  const types = message[kind === 'generation' ? 'table' : kind]
  const flags = verb === 'add' ? createFlags[kind] : verb === 'create' ? createFlags[kind] | NLM_F_EXCL : 0
  const sequence = writer.begin(types[verb === 'create' ? 'add' : verb], NLM_F_REQUEST | flags)
  writer.netfilter(familyNumber(family))
  return sequence
}

const createFlags: Readonly<Record<keyof typeof message, number>> = {
  table: 0,
  chain: NLM_F_CREATE,
  rule: NLM_F_CREATE | NLM_F_APPEND,
  set: NLM_F_CREATE,
  elements: NLM_F_CREATE,
  generation: 0,
}

export function writeTable(writer: MessageWriter, table: Omit<Table, 'kind'>, verb: Verb = 'add'): number {
  const sequence = beginChange(writer, 'table', verb, table.family)
  writer.text(TABLE.name, table.name)
  if (adds(verb)) {
    writer.u32(TABLE.flags, table.flags ?? 0)
    if (table.comment !== undefined) writer.raw(TABLE.userdata, commentBytes(table.comment))
  }
  writer.end()
  return sequence
}

export function writeChain(writer: MessageWriter, chain: Omit<Chain, 'kind'>, verb: Verb = 'add'): number {
  const sequence = beginChange(writer, 'chain', verb, chain.family)
  writer.text(CHAIN.table, chain.table)
  writer.text(CHAIN.name, chain.name)
  const { base } = chain
  if (adds(verb) && base !== undefined) {
    writer.text(CHAIN.type, base.type)
    if (base.policy !== undefined) writer.u32(CHAIN.policy, base.policy === 'accept' ? 1 : 0)
    const hook = writer.open(CHAIN.hook)
    writer.u32(1, hooks[base.hook])
    writer.u32(2, base.priority)
    writer.close(hook)
  }
  if (adds(verb) && chain.comment !== undefined) writer.raw(CHAIN.userdata, commentBytes(chain.comment))
  writer.end()
  return sequence
}

/** `add` appends, or replaces the rule of that handle; `delete` needs a handle (see flushChain for all of them). */
export function writeRule(writer: MessageWriter, rule: Omit<Rule, 'kind'>, verb: Verb = 'add'): number {
  if (!adds(verb) && rule.handle === undefined) throw new TypeError('a rule is deleted by its handle')
  const sequence = beginChange(writer, 'rule', verb, rule.family)
  writer.text(RULE.table, rule.table)
  writer.text(RULE.chain, rule.chain)
  if (rule.handle !== undefined) writer.u64(RULE.handle, rule.handle)
  if (adds(verb)) {
    const list = writer.open(RULE.expressions)
    for (const expression of rule.expressions) writeExpression(writer, expression)
    writer.close(list)
    const userdata = ruleUserdata(rule)
    if (userdata.length > 0) writer.raw(RULE.userdata, userdata)
  }
  writer.end()
  return sequence
}

/** Deletes all rules of a chain. */
export function flushChain(writer: MessageWriter, chain: Pick<Chain, 'family' | 'table' | 'name'>): number {
  const sequence = beginChange(writer, 'rule', 'delete', chain.family)
  writer.text(RULE.table, chain.table)
  writer.text(RULE.chain, chain.name)
  writer.end()
  return sequence
}

export function writeSet(writer: MessageWriter, set: Omit<NftSet, 'kind'>, verb: Verb = 'add'): number {
  const sequence = beginChange(writer, 'set', verb, set.family)
  writer.text(SET.table, set.table)
  writer.text(SET.name, set.name)
  if (adds(verb)) writeSetBody(writer, set)
  writer.end()
  return sequence
}

function writeSetBody(writer: MessageWriter, set: Omit<NftSet, 'kind'>): void {
  writer.u32(SET.flags, set.flags)
  writer.u32(SET.keyType, set.keyType)
  writer.u32(SET.keyLength, set.keyLength)
  if (set.dataType !== undefined) {
    writer.u32(SET.dataType, set.dataType)
    writer.u32(SET.dataLength, set.dataLength ?? 0)
  }
  writer.u32(SET.id, set.id)
  if (set.size !== undefined || set.fieldLengths !== undefined) {
    const description = writer.open(SET.description)
    if (set.size !== undefined) writer.u32(1, set.size)
    if (set.fieldLengths !== undefined) {
      const fields = writer.open(2)
      for (const length of set.fieldLengths) {
        const field = writer.open(1)
        writer.u32(1, length)
        writer.close(field)
      }
      writer.close(fields)
    }
    writer.close(description)
  }
  if (set.timeoutMs !== undefined) writer.u64(SET.timeout, set.timeoutMs)
  if (set.gcIntervalMs !== undefined) writer.u32(SET.gcInterval, set.gcIntervalMs)
  if (set.userdata !== undefined) writer.raw(SET.userdata, set.userdata)
}

const adds = (verb: Verb): boolean => verb === 'add' || verb === 'create'
