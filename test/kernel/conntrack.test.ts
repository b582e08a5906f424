import { createSocket, type Socket } from 'node:dgram'
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, beforeEach, describe, expect, it } from 'vitest'
import { ConntrackCleaner } from '../../src/engine/flows/stale-flows.ts'
import type { Family } from '../../src/lib/ip.ts'
import { silentLogger } from '../../src/lib/log.ts'
import { systemClock } from '../../src/lib/time.ts'
import type { ServicePort } from '../../src/model/types.ts'
import { ConntrackTable } from '../../src/sys/netlink/conntrack.ts'
import type { TrackedFlow } from '../../src/sys/netlink/conntrack-codec.ts'
import { type EnteredNamespace, enterNamespace } from '../lab/entered-namespace.ts'
import { servicePort } from '../support/builders.ts'

// Rules of nft translate the service address and a node port to the endpoint that the rule names.
const service = { 4: '10.96.0.10', 6: 'fd00:96::10' } as const
const endpoints = { 4: ['10.0.0.1', '10.0.0.2'], 6: ['fd00::1', 'fd00::2'] } as const

let namespace: EnteredNamespace
const sockets: Socket[] = []
const table = () => new ConntrackTable()

beforeAll(() => {
  namespace = enterNamespace()
  for (const ip of endpoints[4]) namespace.exec('ip', ['addr', 'add', `${ip}/32`, 'dev', 'lo'])
  for (const ip of endpoints[6]) namespace.exec('ip', ['addr', 'add', `${ip}/128`, 'dev', 'lo', 'nodad'])
  // The route is not over loopback, because the kernel rejects IPv6 packets that are routed there.
  namespace.exec('ip', ['link', 'add', 'out', 'type', 'veth', 'peer', 'name', 'away'])
  for (const name of ['out', 'away']) namespace.exec('ip', ['link', 'set', name, 'up'])
  for (const ip of Object.values(service)) {
    namespace.exec('ip', ['route', 'add', ip, 'dev', 'out'])
    namespace.exec('ip', ['neigh', 'add', ip, 'lladdr', '02:00:00:00:00:01', 'dev', 'out', 'nud', 'permanent'])
  }
})

afterAll(async () => {
  await Promise.all(sockets.map((socket) => new Promise<void>((resolve) => socket.close(() => resolve()))))
  namespace.leave()
})

beforeEach(() => {
  namespace.exec('nft', ['flush', 'ruleset'])
  namespace.exec('conntrack', ['-F'])
})

function translate(family: Family, endpoint: string, port = 5353): void {
  const ip = family === 4 ? 'ip' : 'ip6'
  const host = family === 4 ? endpoint : `[${endpoint}]`
  const rules = [
    `table ${ip} t`,
    `delete table ${ip} t`,
    `table ${ip} t {`,
    'chain c {',
    'type nat hook output priority -100;',
    `${ip} daddr ${service[family]} udp dport 53 dnat to ${host}:${port}`,
    `udp dport 32000 dnat to ${host}:${port}`,
    '}',
    '}',
  ]
  namespace.exec('nft', ['-f', '-'], rules.join('\n'))
}

/** Starts a server that answers with its own address. */
async function startServer(family: Family, ip: string, port = 5353): Promise<void> {
  const socket = await bindSocket(family, ip, port)
  socket.on('message', (_, from) => socket.send(`${ip}:${port}`, from.port, from.address))
}

async function bindSocket(family: Family, ip: string, port: number): Promise<Socket> {
  const socket = createSocket(family === 4 ? 'udp4' : 'udp6')
  sockets.push(socket)
  await new Promise<void>((resolve) => socket.bind(port, ip, resolve))
  return socket
}

