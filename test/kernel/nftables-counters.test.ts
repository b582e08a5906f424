// Counts connections per service port and endpoint while endpoints change and the proxy ends and starts: every sum is exact.

import { type ChildProcess, fork } from 'node:child_process'
import { once } from 'node:events'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { afterAll, afterEach, beforeAll, describe, expect, it } from 'vitest'
import type { CountedPort } from '../lab/engine.worker.ts'
import type { EnteredNamespace } from '../lab/entered-namespace.ts'
import { canOwn } from '../lab/kernel-traits.ts'
import type { Manifest } from '../scenarios/format.ts'
import { type Bundle, bundleProgram } from '../support/bundle-program.ts'
import {
  ConnectionStorm,
  type CountedService,
  endAll,
  endpoints,
  enterCountedNamespace,
  findCounts,
  hostLists,
  net,
  node,
  nodePort,
  objects,
  port,
  service,
  sumOf,
  vips,
} from './counted-services.ts'
import { scenario } from './in-process-proxy.ts'
import type { Order } from './nftables.worker.ts'

/** A long run opens 100,000. */
const connections = Number(process.env.COUNTED ?? 4_000)
const settings = scenario('S11').node.nftables

let namespace: EnteredNamespace
let storm: ConnectionStorm
let worker: Bundle
const proxies: ChildProcess[] = []

beforeAll(async () => {
  storm = await ConnectionStorm.prepare()
  worker = await bundleProgram(join(import.meta.dirname, 'nftables.worker.ts'))
  namespace = enterCountedNamespace()
  await storm.serve()
})

afterEach(async () => {
  await endAll(proxies.splice(0))
  namespace.exec('nft', ['delete', 'table', 'ip', 'kube-proxy'])
})

afterAll(async () => {
  await storm.stop()
  namespace.leave()
  storm.remove()
  worker.remove()
})

const connect: ConnectionStorm['connect'] = (...args) => storm.connect(...args)

class CountingProxy {
  readonly #child: ChildProcess

