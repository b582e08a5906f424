// Writes programs of classic BPF that decide in the kernel which messages of a netlink socket are received. Pure.
//
// The kernel reads numbers as big endian, which is the order of netfilter's attributes. A program that reads beyond the end of the message
// ends there, and the message is not received: therefore a program reads only what every message has, or what `find` has found.

import { HEADER_LENGTH, littleEndian } from './message.ts'

const BPF_LD_B_ABS = 0x30
const BPF_LD_H_ABS = 0x28
const BPF_LD_W_ABS = 0x20
const BPF_LD_B_IND = 0x50
const BPF_LD_H_IND = 0x48
const BPF_LD_W_IND = 0x40
const BPF_LD_IMM = 0x00
const BPF_LDX_IMM = 0x01
const BPF_TAX = 0x07
const BPF_RSH_K = 0x74
const BPF_JEQ_K = 0x15
const BPF_JGT_K = 0x25
const BPF_JGE_K = 0x35
const BPF_JSET_K = 0x45
const BPF_RET_K = 0x06

// SKF_AD_OFF + SKF_AD_NLATTR and SKF_AD_NLATTR_NEST: loads from these places find an attribute.
const nlattrAt = 0xffff_f000 + 12
const nestedNlattrAt = 0xffff_f000 + 16

/** The header of an attribute. */
const attributeHeader = 4
const instructionBytes = 8
const wholeMessage = 0x7fff_ffff

/** Where the family of netfilter's messages is, and where their attributes begin. */
export const familyAt = HEADER_LENGTH
const attributesAt = HEADER_LENGTH + 4

/** Bytes of the message's header, whose numbers are in host order: the lower byte of the type, and the higher byte of the flags. */
export const typeAt = littleEndian ? 4 : 5
export const flagsAt = littleEndian ? 7 : 6

interface Instruction {
  readonly code: number
  readonly value: number
  readonly ifTrue?: string | undefined
  readonly ifFalse?: string | undefined
}

const absolute = { 1: BPF_LD_B_ABS, 2: BPF_LD_H_ABS, 4: BPF_LD_W_ABS } as const
const indirect = { 1: BPF_LD_B_IND, 2: BPF_LD_H_IND, 4: BPF_LD_W_IND } as const
const comparisons = { '=': BPF_JEQ_K, '>': BPF_JGT_K, '>=': BPF_JGE_K, 'has bits': BPF_JSET_K } as const

/** A jump goes forward to a label, at most 255 instructions; without a label to the next instruction. */
interface Jumps {
  readonly ifTrue?: string
  readonly ifFalse?: string
}

export class SocketFilter {
  readonly #instructions: Instruction[] = []
  readonly #labels = new Map<string, number>()

  label(name: string): this {
    this.#labels.set(name, this.#instructions.length)
    return this
  }

  /** Loads a number of this many bytes that is at a fixed place of the message. */
  load(at: number, bytes: 1 | 2 | 4): this {
    return this.#add(absolute[bytes], at)
  }

  /** Loads the number that the innermost of these attributes holds; jumps to `ifAbsent` if the message lacks one of them. */
  find(types: readonly number[], bytes: 1 | 2 | 4, ifAbsent: string): this {
    this.#add(BPF_LD_IMM, attributesAt)
    for (const [depth, type] of types.entries()) {
      this.#add(BPF_LDX_IMM, type)
      this.#add(BPF_LD_W_ABS, depth === 0 ? nlattrAt : nestedNlattrAt)
      this.compare('=', 0, { ifTrue: ifAbsent })
    }
    this.#add(BPF_TAX, 0)
    return this.#add(indirect[bytes], attributeHeader)
  }

  shiftRight(bits: number): this {
    return this.#add(BPF_RSH_K, bits)
  }

  compare(comparison: keyof typeof comparisons, value: number, { ifTrue, ifFalse }: Jumps): this {
    this.#instructions.push({ code: comparisons[comparison], value, ifTrue, ifFalse })
    return this
  }

  accept(): this {
    return this.#add(BPF_RET_K, wholeMessage)
  }

  reject(): this {
    return this.#add(BPF_RET_K, 0)
  }

  /** Eight bytes per instruction, as the kernel takes them. */
  toBytes(): Uint8Array {
    const bytes = new Uint8Array(this.#instructions.length * instructionBytes)
    const view = new DataView(bytes.buffer)
    for (const [i, { code, value, ifTrue, ifFalse }] of this.#instructions.entries()) {
      const at = i * instructionBytes
      view.setUint16(at, code, littleEndian)
      view.setUint8(at + 2, this.#distance(i, ifTrue))
      view.setUint8(at + 3, this.#distance(i, ifFalse))
      view.setUint32(at + 4, value, littleEndian)
    }
    return bytes
  }

  #add(code: number, value: number): this {
    this.#instructions.push({ code, value })
    return this
  }

  #distance(from: number, label: string | undefined): number {
    if (label === undefined) return 0
    const distance = (this.#labels.get(label) ?? -1) - from - 1
    if (distance < 0 || distance > 255) throw new RangeError(`a filter cannot jump to ${label}`)
    return distance
  }
}