/** Returns the answer; undefined if there is none. */
function ask(client: Socket, ip: string, port: number, waitMs = 2000): Promise<string | undefined> {
  return new Promise((resolve) => {
    const timer = setTimeout(() => done(undefined), waitMs)
    const onMessage = (message: Buffer) => done(message.toString())
    const done = (answer: string | undefined) => {
      clearTimeout(timer)
      client.off('message', onMessage)
      resolve(answer)
    }
    client.on('message', onMessage)
    client.send('?', port, ip)
  })
}

async function list(conntrack: ConntrackTable, family: Family = 4): Promise<TrackedFlow[]> {
  const flows: TrackedFlow[] = []
  await conntrack.list({ family, protocol: 17 }, (chunk) => flows.push(...chunk))
  return flows
}

function dnsPort(family: Family, serving: readonly [string, number][]): ServicePort {
  return servicePort({
    service: 'ns/dns',
    portName: '',
    family,
    protocol: 'udp',
    frontends: [
      { kind: 'cluster-ip', ip: service[family], port: 53, allow: [] },
      { kind: 'node-port', ip: '', port: 32000, allow: [] },
    ],
    serving: serving.map(([ip, port]) => ({ ip, port, local: true })),
    endpoints: serving.length,
  })
}

function cleaner(conntrack: ConntrackTable, port: ServicePort) {
  return new ConntrackCleaner({
    table: conntrack,
    ports: () => [port],
    nodeAddresses: (family) => endpoints[family],
    clock: systemClock,
    log: silentLogger,
  })
}

describe.each([4, 6] as const)('IPv%i flows made by real packets', (family) => {
  const [first, second] = endpoints[family]
  let client: Socket

  beforeAll(async () => {
    await startServer(family, first)
    await startServer(family, second)
    await startServer(family, second, 9090)
    client = await bindSocket(family, first, 0)
  })

  it('are listed as they are', async () => {
    translate(family, second)
    expect(await ask(client, service[family], 53)).toBe(`${second}:5353`)
    const conntrack = table()
    const flows = await list(conntrack, family)
    conntrack.close()
    expect(flows.find((flow) => flow.destination === service[family])).toMatchObject({
      family,
      protocol: 17,
      source: first,
      sourcePort: client.address().port,
      destinationPort: 53,
      replySource: second,
      replySourcePort: 5353,
      zone: 0,
    })
  })

  it('are found by the direction of their replies', async () => {
    translate(family, second)
    expect(await ask(client, service[family], 53)).toBe(`${second}:5353`)
    const conntrack = table()
    const { port } = client.address()
    const reply = { family, protocol: 17, source: second, sourcePort: 5353, destination: first, destinationPort: port }
    const found = await conntrack.findByReply(reply)
    const other = await conntrack.findByReply({ ...reply, sourcePort: 5354 })
    conntrack.close()
    expect(found).toMatchObject({ source: first, sourcePort: port, destination: service[family], destinationPort: 53 })
    expect(other).toBeUndefined()
  })

  it('H11: a client with a fixed port reaches the old endpoint until its flow is deleted, then the new one', async () => {
    translate(family, first)
    expect(await ask(client, service[family], 53)).toBe(`${first}:5353`)
    translate(family, second)
    expect(await ask(client, service[family], 53)).toBe(`${first}:5353`)
    const conntrack = table()
    const result = await cleaner(conntrack, dnsPort(family, [[second, 5353]])).clean(family)
    expect(result).toMatchObject({ deleted: 1 })
    expect(await ask(client, service[family], 53)).toBe(`${second}:5353`)
    conntrack.close()
  })

  it('H12: a client that sent before there was a rule is served when the first endpoint is there', async () => {
    namespace.exec(
      'nft',
      ['-f', '-'],
      'table inet track {\nchain c {\ntype filter hook output priority 0;\nct state new\n}\n}\n',
    )
    expect(await ask(client, service[family], 53, 100)).toBeUndefined()
    translate(family, second)
    const conntrack = table()
    expect((await cleaner(conntrack, dnsPort(family, [[second, 5353]])).clean(family)).deleted).toBe(1)
    expect(await ask(client, service[family], 53)).toBe(`${second}:5353`)
    conntrack.close()
  })

  it('H13: a changed target port is followed, by service address and by node port', async () => {
    translate(family, second, 5353)
    expect(await ask(client, first, 32000)).toBe(`${second}:5353`)
    expect(await ask(client, service[family], 53)).toBe(`${second}:5353`)
    translate(family, second, 9090)
    const conntrack = table()
    expect((await cleaner(conntrack, dnsPort(family, [[second, 9090]])).clean(family)).deleted).toBe(2)
    expect(await ask(client, first, 32000)).toBe(`${second}:9090`)
    expect(await ask(client, service[family], 53)).toBe(`${second}:9090`)
    conntrack.close()
  })

  it('a first run after a restart leaves working flows alone', async () => {
    translate(family, first)
    expect(await ask(client, service[family], 53)).toBe(`${first}:5353`)
    const conntrack = table()
    const before = (await list(conntrack, family)).map(({ id }) => id)
    const serving: [string, number][] = [
      [first, 5353],
      [second, 5353],
    ]
    expect((await cleaner(conntrack, dnsPort(family, serving)).clean(family)).deleted).toBe(0)
    expect((await list(conntrack, family)).map(({ id }) => id)).toEqual(before)
    conntrack.close()
  })

  it('H9: a flow that is gone or was replaced by another one is not deleted, without an error', async () => {
    translate(family, second)
    await ask(client, service[family], 53)
    const conntrack = table()
    expect(await conntrack.remove([])).toBe(0)
    const flow = (await list(conntrack, family)).find(
      ({ destination }) => destination === service[family],
    ) as TrackedFlow
    expect(await conntrack.remove([{ ...flow, id: (flow.id ^ 1) >>> 0 }])).toBe(0)
    expect(await conntrack.remove([{ ...flow, sourcePort: flow.sourcePort ^ 1 }, flow])).toBe(1)
    expect(await conntrack.remove([flow])).toBe(0)
    expect((await list(conntrack, family)).some(({ id }) => id === flow.id)).toBe(false)
    conntrack.close()
  })
})

