// nf_tables' instructions from the kernel's bytes back to plain data; what we never write comes out as `other`. For people and tests.

import { AttributeReader } from '../message.ts'
import { comparisons, ctKeys, type Expression, metaKeys, payloadBases, readData } from './expressions.ts'

export interface OtherExpression {
  readonly expression: 'other'
  /** The kernel's name of it. */
  readonly name: string
}

/** The expression list attribute the reader is at. */
export function readExpressions(reader: AttributeReader): (Expression | OtherExpression)[] {
  const found: (Expression | OtherExpression)[] = []
  reader.enter()
  while (reader.next()) {
    let name = ''
    let detail: Buffer = Buffer.alloc(0)
    reader.enter()
    while (reader.next()) {
      if (reader.type === 1) name = reader.text()
      else if (reader.type === 2) detail = reader.raw()
    }
    reader.leave()
    const fields = new Fields(detail)
    const expression = fields.error === undefined ? decoders[name]?.(fields) : undefined
    found.push(expression ?? { expression: 'other', name })
  }
  reader.leave()
  return found
}

/** Attributes of one expression by number. */
class Fields {
  readonly #values = new Map<number, Buffer>()
  readonly error: string | undefined

  constructor(bytes: Buffer) {
    const reader = new AttributeReader().reset(bytes, 0, bytes.length)
    while (reader.next()) this.#values.set(reader.type, reader.raw())
    this.error = reader.error
  }

  has(type: number): boolean {
    return this.#values.has(type)
  }

  /** Big endian, of whatever length; 0 if absent. */
  number(type: number): number {
    const value = this.#values.get(type)
    return value === undefined || value.length === 0 || value.length > 6 ? 0 : value.readUIntBE(0, value.length)
  }

  long(type: number): number {
    const value = this.#values.get(type)
    return value?.length === 8 ? Number(value.readBigUInt64BE()) : 0
  }

  text(type: number): string {
    return this.#values.get(type)?.toString().replace(/\0.*$/s, '') ?? ''
  }

  data(type: number): ReturnType<typeof readData> {
    const value = this.#values.get(type)
    if (value === undefined) return undefined
    // The reader's one attribute is the value itself, framed again.
    const framed = Buffer.concat([Buffer.alloc(4), value])
    const reader = new AttributeReader().reset(framed, 0, framed.length)
    reader.start = 4
    reader.end = framed.length
    return readData(reader)
  }

  bytes(type: number): Uint8Array {
    const data = this.data(type)
    return data instanceof Uint8Array ? data : new Uint8Array(0)
  }
}

type Decoder = (fields: Fields) => Expression | undefined

const decoders: Readonly<Record<string, Decoder>> = {
  payload(f) {
    const base = nameOf(payloadBases, f.number(2))
    if (base === undefined || !f.has(1)) return undefined
    return { expression: 'payload', dreg: f.number(1), base, offset: f.number(3), length: f.number(4) }
  },
  meta(f) {
    const key = nameOf(metaKeys, f.number(2))
    if (key === undefined) return undefined
    return f.has(3)
      ? { expression: 'meta set', key, sreg: f.number(3) }
      : { expression: 'meta', key, dreg: f.number(1) }
  },
  ct(f) {
    const key = nameOf(ctKeys, f.number(2))
    return key === undefined || !f.has(1) ? undefined : { expression: 'ct', key, dreg: f.number(1) }
  },
  fib(f) {
    const flags = f.number(3)
    if (f.number(2) !== 3 || (flags !== 1 && flags !== 2)) return undefined
    return { expression: 'fib type', of: flags === 1 ? 'saddr' : 'daddr', dreg: f.number(1) }
  },
  cmp(f) {
    const op = nameOf(comparisons, f.number(2))
    return op === undefined ? undefined : { expression: 'cmp', sreg: f.number(1), op, data: f.bytes(3) }
  },
  bitwise(f) {
    if (f.number(6) !== 0) return undefined
    return { expression: 'bitwise', sreg: f.number(1), dreg: f.number(2), mask: f.bytes(4), xor: f.bytes(5) }
  },
  byteorder(f) {
    if (f.number(3) !== 1) return undefined
    return { expression: 'hton', sreg: f.number(1), dreg: f.number(2), length: f.number(4), size: f.number(5) }
  },
  lookup: (f) => ({
    expression: 'lookup',
    set: f.text(1),
    sreg: f.number(2),
    ...(f.has(3) ? { dreg: f.number(3) } : {}),
    ...(f.has(4) ? { setId: f.number(4) } : {}),
    ...(f.number(5) === 1 ? { inverted: true } : {}),
  }),
  immediate(f) {
    const data = f.data(2)
    if (data === undefined) return undefined
    if (data instanceof Uint8Array) return { expression: 'immediate', dreg: f.number(1), data }
    return { expression: 'verdict', ...data }
  },
  numgen: (f) =>
    f.number(3) === 1
      ? {
          expression: 'numgen random',
          dreg: f.number(1),
          modulus: f.number(2),
          ...(f.number(4) === 0 ? {} : { offset: f.number(4) }),
        }
      : undefined,
  nat: (f) =>
    f.number(1) === 1
      ? {
          expression: 'dnat',
          family: f.number(2) === 2 ? 4 : 6,
          addressReg: f.number(3),
          ...(f.has(5) ? { portReg: f.number(5) } : {}),
          ...(f.has(7) ? { flags: f.number(7) } : {}),
        }
      : undefined,
  masq: (f) => ({ expression: 'masquerade', fullyRandom: f.number(1) === 0x10 }),
  reject: (f) => ({ expression: 'reject', type: f.number(1) === 1 ? 'tcp reset' : 'icmp', code: f.number(2) }),
  dynset: (f) =>
    f.number(3) === 1
      ? {
          expression: 'update set',
          set: f.text(1),
          keyReg: f.number(4),
          ...(f.has(2) ? { setId: f.number(2) } : {}),
          ...(f.has(6) ? { timeoutMs: f.long(6) } : {}),
        }
      : undefined,
  counter: (f) => ({
    expression: 'counter',
    ...(f.has(2) ? { packets: f.long(2) } : {}),
    ...(f.has(1) ? { bytes: f.long(1) } : {}),
  }),
}

function nameOf<T extends Readonly<Record<string, number>>>(names: T, number: number): keyof T | undefined {
  return Object.keys(names).find((name) => names[name] === number)
}
