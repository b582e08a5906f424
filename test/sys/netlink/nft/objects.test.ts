import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import type { Family } from '../../../../src/lib/ip.ts'
import { AttributeReader, MessageReader } from '../../../../src/sys/netlink/message.ts'
import { MessageWriter } from '../../../../src/sys/netlink/message-writer.ts'
import { decodeElements, writeElements } from '../../../../src/sys/netlink/nft/elements.ts'
import type { Expression, Verdict } from '../../../../src/sys/netlink/nft/expressions.ts'
import {
  type Chain,
  type Element,
  type NftSet,
  SET_CONCATENATION,
  SET_DYNAMIC,
  SET_INTERVAL,
  SET_MAP,
  SET_TIMEOUT,
} from '../../../../src/sys/netlink/nft/nft-types.ts'
import {
  type Decode,
  decodeChain,
  decodeGeneration,
  decodeNotice,
  decodeRule,
  decodeSet,
  decodeTable,
} from '../../../../src/sys/netlink/nft/read-objects.ts'
import { describeSet, readComment, type SetDeclaration } from '../../../../src/sys/netlink/nft/userdata.ts'
import {
  beginBatch,
  deleteSet,
  endBatch,
  flushChain,
  writeChain,
  writeRule,
  writeSet,
  writeTable,
} from '../../../../src/sys/netlink/nft/write-objects.ts'
import { disassembleRule } from './disassemble.ts'

const hex = (text: string) => Buffer.from(text.replace(/\s+/g, ''), 'hex')
const table = 'kube-proxy'

interface Golden {
  readonly name: string
  /** The text that made nft 1.0.6 send these bytes. */
  readonly nft: string
  readonly bytes: string
}

const goldens = JSON.parse(readFileSync(join(import.meta.dirname, 'nft-goldens.json'), 'utf8')) as readonly Golden[]

type Write = (writer: MessageWriter) => unknown

const chain = (name: string, more: Partial<Chain> = {}): Write => {
  return (writer) => writeChain(writer, { family: 4, table, name, ...more })
}

function set(name: string, declaration: SetDeclaration, more: Partial<NftSet> = {}): Write {
  const { fieldLengths: _, ...shape } = describeSet(declaration)
  const flags = declaration.data === undefined ? 0 : SET_MAP
  return (writer) => writeSet(writer, { family: 4, table, name, id: 1, flags, ...shape, ...more })
}

const elements = (set: string, list: readonly Element[], family: Family = 4): Write => {
  return (writer) => writeElements(writer, { family, table, set, setId: 1, elements: list })
}

/** nft also sends the ids of sets, which our own rules omit. */
function rule(
  expressions: readonly Expression[],
  more: { chain?: string; family?: Family; comment?: string } = {},
): Write {
  return (writer) => writeRule(writer, { family: 4, table, chain: 'c', expressions, ...more })
}

const daddr4: Expression = { expression: 'payload', dreg: 1, base: 'network', offset: 16, length: 4 }
const saddr4: Expression = { expression: 'payload', dreg: 1, base: 'network', offset: 12, length: 4 }
const daddr6: Expression = { expression: 'payload', dreg: 1, base: 'network', offset: 24, length: 16 }
const l4proto = (dreg: number): Expression => ({ expression: 'meta', key: 'l4proto', dreg })
const dport = (dreg: number): Expression => ({ expression: 'payload', dreg, base: 'transport', offset: 2, length: 2 })
const lookup = (set: string, setId: number, dreg?: number): Expression =>
  dreg === undefined
    ? { expression: 'lookup', set, sreg: 1, setId }
    : { expression: 'lookup', set, sreg: 1, dreg, setId }
