// A transaction's operations as one netlink batch; remembers which message belongs to which entry. Pure but for the writer's buffer.

import { describeError, ProxyError } from '../../../lib/errors.ts'
import type { Family } from '../../../lib/ip.ts'
import type { Steps } from '../../../lib/yielding.ts'
import { MessageWriter } from '../../../sys/netlink/message-writer.ts'
import { beginElements, endElements, hasRoom, writeElements, writeMember } from '../../../sys/netlink/nft/elements.ts'
import type { Verdict } from '../../../sys/netlink/nft/expressions.ts'
import { type Element, SET_ANONYMOUS, SET_CONSTANT, SET_MAP, VERDICT_TYPE } from '../../../sys/netlink/nft/nft-types.ts'
import {
  beginBatch,
  endBatch,
  flushChain,
  writeChain,
  writeRule,
  writeSet,
  writeTable,
} from '../../../sys/netlink/nft/write-objects.ts'
import { tableName } from '../base.ts'
import type { ChainSpec, NftSetShape, PlannedRule } from '../entries.ts'
import { anonymousMapName, compile, hostBytes } from './compile.ts'
import { declare, endpointLength, type SetCodec, shapeOf, writeEndpoint, writeKey, writeSlot } from './set-codec.ts'
import { type Operation, stride } from './transaction.ts'

/** An operation that cannot be expressed in netlink; the fault of one entry. */
export class EncodeError extends ProxyError {
  readonly entry: string

  constructor(entry: string, message: string, cause: unknown) {
    super('nftables-encode', message, { cause, fields: { entry } })
    this.entry = entry
  }
}

export interface Encoded {
  /** Sequence number whose acknowledgement means that everything went in. */
  readonly last: number
  /** The entry a refused message was for; of several elements in one message, the first one's. */
  entryOf(sequence: number): string | undefined
}

export interface TableOptions {
  readonly family: Family
  /** OWNER and PERSIST where the kernel has them. */
  readonly flags: number
  /** One message per element: the kernel then names the very element it refuses. Otherwise as many as fit, for half the cost. */
  readonly single?: boolean
  /** In the same transaction, the table that is there goes first: whatever it was, nothing of it stays and no packet sees a gap. */
  readonly replace: boolean
  /** The table is there and as it should be: nothing needs to be said about it. */
  readonly settled?: boolean
}

/** The shape of each named container; affinity sets have names of their own. */
export type SetCodecLookup = (set: string) => NftSetShape | undefined

/** Pauses in long ones; the writer is not to be touched meanwhile. */
export function* encode(
  writer: MessageWriter,
  operations: Iterable<readonly Operation[]>,
  shapes: SetCodecLookup,
  table: TableOptions,
): Steps<Encoded> {
  writer.clear()
  const encoder = new Encoder(writer, shapes, table)
  beginBatch(writer)
  if (table.replace) writeTable(writer, { family: table.family, name: tableName }, 'delete')
  if (table.replace || table.settled !== true) {
    const { family, flags } = table
    writeTable(writer, { family, name: tableName, flags, comment: 'rules for kube-proxy' })
  }
  let seen = 0
  for (const list of operations) {
    for (const operation of list) {
      if (++seen % stride === 0) yield
      encoder.write(operation)
    }
  }
  encoder.finish()
  const last = endBatch(writer)
  return { last, entryOf: (sequence) => encoder.entries.get(sequence) }
}

class Encoder {
  readonly entries = new Map<number, string>()
  readonly #writer: MessageWriter
  readonly #shapes: SetCodecLookup
  readonly #family: Family
  readonly #single: boolean
  /** The list of elements that is being written. */
  #list:
    | { readonly set: string; readonly op: Operation['op']; readonly at: number; readonly mold: ElementTemplate }
    | undefined
  #setId = 0

  constructor(writer: MessageWriter, shapes: SetCodecLookup, { family, single = false }: TableOptions) {
    this.#writer = writer
    this.#shapes = shapes
    this.#family = family
    this.#single = single
  }

