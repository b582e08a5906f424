// The whole program while the machine fails: netlink sockets are lost, notifications overflow, the disk is full, the clock jumps, and
// thousands of changes come while the process is stopped. Rules stay, and what happened meanwhile is made up for.

import { spawnSync } from 'node:child_process'
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout as delay } from 'node:timers/promises'
import { afterAll, afterEach, beforeAll, expect, it } from 'vitest'
import { type Item, WatchedApi } from '../lab/watched-api.ts'
import { nodeName } from '../scenarios/expand.ts'
import { shortWaits } from '../support/short-waits.ts'
import { until } from '../support/until.ts'
import { fakeClockOf, fakeClocksOf, provideFaketime } from './faketime.ts'
import { FaultyProxy, type FaultyProxyOptions } from './faulty-proxy.ts'
import { NodeNetwork, nodeIp, podIps } from './node-network.ts'
import { extras, single, web } from './web-service.ts'

let network: NodeNetwork
let api: WatchedApi
let folder: string
let proxy: FaultyProxy | undefined

const items = (objects: readonly unknown[]): readonly Item[] => objects as readonly Item[]
const faketime = provideFaketime()
if (faketime === undefined) console.log('SKIPPED libfaketime: this machine has no such package')

beforeAll(async () => {
  folder = mkdtempSync(join(tmpdir(), 'sluice-faults-'))
  network = await NodeNetwork.create()
  api = await WatchedApi.listen(network.node, 8001)
  const status = { addresses: [{ type: 'InternalIP', address: nodeIp }] }
  api.put({ apiVersion: 'v1', kind: 'Node', metadata: { name: nodeName }, spec: {}, status } as Item)
  api.put(...items([...web().put, ...extras(10).put]))
})

afterEach(async () => {
  await proxy?.end('SIGKILL')
  proxy = undefined
})

afterAll(async () => {
  api?.close()
  await network?.close()
  rmSync(folder, { recursive: true, force: true })
})

let starts = 0

async function start(options: Partial<FaultyProxyOptions> = {}): Promise<FaultyProxy> {
  const logFile = join(folder, `${++starts}.log`)
  proxy = await FaultyProxy.start({ network, url: api.url, mode: 'nftables', logFile, ...options })
  return proxy
}

const isPod = (answer: string): boolean => (podIps as readonly string[]).includes(answer)

/** Adds a service, and waits until it answers: the proxy follows the API server and writes to the kernel. */
async function expectProgress(number: number): Promise<void> {
  const ip = `172.30.70.${number}`
  api.put(...items(single(`progress/svc-${number}`, ip)))
  await until(`service ${number} answers`, async () => isPod(await network.ask(ip)), { limitMs: 60_000, everyMs: 50 })
}

/** Seconds of CPU time that the process has used. */
function cpuSeconds(pid: number): number {
  const [user = 0, system = 0] =
    readFileSync(`/proc/${pid}/stat`, 'utf8').split(') ')[1]?.split(' ').slice(11, 13).map(Number) ?? []
  return (user + system) / 100
}

/** Node ports are only served on addresses of this network, which the proxy must know. */
const nodePortFlag = '--nodeport-addresses=10.99.0.0/16,192.168.0.0/16'

async function expectNewAddress(ip: string): Promise<void> {
  await network.run(`ip addr add ${ip}/32 dev lo`)
  const isServed = async () => isPod(await network.ask(ip, 30_080, 1000))
  await until(`a node port on ${ip} answers`, isServed, { limitMs: 60_000, everyMs: 100 })
}

it('all netlink sockets are lost, also those for notifications: they are opened again', async () => {
  const one = await start({ flags: [nodePortFlag], env: shortWaits })
  expect(await one.order({ do: 'lose sockets', share: 1 })).toBeGreaterThan(2)
  expect(isPod(await network.ask())).toBe(true)
  await expectProgress(1)
  await expectNewAddress('10.99.0.1')
  expect(one.log).toContain('Interface addresses are listed again')
  expect(one.log).toContain('the socket for notifications was lost')
  // Later changes are noticed without another loss.
  await expectNewAddress('10.99.0.2')
  expect(one.log.match(/Interface addresses are listed again/g)).toHaveLength(1)
})

it('the socket that owns the table is lost while nothing changes: the table has an owner again', async () => {
  const one = await start({ env: shortWaits })
  await one.order({ do: 'lose sockets', share: 1 })
  await until('the loss is noticed', () => one.log.includes('the socket that owns the table was lost'), {
    limitMs: 60_000,
  })
  const isOwned = async () => (await network.run('nft list table ip kube-proxy')).includes('owner')
  await until('the table has an owner', isOwned, { limitMs: 60_000 })
})

