// Counts connections per service port and endpoint in iptables mode, in both flavours, while endpoints change and the proxy ends and starts.

import { type ChildProcess, fork } from 'node:child_process'
import { once } from 'node:events'
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, it, onTestFinished } from 'vitest'
import { AdminClient } from '../../src/http/admin-client.ts'
import type { CountedPort, DriverRequest } from '../lab/engine.worker.ts'
import type { EnteredNamespace } from '../lab/entered-namespace.ts'
import { serveObjects } from '../lab/fixed-api.ts'
import { nodeName } from '../scenarios/expand.ts'
import type { Manifest } from '../scenarios/format.ts'
import { nodeSettings } from '../scenarios/node-settings.ts'
import { type Bundle, bundleProgram } from '../support/bundle-program.ts'
import { until } from '../support/until.ts'
import {
  affinity,
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
import { type Flavour, privateLock } from './iptables-holdings.ts'
import { NodeNetwork, nodeIp, podIps } from './node-network.ts'
import { web } from './web-service.ts'
import { WholeProxy } from './whole-proxy.ts'

privateLock()

/** A long run opens 100,000. */
const connections = Number(process.env.COUNTED ?? 800)

let namespace: EnteredNamespace
let storm: ConnectionStorm
let worker: Bundle
const proxies: ChildProcess[] = []

beforeAll(async () => {
  storm = await ConnectionStorm.prepare()
  worker = await bundleProgram(join(import.meta.dirname, '../lab/engine.worker.ts'))
})

afterAll(() => {
  storm.remove()
  worker.remove()
})

const connect: ConnectionStorm['connect'] = (...args) => storm.connect(...args)

class CountingProxy {
  readonly #child: ChildProcess

  private constructor() {
    this.#child = fork(worker.file, { env: { ...process.env, SLUICE_TEST_V: '0' } })
    proxies.push(this.#child)
  }

  static async start(manifests: readonly Manifest[]): Promise<CountingProxy> {
    const proxy = new CountingProxy()
    const settings = nodeSettings('iptables', [4], [{ addresses: [node] }])
    const interfaceAddresses = ['127.0.0.1', node]
    await proxy.ask({ ask: 'start', mode: 'iptables', families: [4], settings, interfaceAddresses, initial: manifests })
    await proxy.ask({ ask: 'settle' })
    return proxy
  }

  async ask<T>(request: DriverRequest): Promise<T> {
    this.#child.send(request)
    const [answer] = await once(this.#child, 'message')
    if (answer.error !== undefined) throw new Error(answer.error)
    return answer.result as T
  }

  async counts(name: CountedService = 'plain'): Promise<CountedPort> {
    return findCounts(await this.ask<readonly CountedPort[]>({ ask: 'count' }), name)
  }

  async total(name: CountedService = 'plain'): Promise<number> {
    return (await this.counts(name)).connections
  }

  async change(...put: readonly Manifest[]): Promise<void> {
    await this.ask({ ask: 'apply', put, drop: [] })
    await this.ask({ ask: 'settle' })
  }

  async end(way: 'kill' | 'stop'): Promise<void> {
    if (way === 'stop') await this.ask({ ask: 'stop', keepBase: true })
    this.#child.kill('SIGKILL')
    await once(this.#child, 'exit')
  }
}

describe.each(['nft', 'legacy'] as const)('counters of iptables mode, flavour %s', (flavour: Flavour) => {
  beforeEach(async () => {
    namespace = enterCountedNamespace()
    // Kubelet makes this chain in the flavour that the node uses.
    namespace.exec(`iptables-${flavour}`, ['-t', 'mangle', '-N', 'KUBE-KUBELET-CANARY'])
    await storm.serve()
  })

  afterEach(async () => {
    await endAll(proxies.splice(0))
    await storm.stop()
    namespace.leave()
  })

  const listEndpointChains = (): readonly string[] =>
    namespace.exec(`iptables-${flavour}-save`, ['-t', 'nat']).match(/^:KUBE-SEP-\S+/gm) ?? []

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
    const perEndpoint = Object.values(sticky.endpoints).map((one) => one.connections)
    expect([sticky.connections, ...perEndpoint.sort()]).toEqual([12, 0, 12])
    // The chains get other rules when affinity begins and ends.
    await proxy.change(service('plain', affinity), service('sticky', { sessionAffinity: 'None' }))
    await connect(5, vips.plain)
    expect([await proxy.total(), await proxy.total('sticky')]).toEqual([55, 12])
    expect(sumOf(await proxy.counts())).toBe(55)
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
      const hosts = hostLists[changes++ % hostLists.length] as readonly number[]
      await proxy.change(endpoints('plain', hosts), endpoints('sticky', hosts))
      const now = await proxy.total()
      expect(now, `after ${changes} changes`).toBeGreaterThanOrEqual(seen)
      seen = now
    }
    await clients
    expect(changes).toBeGreaterThan(1)
    // A service that loses all endpoints keeps its count, also when their chains have been read and removed.
    await proxy.change(endpoints('plain', []), endpoints('sticky', [1]))
    expect([await proxy.total(), await proxy.total('sticky')]).toEqual([3 * share, share])
    await until('the other chains are gone', () => listEndpointChains().length === 1)
    expect(await proxy.total('sticky')).toBe(share)
    expect(await proxy.counts()).toMatchObject({ connections: 3 * share, endpoints: {} })
  })

  it('survive a proxy that is killed or stopped, and endpoints that go meanwhile', async () => {
    let proxy = await CountingProxy.start(objects([1, 2, 3]))
    await connect(30, vips.plain)
    await proxy.change(endpoints('plain', [2, 3, 4]))
    await connect(20, vips.plain)
    // Killed while the chain of an endpoint lingers.
    await proxy.end('kill')
    await connect(10, vips.plain)
    proxy = await CountingProxy.start(objects([3, 4, 5]))
    expect(await proxy.total()).toBe(60)
    expect(Object.keys((await proxy.counts()).endpoints)).toHaveLength(3)
    await connect(10, vips.plain)
    await until('other chains are gone', () => listEndpointChains().length === 6)
    // Stopped with sums of endpoints that are gone.
    await proxy.end('stop')
    await connect(5, vips.plain)
    proxy = await CountingProxy.start(objects([3, 6]))
    expect(await proxy.total()).toBe(75)
    // Cleanup removes the table of sums with the rules.
    expect(namespace.exec('nft', ['list', 'tables'])).toContain('sluice-counts')
    await proxy.ask({ ask: 'stop', keepBase: false })
    expect(namespace.exec('nft', ['list', 'tables'])).not.toContain('sluice-counts')
  })

  it('never decrease when another program deletes or resets rules', async () => {
    const proxy = await CountingProxy.start(objects([1, 2]))
    await connect(25, vips.plain)
    expect(await proxy.total()).toBe(25)
    namespace.exec(`iptables-${flavour}`, ['-t', 'nat', '-Z'])
    await connect(5, vips.plain)
    expect(await proxy.total()).toBe(30)
    const repaired = proxy.ask({ ask: 'repaired', limitMs: 15_000 })
    await new Promise((resolve) => setTimeout(resolve, 100))
    namespace.exec(`iptables-${flavour}`, ['-t', 'nat', '-F', 'KUBE-SERVICES'])
    await repaired
    expect(await proxy.total()).toBe(30)
    await connect(5, vips.plain)
    expect(await proxy.total()).toBe(35)
  })
})

it('are in the metrics and in the answers of a whole proxy', async () => {
  const folder = mkdtempSync(join(tmpdir(), 'sluice-counters-'))
  const network = await NodeNetwork.create()
  const api = await serveObjects(network.node, nodeName, nodeIp, web().put)
  onTestFinished(async () => {
    api.close()
    await network.close()
    rmSync(folder, { recursive: true })
  })
  const SLUICE_ADMIN_SOCKET = join(folder, 'admin.sock')
  const proxy = await WholeProxy.start({ network, api, mode: 'iptables', env: { SLUICE_ADMIN_SOCKET } })
  onTestFinished(() => proxy.stop('SIGKILL'))
  await proxy.waitUntilSynced()
  for (let i = 0; i < 3; i++) expect(podIps).toContain(await network.ask())
  const line = 'sluice_service_connections_total{namespace="ns1",service="web",port="http",ip_family="IPv4"} 3\n'
  await until('the metrics have the connections', async () => (await proxy.metrics()).includes(line))
  const { ports, uncounted } = await new AdminClient(SLUICE_ADMIN_SOCKET).traffic('ns1/web')
  expect([uncounted, ports[0]?.connections]).toEqual(['', 3])
  expect(ports[0]?.endpoints?.map(({ address }) => address).sort()).toEqual(podIps.map((ip) => `${ip}:8080`))
})
