import { connect, createServer, type Server } from 'node:net'
import { afterAll, afterEach, beforeAll, describe, expect, it } from 'vitest'
import type { Family } from '../../src/lib/ip.ts'
import { nextTurn } from '../../src/lib/time.ts'
import { addressBytes } from '../../src/sys/netlink/address-codec.ts'
import { MessageWriter } from '../../src/sys/netlink/message-writer.ts'
import { writeElements } from '../../src/sys/netlink/nft/elements.ts'
import type { Expression } from '../../src/sys/netlink/nft/expressions.ts'
import {
  type Element,
  SET_CONCATENATION,
  SET_DYNAMIC,
  SET_INTERVAL,
  SET_MAP,
  SET_TIMEOUT,
  TABLE_OWNER,
  TABLE_PERSIST,
} from '../../src/sys/netlink/nft/nft-types.ts'
import { Nftables, watchRuleset } from '../../src/sys/netlink/nft/nftables.ts'
import type { Notice } from '../../src/sys/netlink/nft/read-objects.ts'
import { describeSet, readSetComment, type SetDeclaration } from '../../src/sys/netlink/nft/userdata.ts'
import {
  beginBatch,
  endBatch,
  flushChain,
  writeChain,
  writeRule,
  writeSet,
  writeTable,
} from '../../src/sys/netlink/nft/write-objects.ts'
import type { BatchOutcome } from '../../src/sys/netlink/socket.ts'
import { type EnteredNamespace, enterNamespace } from '../lab/entered-namespace.ts'
import { canOwn, kernelAtLeast, nftWritesRanges } from '../lab/kernel-traits.ts'
import { timeLimit } from '../lab/vm.ts'

const table = 'kube-proxy'
const vip = { 4: '10.96.0.1', 6: 'fd00:96::1' } as const
const endpoints = { 4: ['10.0.0.2', '10.0.0.3'], 6: ['fd00::2', 'fd00::3'] } as const

let namespace: EnteredNamespace
const open: { close(): void }[] = []

beforeAll(() => {
  namespace = enterNamespace()
  for (const ip of endpoints[4]) namespace.exec('ip', ['addr', 'add', `${ip}/32`, 'dev', 'lo'])
  for (const ip of endpoints[6]) namespace.exec('ip', ['addr', 'add', `${ip}/128`, 'dev', 'lo', 'nodad'])
  // The kernel routes a packet before it translates the address, so the service addresses need a route.
  namespace.exec('ip', ['link', 'add', 'out', 'type', 'veth', 'peer', 'name', 'away'])
  for (const name of ['out', 'away']) namespace.exec('ip', ['link', 'set', name, 'up'])
  for (const ip of Object.values(vip)) namespace.exec('ip', ['route', 'add', ip, 'dev', 'out'])
})

afterEach(() => {
  for (const one of open.splice(0)) one.close()
  namespace.exec('nft', ['flush', 'ruleset'])
})

afterAll(() => namespace.leave())

function nftables(): Nftables {
  const made = new Nftables()
  open.push(made)
  return made
}

function commit(nft: Nftables, write: (writer: MessageWriter) => void): Promise<BatchOutcome> {
  const writer = new MessageWriter()
  beginBatch(writer)
  write(writer)
  return nft.commit(writer, endBatch(writer))
}

const listElements = (nft: Nftables, family: Family, set: string) =>
  nft.elements({ family, table, set }, (element) => element.copy())

async function committed(nft: Nftables, write: (writer: MessageWriter) => void): Promise<void> {
  const { failures } = await commit(nft, write)
  expect(failures.map((failure) => nft.failure('commit', failure).message)).toEqual([])
}

const list = () => namespace.exec('nft', ['list', 'ruleset'])

/** Concatenates the fields, each padded to 4 bytes. */
function key(...parts: readonly (string | Uint8Array)[]): Uint8Array {
  const bytes = parts.map((part) => {
    const raw = typeof part === 'string' ? addressBytes(part) : part
    return Buffer.concat([raw, Buffer.alloc((4 - (raw.length % 4)) % 4)])
  })
  return Buffer.concat(bytes)
}
const tcp = Uint8Array.of(6)
const port = (number: number) => Uint8Array.of(number >> 8, number)
const slot = (number: number) => new Uint8Array(Uint32Array.of(number).buffer)