const cmp = (op: 'eq' | 'ne', data: string): Expression => ({ expression: 'cmp', sreg: 1, op, data: hex(data) })
const mask = (mask: string, xor: string): Expression => ({
  expression: 'bitwise',
  sreg: 1,
  dreg: 1,
  mask: hex(mask),
  xor: hex(xor),
})
const load = (key: 'mark' | 'iifname'): Expression => ({ expression: 'meta', key, dreg: 1 })
const setMark: Expression = { expression: 'meta set', key: 'mark', sreg: 1 }
const masquerade: Expression = { expression: 'masquerade', fullyRandom: true }
const verdict = (verdict: Verdict): Expression => ({ expression: 'verdict', ...verdict })
const jump = verdict({ verdict: 'jump', chain: 'x' })
const drop = verdict({ verdict: 'drop' })
const numgen = (dreg: number, modulus: number): Expression => ({ expression: 'numgen random', dreg, modulus })
const dnat = (family: Family, portReg: number, flags?: number): Expression =>
  flags === undefined
    ? { expression: 'dnat', family, addressReg: 1, portReg }
    : { expression: 'dnat', family, addressReg: 1, portReg, flags }
const immediate = (dreg: number, data: string): Expression => ({ expression: 'immediate', dreg, data: hex(data) })

const byAddress = ['ip daddr', 'meta l4proto', 'th dport'] as const
const byAddress6 = ['ip6 daddr', 'meta l4proto', 'th dport'] as const
const byPort = ['meta l4proto', 'th dport'] as const
const firewall = ['ip daddr', 'meta l4proto', 'th dport', 'ip saddr'] as const
const endpoint = ['ip daddr', 'th dport'] as const
const endpoint6 = ['ip6 daddr', 'th dport'] as const
const slots = (count: number) => ({ slots: count })

