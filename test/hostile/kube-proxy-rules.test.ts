// Compares the rules of iptables mode with those of the real kube-proxy, over a random history of random services: after each change both
// have read the same objects, and their tables are equal, line by line.

import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { privateLock } from '../kernel/iptables-holdings.ts'
import { NodeNetwork, nodeIp } from '../kernel/node-network.ts'
import { expand } from '../kernel/web-service.ts'
import { hasKubeProxy, kubeProxy, WholeProxy } from '../kernel/whole-proxy.ts'
import { type Item, WatchedApi } from '../lab/watched-api.ts'
import { nodeName } from '../scenarios/expand.ts'
import type { Json } from '../scenarios/twins.ts'
import { until } from '../support/until.ts'
import { Random } from './random.ts'

privateLock()

const worlds = Number(process.env.HOSTILE_WORLDS ?? 8)
const seed = Number(process.env.HOSTILE_SEED ?? 1)
const services = 12
const changesPerWorld = 6
const canRun = process.getuid?.() === 0 && hasKubeProxy
if (!canRun) console.log(`SKIPPED rules beside the real kube-proxy: needs root and ${kubeProxy}`)

/** A proxy with a node and an API server of its own. */
interface Side {
  readonly network: NodeNetwork
  readonly api: WatchedApi
  readonly proxy: WholeProxy
}

async function startSide(program: 'ours' | 'kube-proxy'): Promise<Side> {
  const network = await NodeNetwork.create()
  const api = await WatchedApi.listen(network.node, 8001)
  const status = { addresses: [{ type: 'InternalIP', address: nodeIp }] }
  const labels = { 'kubernetes.io/hostname': nodeName, 'topology.kubernetes.io/zone': 'zone-a' }
  const metadata = { name: nodeName, labels }
  api.put({ apiVersion: 'v1', kind: 'Node', metadata, spec: {}, status } as Item)
  const theirFlags = ['--kube-api-content-type=application/json']
  const flags = ['--iptables-min-sync-period=0s', ...(program === 'ours' ? [] : theirFlags)]
  const proxy = await WholeProxy.start({ network, api, mode: 'iptables', program, flags })
  await proxy.waitUntilSynced()
  return { network, api, proxy }
}

const protocols = ['tcp', 'udp', 'sctp'] as const
const states = [
  '',
  '',
  '',
  '',
  'terminating',
  'stopped',
  'unready',
  'published',
  'unknown',
  'for-zone=zone-a',
  'for-zone=zone-b',
]

/** The ports of a service. Node ports and addresses are its own: what becomes of addresses that two services want is another test. */
function makePorts(random: Random, n: number, hasNodePorts: boolean): readonly string[] {
  return Array.from({ length: random.between(1, 4) }, (_, i) => {
    const nodePort = hasNodePorts && random.chance(0.9) ? ` ${30_100 + 10 * n + i}` : ''
    return `p${i} ${80 + i}/${random.choose(protocols)}${nodePort}`
  })
}

function makeSlice(random: Random, name: string, ports: readonly string[]): Json {
  const endpoints = Array.from({ length: random.between(0, 5) }, () => {
    const where = random.choose(['local', 'remote', 'remote'])
    return `10.${random.between(180, 183)}.0.${random.between(1, 7)} ${where} ${random.choose(states)}`.trim()
  })
  const own = ports
    .filter(() => random.chance(0.9))
    .map((port) => {
      const [portName, number] = port.split(' ') as [string, string]
      return `${portName} ${random.between(8000, 8003)}/${number.split('/')[1]}`
    })
  return { slice: name, ports: own, endpoints: [...new Map(endpoints.map((one) => [one.split(' ')[0], one])).values()] }
}

/** A service with its slices, number `n` of those that exist at a time. */
function makeService(random: Random, n: number): readonly Item[] {
  const type = random.choose(['ClusterIP', 'NodePort', 'LoadBalancer', 'LoadBalancer'])
  const name = `ns${n % 3}/svc-${n}`
  const ports = makePorts(random, n, type !== 'ClusterIP')
  const isLocal = type !== 'ClusterIP' && random.chance(0.4)
  const fields: Record<string, Json> = { service: name, type, clusterIP: `172.30.0.${10 + n}`, ports: [...ports] }
  if (random.chance(0.4))
    fields.externalIPs = [`192.168.99.${10 + n}`, `192.168.98.${10 + n}`].slice(random.between(0, 2))
  if (type === 'LoadBalancer' && random.chance(0.8)) {
    fields.lb = random.chance(0.2) ? [{ ip: `1.2.3.${n}`, ipMode: 'Proxy' }] : [`1.2.3.${n}`, `1.2.4.${n}`]
    if (random.chance(0.4))
      fields.loadBalancerSourceRanges = ['203.0.113.0/25', '192.168.0.0/24', '10.0.0.0/8'].slice(random.between(0, 3))
  }
  if (isLocal) fields.externalTrafficPolicy = 'Local'
  if (isLocal && type === 'LoadBalancer') fields.healthCheckNodePort = 31_000 + n
  if (random.chance(0.3)) fields.internalTrafficPolicy = 'Local'
  if (random.chance(0.3)) fields.affinity = random.choose([1, 60, 10_800])
  if (random.chance(0.2)) fields.trafficDistribution = 'PreferClose'
  const slices = Array.from({ length: random.between(0, 3) }, (_, i) => makeSlice(random, `${name}#s${i}`, ports))
  const items = [fields, ...slices].map((one, i) => expand(one, 10 * n + i)) as unknown as readonly Item[]
  return withoutContradictions(items)
}

