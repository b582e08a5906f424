// Writes tables, chains, rules and sets into a transaction, with the same bytes that nft sends. Elements are in elements.ts. Pure.

import type { Family } from '../../../lib/ip.ts'
import { familyNumber } from '../../ip-numbers.ts'
import { NLM_F_APPEND, NLM_F_CREATE, NLM_F_ECHO, NLM_F_REQUEST } from '../message.ts'
import type { MessageWriter } from '../message-writer.ts'
import {
  NFTA_CHAIN,
  NFTA_HOOK,
  NFTA_LIST,
  NFTA_OBJ,
  NFTA_RULE,
  NFTA_SET,
  NFTA_SET_DESC,
  NFTA_SET_ELEM_LIST,
  NFTA_SET_FIELD,
  NFTA_TABLE,
} from './attributes.ts'
import { writeCount, writeCounter, writeExpression } from './expressions.ts'
import {
  type Chain,
  hooks,
  messageTypes,
  type NamedCounter,
  type NftSet,
  OBJECT_COUNTER,
  type Rule,
  type SetName,
  type Table,
  type Verb,
} from './nft-types.ts'
import { commentBytes, ruleUserdata } from './userdata.ts'

const NFNL_MSG_BATCH_BEGIN = 0x10
const NFNL_MSG_BATCH_END = 0x11
const NFNL_SUBSYS_NFTABLES = 10
const NF_DROP = 0
const NF_ACCEPT = 1

/** Starts a transaction. */
export function beginBatch(writer: MessageWriter): void {
  writer.begin(NFNL_MSG_BATCH_BEGIN, NLM_F_REQUEST)
  writer.netfilter(0, NFNL_SUBSYS_NFTABLES)
  writer.end()
}

/** Ends a transaction. Returns the sequence number whose acknowledgement means that the kernel committed all of it. */
export function endBatch(writer: MessageWriter): number {
  const last = writer.acknowledge()
  writer.begin(NFNL_MSG_BATCH_END, NLM_F_REQUEST)
  writer.netfilter(0, NFNL_SUBSYS_NFTABLES)
  writer.end()
  return last
}

const createFlags = {
  chain: NLM_F_CREATE,
  rule: NLM_F_CREATE | NLM_F_APPEND,
  set: NLM_F_CREATE,
  elements: NLM_F_CREATE,
  object: NLM_F_CREATE,
} as const

/** Starts a message that adds or deletes an object. Returns its sequence number, by which the kernel names a refused message. */
export function beginChange(writer: MessageWriter, kind: keyof typeof createFlags, verb: Verb, family: Family): number {
  return begin(writer, messageTypes[kind][verb], verb === 'add' ? createFlags[kind] : 0, family)
}

/** Starts a message that deletes elements. With `echo` the kernel reports each to the sender, with its counter as it was at the end. */
export const beginDeletion = (writer: MessageWriter, family: Family, echo: boolean): number =>
  begin(writer, messageTypes.elements.delete, echo ? NLM_F_ECHO : 0, family)

function begin(writer: MessageWriter, type: number, flags: number, family: Family): number {
  const sequence = writer.begin(type, NLM_F_REQUEST | flags)
  writer.netfilter(familyNumber(family))
  return sequence
}

export function writeTable(writer: MessageWriter, table: Table, verb: Verb | 'destroy' = 'add'): number {
  const sequence = begin(writer, messageTypes.table[verb], 0, table.family)
  writer.text(NFTA_TABLE.NAME, table.name)
  if (verb === 'add') {
    writer.u32(NFTA_TABLE.FLAGS, table.flags ?? 0)
    if (table.comment !== undefined) writer.raw(NFTA_TABLE.USERDATA, commentBytes(table.comment))
  }
  writer.end()
  return sequence
}

export function writeChain(writer: MessageWriter, chain: Chain, verb: Verb = 'add'): number {
  const sequence = beginChange(writer, 'chain', verb, chain.family)
  writer.text(NFTA_CHAIN.TABLE, chain.table)
  writer.text(NFTA_CHAIN.NAME, chain.name)
  const { base } = chain
  if (verb === 'add' && base !== undefined) {
    writer.text(NFTA_CHAIN.TYPE, base.type)
    if (base.policy !== undefined) writer.u32(NFTA_CHAIN.POLICY, base.policy === 'accept' ? NF_ACCEPT : NF_DROP)
    const hook = writer.open(NFTA_CHAIN.HOOK)
    writer.u32(NFTA_HOOK.HOOKNUM, hooks[base.hook])
    writer.u32(NFTA_HOOK.PRIORITY, base.priority)
    writer.close(hook)
  }
  if (verb === 'add' && chain.comment !== undefined) writer.raw(NFTA_CHAIN.USERDATA, commentBytes(chain.comment))
  writer.end()
  return sequence
}