/** What we write for the text that nft was given. Sequence numbers and set ids are those of nft. */
const ours: Readonly<Record<string, Write>> = {
  table: (writer) => writeTable(writer, { family: 4, name: table, comment: 'rules for kube-proxy' }),
  'table-plain': (writer) => writeTable(writer, { family: 6, name: table }),
  'table-delete': (writer) => writeTable(writer, { family: 4, name: table }, 'delete'),
  chain: chain('services', { comment: 'all' }),
  'chain-base': chain('nat-prerouting', { base: { type: 'nat', hook: 'prerouting', priority: -100 } }),
  'chain-base-policy': chain('filter-forward', {
    family: 6,
    base: { type: 'filter', hook: 'forward', priority: -110, policy: 'accept' },
    comment: 'fw',
  }),
  'chain-delete': (writer) => writeChain(writer, { family: 4, table, name: 'services' }, 'delete'),
  'chain-flush': (writer) => flushChain(writer, { family: 4, table, name: 'services' }),
  'set-service-ips': set('service-ips', { key: byAddress, data: 'verdict', comment: 'verdicts' }),
  'set-service-ips6': set('service-ips', { key: byAddress6, data: 'verdict' }, { family: 6 }),
  'set-endpoints': set('endpoints', { key: [...byAddress, slots(5)], data: endpoint, byTypeof: true }),
  'set-endpoints6': set(
    'endpoints',
    { key: [...byAddress6, slots(5)], data: endpoint6, byTypeof: true },
    { family: 6 },
  ),
  'set-nodeport-endpoints': set('nodeport-endpoints', {
    key: [...byPort, slots(5)],
    data: endpoint,
    byTypeof: true,
    comment: 'slots',
  }),
  'set-nodeport-endpoints6': set(
    'nodeport-endpoints',
    { key: [...byPort, slots(7)], data: endpoint6, byTypeof: true },
    { family: 6 },
  ),
  'set-plain': set('nodeport-ips', { key: ['ip daddr'] }, { size: 100 }),
  'set-hairpin': set('hairpin', { key: ['ip saddr', ...byAddress] }),
  'set-affinity': set('affinity', { key: ['ip saddr'] }, { flags: SET_DYNAMIC | SET_TIMEOUT, timeoutMs: 10_800_000 }),
  'set-interval': set('ranges', { key: ['ip saddr'] }, { flags: SET_INTERVAL }),
  'set-interval-concat': set(
    'firewall',
    { key: firewall },
    { flags: SET_INTERVAL | SET_CONCATENATION, fieldLengths: describeSet({ key: firewall }).fieldLengths },
  ),
  'set-delete': (writer) => deleteSet(writer, { family: 4, table, name: 's' }),
  'set-map-types': set('m', { key: byPort, data: endpoint }),
  'set-map-single': set('m', { key: ['th dport'], data: ['ip daddr'] }),
  'set-typeof-saddr6': set('m', { key: ['ip6 saddr', 'ip6 daddr'], byTypeof: true }, { family: 6 }),
  'elements-verdict': elements('service-ips', [
    { key: hex('ac1e0029 06000000 00500000'), data: { verdict: 'goto', chain: 'lb-2' }, comment: 'ns/a:p80' },
  ]),
  'elements-drop': elements('service-ips', [{ key: hex('01020304 11000000 00350000'), data: { verdict: 'drop' } }]),
  'elements-endpoint': elements('endpoints', [
    { key: hex('ac1e0029 06000000 00500000 01000000'), data: hex('0a000002 1f900000') },
  ]),
  'elements-endpoint6': elements(
    'endpoints',
    [
      {
        key: hex('fd000000000000000000000000000041 06000000 00500000 01000000'),
        data: hex('fd000001000000000000000000000002 1f900000'),
      },
    ],
    6,
  ),
  'elements-plain': elements('nodeport-ips', [{ key: hex('c0a80002') }, { key: hex('c0a80003') }]),
  'elements-timeout': elements('affinity', [{ key: hex('c0a80002'), timeoutMs: 60_000 }]),
  'elements-interval': elements('ranges', [
    { key: hex('00000000'), intervalEnd: true },
    { key: hex('01020304') },
    { key: hex('01020305'), intervalEnd: true },
    { key: hex('cb007100') },
    { key: hex('cb007180'), intervalEnd: true },
  ]),
  'elements-interval-concat': elements('firewall', [
    { key: hex('ac1e0029 06000000 00500000 0a000000'), keyEnd: hex('ac1e0029 06000000 00500000 0affffff') },
  ]),
  'elements-delete': (writer) =>
    writeElements(writer, { family: 4, table, set: 'nodeport-ips', elements: [{ key: hex('c0a80002') }] }, 'delete'),
  'rule-vmap': rule([daddr4, l4proto(9), dport(10), lookup('service-ips', 1, 0)]),
  'rule-vmap6': rule([daddr6, l4proto(2), dport(13), lookup('service-ips6', 9, 0)], { family: 6 }),
  'rule-nodeports': rule([daddr4, lookup('nodeport-ips', 3), l4proto(1), dport(9), lookup('service-nodeports', 2, 0)]),
  'rule-new': rule([
    { expression: 'ct', key: 'state', dreg: 1 },
    mask('08000000', '00000000'),
    cmp('ne', '00000000'),
    jump,
  ]),
  'rule-goto': rule([verdict({ verdict: 'goto', chain: 'x' })], { comment: 'why not' }),
  'rule-fib': rule([
    { expression: 'fib type', of: 'daddr', dreg: 1 },
    cmp('eq', '02000000'),
    { expression: 'payload', dreg: 1, base: 'network', offset: 16, length: 1 },
    cmp('ne', '7f'),
    l4proto(1),
    dport(9),
    lookup('service-nodeports', 2, 0),
  ]),
  'rule-saddr': rule([
    { expression: 'payload', dreg: 1, base: 'network', offset: 12, length: 1 },
    cmp('ne', '0a'),
    jump,
  ]),
  'rule-saddr25': rule([saddr4, mask('ffffff80', '00000000'), cmp('eq', '0af40100'), jump]),
  'rule-iifname': rule([load('iifname'), cmp('eq', '63627230000000000000000000000000'), jump]),
  'rule-iifprefix': rule([load('iifname'), cmp('eq', '76657468'), jump]),
  'rule-mark': rule([load('mark'), mask('ffbfffff', '00400000'), setMark]),
  'rule-masquerade': rule(
    [
      load('mark'),
      mask('00400000', '00000000'),
      cmp('ne', '00000000'),
      load('mark'),
      mask('ffffffff', '00400000'),
      setMark,
      masquerade,
    ],
    { chain: 'post' },
  ),
  'rule-hairpin': rule(
    [
      { expression: 'ct', key: 'status', dreg: 1 },
      mask('20000000', '00000000'),
      cmp('ne', '00000000'),
      saddr4,
      { ...daddr4, dreg: 9 } as Expression,
      l4proto(10),
      dport(11),
      lookup('hairpin', 4),
      masquerade,
    ],
    { chain: 'post' },
  ),
  'rule-hairpin6': rule(
    [
      { expression: 'ct', key: 'status', dreg: 1 },
      mask('20000000', '00000000'),
      cmp('ne', '00000000'),
      { expression: 'payload', dreg: 1, base: 'network', offset: 8, length: 16 },
      { ...daddr6, dreg: 2 } as Expression,
      l4proto(3),
      dport(17),
      lookup('hairpin6', 10),
      masquerade,
    ],
    { chain: 'post', family: 6 },
  ),
  'rule-reject': rule([daddr4, lookup('nodeport-ips', 3), { expression: 'reject', code: 3 }], {
    chain: 'filter',
  }),
  'rule-reject6': rule([{ expression: 'reject', code: 4 }], { chain: 'filter', family: 6 }),
  'rule-drop': rule([
    { expression: 'payload', dreg: 1, base: 'network', offset: 16, length: 2 },
    cmp('eq', 'ac1e'),
    drop,
  ]),
  'rule-not-in': rule([saddr4, { expression: 'lookup', set: 'nodeport-ips', sreg: 1, setId: 3, inverted: true }, drop]),
  'rule-dnat': rule([daddr4, l4proto(9), dport(10), numgen(11, 2), lookup('endpoints', 5, 1), dnat(4, 9)], {
    chain: 'pre',
  }),
  'rule-dnat6': rule([daddr6, l4proto(2), dport(13), numgen(14, 2), lookup('endpoints6', 11, 1), dnat(6, 2)], {
    chain: 'pre',
    family: 6,
  }),
  'rule-dnat-nodeport': rule([l4proto(1), dport(9), numgen(10, 3), lookup('nodeport-endpoints', 6, 1), dnat(4, 9)], {
    chain: 'pre',
  }),
  'rule-dnat-fixed': rule(
    [l4proto(1), cmp('eq', '06'), immediate(1, '0ab40003'), immediate(2, '0050'), dnat(4, 2, 2)],
    {
      chain: 'pre',
    },
  ),
  'rule-dnat-fixed6': rule(
    [
      l4proto(1),
      cmp('eq', '11'),
      immediate(1, 'fd000010018000000000000000000001'),
      immediate(2, '0035'),
      dnat(6, 2, 2),
    ],
    { chain: 'pre', family: 6 },
  ),
  'rule-affinity': rule([saddr4, lookup('affinity', 7), verdict({ verdict: 'goto', chain: 'x' })]),
  'rule-update': rule([saddr4, { expression: 'update set', set: 'affinity', keyReg: 1, setId: 7 }]),
}

