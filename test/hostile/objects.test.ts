// Fuzzes the whole path from watch lines to entries with hostile objects: a service that nobody touches keeps its entries, a history
// ends where a restart begins, and deletion leaves nothing. The real plans of the modes are part of the path.

import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import type { Family } from '../../src/lib/ip.ts'
import type { NodeFacts } from '../../src/model/node.ts'
import { type BuiltObject, buildObject, type HostileObject, hostileObjects, type Targets } from './hostile-objects.ts'
import { families, MemoryProxy, type PlannedMode } from './memory-proxy.ts'
import { ObjectFeed } from './object-feed.ts'

const objects = Number(process.env.HOSTILE_OBJECTS ?? 3000)
// The same objects each time, so that a change of the code is what makes it fail.
const seed = Number(process.env.HOSTILE_SEED ?? 1)
const perHistory = 40

const facts: NodeFacts = {
  name: 'here',
  zone: '',
  ips: { 4: '192.0.2.1', 6: '2001:db8::1', primary: 4 },
  nodePortAddresses: [],
  interfaceAddresses: ['127.0.0.1', '::1', '192.0.2.1', '2001:db8::1'],
  detectLocal: {
    mode: 'ClusterCIDR',
    clusterCidrs: ['10.0.0.0/8'],
    podCidrs: [],
    bridgeInterface: '',
    interfaceNamePrefix: '',
  },
  masqueradeAll: false,
  masqueradeBit: 14,
  serviceCidrs: [],
  externalIps: true,
  listeners: [{ ip: '0.0.0.0', port: 10_256, holder: 'the health server' }],
  apiServers: [{ ip: '192.0.2.9', port: 6443 }],
}

const targets: Targets = {
  clusterIps: ['172.30.0.41', 'fd00:30::41'],
  podIps: ['10.0.0.1', '10.0.0.2'],
  reservedIps: ['192.0.2.1', '192.0.2.9', '127.0.0.1'],
  ports: [80, 8080, 6443, 10_256],
}

function putCanary(feed: ObjectFeed): void {
  const metadata = { namespace: 'canary', name: 'web', uid: 'u', creationTimestamp: '2024-06-01T00:00:00Z' }
  const labels = { 'kubernetes.io/service-name': 'web' }
  feed.put('services', 'canary/web', {
    metadata,
    spec: {
      type: 'NodePort',
      clusterIP: targets.clusterIps[0],
      clusterIPs: targets.clusterIps,
      ipFamilies: ['IPv4', 'IPv6'],
      ports: [{ name: 'http', protocol: 'TCP', port: 80, nodePort: 30_080 }],
    },
  })
  const endpoints = targets.podIps.map((ip) => ({ addresses: [ip], nodeName: 'there', conditions: { ready: true } }))
  feed.put('endpointslices', 'canary/web-1', {
    metadata: { ...metadata, name: 'web-1', labels },
    addressType: 'IPv4',
    ports: [{ name: 'http', protocol: 'TCP', port: 8080 }],
    endpoints,
  })
}

type Step =
  | { readonly do: 'put'; readonly one: HostileObject }
  | { readonly do: 'drop'; readonly nth: number }
  | { readonly do: 'cut' }
  | { readonly do: 'wait'; readonly ms: number }
  | { readonly do: 'garbage'; readonly line: string }

const step: fc.Arbitrary<Step> = fc.oneof(
  { weight: 20, arbitrary: hostileObjects(targets).map((one) => ({ do: 'put' as const, one })) },
  { weight: 5, arbitrary: fc.nat(100).map((nth) => ({ do: 'drop' as const, nth })) },
  { weight: 1, arbitrary: fc.constant({ do: 'cut' as const }) },
  { weight: 3, arbitrary: fc.constantFrom(0, 10, 1000, 31_000).map((ms) => ({ do: 'wait' as const, ms })) },
  {
    weight: 1,
    arbitrary: fc
      .constantFrom(
        '',
        'null',
        '{',
        '[]',
        '{"type":"ADDED"}',
        '{"type":"ADDED","object":null}',
        '{"type":"X","object":{}}',
        '"',
      )
      .map((line) => ({ do: 'garbage' as const, line })),
  },
)

/** The hostile objects that exist, so that steps can drop them. */
class History {
  readonly feed = new ObjectFeed()
  readonly #alive = new Map<string, BuiltObject>()

  constructor() {
    putCanary(this.feed)
  }