  finish(): void {
    if (this.#list !== undefined) endElements(this.#writer, this.#list.at)
    this.#list = undefined
  }

  write(operation: Operation): void {
    try {
      this.#write(operation)
    } catch (cause) {
      // Nobody but this entry is to suffer from what cannot be said to the kernel.
      const message = `cannot encode ${operation.entry}: ${describeError(cause)}`
      throw new EncodeError(operation.entry, message, cause)
    }
  }

  #write(operation: Operation): void {
    if (operation.op === 'add-element' || operation.op === 'delete-element') {
      this.#element(operation)
      return
    }
    if (operation.op === 'add-slots') {
      this.#slots(operation)
      return
    }
    this.finish()
    const names = { family: this.#family, table: tableName }
    const w = this.#writer
    const first = w.sequence
    switch (operation.op) {
      case 'add-set':
        writeSet(w, { ...names, name: operation.set.name, id: ++this.#setId, ...declare(operation.set, this.#family) })
        break
      case 'delete-set':
        writeSet(w, { ...names, name: operation.name, id: 0, flags: 0, keyType: 0, keyLength: 0 }, 'delete')
        break
      case 'add-chain':
        writeChain(w, { ...names, ...chainOf(operation.chain) })
        break
      case 'flush-chain':
        flushChain(w, { ...names, name: operation.name })
        break
      case 'delete-chain':
        writeChain(w, { ...names, name: operation.name }, 'delete')
        break
      case 'add-rule':
        this.#rule(operation.chain, operation.rule, Object.values(operation.tag).join(' '))
        break
    }
    for (let sequence = first; sequence < w.sequence; sequence++) this.entries.set(sequence, operation.entry)
  }

  #rule(chain: string, rule: PlannedRule, tag: string): void {
    const names = { family: this.#family, table: tableName }
    const random = rule.statements.find((statement) => statement.kind === 'random-verdict')
    const map = random === undefined ? 0 : this.#anonymousMap(random.targets)
    writeRule(this.#writer, {
      ...names,
      chain,
      expressions: rule.statements.flatMap((statement) => compile(statement, this.#family, map)),
      ...(rule.comment === undefined ? {} : { comment: rule.comment }),
      tag,
    })
  }

  #anonymousMap(targets: readonly string[]): number {
    const names = { family: this.#family, table: tableName }
    const id = ++this.#setId
    writeSet(this.#writer, {
      ...names,
      name: anonymousMapName,
      id,
      flags: SET_ANONYMOUS | SET_CONSTANT | SET_MAP,
      keyType: 4,
      keyLength: 4,
      dataType: VERDICT_TYPE,
      dataLength: 0,
      size: targets.length,
      userdata: randomMapUserdata,
    })
    const elements = targets.map((chain, slot): Element => ({ key: hostBytes(slot), data: { verdict: 'goto', chain } }))
    writeElements(this.#writer, { ...names, set: anonymousMapName, setId: id, elements })
    return id
  }

  #element(operation: ElementOperation): void {
    const { set, op } = operation
    const list = this.#list
    const mold = list !== undefined && list.set === set ? list.mold : this.#mold(set)
    const adds = op === 'add-element'
    fill(mold, operation, this.#family)
    const w = this.#writer
    this.#continue(set, op, operation.entry, mold)
    if (!adds) writeMember(w, mold.key, mold.keyEnd, undefined, '', -1)
    else if (mold.whole !== undefined) w.verbatim(mold.whole)
    else writeMember(w, mold.key, mold.keyEnd, mold.data, operation.value, mold.comment)
  }

  #slots({ set, key, offset, values, entry }: Operation & { op: 'add-slots' }): void {
    const mold = this.#list?.set === set ? this.#list.mold : this.#mold(set)
    const { shape, endpoint, whole } = mold
    if (endpoint === undefined || whole === undefined) throw new Error(`${set} has no slots`)
    fillKey(mold, key, this.#family)
    for (let i = 0; i < values.length; i++) {
      writeSlot(offset + i, mold.key, shape.keyLength - 4)
      writeEndpoint(this.#family, values[i] as string, endpoint)
      this.#continue(set, 'add-element', entry, mold)
      this.#writer.verbatim(whole)
    }
  }

  /** Goes on with the list that is being written, or begins one. */
  #continue(set: string, op: ElementOperation['op'], entry: string, mold: ElementTemplate): void {
    const list = this.#list
    const w = this.#writer
    if (list !== undefined && list.set === set && list.op === op && !this.#single && hasRoom(w, list.at)) return
    this.finish()
    this.entries.set(w.sequence, entry)
    const at = beginElements(
      w,
      { family: this.#family, table: tableName, set },
      op === 'add-element' ? 'add' : 'delete',
    )
    this.#list = { set, op, at, mold }
  }

  #mold(set: string): ElementTemplate {
    const known = templates[this.#family].get(set)
    if (known !== undefined) return known
    const shapeName = this.#shapes(set)
    if (shapeName === undefined) throw new Error(`no set ${set} in our table`)
    const shape = shapeOf(shapeName, this.#family)
    const mold = shape.value === 'endpoint' ? slotTemplate(shape, this.#family) : plainTemplate(shape)
    // Those of affinity sets come and go.
    if (shapeName !== 'affinity') templates[this.#family].set(set, mold)
    return mold
  }
}

type ElementOperation = Operation & { op: 'add-element' | 'delete-element' }

/** What is written of one element, one per set and filled anew for each: tens of thousands must not be made. */
interface ElementTemplate {
  readonly shape: SetCodec
  readonly key: Buffer
  readonly keyEnd: Buffer | undefined
  readonly endpoint: Buffer | undefined
  /** The whole element as it is written, where it is always as long: key and endpoint are parts of it. */
  readonly whole: Buffer | undefined
  data: Uint8Array | Verdict | undefined
  /** Where in the value its comment starts; -1: it has none. */
  comment: number
  /** The key's text that its bytes are of, but for the slot. */
  last: string
}

const plainTemplate = (shape: SetCodec): ElementTemplate => ({
  shape,
  key: Buffer.alloc(shape.keyLength),
  keyEnd: shape.key.includes('range') ? Buffer.alloc(shape.keyLength) : undefined,
  endpoint: undefined,
  whole: undefined,
  data: undefined,
  comment: -1,
  last: '',
})

/** Five of six elements are slots. */
function slotTemplate(shape: SetCodec, family: Family): ElementTemplate {
  const writer = new MessageWriter(128)
  writeMember(writer, Buffer.alloc(shape.keyLength), undefined, Buffer.alloc(endpointLength(family)), '', -1)
  const whole = writer.toBytes()
  // Three headers before the key, two before the data.
  const key = whole.subarray(12, 12 + shape.keyLength)
  const endpoint = whole.subarray(20 + shape.keyLength, 20 + shape.keyLength + endpointLength(family))
  return { ...plainTemplate(shape), key, endpoint, whole }
}

const templates: Readonly<Record<Family, Map<string, ElementTemplate>>> = { 4: new Map(), 6: new Map() }

function fill(mold: ElementTemplate, operation: ElementOperation, family: Family): void {
  const { shape } = mold
  const { slot } = operation
  fillKey(mold, operation.key, family)
  if (slot !== undefined) writeSlot(slot, mold.key, shape.keyLength - 4)
  if (operation.op === 'delete-element') return
  const { value } = operation
  if (mold.endpoint !== undefined) {
    writeEndpoint(family, value, mold.endpoint)
    return
  }
  const comment = value.indexOf(commentMark)
  mold.comment = comment < 0 ? -1 : comment + commentMark.length
  mold.data = shape.value === 'verdict' ? verdictOf(comment < 0 ? value : value.slice(0, comment)) : undefined
}

function fillKey(mold: ElementTemplate, key: string, family: Family): void {
  if (key === mold.last) return
  mold.last = ''
  writeKey(mold.shape, family, key, mold.key)
  if (mold.keyEnd !== undefined) writeKey(mold.shape, family, key, mold.keyEnd, true)
  mold.last = key
}

const verdicts = new Map<string, Verdict>()

/** There are few different ones but for those of services with affinity. */
function verdictOf(text: string): Verdict {
  let verdict = verdicts.get(text)
  if (verdict === undefined) {
    verdict = text.startsWith('goto ') ? { verdict: 'goto', chain: text.slice(5) } : { verdict: 'drop' }
    if (verdicts.size >= 1_000) verdicts.clear()
    verdicts.set(text, verdict)
  }
  return verdict
}

/** Byte order of key and data, as nft itself tells it for `numgen … vmap`. */
const randomMapUserdata = Buffer.concat([
  Buffer.of(0, 4),
  hostBytes(1),
  Buffer.of(1, 4),
  hostBytes(0),
  Buffer.of(6, 4),
  hostBytes(0),
])

const chainOf = ({ name, hook, comment }: ChainSpec) => ({
  name,
  ...(hook === undefined ? {} : { base: hook }),
  ...(comment === undefined ? {} : { comment }),
})

/** `value # comment`, the way elements say both in their digest. */
const commentMark = ' # '