/** Differences that do not matter to the kernel. */
const notCompared: Readonly<Record<string, string>> = {
  'rule-mark': 'nft states the default operation of bitwise here, but not elsewhere',
  'rule-masquerade': 'as rule-mark',
}

/** nft numbers the elements of a list in their attribute types. The kernel defines 1 for each, which we write. */
function withoutCount(bytes: Buffer): Buffer {
  const copy = Buffer.from(bytes)
  if (copy.readUInt16LE(4) !== 0xa0c) return copy
  const reader = new AttributeReader().reset(copy, 20, copy.length)
  while (reader.next()) {
    if (reader.type !== 3) continue
    reader.enter()
    while (reader.next()) copy.writeUInt16LE(0x8001, reader.start - 2)
    reader.leave()
  }
  return copy
}

describe('bytes equal to those of nft', () => {
  it.each(goldens.filter(({ name }) => notCompared[name] === undefined))('$name: $nft', ({ name, bytes }) => {
    const write = ours[name]
    expect(write).toBeDefined()
    const expected = withoutCount(Buffer.from(bytes, 'hex'))
    const writer = new MessageWriter(64, expected.readUInt32LE(8))
    write?.(writer)
    expect(writer.toBytes().toString('hex')).toBe(expected.toString('hex'))
  })

  it.each(['rule-mark', 'rule-masquerade'])('%s: different bytes, same meaning', (name) => {
    const read = (bytes: Buffer) => {
      const message = new MessageReader(bytes)
      message.next()
      return disassembleRule(message, new AttributeReader())
    }
    const writer = new MessageWriter()
    ours[name]?.(writer)
    const golden = goldens.find((golden) => golden.name === name)?.bytes ?? ''
    expect(read(writer.toBytes())).toEqual(read(Buffer.from(golden, 'hex')))
  })
})