it('lists one protocol, regardless of whether the kernel filters', async () => {
  const [original, reply] = ['-s 10.5.0.1 -d 10.5.0.2', '-r 10.5.0.2 -q 10.5.0.1'].map((text) => text.split(' '))
  const insert = (protocol: string, ...more: string[]) =>
    namespace.exec('conntrack', [
      ...['-I', '-p', protocol, '-t', '600', ...(original ?? []), ...(reply ?? []), ...more],
      ...['--orig-port-src', '1000', '--orig-port-dst', '53', '--reply-port-src', '53', '--reply-port-dst', '1000'],
    ])
  insert('udp')
  insert('tcp', '--state', 'ESTABLISHED')
  for (const filters of [true, false]) {
    const conntrack = new ConntrackTable({ filters })
    expect((await list(conntrack)).map(({ protocol }) => protocol)).toEqual([17])
    const tcp: TrackedFlow[] = []
    await conntrack.list({ family: 4, protocol: 6 }, (flows) => tcp.push(...flows))
    expect(tcp.map(({ protocol }) => protocol)).toEqual([6])
    conntrack.close()
  }
})

describe('many flows with the same addresses', () => {
  /** Adds enough flows for one message to delete them all, and two that differ from them in one field each. */
  function fill(family: Family): void {
    const host = (a: number, b: number) =>
      family === 4 ? `10.${a}.${b >> 8}.${b & 255}` : `fd00:${a}::${b.toString(16)}`
    const line = (source: string, to: string, by: string, port: number) =>
      [
        `-I -p udp -t 600 -s ${source} -d ${to} --orig-port-src ${port} --orig-port-dst 53`,
        `-r ${by} -q ${source} --reply-port-src 53 --reply-port-dst ${port}\n`,
      ].join(' ')
    const lines = Array.from({ length: 2500 }, (_, i) => line(host(4, i), host(3, 1), host(2, 1), 1000 + i))
    lines.push(line(host(4, 1), host(3, 2), host(2, 1), 9001), line(host(4, 1), host(3, 1), host(2, 2), 9002))
    const directory = mkdtempSync(join(tmpdir(), 'sluice-conntrack-'))
    writeFileSync(join(directory, 'entries'), lines.join(''))
    namespace.exec('conntrack', ['--load-file', join(directory, 'entries')])
    rmSync(directory, { recursive: true })
  }

  // With IPv6 the kernel's filter would delete all other flows instead.
  it.each([4, 6] as const)('are deleted together, and no others: IPv%i', async (family) => {
    fill(family)
    const conntrack = table()
    const all = await list(conntrack, family)
    const alike = all.filter(({ sourcePort }) => sourcePort < 9000)
    expect(await conntrack.remove(alike)).toBe(2500)
    expect((await list(conntrack, family)).map(({ sourcePort }) => sourcePort).sort()).toEqual([9001, 9002])
    conntrack.close()
  })

  it('finds out what the kernel can do without changing anything', async () => {
    fill(4)
    const conntrack = table()
    expect(await conntrack.features()).toEqual({ filteredList: true, filteredDelete: expect.any(Boolean) })
    expect(await list(conntrack)).toHaveLength(2502)
    conntrack.close()
  })
})