interface SliceItem extends Item {
  readonly ports: readonly { readonly name: string; readonly protocol: string; readonly port: number }[]
  readonly endpoints: readonly {
    readonly addresses: readonly string[]
    readonly conditions?: { terminating?: boolean }
  }[]
}

const isSlice = (item: Item): item is SliceItem => item.kind === 'EndpointSlice'

/**
 * Leaves out endpoints that another slice of the service has at the same port with other conditions, on another node or with other hints.
 * kube-proxy goes through slices in the random order of a Go map, so that each of its runs may choose another one; for us the key of the
 * slice decides (D7). An endpoint that terminates does not contradict one that does not: both proxies prefer the latter.
 */
function withoutContradictions(items: readonly Item[]): readonly Item[] {
  const known = new Map<string, string>()
  return items.map((item) => {
    if (!isSlice(item)) return item
    const endpoints = item.endpoints.filter((endpoint) => {
      const keys = item.ports.map(({ name, protocol, port }) =>
        [name, protocol, port, endpoint.addresses[0], endpoint.conditions?.terminating === true].join(' '),
      )
      const text = JSON.stringify(endpoint)
      if (keys.some((key) => (known.get(key) ?? text) !== text)) return false
      for (const key of keys) known.set(key, text)
      return true
    })
    return { ...item, endpoints } as Item
  })
}

/** The tables without counters. */
async function save({ network }: Side): Promise<readonly string[]> {
  const text = await network.run('iptables-save')
  const lines = text.split('\n').filter((line) => line !== '' && !line.startsWith('#'))
  return lines.map((line) => line.replace(/\[\d+:\d+\]/, ''))
}

/** In these chains kube-proxy orders services at random. */
const isUnordered = (line: string): boolean =>
  /^-A KUBE-(?:SERVICES|NODEPORTS|EXTERNAL-SERVICES|PROXY-FIREWALL) /.test(line)
const chainOf = (line: string): string => /^-A (\S+)/.exec(line)?.[1] ?? line
const byText = (a: string, b: string): number => (a < b ? -1 : 1)

/** The same text for the same tables: chains in the order of their names, rules in the order in which packets meet them. */
const normalise = (lines: readonly string[]): readonly string[] => {
  const ordered = lines.filter((line) => !isUnordered(line)).map((line, i) => [chainOf(line), i, line] as const)
  const sorted = ordered.toSorted(([a, i], [b, j]) => (a === b ? i - j : byText(a, b))).map(([, , line]) => line)
  return [...sorted, ...lines.filter(isUnordered).toSorted(byText)]
}

/** Changes some services, on both sides. */
function changeServices(random: Random, current: Map<number, readonly Item[]>, sides: readonly Side[]): void {
  const isFirst = current.size === 0
  for (let i = 0; i < (isFirst ? services : changesPerWorld); i++) {
    const n = isFirst ? i : random.between(0, services)
    const next = random.chance(0.8) ? makeService(random, n) : []
    const names = new Set(next.map(({ kind, metadata }) => `${kind} ${metadata.name}`))
    const gone = (current.get(n) ?? []).filter(({ kind, metadata }) => !names.has(`${kind} ${metadata.name}`))
    for (const { api } of sides) {
      api.drop(...gone)
      api.put(...next)
    }
    current.set(n, next)
  }
}

/** Returns both tables as soon as they are equal, or as they are after a while. */
async function compareTables([theirs, ours]: readonly [Side, Side]): Promise<readonly (readonly string[])[]> {
  let tables: readonly (readonly string[])[] = []
  const areEqual = async () => {
    tables = [normalise(await save(theirs)), normalise(await save(ours))]
    return String(tables[0]) === String(tables[1])
  }
  await until('the tables are equal', areEqual, { limitMs: 45_000, everyMs: 300 }).catch(() => undefined)
  return tables
}

describe.runIf(canRun)('iptables mode beside the real kube-proxy', () => {
  const sides: Side[] = []

  beforeAll(async () => {
    sides.push(await startSide('kube-proxy'), await startSide('ours'))
  })

  afterAll(async () => {
    for (const { proxy, api, network } of sides) {
      await proxy.stop('SIGKILL')
      api.close()
      await network.close()
    }
  })

  const title = `writes the same rules after each of ${worlds} random changes (seed ${seed})`
  it(title, { timeout: 60_000 * worlds }, async () => {
    const random = new Random(seed)
    const current = new Map<number, readonly Item[]>()
    let rules = 0
    for (let world = 0; world < worlds; world++) {
      changeServices(random, current, sides)
      const [wanted = [], got = []] = await compareTables(sides as [Side, Side])
      expect(got, `world ${world}, seed ${seed}`).toEqual(wanted)
      rules = Math.max(rules, wanted.length)
    }
    expect(rules).toBeGreaterThan(100)
  })
})
