// Limits: a refusal by the kernel affects one service only, a missing capability is reported in one line, and a large load does not block the event loop.

import { spawnSync } from 'node:child_process'
import { once } from 'node:events'
import { existsSync } from 'node:fs'
import { connect, createServer } from 'node:net'
import { join } from 'node:path'
import { monitorEventLoopDelay } from 'node:perf_hooks'
import { afterAll, afterEach, beforeAll, describe, expect, it } from 'vitest'
import type { Backend, Held } from '../../src/backend/backend.ts'
import { nftables } from '../../src/backend/nftables/backend.ts'
import { element, type NftEntry } from '../../src/backend/nftables/entries.ts'
import { type EnteredNamespace, enterNamespace } from '../lab/entered-namespace.ts'
import { full, inVm, timeLimit } from '../lab/vm.ts'
import type { Manifest } from '../scenarios/format.ts'
import { type Bundle, bundleProgram } from '../support/bundle-program.ts'
import { InProcessProxy, scenario } from './in-process-proxy.ts'
import { endpointSliceOf, serviceOf } from './manifest-builders.ts'

let namespace: EnteredNamespace
let proxy: InProcessProxy | undefined
let bundle: Bundle | undefined
const { node } = scenario('S11')

beforeAll(() => {
  namespace = enterNamespace()
})

afterEach(async () => {
  await proxy?.stop()
  proxy = undefined
  namespace.exec('nft', ['flush', 'ruleset'])
})

afterAll(() => {
  namespace.leave()
  bundle?.remove()
})

const vip = (i: number) => `172.30.${i >> 8}.${i & 255}`
const objects = (i: number): Manifest[] => [
  serviceOf(`svc${i}`, vip(i), [{ name: 'p', port: 80 }]),
  endpointSliceOf(
    `svc${i}`,
    Array.from({ length: 5 }, (_, n) => `10.${100 + n}.${i >> 8}.${i & 255}`),
    8080,
  ),
]

/** Connects from the address, and returns the address of the endpoint that answered. */
async function dial(source: string): Promise<string> {
  const socket = connect({ host: vip(1), port: 80, localAddress: source })
  const [answer] = (await once(socket, 'data')) as [Buffer]
  socket.destroy()
  return answer.toString()
}

describe('affinity with many endpoints', () => {
  it('returns each client to its endpoint, also after another endpoint has come', async () => {
    namespace.exec('ip', ['route', 'add', 'local', '10.100.0.0/16', 'dev', 'lo'])
    namespace.exec('ip', ['route', 'add', '172.30.0.0/16', 'dev', 'lo'])
    const server = createServer((socket) => socket.end(socket.localAddress ?? 'none')).listen(8080, '0.0.0.0')
    try {
      proxy = await InProcessProxy.start(node.nftables, { families: [4] })
      const affinity = { sessionAffinity: 'ClientIP', sessionAffinityConfig: { clientIP: { timeoutSeconds: 600 } } }
      const endpoints = Array.from({ length: 151 }, (_, i) => `10.100.1.${i}`)
      proxy.put(
        serviceOf('svc1', vip(1), [{ name: 'p', port: 80 }], affinity),
        endpointSliceOf('svc1', endpoints.slice(1), 8080),
      )
      proxy.synced()
      await proxy.settled()
      const clients = Array.from({ length: 20 }, (_, i) => `10.100.2.${i + 1}`)
      const first = await Promise.all(clients.map(dial))
      expect(new Set(first).size).toBeGreaterThan(5)
      const since = proxy.reports.length
      proxy.put(endpointSliceOf('svc1', endpoints, 8080))
      await proxy.settled(since)
      expect(await Promise.all(clients.map(dial))).toEqual(first)
    } finally {
      server.close()
    }
  })
})