it('notifications overflow a small buffer (ENOBUFS): addresses are listed again', async () => {
  const one = await start({ flags: [nodePortFlag] })
  await one.order({ do: 'shrink buffers' })
  const addresses = Array.from({ length: 500 }, (_, i) => `10.98.${i >> 8}.${i & 255}/32 dev lo`)
  const input = addresses.flatMap((address) => [`addr add ${address}`, `addr del ${address}`]).join('\n')
  await one.stopDuring(async () => {
    await network.node.exec('ip', ['-batch', '-'], { input })
    await network.run('ip addr add 10.99.0.3/32 dev lo')
  })
  await until('the node port answers', async () => isPod(await network.ask('10.99.0.3', 30_080, 1000)), {
    limitMs: 60_000,
  })
  expect(one.log).toContain('Interface addresses are listed again')
  expect(one.log).toContain('reason="notifications were lost"')
  await expectProgress(2)
})

it('the disk is full, for the log and for the admin socket: the proxy serves', async () => {
  const disk = join(folder, 'disk')
  spawnSync('mkdir', [disk])
  // Room for the log file and a few KB of it, and no inode for the socket or its folder.
  expect(spawnSync('mount', ['-t', 'tmpfs', '-o', 'size=8k,nr_inodes=2,mode=755', 'tmpfs', disk]).status).toBe(0)
  try {
    const logFile = join(disk, 'log')
    const one = await start({ logFile, flags: ['--v=4'], env: { SLUICE_ADMIN_SOCKET: join(disk, 'admin.sock') } })
    expect(one.log).toContain('Cannot open the admin socket')
    for (let i = 20; one.log.length < 8192; i++) await expectProgress(i)
    await expectProgress(3)
    // Room again: the next line says how many were lost.
    writeFileSync(logFile, '')
    await expectProgress(4)
    await until('the loss is logged', () => one.log.includes('Log lines were lost'), { limitMs: 30_000 })
  } finally {
    await proxy?.end('SIGKILL')
    proxy = undefined
    spawnSync('umount', [disk])
  }
})

it.runIf(faketime !== undefined)(
  'the wall clock jumps by years in both directions: nothing stops or spins',
  async () => {
    const file = join(folder, 'time')
    writeFileSync(file, '+0d')
    const one = await start({ env: fakeClockOf(faketime as string, file) })
    const year = async () => {
      const text = await one.metrics()
      return new Date(Number(/last_timestamp_seconds\{ip_family="IPv4"\} (\S+)/.exec(text)?.[1]) * 1000).getFullYear()
    }
    const now = new Date().getFullYear()
    for (const [i, [jump, years]] of (
      [
        ['+3650d', 10],
        ['-3650d', -10],
        ['+1d', 0],
      ] as const
    ).entries()) {
      writeFileSync(file, jump)
      const before = cpuSeconds(one.pid)
      await delay(2000)
      expect(cpuSeconds(one.pid) - before).toBeLessThan(1.5)
      await expectProgress(10 + i)
      // The program did see the jump.
      await until('the metric has the new time', async () => Math.abs((await year()) - now - years) <= 1)
    }
    expect(one.isRunning).toBe(true)
  },
)

it('thousands of changes while the process is stopped: it catches up', async () => {
  const one = await start()
  await one.stopDuring(async () => {
    for (let turn = 0; turn < 40; turn++) {
      api.put(...items(extras(100, turn % 80).put))
      await delay(50)
    }
    expect(isPod(await network.ask())).toBe(true)
  })
  await expectProgress(5)
  const text = await network.run('nft list map ip kube-proxy endpoints')
  // The endpoints of the last turn, and no others.
  expect(text).toContain('10.200.7.118 ')
  expect(text).not.toContain('10.200.7.115 ')
  expect(one.residentMegabytes()).toBeLessThan(250)
  api.drop(...items(extras(100).put))
})

it.runIf(faketime !== undefined)(
  'stopped for twenty minutes by all its clocks, while the API server ends watches and forgets versions: it catches up',
  async () => {
    const file = join(folder, 'minutes')
    writeFileSync(file, '+0s')
    const gone = items(single('stopped/gone', '172.30.70.240'))
    api.put(...gone)
    const one = await start({ env: fakeClocksOf(faketime as string, file) })
    await until('the service answers', async () => isPod(await network.ask('172.30.70.240')), { limitMs: 60_000 })
    expect(await one.order({ do: 'read clock' })).toBeLessThan(600)
    await one.stopDuring(async () => {
      // The test does not wait for minutes: the program's clocks, the monotonic one too, are moved while it is stopped. So every timer is due
      // when it goes on, and all its connections are closed.
      writeFileSync(file, '+20m')
      await api.downDuring(() => delay(500))
      api.drop(...gone)
      api.put(...items(extras(100, 7).put))
      await delay(1000)
      expect(isPod(await network.ask())).toBe(true)
    })
    await expectProgress(6)
    // The program did see twenty minutes.
    expect(await one.order({ do: 'read clock' })).toBeGreaterThan(1200)
    await until('the deleted service is gone', async () => !isPod(await network.ask('172.30.70.240', 80, 500)), {
      limitMs: 60_000,
    })
    const text = await network.run('nft list map ip kube-proxy endpoints')
    expect(text).toContain('10.200.7.22 ')
    expect(text).not.toContain('10.200.7.1 ')
    const before = cpuSeconds(one.pid)
    await delay(2000)
    expect(cpuSeconds(one.pid) - before).toBeLessThan(1.5)
    api.drop(...items(extras(100).put))
  },
)