/** Makes a load balancer of maps, with one of everything that we can write. */
function ruleset(family: Family) {
  const daddr = family === 4 ? 'ip daddr' : 'ip6 daddr'
  const saddr = family === 4 ? 'ip saddr' : 'ip6 saddr'
  const size = family === 4 ? 4 : 16
  const after = (bytes: number) => 8 + bytes / 4
  const load = (dreg: number, which: 'saddr' | 'daddr'): Expression => {
    const offset = { 4: { saddr: 12, daddr: 16 }, 6: { saddr: 8, daddr: 24 } }[family][which]
    return { expression: 'payload', dreg, base: 'network', offset, length: size }
  }
  const frontend = (which: 'daddr' | undefined): Expression[] => {
    const start = which === undefined ? 0 : size
    return [
      ...(which === undefined ? [] : [load(1, which)]),
      { expression: 'meta', key: 'l4proto', dreg: start === 0 ? 1 : after(start) },
      { expression: 'payload', dreg: after(start) + 1, base: 'transport', offset: 2, length: 2 },
    ]
  }
  const declare = (
    writer: MessageWriter,
    name: string,
    declaration: SetDeclaration,
    more: { flags?: number; timeoutMs?: number; concatenated?: boolean } = {},
  ) => {
    const { fieldLengths, ...shape } = describeSet(declaration)
    const map = declaration.data === undefined ? 0 : SET_MAP
    const { flags = 0, timeoutMs, concatenated } = more
    writeSet(writer, {
      family,
      table,
      name,
      id: ++ids,
      flags: map | flags,
      ...shape,
      ...(concatenated === true ? { fieldLengths } : {}),
      ...(timeoutMs === undefined ? {} : { timeoutMs }),
    })
  }
  let ids = 0
  const rule = (writer: MessageWriter, chain: string, expressions: readonly Expression[], comment?: string) =>
    writeRule(writer, { family, table, chain, expressions, ...(comment === undefined ? {} : { comment }) })
  const elements = (writer: MessageWriter, set: string, elements: readonly Element[]) =>
    writeElements(writer, { family, table, set, elements })

  return (writer: MessageWriter) => {
    writeTable(writer, { family, name: table, comment: 'rules for kube-proxy' })
    declare(writer, 'service-ips', { key: [daddr, 'meta l4proto', 'th dport'], data: 'verdict', comment: 'frontends' })
    declare(writer, 'endpoints', {
      key: [daddr, 'meta l4proto', 'th dport', { slots: 2 }],
      data: [daddr, 'th dport'],
      byTypeof: true,
    })
    declare(writer, 'service-nodeports', { key: ['meta l4proto', 'th dport'], data: 'verdict' })
    declare(writer, 'nodeport-endpoints', {
      key: ['meta l4proto', 'th dport', { slots: 2 }],
      data: [daddr, 'th dport'],
      byTypeof: true,
    })
    declare(writer, 'hairpin', { key: [saddr, daddr] })
    declare(writer, 'nodeport-ips', { key: [daddr] })
    declare(writer, 'affinity', { key: [saddr] }, { flags: SET_DYNAMIC | SET_TIMEOUT, timeoutMs: 10_800_000 })
    declare(writer, 'ranges', { key: [saddr] }, { flags: SET_INTERVAL })
    declare(
      writer,
      'firewall',
      { key: [daddr, 'meta l4proto', 'th dport', saddr] },
      { flags: SET_INTERVAL | SET_CONCATENATION, concatenated: true },
    )
    for (const name of ['services', 'lb-2', 'np-2', 'mark-it', 'sticky']) writeChain(writer, { family, table, name })
    const accept = { verdict: 'accept' } as const
    elements(writer, 'service-ips', [
      { key: key(vip[family], tcp, port(80)), data: { verdict: 'goto', chain: 'lb-2' }, comment: 'ns/name:http' },
      { key: key(vip[family], tcp, port(81)), data: { verdict: 'drop' } },
    ])
    elements(
      writer,
      'endpoints',
      endpoints[family].map((ip, i) => ({
        key: key(vip[family], tcp, port(80), slot(i)),
        data: key(ip, port(8080)),
      })),
    )
    elements(writer, 'service-nodeports', [{ key: key(tcp, port(30080)), data: { verdict: 'goto', chain: 'np-2' } }])
    elements(
      writer,
      'nodeport-endpoints',
      endpoints[family].map((ip, i) => ({
        key: key(tcp, port(30080), slot(i)),
        data: key(ip, port(8080)),
      })),
    )
    elements(
      writer,
      'hairpin',
      endpoints[family].map((ip) => ({ key: key(ip, ip) })),
    )
    elements(writer, 'nodeport-ips', [{ key: key(endpoints[family][0]) }])
    const [from, to, end] =
      family === 4
        ? ['10.0.0.0', '10.255.255.255', '11.0.0.0']
        : ['fd00:10::', 'fd00:10:ffff:ffff:ffff:ffff:ffff:ffff', 'fd00:11::']
    elements(writer, 'ranges', [{ key: key(from as string) }, { key: key(end as string), intervalEnd: true }])
    elements(writer, 'firewall', [
      {
        key: key(vip[family], tcp, port(80), from as string),
        keyEnd: key(vip[family], tcp, port(80), to as string),
        comment: 'ns/name:http',
      },
    ])
    rule(writer, 'services', [...frontend('daddr'), { expression: 'lookup', set: 'service-ips', sreg: 1, dreg: 0 }])
    rule(writer, 'services', [
      load(1, 'daddr'),
      { expression: 'lookup', set: 'nodeport-ips', sreg: 1 },
      ...frontend(undefined),
      { expression: 'lookup', set: 'service-nodeports', sreg: 1, dreg: 0 },
    ])
    const slotReg = after(size) + 2
    rule(writer, 'lb-2', [
      load(1, 'saddr'),
      { expression: 'lookup', set: 'ranges', sreg: 1, inverted: true },
      { expression: 'verdict', verdict: 'jump', chain: 'mark-it' },
    ])
    rule(writer, 'lb-2', [
      ...frontend('daddr'),
      { expression: 'numgen random', dreg: slotReg, modulus: 2 },
      { expression: 'lookup', set: 'endpoints', sreg: 1, dreg: 1 },
      { expression: 'dnat', family, addressReg: 1, portReg: after(size) },
    ])
    rule(writer, 'lb-2', [{ expression: 'verdict', verdict: 'drop' }], 'a slot that is gone')
    rule(writer, 'np-2', [
      ...frontend(undefined),
      { expression: 'numgen random', dreg: 10, modulus: 2 },
      { expression: 'lookup', set: 'nodeport-endpoints', sreg: 1, dreg: 1 },
      { expression: 'dnat', family, addressReg: 1, portReg: after(size) },
    ])
    const bits = (mask: number, xor: number): Expression => ({
      expression: 'bitwise',
      sreg: 1,
      dreg: 1,
      mask: slot(mask),
      xor: slot(xor),
    })
    rule(writer, 'mark-it', [
      { expression: 'meta', key: 'mark', dreg: 1 },
      bits(0xffffbfff, 0x4000),
      { expression: 'meta set', key: 'mark', sreg: 1 },
    ])
    rule(writer, 'sticky', [load(1, 'saddr'), { expression: 'update set', set: 'affinity', keyReg: 1 }])
    rule(writer, 'sticky', [
      ...frontend('daddr'),
      { ...load(after(size) + 2, 'saddr') } as Expression,
      { expression: 'lookup', set: 'firewall', sreg: 1 },
      { expression: 'verdict', ...accept },
    ])
    const base = (name: string, type: 'nat' | 'filter', hook: 'output' | 'postrouting' | 'forward', priority: number) =>
      writeChain(writer, {
        family,
        table,
        name,
        base: { type, hook, priority, policy: 'accept' },
        comment: `${type} ${hook}`,
      })
    base('nat-output', 'nat', 'output', -100)
    base('nat-postrouting', 'nat', 'postrouting', 100)
    base('filter-forward', 'filter', 'forward', -110)
    rule(writer, 'nat-output', [{ expression: 'verdict', verdict: 'jump', chain: 'services' }])
    rule(writer, 'nat-postrouting', [
      { expression: 'meta', key: 'mark', dreg: 1 },
      bits(0x4000, 0),
      { expression: 'cmp', sreg: 1, op: 'ne', data: slot(0) },
      { expression: 'masquerade', fullyRandom: true },
    ])
    rule(writer, 'filter-forward', [
      { expression: 'ct', key: 'state', dreg: 1 },
      bits(8, 0),
      { expression: 'cmp', sreg: 1, op: 'ne', data: slot(0) },
      { expression: 'fib type', of: 'daddr', dreg: 1 },
      { expression: 'cmp', sreg: 1, op: 'eq', data: slot(2) },
      { expression: 'reject', code: family === 4 ? 3 : 4 },
    ])
  }
}