describe('bytes that the kernel is known to accept', () => {
  const wire = (sequence: number, write: Write) => {
    const writer = new MessageWriter(64, sequence)
    write(writer)
    return writer.toBytes()
  }

  it('begin and end transactions', () => {
    const writer = new MessageWriter()
    beginBatch(writer)
    expect(writer.toBytes()).toEqual(hex('14 00 00 00 10 00 01 00 01 00 00 00 00 00 00 00 00 00 00 0a'))
    const last = writeTable(writer, { family: 4, name: 't' })
    writer.clear()
    writer.sequence = 10
    writeTable(writer, { family: 4, name: 't' })
    expect(endBatch(writer)).toBe(10)
    expect(last).toBe(2)
    const bytes = writer.toBytes()
    expect(bytes.subarray(bytes.length - 20)).toEqual(
      hex('14 00 00 00 11 00 01 00 0b 00 00 00 00 00 00 00 00 00 00 0a'),
    )
    expect(bytes.readUInt16LE(6)).toBe(5)
  })

  it('make a set with a timeout', () => {
    const bytes = wire(6, (writer) =>
      writeSet(writer, {
        family: 4,
        table,
        name: 'affinity/a',
        id: 2,
        flags: SET_DYNAMIC | SET_TIMEOUT,
        keyType: 7,
        keyLength: 4,
        timeoutMs: 10_800_000,
      }),
    )
    expect(bytes).toEqual(
      hex(`60 00 00 00 09 0a 01 04 06 00 00 00 00 00 00 00 02 00 00 00
        0f 00 01 00 6b 75 62 65 2d 70 72 6f 78 79 00 00 0f 00 02 00 61 66 66 69 6e 69 74 79 2f 61 00 00
        08 00 03 00 00 00 00 30 08 00 04 00 00 00 00 07 08 00 05 00 00 00 00 04
        08 00 0a 00 00 00 00 02 0c 00 0b 00 00 00 00 00 00 a4 cb 80`),
    )
  })

  it('add an element with a verdict and a comment', () => {
    const bytes = wire(8, (writer) =>
      writeElements(writer, {
        family: 4,
        table,
        set: 'no-endpoint-services',
        elements: [{ key: hex('01020304 06000000 00500000'), data: { verdict: 'drop' }, comment: 'ns2/svc2:p80' }],
      }),
    )
    expect(bytes).toEqual(
      hex(`80 00 00 00 0c 0a 01 04 08 00 00 00 00 00 00 00 02 00 00 00
        0f 00 01 00 6b 75 62 65 2d 70 72 6f 78 79 00 00
        19 00 02 00 6e 6f 2d 65 6e 64 70 6f 69 6e 74 2d 73 65 72 76 69 63 65 73 00 00 00 00
        40 00 03 80 3c 00 01 80 14 00 01 80 10 00 01 00 01 02 03 04 06 00 00 00 00 50 00 00
        10 00 02 80 0c 00 02 80 08 00 01 00 00 00 00 00
        13 00 06 00 00 0d 6e 73 32 2f 73 76 63 32 3a 70 38 30 00 00`),
    )
  })
})