  async run(step: Step, proxy: MemoryProxy): Promise<void> {
    if (step.do === 'put') {
      const one = buildObject(step.one)
      this.#alive.set(`${one.resource} ${one.id}`, one)
      this.feed.put(one.resource, one.id, one.object)
    } else if (step.do === 'drop') this.#drop([...this.#alive.keys()][step.nth % Math.max(1, this.#alive.size)])
    else if (step.do === 'cut') this.feed.cut()
    else if (step.do === 'wait') await proxy.clock.advance(step.ms)
    else this.feed.send('services', step.line)
  }

  dropAll(): void {
    for (const key of [...this.#alive.keys()]) this.#drop(key)
  }

  #drop(key: string | undefined): void {
    const one = key === undefined ? undefined : this.#alive.get(key)
    if (key === undefined || one === undefined) return
    this.#alive.delete(key)
    this.feed.drop(one.resource, one.id)
  }
}

async function contentsOf(feed: ObjectFeed, mode: PlannedMode): Promise<readonly Record<string, string>[]> {
  const proxy = await new MemoryProxy(feed, facts, mode).start()
  const contents = proxy.contents()
  await proxy.stop()
  return contents
}

/** The entries of the canary and the base, as a proxy that knows nothing else writes them. */
async function canaryEntries(mode: PlannedMode) {
  const empty = await contentsOf(new ObjectFeed(), mode)
  const alone = await contentsOf(new History().feed, mode)
  const own = alone.map((all, i) =>
    Object.fromEntries(Object.entries(all).filter(([id]) => empty[i]?.[id] === undefined)),
  )
  expect(Object.keys(own[0] ?? {}).length).toBeGreaterThan(0)
  return { alone, own }
}

/** How many histories were compared with a fresh start. */
const compared = { with: 0, without: 0 }

type Canary = Awaited<ReturnType<typeof canaryEntries>>

async function checkHistory(history: readonly Step[], mode: PlannedMode, canary: Canary): Promise<void> {
  const { alone, own } = canary
  const world = new History()
  const proxy = await new MemoryProxy(world.feed, facts, mode).start()
  const expectCanary = () =>
    expect(own.flatMap((entries, i) => proxy.missing(families[i] as Family, entries))).toEqual([])
  for (const step of history) {
    await world.run(step, proxy)
    expectCanary()
  }
  await proxy.settle()
  expect(proxy.thrown).toEqual([])
  expectCanary()
  // A service that exceeds a limit keeps what it had before, which a fresh start does not know.
  const isOverLimit = proxy.engine.quarantined().some(({ error }) => error.code === 'limit')
  if (!isOverLimit) expect(proxy.contents()).toEqual(await contentsOf(world.feed, mode))
  compared[isOverLimit ? 'without' : 'with']++
  if (mode === 'memory') expectReservedFree(proxy)
  world.dropAll()
  await proxy.settle()
  expect(proxy.contents()).toEqual(alone)
  expect(proxy.engine.quarantined()).toEqual([])
  expect(proxy.engine.conflicts()).toEqual([])
  await proxy.stop()
  expect(proxy.thrown).toEqual([])
}

/** No service may hold the API server's address, the proxy's own port on an address of the node, or loopback. */
function expectReservedFree(proxy: MemoryProxy): void {
  const ids = proxy.contents().flatMap((all) => Object.keys(all))
  const taken = ids.filter((id) =>
    /^frontend (192\.0\.2\.9:6443\/tcp|192\.0\.2\.1:10256\/tcp|:10256\/tcp|127\.|\[::1\])/.test(id),
  )
  expect(taken).toEqual([])
}

describe('hostile objects', () => {
  const shares: readonly [PlannedMode, number][] = [
    ['memory', 0.4],
    ['nftables', 0.3],
    ['iptables', 0.15],
    ['ipvs', 0.15],
  ]
  it.each(shares)(
    'harm no other service, leave nothing, and end where a restart begins: plan of %s',
    { timeout: 0 },
    async (mode, share) => {
      const numRuns = Math.max(1, Math.round((objects * share) / perHistory))
      const canary = await canaryEntries(mode)
      const steps = fc.array(step, { minLength: perHistory / 2, maxLength: perHistory * 1.5, size: 'max' })
      await fc.assert(
        fc.asyncProperty(steps, (history) => checkHistory(history, mode, canary)),
        { numRuns, seed, endOnFailure: process.env.HOSTILE_SHRINK !== '1' },
      )
      expect(compared.with).toBeGreaterThan(compared.without)
    },
  )
})
