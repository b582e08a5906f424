// Encodes the operations of a transaction as one netlink batch, and remembers which message belongs to which entry. Pure.

import { describeError, ProxyError } from '../../../lib/errors.ts'
import type { Family } from '../../../lib/ip.ts'
import type { Steps } from '../../../lib/yielding.ts'
import type { MessageWriter } from '../../../sys/netlink/message-writer.ts'
import { beginElements, endElements, hasRoom, writeElements } from '../../../sys/netlink/nft/elements.ts'
import { type Element, SET_ANONYMOUS, SET_CONSTANT, SET_MAP, type Verb } from '../../../sys/netlink/nft/nft-types.ts'
import { describeSet } from '../../../sys/netlink/nft/userdata.ts'
import {
  beginBatch,
  deleteSet,
  endBatch,
  flushChain,
  flushSet,
  writeChain,
  writeNamedCounter,
  writeRule,
  writeSet,
  writeTable,
} from '../../../sys/netlink/nft/write-objects.ts'
import { tableName } from '../base.ts'
import { isEndpointChain } from '../count/counter-names.ts'
import { type InitialCounts, initialKey, reportedSets } from '../count/initial-counts.ts'
import type { ChainSpec, PlannedRule } from '../entries.ts'
import { anonymousMapName, compile, hostBytes } from './compile.ts'
import { type ElementTemplate, type ElementTemplates, SlotTemplate } from './element-template.ts'
import type { Operation } from './operation.ts'
import { declareSet } from './set-codec.ts'
import { operationStride } from './transaction.ts'

/** An operation cannot be expressed in netlink, and one entry is at fault. */
export class EncodeError extends ProxyError {
  readonly entry: string

  constructor(entry: string, message: string, cause: unknown) {
    super('nftables-encode', message, { cause, fields: { entry } })
    this.entry = entry
  }
}

export interface EncodedBatch {
  /** The sequence number whose acknowledgement means that the kernel committed everything. */
  readonly last: number
  /** Returns the entry that a refused message belongs to; if a message has several elements, the entry of the first one. */
  entryOf(sequence: number): string | undefined
}

/** The memory that `encode` writes into. Nothing else may touch it while `encode` runs. */
export interface EncodeBuffers {
  readonly writer: MessageWriter
  readonly templates: ElementTemplates
}

export interface TableOptions {
  readonly family: Family
  /** OWNER and PERSIST where the kernel supports them. */
  readonly flags: number
  /** One message per element: the kernel then names the element that it refuses. Otherwise as many as fit, for half the cost. */
  readonly single?: boolean
  /** Whether slots, and endpoints with affinity, count connections. */
  readonly counting: boolean
  /** Numbers from which new slots and counters count; absent if they begin with 0. */
  readonly initial?: InitialCounts | undefined
  /** Deletes the table first, in the same transaction: nothing of the old table stays, and no packet sees a gap. */
  readonly replace: boolean
  /** The table exists with these flags, so the batch need not create it. */
  readonly established?: boolean
}

/** Writes the batch into the buffers' writer. Long batches pause at every `yield`. */
export function* encode(
  operations: Iterable<readonly Operation[]>,
  buffers: EncodeBuffers,
  table: TableOptions,
): Steps<EncodedBatch> {
  const { writer } = buffers
  writer.clear()
  const batch = new BatchEncoder(buffers, table)
  beginBatch(writer)
  writeTableItself(writer, table)
  let seen = 0
  for (const list of operations) {
    for (const operation of list) {
      if (++seen % operationStride === 0) yield
      batch.write(operation)
    }
  }
  batch.finishList()
  const last = endBatch(writer)
  return { last, entryOf: (sequence) => batch.entries.get(sequence) }
}

function writeTableItself(writer: MessageWriter, options: TableOptions): void {
  const { family, flags, replace, established, initial } = options
  if (replace && initial !== undefined) {
    for (const set of reportedSets(initial)) flushSet(writer, { family, table: tableName, set })
    for (const chain of initial.chains) flushChain(writer, { family, table: tableName, name: chain }, true)
  }
  if (replace) writeTable(writer, { family, name: tableName }, 'delete')
  else if (established === true) return
  writeTable(writer, { family, name: tableName, flags, comment: 'rules for kube-proxy' })
}

type ElementOperation = Operation & { op: 'add-element' | 'delete-element' }
type SlotsOperation = Operation & { op: 'add-slots' }
type ObjectOperation = Exclude<Operation, { op: 'add-element' | 'delete-element' | 'add-slots' }>

/** The element list that is being written. */
interface ElementList {
  readonly set: string
  readonly verb: Verb
  /** The list's position in the writer. */
  readonly at: number
  readonly template: ElementTemplate
}

class BatchEncoder {
  /** Entry by sequence number. */
  readonly entries = new Map<number, string>()
  readonly #writer: MessageWriter
  readonly #templates: ElementTemplates
  readonly #table: { readonly family: Family; readonly table: string }
  readonly #single: boolean
  readonly #counting: boolean
  readonly #initial: Map<string, number> | undefined
  #list: ElementList | undefined
  #setId = 0

  constructor({ writer, templates }: EncodeBuffers, { family, single = false, counting, initial }: TableOptions) {
    this.#counting = counting
    this.#initial = initial === undefined ? undefined : new Map(initial.packets)
    this.#writer = writer
    this.#templates = templates
    this.#table = { family, table: tableName }
    this.#single = single
  }