/** Appends the rule to its chain. */
export function writeRule(writer: MessageWriter, rule: Rule): number {
  const sequence = beginChange(writer, 'rule', 'add', rule.family)
  writer.text(NFTA_RULE.TABLE, rule.table)
  writer.text(NFTA_RULE.CHAIN, rule.chain)
  const list = writer.open(NFTA_RULE.EXPRESSIONS)
  for (const expression of rule.expressions) writeExpression(writer, expression)
  writer.close(list)
  const userdata = ruleUserdata(rule)
  if (userdata.length > 0) writer.raw(NFTA_RULE.USERDATA, userdata)
  writer.end()
  return sequence
}

/** Deletes all rules of a chain. With `echo` the kernel reports each to the sender, with its counter as it was at the end. */
export function flushChain(
  writer: MessageWriter,
  chain: Pick<Chain, 'family' | 'table' | 'name'>,
  echo = false,
): number {
  const sequence = begin(writer, messageTypes.rule.delete, echo ? NLM_F_ECHO : 0, chain.family)
  writer.text(NFTA_RULE.TABLE, chain.table)
  writer.text(NFTA_RULE.CHAIN, chain.name)
  writer.end()
  return sequence
}

export function writeSet(writer: MessageWriter, set: NftSet): number {
  const sequence = beginChange(writer, 'set', 'add', set.family)
  writer.text(NFTA_SET.TABLE, set.table)
  writer.text(NFTA_SET.NAME, set.name)
  writer.u32(NFTA_SET.FLAGS, set.flags)
  writer.u32(NFTA_SET.KEY_TYPE, set.keyType)
  writer.u32(NFTA_SET.KEY_LEN, set.keyLength)
  if (set.dataType !== undefined) {
    writer.u32(NFTA_SET.DATA_TYPE, set.dataType)
    writer.u32(NFTA_SET.DATA_LEN, set.dataLength ?? 0)
  }
  writer.u32(NFTA_SET.ID, set.id)
  if (set.size !== undefined || set.fieldLengths !== undefined) writeDescription(writer, set)
  if (set.timeoutMs !== undefined) writer.u64(NFTA_SET.TIMEOUT, set.timeoutMs)
  if (set.userdata !== undefined) writer.raw(NFTA_SET.USERDATA, set.userdata)
  if (set.counter === true) writeCounter(writer, NFTA_SET.EXPR, 0)
  writer.end()
  return sequence
}

function writeDescription(writer: MessageWriter, { size, fieldLengths }: NftSet): void {
  const description = writer.open(NFTA_SET.DESC)
  if (size !== undefined) writer.u32(NFTA_SET_DESC.SIZE, size)
  if (fieldLengths !== undefined) {
    const fields = writer.open(NFTA_SET_DESC.CONCAT)
    for (const length of fieldLengths) {
      const field = writer.open(NFTA_LIST.ELEM)
      writer.u32(NFTA_SET_FIELD.LEN, length)
      writer.close(field)
    }
    writer.close(fields)
  }
  writer.close(description)
}

export function deleteSet(
  writer: MessageWriter,
  { family, table, name }: Pick<NftSet, 'family' | 'table' | 'name'>,
): number {
  const sequence = beginChange(writer, 'set', 'delete', family)
  writer.text(NFTA_SET.TABLE, table)
  writer.text(NFTA_SET.NAME, name)
  writer.end()
  return sequence
}

/** Deletes all elements of a set. The kernel reports each to the sender, with its counter as it was at the end. */
export function flushSet(writer: MessageWriter, { family, table, set }: SetName): number {
  const sequence = begin(writer, messageTypes.elements.delete, NLM_F_ECHO, family)
  writer.text(NFTA_SET_ELEM_LIST.TABLE, table)
  writer.text(NFTA_SET_ELEM_LIST.SET, set)
  writer.end()
  return sequence
}

export function writeNamedCounter(writer: MessageWriter, counter: NamedCounter, verb: Verb = 'add'): number {
  const sequence = beginChange(writer, 'object', verb, counter.family)
  writer.text(NFTA_OBJ.TABLE, counter.table)
  writer.text(NFTA_OBJ.NAME, counter.name)
  writer.u32(NFTA_OBJ.TYPE, OBJECT_COUNTER)
  if (verb === 'add') {
    writeCount(writer, NFTA_OBJ.DATA, counter.packets)
    if (counter.comment !== undefined) writer.raw(NFTA_OBJ.USERDATA, commentBytes(counter.comment))
  }
  writer.end()
  return sequence
}
