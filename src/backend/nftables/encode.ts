// A transaction's operations as one netlink batch; remembers which message belongs to which entry. Pure but for the writer's buffer.

import { describeError, ProxyError } from '../../lib/errors.ts'
import type { Family } from '../../lib/ip.ts'
import { beginElements, endElements, hasRoom, writeElement, writeElements } from '../../sys/netlink/nft/elements.ts'
import type { Verdict } from '../../sys/netlink/nft/expressions.ts'
import {
  beginBatch,
  endBatch,
  flushChain,
  writeChain,
  writeRule,
  writeSet,
  writeTable,
} from '../../sys/netlink/nft/objects.ts'
import { type Element, SET_ANONYMOUS, SET_CONSTANT, SET_MAP, VERDICT_TYPE } from '../../sys/netlink/nft/types.ts'
import type { MessageWriter } from '../../sys/netlink/writer.ts'
import { tableName } from './base.ts'
import { anonymousMapName, compile, hostBytes } from './compile.ts'
import type { Operation } from './draft.ts'
import type { ChainSpec, Rule, SetShape } from './entries.ts'
import { declare, endpointLength, type Shape, shapeOf, writeEndpoint, writeKey, writeSlot } from './shapes.ts'

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
}

/** The shape of each named container; affinity sets have names of their own. */
export type ShapeLookup = (set: string) => SetShape | undefined

export function encode(
  writer: MessageWriter,
  operations: readonly Operation[],
  shapes: ShapeLookup,
  table: TableOptions,
): Encoded {
  writer.clear()
  const encoder = new Encoder(writer, shapes, table)
  beginBatch(writer)
  const name = { family: table.family, name: tableName }
  if (table.replace) writeTable(writer, name, 'delete')
  writeTable(writer, { ...name, flags: table.flags, comment: 'rules for kube-proxy' })
  for (const operation of operations) encoder.write(operation)
  encoder.finish()
  const last = endBatch(writer)
  return { last, entryOf: (sequence) => encoder.entries.get(sequence) }
}

class Encoder {
  readonly entries = new Map<number, string>()
  readonly #writer: MessageWriter
  readonly #shapes: ShapeLookup
  readonly #family: Family
  readonly #single: boolean
  readonly #molds = new Map<string, Mold>()
  /** The list of elements that is being written. */
  #list: { readonly set: string; readonly op: Operation['op']; readonly at: number } | undefined
  #setId = 0

  constructor(writer: MessageWriter, shapes: ShapeLookup, { family, single = false }: TableOptions) {
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
      throw new ProxyError('nftables-encode', message, { cause, fields: { entry: operation.entry } })
    }
  }

  #write(operation: Operation): void {
    if (operation.op === 'add-element' || operation.op === 'delete-element') {
      this.#element(operation)
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

  #rule(chain: string, rule: Rule, tag: string): void {
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
    const mold = this.#molds.get(set) ?? this.#mold(set)
    const adds = op === 'add-element'
    fill(mold, operation, this.#family)
    const w = this.#writer
    const list = this.#list
    if (list === undefined || this.#single || list.set !== set || list.op !== op || !hasRoom(w, list.at)) {
      this.finish()
      this.entries.set(w.sequence, operation.entry)
      const at = beginElements(w, { family: this.#family, table: tableName, set }, adds ? 'add' : 'delete')
      this.#list = { set, op, at }
    }
    writeElement(w, mold.element, !adds)
  }

  #mold(set: string): Mold {
    const shapeName = this.#shapes(set)
    if (shapeName === undefined) throw new Error(`no set ${set} in our table`)
    const shape = shapeOf(shapeName, this.#family)
    const key = Buffer.alloc(shape.keyLength)
    const keyEnd = shape.key.includes('range') ? Buffer.alloc(shape.keyLength) : undefined
    const data = shape.value === 'endpoint' ? Buffer.alloc(endpointLength(this.#family)) : undefined
    const mold = { shape, element: { key, ...(keyEnd && { keyEnd }), ...(data && { data }) }, bytes: data, last: '' }
    this.#molds.set(set, mold)
    return mold
  }
}

type ElementOperation = Operation & { op: 'add-element' | 'delete-element' }

/** One element per set that is filled anew for each that is written: tens of thousands must not be made. */
interface Mold {
  readonly shape: Shape
  readonly element: { -readonly [K in keyof Element]: Element[K] }
  readonly bytes: Buffer | undefined
  /** The key's text that its bytes are of, but for the slot. */
  last: string
}

function fill(mold: Mold, operation: ElementOperation, family: Family): void {
  const { shape, element } = mold
  const { key, slot } = operation
  if (key !== mold.last) {
    mold.last = ''
    writeKey(shape, family, key, element.key as Buffer)
    if (element.keyEnd !== undefined) writeKey(shape, family, key, element.keyEnd as Buffer, true)
    mold.last = key
  }
  if (slot !== undefined) writeSlot(slot, element.key as Buffer, shape.keyLength - 4)
  if (operation.op === 'delete-element') return
  if (mold.bytes !== undefined) {
    writeEndpoint(family, operation.value, mold.bytes)
    return
  }
  const { value, comment } = splitDigest(operation.value)
  if (shape.value === 'verdict') element.data = parseVerdict(value)
  if (comment === '') delete element.comment
  else element.comment = comment
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
export function splitDigest(digest: string): { readonly value: string; readonly comment: string } {
  const at = digest.indexOf(' # ')
  return at < 0 ? { value: digest, comment: '' } : { value: digest.slice(0, at), comment: digest.slice(at + 3) }
}

function parseVerdict(text: string): Verdict {
  return text.startsWith('goto ') ? { verdict: 'goto', chain: text.slice(5) } : { verdict: 'drop' }
}