describe('reading back', () => {
  const roundTrip = <T>(write: Write, decode: Decode<T>): T | undefined => {
    const writer = new MessageWriter(16)
    write(writer)
    const message = new MessageReader(writer.toBytes())
    expect(message.next()).toBe(true)
    const reader = new AttributeReader()
    const found = decode(message, reader)
    expect(reader.error).toBeUndefined()
    return found
  }
  const family = fc.constantFrom<Family>(4, 6)
  const name = fc.stringMatching(/^[a-z][a-z0-9/_.-]{0,30}$/)
  const comment = fc.string({ maxLength: 60, unit: 'grapheme' }).filter((text) => !text.includes('\0'))
  const bytes = fc.uint8Array({ minLength: 1, maxLength: 32 }).map((bytes) => Buffer.from(bytes))
  const u32 = fc.nat(0xffffffff)
  const verdictArbitrary: fc.Arbitrary<Verdict> = fc.oneof(
    fc.record({ verdict: fc.constantFrom('accept' as const, 'drop' as const, 'return' as const) }),
    fc.record({ verdict: fc.constantFrom('jump' as const, 'goto' as const), chain: name }),
  )

  it('finds tables', () => {
    const table = fc.record({ family, name, flags: u32, comment }, { requiredKeys: ['family', 'name', 'flags'] })
    fc.assert(
      fc.property(table, (table) => {
        expect(roundTrip((writer) => writeTable(writer, table), decodeTable)).toEqual(table)
      }),
    )
  })

  it('finds chains', () => {
    const base = fc.record(
      {
        type: fc.constantFrom('filter' as const, 'nat' as const, 'route' as const),
        hook: fc.constantFrom('prerouting' as const, 'input' as const, 'forward' as const, 'output' as const),
        priority: fc.integer({ min: -400, max: 400 }),
        policy: fc.constantFrom('accept' as const, 'drop' as const),
      },
      { requiredKeys: ['type', 'hook', 'priority'] },
    )
    const arbitrary = fc.record(
      { family, table: name, name, base, comment },
      { requiredKeys: ['family', 'table', 'name'] },
    )
    fc.assert(
      fc.property(arbitrary, (chain) => {
        expect(roundTrip((writer) => writeChain(writer, chain), decodeChain)).toEqual(chain)
      }),
    )
  })

  it('finds sets', () => {
    const arbitrary = fc.record(
      {
        family,
        table: name,
        name,
        id: u32,
        flags: u32,
        keyType: u32,
        keyLength: u32,
        size: u32,
        timeoutMs: fc.nat(2 ** 40),
        fieldLengths: fc.array(fc.nat(16), { minLength: 1, maxLength: 5 }),
        userdata: bytes,
      },
      { requiredKeys: ['family', 'table', 'name', 'id', 'flags', 'keyType', 'keyLength'] },
    )
    const data = fc.option(fc.record({ dataType: u32, dataLength: u32 }), { nil: {} })
    fc.assert(
      fc.property(arbitrary, data, (set, data) => {
        const whole = { ...set, ...data }
        expect(roundTrip((writer) => writeSet(writer, whole), decodeSet)).toEqual(whole)
      }),
    )
  })

  it('finds elements in as many messages as they need', () => {
    const element = fc.record(
      {
        key: bytes,
        keyEnd: bytes,
        data: fc.oneof(bytes, verdictArbitrary),
        intervalEnd: fc.constant(true),
        comment,
        timeoutMs: u32,
      },
      { requiredKeys: ['key'] },
    ) as fc.Arbitrary<Element>
    fc.assert(
      fc.property(
        family,
        fc.array(element, { minLength: 1, maxLength: 8 }),
        fc.integer({ min: 1, max: 400 }),
        (family, some, times) => {
          const elements = Array.from({ length: times }, () => some).flat()
          const writer = new MessageWriter()
          const first = writer.sequence
          writeElements(writer, { family, table, set: 's', elements })
          const message = new MessageReader(writer.toBytes())
          const reader = new AttributeReader()
          const found: Element[] = []
          let count = 0
          while (message.next()) {
            count++
            found.push(...(decodeElements(message, reader)?.elements ?? []))
          }
          expect(message.error ?? reader.error).toBeUndefined()
          expect(found).toEqual(elements)
          expect(writer.sequence - first).toBe(count)
        },
      ),
      { numRuns: 40 },
    )
  })

  it('finds rules with every expression that we write', () => {
    const expressions = goldens
      .filter(({ name }) => name.startsWith('rule-'))
      .flatMap(({ bytes }) => {
        const message = new MessageReader(Buffer.from(bytes, 'hex'))
        message.next()
        return disassembleRule(message, new AttributeReader())?.expressions ?? []
      })
    expect(expressions.some(({ expression }) => expression === 'other')).toBe(false)
    const known = expressions as Expression[]
    const tag = fc.stringMatching(/^[A-Z2-7]{12} \d \d$/)
    const arbitrary = fc.record(
      { family, table: name, chain: name, expressions: fc.subarray(known), comment, tag },
      { requiredKeys: ['family', 'table', 'chain', 'expressions'] },
    )
    fc.assert(
      fc.property(arbitrary, (rule) => {
        expect(roundTrip((writer) => writeRule(writer, rule), disassembleRule)).toEqual(rule)
        const { family: _, expressions, comment, ...listed } = rule
        expect(roundTrip((writer) => writeRule(writer, rule), decodeRule)).toEqual(listed)
      }),
    )
  })

  it('finds only the keys of deleted elements', () => {
    const writer = new MessageWriter()
    const elements = [{ key: hex('01020304'), data: { verdict: 'drop' }, comment: 'x', timeoutMs: 5 } as const]
    writeElements(writer, { family: 4, table, set: 's', elements }, 'delete')
    const message = new MessageReader(writer.toBytes())
    message.next()
    expect(message.type).toBe(0xa0e)
    expect(decodeElements(message, new AttributeReader())?.elements).toEqual([{ key: hex('01020304') }])
  })

  it('cuts names that are longer than a comment may be', () => {
    const text = 'x'.repeat(300)
    const found = roundTrip((writer) => writeTable(writer, { family: 4, name: 't', comment: text }), decodeTable)
    expect(found?.comment).toBe('x'.repeat(254))
    expect(readComment(Uint8Array.of(7, 200, 1))).toBeUndefined()
  })

  it('never throws on any bytes', () => {
    const reader = new AttributeReader()
    const decoders = [
      decodeTable,
      decodeChain,
      decodeSet,
      decodeRule,
      disassembleRule,
      decodeElements,
      decodeGeneration,
      decodeNotice,
    ]
    const all = goldens.map(({ bytes }) => Buffer.from(bytes, 'hex'))
    fc.assert(
      fc.property(
        fc.constantFrom(...all),
        fc.nat(600),
        fc.array(fc.tuple(fc.nat(600), fc.nat(255)), { maxLength: 8 }),
        (good, cut, changes) => {
          const bytes = Buffer.from(good)
          for (const [at, value] of changes) if (at < bytes.length) bytes[at] = value
          const length = Math.min(cut, bytes.length)
          if (length >= 16) bytes.writeUInt32LE(length, 0)
          for (const decode of decoders) {
            const message = new MessageReader(bytes.subarray(0, length))
            while (message.next()) decode(message, reader)
          }
        },
      ),
      { numRuns: 3000 },
    )
  })
})
