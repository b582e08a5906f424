// Runs the whole program through changes, hostile services and faults while a service that nobody touches is probed all the time: no
// connection fails, the state at the end is that of a proxy that starts from scratch, and memory stays flat.

import { spawnSync } from 'node:child_process'
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { FaultyProxy } from '../kernel/faulty-proxy.ts'
import { privateLock } from '../kernel/iptables-holdings.ts'
import { NodeNetwork, nodeIp, podIps } from '../kernel/node-network.ts'
import { web } from '../kernel/web-service.ts'
import { type Item, WatchedApi } from '../lab/watched-api.ts'
import { nodeName } from '../scenarios/expand.ts'
import { until } from '../support/until.ts'
import { ChaosChanges } from './chaos-changes.ts'
import { type ChaosWorld, faults } from './chaos-faults.ts'
import { Prober } from './prober.ts'
import { Random } from './random.ts'

const seconds = Number(process.env.CHAOS_SECONDS ?? 20)
const rate = Number(process.env.CHAOS_RATE ?? 50)
const seed = Number(process.env.CHAOS_SEED ?? Date.now() % 1_000_000)
const mode = process.env.CHAOS_MODE === 'iptables' ? 'iptables' : 'nftables'
const lastIp = '172.30.60.1'
const canaryIp = '172.30.60.2'

const canRun = process.getuid?.() === 0 && spawnSync('ip', ['netns', 'list']).status === 0
if (!canRun) console.log('SKIPPED chaos: it needs root and network namespaces')

privateLock()

let network: NodeNetwork
let api: WatchedApi
let disk: string

beforeAll(async () => {
  if (!canRun) return
  disk = mkdtempSync(join(tmpdir(), 'sluice-chaos-'))
  spawnSync('mount', ['-t', 'tmpfs', '-o', 'size=48m', 'tmpfs', disk])
  network = await NodeNetwork.create()
  api = await WatchedApi.listen(network.node, 8001)
  const status = { addresses: [{ type: 'InternalIP', address: nodeIp }] }
  api.put({ apiVersion: 'v1', kind: 'Node', metadata: { name: nodeName }, spec: {}, status } as Item)
  api.put(...(web().put as readonly unknown[] as readonly Item[]))
})

afterAll(async () => {
  if (!canRun) return
  api?.close()
  await network?.close()
  spawnSync('umount', [disk])
  rmSync(disk, { recursive: true, force: true })
})

/** Switches everything on that is off by default: what wakes by itself must survive the faults, too. */
function writeSettings(): string {
  const file = join(disk, 'sluice.json')
  const settings = {
    apiVersion: 'sluice/v1alpha1',
    kind: 'SluiceConfiguration',
    canary: { addresses: [canaryIp], interval: '1s' },
    draining: { local: 'on' },
    history: { directory: join(disk, 'history') },
    outliers: { ejection: 'on' },
    resets: { connections: 'on' },
    state: { directory: join(disk, 'state') },
  }
  writeFileSync(file, JSON.stringify(settings))
  return file
}

const start = (name: string): Promise<FaultyProxy> =>
  FaultyProxy.start({
    ...{ network, url: api.url, mode, logFile: join(disk, `${name}.log`) },
    env: { SLUICE_CONFIG: writeSettings() },
  })

/** All rules of the proxy without handles and counters, in an order that does not depend on their history. */
async function listState(): Promise<readonly string[]> {
  const lists =
    mode === 'nftables'
      ? 'nft -s list table ip kube-proxy; nft -s list table ip6 kube-proxy'
      : 'iptables-save; ip6tables-save'
  const text = await network.run(lists)
  const lines =
    mode === 'nftables' ? text.replace(carriedCounter, '').split(/[\n{}]|,(?=\s)/) : text.split('\n').map(dropCounters)
  const kept = lines
    .map((line) => line.trim().replace(slotNumber, '$1 slot : '))
    .filter((line) => line !== '' && !line.startsWith('#') && !isOfCanary(line))
  const chains = new Set(kept.map((line) => line.split(' ')[1]))
  return kept.filter((line) => !line.startsWith(':KUBE-SEP-') || chains.has(line.slice(1, -2))).sort()
}

/** What was counted before a slot was written again. */
const carriedCounter = /counter carried-[^{]*\{[^}]*\}/g
/** Which of the slots of a service an endpoint has depends on the history. */
const slotNumber = /^(\S+ \. (?:tcp|udp|sctp) \. \d+) \. \d+ (?:counter )?: /
/** The endpoint of the canary is a socket on loopback, which changes at each check. */
const isOfCanary = (line: string): boolean =>
  line.includes(canaryIp) || line.includes('data-path') || line.startsWith('127.0.0.1 . 127.0.0.1 .')
const dropCounters = (line: string): string => line.replace(/ \[\d+:\d+\]$/, '')

/** The tables that a process owns. A lost socket loses them until the sync that follows a failed one. */
const countOwned = (state: readonly string[]): number => state.filter((line) => line === 'flags owner').length

const linesOnlyIn = (a: readonly string[], b: readonly string[]): readonly string[] =>
  a.filter((line) => !b.includes(line))