describe.each([4, 6] as const)('a whole ruleset in IPv%i', (family) => {
  it('is accepted by the kernel and printed by nft', async () => {
    await committed(nftables(), ruleset(family))
    const printed = list()
    const ip = family === 4 ? 'ip' : 'ip6'
    expect(printed).toContain(
      `typeof ${ip} daddr . meta l4proto . th dport . numgen random mod 2 : ${ip} daddr . th dport`,
    )
    expect(printed).toContain(
      `dnat ${ip} to ${ip} daddr . meta l4proto . th dport . numgen random mod 2 map @endpoints`,
    )
    expect(printed).toContain(`dnat ${ip} to meta l4proto . th dport . numgen random mod 2 map @nodeport-endpoints`)
    expect(printed).toContain(`${ip} daddr . meta l4proto . th dport vmap @service-ips`)
    expect(printed).toContain('comment "ns/name:http" : goto lb-2')
    expect(printed).toContain('meta mark set meta mark | 0x00004000')
    expect(printed).toContain('masquerade fully-random')
    const json = JSON.parse(namespace.exec('nft', ['-j', 'list', 'ruleset'])) as { nftables: unknown[] }
    expect(json.nftables.length).toBeGreaterThan(25)
  })

  it.skipIf(!nftWritesRanges)('is the same after nft loads what it prints', async () => {
    await committed(nftables(), ruleset(family))
    const printed = list()
    namespace.exec('nft', ['flush', 'ruleset'])
    namespace.exec('nft', ['-f', '-'], printed)
    expect(list()).toBe(printed)
  })

  it('can be listed as it was written', async () => {
    const nft = nftables()
    await committed(nft, ruleset(family))
    expect(await nft.tables()).toEqual([{ family, name: table, flags: 0, comment: 'rules for kube-proxy' }])
    const chains = await nft.chains(family, table)
    expect(chains.map(({ name }) => name).sort()).toEqual(
      ['services', 'lb-2', 'np-2', 'mark-it', 'sticky', 'nat-output', 'nat-postrouting', 'filter-forward'].sort(),
    )
    expect(chains.find(({ name }) => name === 'nat-output')).toEqual({
      family,
      table,
      name: 'nat-output',
      base: { type: 'nat', hook: 'output', priority: -100, policy: 'accept' },
      comment: 'nat output',
    })
    const sets = await nft.sets(family, table)
    expect(sets).toHaveLength(9)
    expect(readSetComment(sets.find(({ name }) => name === 'service-ips')?.userdata)).toBe('frontends')
    expect(sets.find(({ name }) => name === 'affinity')).toMatchObject({ timeoutMs: 10_800_000, flags: 0x30 })
    expect(sets.find(({ name }) => name === 'firewall')?.fieldLengths).toEqual(
      family === 4 ? [4, 1, 2, 4] : [16, 1, 2, 16],
    )
    const slots = await listElements(nft, family, 'endpoints')
    expect(slots.map(({ key: at, data }) => [Buffer.from(at), data]).sort()).toEqual(
      endpoints[family]
        .map((ip, i) => [Buffer.from(key(vip[family], tcp, port(80), slot(i))), Buffer.from(key(ip, port(8080)))])
        .sort(),
    )
    expect(await listElements(nft, family, 'service-ips')).toContainEqual({
      key: Buffer.from(key(vip[family], tcp, port(80))),
      data: { verdict: 'goto', chain: 'lb-2' },
      comment: 'ns/name:http',
    })
    const chainsOfRules = async () => (await nft.rules(family, table)).map(({ chain }) => chain)
    expect((await chainsOfRules()).filter((chain) => chain === 'lb-2')).toHaveLength(3)
    await committed(nft, (writer) => flushChain(writer, { family, table, name: 'lb-2' }))
    expect(await chainsOfRules()).not.toContain('lb-2')
    expect(await chainsOfRules()).toContain('sticky')
  })

  it('carries connections to both endpoints', async () => {
    await committed(nftables(), ruleset(family))
    const reached = new Set<string>()
    const servers: Server[] = []
    for (const ip of endpoints[family]) {
      const server = createServer((socket) => socket.end(ip))
      servers.push(server)
      await new Promise<void>((resolve) => server.listen(8080, ip, resolve))
    }
    for (const [host, number] of [
      [vip[family], 80],
      [endpoints[family][0], 30080],
    ] as const) {
      reached.clear()
      for (let i = 0; i < 60 && reached.size < 2; i++) {
        reached.add(
          await new Promise<string>((resolve, reject) => {
            const client = connect({ host, port: number }).on('error', reject)
            client.setTimeout(timeLimit(5000), () => client.destroy(new Error('timeout')))
            client.once('data', (answer) => {
              client.destroy()
              resolve(answer.toString())
            })
          }),
        )
      }
      expect([...reached].sort()).toEqual([...endpoints[family]].sort())
    }
    await Promise.all(servers.map((server) => new Promise((resolve) => server.close(resolve))))
  })
})