describe('a large table', () => {
  const count = 20_000

  /** Adds flows of which half go to an endpoint that is gone. */
  function fill(): void {
    const lines = Array.from({ length: count }, (_, i) => {
      const from = `10.1.${(i >> 8) & 255}.${i & 255}`
      const to = i % 2 === 0 ? '10.2.0.1' : '10.2.0.2'
      const original = `-s ${from} -d 10.96.0.10 --orig-port-src ${1024 + (i >> 4)} --orig-port-dst 53`
      const reply = `-r ${to} -q ${from} --reply-port-src 5353 --reply-port-dst ${1024 + (i >> 4)}`
      return `-I -p udp -t 600 ${original} ${reply}\n`
    })
    const directory = mkdtempSync(join(tmpdir(), 'sluice-conntrack-'))
    writeFileSync(join(directory, 'entries'), lines.join(''))
    namespace.exec('conntrack', ['--load-file', join(directory, 'entries')])
    rmSync(directory, { recursive: true })
  }

  it('is listed in chunks while the event loop runs, and only stale flows are deleted', async () => {
    fill()
    const conntrack = table()
    let turns = 0
    let listing = true
    const tick = () => {
      turns++
      if (listing) setImmediate(tick)
    }
    setImmediate(tick)
    let largest = 0
    let seen = 0
    await conntrack.list({ family: 4, protocol: 17, destinationPorts: new Set([53]) }, (chunk) => {
      largest = Math.max(largest, chunk.length)
      seen += chunk.length
    })
    listing = false
    expect(seen).toBe(count)
    expect(largest).toBeLessThanOrEqual(512)
    expect(turns).toBeGreaterThan(1)
    const result = await cleaner(conntrack, dnsPort(4, [['10.2.0.1', 5353]])).clean(4)
    expect(result.deleted).toBe(count / 2)
    expect((await list(conntrack)).every(({ replySource }) => replySource === '10.2.0.1')).toBe(true)
    conntrack.close()
  })

  it('stops listing when the signal fires, and the socket works again afterwards', async () => {
    fill()
    const conntrack = table()
    const stop = new AbortController()
    const stopped = conntrack.list({ family: 4, protocol: 17 }, () => stop.abort(new Error('enough')), {
      signal: stop.signal,
    })
    await expect(stopped).rejects.toThrow('enough')
    expect(await list(conntrack)).toHaveLength(count)
    conntrack.close()
  })
})