/** The state, after it has not changed for a while and so many tables have an owner. */
async function listSettledState(owned = 0): Promise<readonly string[]> {
  let before = await listState()
  let difference: readonly string[] = []
  // Unused slots are swept after two periods of 1.1 s, later on a busy machine. So the state must stay the same for six seconds.
  let equal = 0
  await until(
    'the state settles',
    async () => {
      await sleep(3000)
      const now = await listState()
      difference = [...linesOnlyIn(before, now), ...linesOnlyIn(now, before)]
      before = now
      equal = difference.length === 0 ? equal + 1 : 0
      return equal >= 2 && countOwned(now) >= owned
    },
    { limitMs: 120_000 },
  ).catch((error: unknown) => {
    throw new Error(`${countOwned(before)} of ${owned} tables have an owner; changed: ${difference.join('; ')}`, {
      cause: error,
    })
  })
  return before
}

async function wipe(): Promise<void> {
  if (mode === 'nftables') await network.run('nft delete table ip kube-proxy; nft delete table ip6 kube-proxy')
  else {
    const tables = ['nat', 'filter', 'mangle'].flatMap((table) =>
      ['iptables', 'ip6tables'].map((program) => `${program} -t ${table} -F; ${program} -t ${table} -X`),
    )
    await network.run(tables.join('; '))
  }
}

async function changeUntil(end: number, changes: ChaosChanges): Promise<void> {
  const begin = Date.now()
  while (Date.now() < end) {
    while (changes.made < ((Date.now() - begin) / 1000) * rate) changes.makeOne()
    await sleep(20)
  }
}

async function injectUntil(end: number, world: ChaosWorld): Promise<Readonly<Record<string, number>>> {
  const counts: Record<string, number> = {}
  while (Date.now() < end) {
    const name = world.random.choose(Object.keys(faults))
    await faults[name]?.(world)
    counts[name] = (counts[name] ?? 0) + 1
    await sleep(world.random.between(200, 1500))
  }
  return counts
}

const median = (list: readonly number[]): number => list.toSorted((a, b) => a - b)[list.length >> 1] ?? 0

/** Samples the memory once a second, and prints a line every minute. */
async function watchMemoryUntil(end: number, { proxy, prober }: ChaosWorld): Promise<readonly number[]> {
  const samples: number[] = []
  while (Date.now() < end && proxy.isRunning) {
    samples.push(proxy.residentMegabytes())
    if (samples.length % 60 === 0) {
      const { made, failed } = prober
      const last = median(samples.slice(-60)).toFixed()
      console.log(`${new Date().toISOString()} ${made} connections, ${failed.length} failed, ${last} MB`)
    }
    await sleep(1000)
  }
  return samples
}

/** Counts the warnings and errors of a log by their messages. */
function summariseLog(log: string): string {
  const counts = new Map<string, number>()
  for (const [, text = '', error = ''] of log.matchAll(/^[WE]\d{4} [^\]]*\] "([^"]*)"(?:.*? (error="[^"]*))?/gm)) {
    const message = `${text} ${error.slice(0, 120)}`
    counts.set(message, (counts.get(message) ?? 0) + 1)
  }
  const lines = [...counts].sort(([, a], [, b]) => b - a).map(([message, count]) => `  ${count} ${message}`)
  return [`its log, ${log.length} bytes:`, ...lines].join('\n')
}

describe.skipIf(!canRun)('chaos', () => {
  it(`no connection to an untouched service fails in ${seconds} s of ${rate} changes/s with faults, mode ${mode}, seed ${seed}`, {
    timeout: (seconds + 300) * 1000,
  }, async () => {
    const proxy = await start('chaos')
    await until('the service answers', async () => (podIps as readonly string[]).includes(await network.ask()))
    const owned = countOwned(await listState())
    const prober = new Prober(network)
    const changes = new ChaosChanges(api, new Random(seed), seed)
    const world: ChaosWorld = { network, api, proxy, prober, random: new Random(seed + 1), disk }
    const end = Date.now() + seconds * 1000
    const [counts, memory] = await Promise.all([
      injectUntil(end, world),
      watchMemoryUntil(end, world),
      changeUntil(end, changes),
    ])
    expect(proxy.isRunning, proxy.log.slice(-2000)).toBe(true)
    changes.makeLast(lastIp)
    await until('the last change is programmed', async () => (await network.ask(lastIp)) === podIps[0], {
      limitMs: 120_000,
      everyMs: 200,
    })
    const atTheEnd = await listSettledState(owned)
    await prober.stop()
    const quarter = Math.max(1, memory.length >> 2)
    const [early, late] = [median(memory.slice(quarter, 2 * quarter)), median(memory.slice(-quarter))]
    console.log(
      `chaos, mode ${mode}, seed ${seed}: ${seconds} s, ${changes.made} changes, ${prober.made} connections, ` +
        `${prober.failed.length} failed, ${early.toFixed()} to ${late.toFixed()} MB (most ${Math.max(...memory).toFixed()}), ` +
        `${atTheEnd.length} lines of state, faults ${JSON.stringify(counts)}`,
    )
    console.log(summariseLog(proxy.log))
    expect(proxy.isRunning, proxy.log.slice(-2000)).toBe(true)
    expect(prober.failed).toEqual([])
    expect(prober.made).toBeGreaterThan(seconds * 5)
    expect(late).toBeLessThan(early * 1.25 + 24)
    await proxy.end('SIGKILL')
    await wipe()
    const scratch = await start('scratch')
    expect(atTheEnd).toEqual(await listSettledState(owned))
    await scratch.end()
  })
})