describe('isolation in the kernel', () => {
  it('quarantines the service that the kernel refuses, reports the reason, and serves it when the kernel accepts it', async () => {
    const real = nftables()
    let broken = true
    const backend: Backend<NftEntry> = {
      ...real,
      plan: (port, view) => {
        const entries = real.plan(port, view)
        if (!broken || port.service !== 'ns/svc2') return entries
        return [...entries, element('service-ips', '172.30.99.99 tcp 80', 'goto nowhere', port.name)]
      },
    }
    proxy = await InProcessProxy.start(node.nftables, { families: [4], backend: backend as unknown as Backend<Held> })
    proxy.put(...[1, 2, 3].flatMap(objects))
    proxy.synced()
    await proxy.settled()
    const { refused } = proxy.reports.find((report) => report.refused.length > 0) ?? { refused: [] }
    expect(refused.map(({ service, id }) => ({ service, id }))).toEqual([
      { service: 'ns/svc2', id: 'service-ips 172.30.99.99 tcp 80' },
    ])
    expect(refused[0]?.error.message).toContain('ENOENT')
    expect(proxy.engine.quarantined().map(({ service }) => service)).toEqual(['ns/svc2'])
    const table = namespace.exec('nft', ['list', 'table', 'ip', 'kube-proxy'])
    // The entries of the refused service that the kernel accepts are in the table.
    for (const i of [1, 2, 3]) expect(table).toContain(`${vip(i)} . tcp . 80 comment "ns/svc${i}:p" : goto lb-5`)
    broken = false
    const since = proxy.reports.length
    proxy.put(objects(2)[0] as Manifest, endpointSliceOf('svc2', ['10.9.9.9'], 8080))
    await proxy.settled(since)
    expect(proxy.engine.quarantined()).toEqual([])
  })
})

describe('a missing capability', () => {
  it.skipIf(!existsSync('/usr/bin/setpriv'))(
    'without CAP_NET_ADMIN the proxy reports it in one line, and ends before it removes leftovers of other modes',
    async () => {
      bundle = await bundleProgram(join(import.meta.dirname, '../commands/sluice.worker.ts'))
      const { status, stdout, stderr } = spawnSync(
        '/usr/bin/setpriv',
        [
          ...['--bounding-set', '-net_admin', '--inh-caps', '-net_admin', process.execPath, bundle.file],
          ...['proxy', '--proxy-mode=nftables', '--master=http://127.0.0.1:1', '--hostname-override=n'],
        ],
        { encoding: 'utf8' },
      )
      expect(`${status} ${stdout}`).toBe('1 ')
      expect(stderr).toContain('CAP_NET_ADMIN is missing: nftables mode must run as root or with that capability')
      expect(stderr.trim().split('\n')).toHaveLength(1)
    },
  )
})

/** On an emulated CPU a tenth of the services takes as long. */
const manyInVm = full ? 1000 : 200
const many = inVm ? manyInVm : 10_000

describe(`${many} services`, () => {
  it('are loaded, released and loaded again without blocking the event loop', {
    timeout: timeLimit(300_000),
  }, async () => {
    const manifests = Array.from({ length: many }, (_, i) => objects(i + 1)).flat()
    const watch = async (what: string, work: () => Promise<unknown>) => {
      const delay = monitorEventLoopDelay({ resolution: 1 })
      const cpu = process.cpuUsage()
      const began = performance.now()
      delay.enable()
      await work()
      delay.disable()
      const { user, system } = process.cpuUsage(cpu)
      const ms = (nanos: number) => (nanos / 1e6).toFixed(0)
      console.log(
        `${what}: ${(performance.now() - began).toFixed(0)} ms, CPU ${((user + system) / 1000).toFixed(0)} ms; ` +
          `event loop held p99 ${ms(delay.percentile(99))} ms, longest ${ms(delay.max)} ms`,
      )
    }
    const load = async () => {
      proxy = await InProcessProxy.start(node.nftables, { families: [4] })
      proxy.put(...manifests)
      await watch('sync', async () => {
        proxy?.synced()
        await proxy?.settled()
      })
    }
    await load()
    const count = () => namespace.exec('nft', ['list', 'map', 'ip', 'kube-proxy', 'endpoints']).match(/ : /g)?.length
    expect(count()).toBe(5 * many + 1)
    await watch('release', async () => proxy?.stop())
    await load()
    expect(count()).toBe(5 * many + 1)
    expect(proxy?.reports.at(-1)?.ok).toBe(true)
  })
})