  finishList(): void {
    if (this.#list !== undefined) endElements(this.#writer, this.#list.at)
    this.#list = undefined
  }

  write(operation: Operation): void {
    try {
      if (operation.op === 'add-element' || operation.op === 'delete-element') this.#writeElement(operation)
      else if (operation.op === 'add-slots') this.#writeSlots(operation)
      else this.#writeObject(operation)
    } catch (cause) {
      // Only this entry is refused; all others can still be written.
      const message = `cannot encode ${operation.entry}: ${describeError(cause)}`
      throw new EncodeError(operation.entry, message, cause)
    }
  }

  #writeObject(operation: ObjectOperation): void {
    this.finishList()
    const writer = this.#writer
    const table = this.#table
    const first = writer.sequence
    switch (operation.op) {
      case 'add-set': {
        const { set } = operation
        const declared = declareSet(set, table.family, this.#counting)
        writeSet(writer, { ...table, name: set.name, id: ++this.#setId, ...declared })
        break
      }
      case 'delete-set':
        deleteSet(writer, { ...table, name: operation.name })
        break
      case 'add-chain':
        writeChain(writer, { ...table, ...describeChain(operation.chain) })
        break
      case 'flush-chain':
        flushChain(writer, { ...table, name: operation.name }, this.#counting && isEndpointChain(operation.name))
        break
      case 'delete-chain':
        writeChain(writer, { ...table, name: operation.name }, 'delete')
        break
      case 'add-counter': {
        const { name, port, packets } = operation
        writeNamedCounter(writer, { ...table, name, packets, comment: port })
        break
      }
      case 'delete-counter':
        writeNamedCounter(writer, { ...table, name: operation.name, packets: 0 }, 'delete')
        break
      case 'add-rule':
        this.#writeRule(operation.chain, operation.rule, Object.values(operation.tag).join(' '))
        break
    }
    for (let sequence = first; sequence < writer.sequence; sequence++) this.entries.set(sequence, operation.entry)
  }

  #writeRule(chain: string, { statements, comment }: PlannedRule, tag: string): void {
    const random = statements.find((statement) => statement.kind === 'random-verdict')
    const map = random === undefined ? 0 : this.#writeAnonymousMap(random.targets)
    writeRule(this.#writer, {
      ...this.#table,
      chain,
      expressions: statements
        .filter(({ kind }) => this.#counting || kind !== 'count')
        .flatMap((statement) => compile(statement, this.#table.family, map))
        .map((one) => (one.expression === 'counter' ? { ...one, packets: this.#initial?.get(chain) ?? 0 } : one)),
      ...(comment === undefined ? {} : { comment }),
      tag,
    })
  }

  /** Returns the id of the map. */
  #writeAnonymousMap(targets: readonly string[]): number {
    const setId = ++this.#setId
    writeSet(this.#writer, {
      ...this.#table,
      name: anonymousMapName,
      id: setId,
      flags: SET_ANONYMOUS | SET_CONSTANT | SET_MAP,
      ...randomMap,
      size: targets.length,
    })
    const elements = targets.map((chain, slot): Element => ({ key: hostBytes(slot), data: { verdict: 'goto', chain } }))
    writeElements(this.#writer, { ...this.#table, set: anonymousMapName, setId, elements })
    return setId
  }

  #writeElement(operation: ElementOperation): void {
    const template = this.#findTemplate(operation.set)
    template.setKey(operation.key, operation.slot)
    if (operation.op === 'add-element') {
      this.#continueList(operation, 'add', template)
      template.writeAdded(this.#writer, operation.value)
    } else {
      this.#continueList(operation, 'delete', template)
      template.writeDeleted(this.#writer)
    }
  }

  #writeSlots(operation: SlotsOperation): void {
    const { set, key, offset, values } = operation
    const template = this.#findTemplate(set)
    if (!(template instanceof SlotTemplate)) throw new Error(`${set} has no slots`)
    for (let i = 0; i < values.length; i++) {
      const value = values[i] as string
      template.setKey(key, offset + i)
      this.#continueList(operation, 'add', template)
      template.writeAdded(this.#writer, value, this.#takeInitial(initialKey(key, offset, value)))
    }
  }

  /** The first slot of an endpoint counts on for all its slots: an endpoint with a weight has several. */
  #takeInitial(key: string): number | undefined {
    const packets = this.#initial?.get(key)
    if (packets !== undefined) this.#initial?.delete(key)
    return packets
  }

  #findTemplate(set: string): ElementTemplate {
    const list = this.#list
    return list !== undefined && list.set === set ? list.template : this.#templates.find(set)
  }

  /** Continues the list that is being written, or begins a new one. */
  #continueList({ set, entry }: ElementOperation | SlotsOperation, verb: Verb, template: ElementTemplate): void {
    const list = this.#list
    const writer = this.#writer
    if (list?.set === set && list.verb === verb && !this.#single && hasRoom(writer, list.at)) return
    this.finishList()
    this.entries.set(writer.sequence, entry)
    const { family, table } = this.#table
    const echo = this.#counting && template instanceof SlotTemplate
    this.#list = { set, verb, at: beginElements(writer, { family, table, set }, verb, echo), template }
  }
}

/** nft describes the map of `numgen … vmap` in the same way. */
const { fieldLengths: _, ...randomMap } = describeSet({ key: [{ slots: 1 }], data: 'verdict' })

const describeChain = ({ name, hook, comment }: ChainSpec) => ({
  name,
  ...(hook === undefined ? {} : { base: hook }),
  ...(comment === undefined ? {} : { comment }),
})