  private constructor(features: string | undefined) {
    const env = { ...process.env, ...(features === undefined ? {} : { SLUICE_NFT_FEATURES: features }) }
    this.#child = fork(worker.file, { env })
    proxies.push(this.#child)
  }

  static async start(manifests: readonly Manifest[], features?: string): Promise<CountingProxy> {
    const proxy = new CountingProxy(features)
    await proxy.obey({ do: 'start', settings, manifests })
    return proxy
  }

  async obey<T>(order: Order): Promise<T> {
    this.#child.send(order)
    const [answer] = await once(this.#child, 'message')
    if (answer.error !== undefined) throw new Error(answer.error)
    return answer as T
  }

  async counts(name: CountedService = 'plain'): Promise<CountedPort> {
    const { ports } = await this.obey<{ ports: readonly CountedPort[] }>({ do: 'count' })
    return findCounts(ports, name)
  }

  async total(name: CountedService = 'plain'): Promise<number> {
    return (await this.counts(name)).connections
  }

  change(...rounds: readonly (readonly Manifest[])[]): Promise<unknown> {
    return this.obey({ do: 'change', rounds })
  }

  async kill(): Promise<void> {
    this.#child.kill('SIGKILL')
    await once(this.#child, 'exit')
  }

  /** Ends as after SIGTERM: the table is exchanged for one without an owner. */
  async stop(): Promise<void> {
    await this.obey({ do: 'stop' })
    await this.kill()
  }
}

const rounds = (count: number): readonly (readonly Manifest[])[] =>
  Array.from({ length: count }, (_, i) => {
    const hosts = hostLists[i % hostLists.length] as readonly number[]
    return [endpoints('plain', hosts), endpoints('sticky', hosts)]
  })

describe('counters of nftables mode', () => {
  it('count connections to cluster IPs and node ports, per endpoint, with and without affinity', async () => {
    const proxy = await CountingProxy.start(objects([1, 2]))
    await connect(30, vips.plain)
    await connect(20, node, 1, nodePort)
    await connect(12, vips.sticky)
    const plain = await proxy.counts()
    expect(plain.connections).toBe(50)
    expect(Object.keys(plain.endpoints).sort()).toEqual([`${net}.1:${port}`, `${net}.2:${port}`])
    expect(sumOf(plain)).toBe(50)
    // One client keeps its endpoint.
    const sticky = await proxy.counts('sticky')
    expect(sticky.connections).toBe(12)
    expect(
      Object.values(sticky.endpoints)
        .map((one) => one.connections)
        .sort(),
    ).toEqual([0, 12])
  })

  it('are readable by nft, which loads its own listing again', async () => {
    const proxy = await CountingProxy.start(objects([1, 2]))
    await connect(10, vips.plain)
    await proxy.change([endpoints('plain', [3])], [endpoints('plain', [3, 4])])
    const listing = namespace.exec('nft', ['list', 'ruleset'])
    expect(listing).toMatch(/map endpoints \{[^}]*counter\n/)
    expect(listing).toMatch(/counter carried-\w+ \{\s+comment "ns\/plain:p"\s+packets \d+ bytes 0/)
    const text = listing.replaceAll(/flags .*owner.*\n/g, '')
    namespace.exec('nft', ['-c', '-f', '-'], text.replaceAll('table ip kube-proxy', 'table ip again'))
  })

  it(`lose none of ${connections} connections while endpoints change`, { timeout: 600_000 }, async () => {
    const proxy = await CountingProxy.start(objects([1, 2]))
    let isOver = false
    const share = connections / 4
    const clients = Promise.all([
      connect(share, vips.plain, 1),
      connect(share, vips.plain, 2),
      connect(share, node, 3, nodePort),
      connect(share, vips.sticky, 4),
    ]).finally(() => {
      isOver = true
    })
    let [seen, changes] = [0, 0]
    while (!isOver) {
      await proxy.change(...rounds(4).map((round, i) => rounds(8)[(changes + i) % 8] ?? round))
      changes += 4
      const now = await proxy.total()
      expect(now, `after ${changes} changes`).toBeGreaterThanOrEqual(seen)
      seen = now
    }
    await clients
    expect(await proxy.total()).toBe(3 * share)
    expect(await proxy.total('sticky')).toBe(share)
    // Unused slots are swept after two seconds; their counts are kept.
    await sleep(3_000)
    await proxy.change([endpoints('plain', [1, 2])], [endpoints('plain', [2, 3])])
    expect(await proxy.total()).toBe(3 * share)
    expect(await proxy.total('sticky')).toBe(share)
  })

  it('survive that a service loses all endpoints', async () => {
    const proxy = await CountingProxy.start(objects([1, 2]))
    await connect(40, vips.plain)
    await proxy.change([endpoints('plain', [])])
    expect(await proxy.total()).toBe(40)
    await sleep(3_000)
    expect(await proxy.total()).toBe(40)
    await proxy.change([endpoints('plain', [5])])
    await connect(2, vips.plain)
    expect(await proxy.total()).toBe(42)
    expect((await proxy.counts()).endpoints).toEqual({ [`${net}.5:${port}`]: { connections: 2 } })
  })

  const ways = ['kill', 'stop'] as const
  it.each(ways)('survive a proxy that ends by %s and starts again, while clients connect', async (way) => {
    let proxy = await CountingProxy.start(objects([1, 2, 3]))
    let isOver = false
    const keepConnecting = async (...[ip, source, at]: [ip: string, source: number, at?: number]) => {
      let made = 0
      for (; !isOver; made += 500) await connect(500, ip, source, at)
      return made
    }
    const clients = Promise.all([
      keepConnecting(vips.plain, 1),
      keepConnecting(node, 2, nodePort),
      keepConnecting(vips.sticky, 3),
    ])
    for (let i = 0; i < 2; i++) {
      await proxy.change(...rounds(5))
      // What was counted in the moment of a commit is written with the next transaction, which follows at once.
      if (way === 'kill') await sleep(200)
      await proxy[way]()
      proxy = await CountingProxy.start(objects([1, 2, 3]))
    }
    isOver = true
    const [addressed, nodePorted, sticky] = await clients
    await proxy[way]()
    proxy = await CountingProxy.start(objects([4, 2, 3]))
    expect([await proxy.total(), await proxy.total('sticky')]).toEqual([addressed + nodePorted, sticky])
  })

  it.each([
    ['weights', { 'sluice/weights': `${net}.1=5` }],
    ['consistent hashing', { 'sluice/algorithm': 'consistent-hash' }],
    ['turns', { 'sluice/algorithm': 'round-robin' }],
  ])(
    'are exact where an endpoint has several slots, also after an exchange of the table: %s',
    async (_, annotations) => {
      const plain = service('plain')
      const given = [{ ...plain, metadata: { ...plain.metadata, annotations } }, endpoints('plain', [1, 2])]
      let proxy = await CountingProxy.start(given)
      await connect(40, vips.plain)
      await connect(20, node, 2, nodePort)
      await proxy.stop()
      proxy = await CountingProxy.start(given)
      expect(await proxy.total()).toBe(60)
      await proxy.change([endpoints('plain', [2, 3])])
      await connect(10, vips.plain, 3)
      expect(await proxy.total()).toBe(70)
    },
  )

  it('survive the repair of a table that another program has changed', async () => {
    const proxy = await CountingProxy.start(objects([1, 2]), 'destroy,counters')
    await connect(25, vips.plain)
    await proxy.change([endpoints('plain', [3])])
    await connect(5, vips.plain)
    namespace.exec('nft', ['flush', 'chain', 'ip', 'kube-proxy', 'services'])
    const rules = () => namespace.exec('nft', ['list', 'chain', 'ip', 'kube-proxy', 'services'])
    await expect.poll(rules, { timeout: 30_000 }).toContain('vmap')
    expect(await proxy.total()).toBe(30)
  })

  it('are off where the kernel cannot count in maps, and begin when it can', async () => {
    const without = await CountingProxy.start(objects([1, 2]), 'owner,persist,destroy')
    await connect(5, vips.plain)
    await expect(without.counts()).rejects.toThrow(/no counters/)
    expect(namespace.exec('nft', ['list', 'ruleset'])).not.toContain('counter')
    await without.kill()
    const proxy = await CountingProxy.start(objects([1, 2]))
    await connect(5, vips.plain)
    expect(await proxy.total()).toBe(5)
    if (canOwn) expect(namespace.exec('nft', ['list', 'ruleset'])).toContain('owner')
  })
})