describe('transactions', () => {
  const small = (writer: MessageWriter) => {
    writeTable(writer, { family: 4, name: table })
    writeSet(writer, {
      family: 4,
      table,
      name: 's',
      id: 1,
      flags: 0,
      ...describeSet({ key: ['ip daddr'] }),
      fieldLengths: [4],
    })
  }
  const addresses = (count: number): Element[] =>
    Array.from({ length: count }, (_, i) => ({ key: Uint8Array.of(10, i >> 16, i >> 8, i) }))

  it('report which message is at fault, and change nothing', async () => {
    const nft = nftables()
    await committed(nft, small)
    const elements = addresses(5)
    const map = describeSet({ key: ['ip daddr'], data: ['ip daddr'] })
    const present = { key: elements[3]?.key as Uint8Array, data: key('1.1.1.1') }
    await committed(nft, (writer) => {
      writeSet(writer, { family: 4, table, name: 'm', id: 1, flags: SET_MAP, ...map })
      writeElements(writer, { family: 4, table, set: 'm', elements: [present] })
    })
    let contradicting = 0
    const { failures } = await commit(nft, (writer) => {
      writeElements(writer, { family: 4, table, set: 's', elements })
      contradicting = writer.sequence
      const changed = elements.map((element) => ({ ...element, data: key('2.2.2.2') }))
      writeElements(writer, { family: 4, table, set: 'm', elements: changed })
    })
    expect(failures.map(({ sequence }) => sequence)).toEqual([contradicting])
    expect(nft.failure('commit', failures[0] as never).fields).toMatchObject({ errno: 'EEXIST' })
    expect(await listElements(nft, 4, 's')).toEqual([])
  })

  it('contain up to a hundred thousand elements', async () => {
    const nft = nftables()
    const elements = addresses(100_000)
    await committed(nft, (writer) => {
      small(writer)
      writeElements(writer, { family: 4, table, set: 's', elements })
    })
    const listed = await listElements(nft, 4, 's')
    expect(listed).toHaveLength(100_000)
    expect(new Set(listed.map(({ key }) => Buffer.from(key).readUInt32BE())).size).toBe(100_000)
  })

  it('let the event loop run while the kernel works on a large one, and other sockets wait for it', async () => {
    const [nft, other] = [nftables(), nftables()]
    const elements = addresses(50_000)
    let turns = 0
    let running = true
    const count = () => {
      turns++
      if (running) setImmediate(count)
    }
    setImmediate(count)
    const large = committed(nft, (writer) => {
      small(writer)
      writeElements(writer, { family: 4, table, set: 's', elements })
    })
    // A small commit needs no turn of the event loop, so this one has waited for the large one.
    await committed(other, (writer) => writeTable(writer, { family: 4, name: 'other' }))
    expect(turns).toBeGreaterThan(0)
    await large
    running = false
    // A socket that is closed during a send in the background is closed after the send.
    const closing = commit(nft, (writer) => writeElements(writer, { family: 4, table, set: 's', elements }, 'delete'))
    nft.close()
    await closing.catch(() => {})
    expect(await listElements(other, 4, 's')).toHaveLength(0)
  })

  it.skipIf(!kernelAtLeast(6, 3))('destroy a table that may not exist', async () => {
    const nft = nftables()
    await committed(nft, (writer) => writeTable(writer, { family: 6, name: 'nothing' }, 'destroy'))
    const { failures } = await commit(nft, (writer) => writeTable(writer, { family: 6, name: 'nothing' }, 'delete'))
    expect(nft.failure('commit', failures[0] as never).fields.errno).toBe('ENOENT')
  })
})

describe('other processes', () => {
  const own = (writer: MessageWriter) =>
    writeTable(writer, { family: 4, name: table, flags: TABLE_OWNER | TABLE_PERSIST, comment: 'ours' })

  it.skipIf(!canOwn)(
    'cannot change a table that has an owner; the table outlives its owner, and the next process of ours can own it',
    async () => {
      const first = nftables()
      await committed(first, own)
      expect(() => namespace.exec('nft', ['add', 'chain', 'ip', table, 'x'])).toThrow('Operation not permitted')
      namespace.exec('nft', ['flush', 'ruleset'])
      expect(list()).toContain(`table ip ${table}`)
      const second = nftables()
      const { failures } = await commit(second, (writer) => writeChain(writer, { family: 4, table, name: 'x' }))
      expect(second.failure('commit', failures[0] as never).fields.errno).toBe('EPERM')
      first.close()
      expect(list()).toContain(`table ip ${table}`)
      await committed(second, own)
      await committed(second, (writer) => writeChain(writer, { family: 4, table, name: 'x' }))
      await committed(second, (writer) => writeTable(writer, { family: 4, name: table }, 'delete'))
    },
  )

  it('interrupt every dump by committing to their own tables all the time, and the list is complete nevertheless', async () => {
    const nft = nftables()
    const others = nftables()
    const chains = Array.from({ length: 1_500 }, (_, i) => `chain-${i}`)
    const expressions: Expression[] = Array.from({ length: 8 }, () => ({ expression: 'meta', key: 'mark', dreg: 1 }))
    await committed(nft, (writer) => {
      writeTable(writer, { family: 4, name: table })
      for (const name of chains) writeChain(writer, { family: 4, table, name })
      for (const chain of chains) writeRule(writer, { family: 4, table, chain, expressions })
    })
    let busy = true
    const storm = async () => {
      for (let i = 0; busy; i++) {
        const verb = i % 2 === 0 ? 'add' : 'delete'
        await committed(others, (writer) => writeTable(writer, { family: 4, name: 'others' }, verb))
        await nextTurn()
      }
    }
    const committing = storm()
    try {
      expect((await nft.chains(4, table)).map(({ name }) => name)).toEqual(chains)
      expect((await nft.rules(4, table)).map(({ chain }) => chain)).toEqual(chains)
    } finally {
      busy = false
      await committing
    }
  })

  it('are named in the notifications of what changed', async () => {
    const notices: Notice[] = []
    let seen = () => {}
    open.push(
      watchRuleset({
        notice(notice) {
          notices.push(notice)
          if (notice.kind === 'commit') seen()
        },
        lost: () => expect.unreachable(),
      }),
    )
    const next = () =>
      new Promise<void>((resolve) => {
        seen = resolve
      })
    const nft = nftables()
    let received = next()
    await committed(nft, (writer) => writeTable(writer, { family: 4, name: table }))
    await received
    expect(notices).toEqual([
      { kind: 'change', type: 0xa00, family: 2, table, port: nft.port },
      expect.objectContaining({ kind: 'commit', port: nft.port, pid: process.pid }),
    ])
    notices.length = 0
    received = next()
    namespace.exec('nft', ['add', 'chain', 'ip', table, 'intruder'])
    await received
    expect(notices).toEqual([
      expect.objectContaining({ kind: 'change', table, type: 0xa03 }),
      expect.objectContaining({ kind: 'commit', program: 'nft' }),
    ])
    expect(notices[0]?.port).not.toBe(nft.port)
  })
})
