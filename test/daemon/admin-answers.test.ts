import { chmodSync, existsSync, readFileSync, statSync, symlinkSync, writeFileSync } from 'node:fs'
import { request } from 'node:http'
import { createServer } from 'node:net'
import { join } from 'node:path'
import { describe, expect, it, onTestFinished } from 'vitest'
import type { Backend, Held } from '../../src/backend/backend.ts'
import { base } from '../../src/backend/nftables/base.ts'
import { plan } from '../../src/backend/nftables/plan.ts'
import { examineProxy } from '../../src/commands/doctor/running-proxy.ts'
import { configFrom } from '../../src/commands/sources/source.ts'
import { describeEvent } from '../../src/commands/top/event-lines.ts'
import { defaultSluiceConfig } from '../../src/config/sluice-config.ts'
import { makeAdminAnswers } from '../../src/daemon/admin-answers.ts'
import { makeSettings } from '../../src/daemon/backend-settings.ts'
import type { ManifestProblems } from '../../src/daemon/manifest-problems.ts'
import { TrafficReader } from '../../src/daemon/traffic/traffic-reader.ts'
import { Engine } from '../../src/engine/engine.ts'
import { History } from '../../src/engine/history/history.ts'
import { SyncJournal } from '../../src/engine/journal.ts'
import type { AdminEvent } from '../../src/http/admin.ts'
import { AdminClient, findSocket, socketPath } from '../../src/http/admin-client.ts'
import { listenAdmin } from '../../src/http/admin-listener.ts'
import { decodeEndpointSlice } from '../../src/kube/decode/decode-endpoint-slice.ts'
import { decodeService } from '../../src/kube/decode/decode-service.ts'
import { silentLogger } from '../../src/lib/log.ts'
import { systemClock } from '../../src/lib/time.ts'
import { directory } from '../commands/run-command.ts'
import { view } from '../support/builders.ts'
import { until } from '../support/until.ts'

const node = view({
  name: 'a',
  ip: '192.168.5.1',
  nodePorts: { all: false, addresses: ['192.168.5.1'], loopback: false, loopbackNamed: false },
  local: { kind: 'cidr', cidr: '10.1.0.0/16' },
  serviceCidrs: ['10.96.0.0/16'],
})

/** The plans of nftables over a kernel that is a map, which a test can change behind the proxy's back. */
function fakeKernel(): { backend: Backend<Held>; kernel: Map<string, Held> } {
  const kernel = new Map<string, Held>()
  const backend: Backend<Held> = {
    name: 'nftables',
    periodic: false,
    families: async () => [4],
    prepare: async () => {},
    base,
    plan,
    open: async () => ({
      observe: async () => [...kernel.values()],
      async apply({ put, drop }) {
        for (const entry of put) kernel.set(entry.id, entry)
        for (const { id } of drop) kernel.delete(id)
        return { refused: [] }
      },
      drifted: () => false,
      close: async () => {},
    }),
  }
  return { backend, kernel }
}

const service = (name: string, clusterIP: string, created = '2024-01-01T00:00:00Z') =>
  decodeService({
    kind: 'Service',
    metadata: { name, namespace: 'shop', creationTimestamp: created },
    spec: {
      clusterIP,
      clusterIPs: [clusterIP],
      type: 'NodePort',
      ports: [{ port: 80, nodePort: 30080, protocol: 'TCP' }],
    },
  })

const slice = decodeEndpointSlice({
  kind: 'EndpointSlice',
  metadata: { name: 'web-1', namespace: 'shop', labels: { 'kubernetes.io/service-name': 'web' } },
  addressType: 'IPv4',
  ports: [{ name: '', port: 8080, protocol: 'TCP' }],
  endpoints: [{ addresses: ['10.1.0.11'], nodeName: 'a', conditions: { ready: true } }],
})

const coverage = { sampled: 1, lost: 0, skipped: 0, watchers: 0, remarks: [] }

async function running(manifests?: ManifestProblems) {
  const { backend, kernel } = fakeKernel()
  const journal = new SyncJournal({ log: silentLogger })
  const engine = new Engine({
    backend,
    families: [4],
    views: () => node,
    settings: { minSyncMs: 0, syncMs: 1000 },
    clock: systemClock,
    log: silentLogger,
    journal,
  })
  const path = join(directory(), 'deep', 'a.sock')
  const answers = makeAdminAnswers({
    engine,
    journal,
    history: new History({ maxRecords: 100, maxBytes: 1 << 20 }),
    backend,
    settings: makeSettings(configFrom(new Map())),
    limits: defaultSluiceConfig().limits,
    savedState: () => null,
    identity: { node: 'a', mode: 'nftables', pid: process.pid, version: 'test', startedAt: new Date().toISOString() },
    families: [4],
    views: () => node,
    nodeAddresses: () => ['192.168.5.1'],
    manifests,
    readObject: async () => ({ unknown: 'there is no API server in this test' }),
    selectServices: async () => [],
    traffic: new TrafficReader({ backend, enabled: true, countsBytes: true, clock: systemClock }),
    samples: { samples: () => ({ everyMs: 10_000, samples: [] }) },
    flows: { list: async () => ({ flows: [], coverage }), watch: () => () => {} },
    log: silentLogger,
  })
  const socket = await listenAdmin(path, answers, silentLogger)
  onTestFinished(() => socket.close())
  onTestFinished(() => engine.stop())
  await engine.start()
  const synced = () =>
    new Promise<void>((resolve) => {
      const stop = journal.subscribe({
        report: () => {
          stop()
          resolve()
        },
      })
    })
  const first = synced()
  engine.store.services.put('shop/web', service('web', '10.96.0.50').record!)
  engine.store.slices.put('shop/web-1', slice.record!)
  engine.store.services.synced()
  engine.store.slices.synced()
  await first
  return { client: new AdminClient(path), engine, kernel, journal, path, synced, answers }
}

describe('the admin socket', () => {
  it('only its owner may open it, and a second proxy cannot listen on it', async () => {
    const { path, answers } = await running()
    expect(statSync(path).mode & 0o777).toBe(0o600)
    await expect(listenAdmin(path, answers, silentLogger)).rejects.toThrow('another proxy listens on')
  })

  it('replaces a socket that no process listens on, and removes it at the end', async () => {
    const { answers } = await running()
    const path = join(directory(), 'b.sock')
    const dead = createServer()
    await new Promise<void>((resolve) => dead.listen(path, resolve))
    writeFileSync(`${path}.note`, '')
    const socket = await new Promise<void>((resolve) => dead.close(() => resolve())).then(() =>
      listenAdmin(path, answers, silentLogger),
    )
    expect(existsSync(path)).toBe(true)
    await socket.close()
    expect(existsSync(path)).toBe(false)
  })

  it('does not delete a file or a symbolic link at its path', async () => {
    const { answers } = await running()
    const path = join(directory(), 'precious')
    writeFileSync(path, 'data')
    await expect(listenAdmin(path, answers, silentLogger)).rejects.toThrow(
      `${path} exists and is not a socket: remove it, or choose another path`,
    )
    expect(readFileSync(path, 'utf8')).toBe('data')
    const link = join(directory(), 'link.sock')
    symlinkSync(path, link)
    await expect(listenAdmin(link, answers, silentLogger)).rejects.toThrow('is not a socket')
    expect(existsSync(link)).toBe(true)
  })

  it('is not made where every user could replace it', async () => {
    const { answers } = await running()
    const folder = directory()
    chmodSync(folder, 0o777)
    await expect(listenAdmin(join(folder, 'a.sock'), answers, silentLogger)).rejects.toThrow('other users may write to')
  })

  it('reports the state, and what the kernel has lost', async () => {
    const { client, kernel } = await running()
    const summary = await client.summary()
    expect(summary).toMatchObject({ node: 'a', mode: 'nftables', services: 1, conflicts: [], quarantined: [] })
    expect(summary.families[0]).toMatchObject({ family: 4, entries: 4, lastSync: { ok: true } })
    const [good] = await client.services('shop/web', true)
    expect(good).toMatchObject({ entries: 4, inKernel: { present: 4, missing: 0 }, wrong: [] })
    kernel.delete('frontend 10.96.0.50 tcp 80')
    kernel.set('frontend tcp 30080', { id: 'frontend tcp 30080', kind: 'frontend', digest: 'something else' })
    const [bad] = await client.services('', true)
    expect(bad?.wrong).toEqual([
      'element service-ips { 10.96.0.50 . tcp . 80 } is not in the kernel',
      'element service-nodeports { tcp . 30080 } has other content in the kernel',
    ])
    expect((await client.services('', false))[0]?.inKernel).toBeUndefined()
    expect(await client.services('no/such', true)).toEqual([])
  })

  it('reports drifts, causes of syncs and invalid manifests, with times in RFC 3339', async () => {
    const invalid = [{ file: 'web.yaml', line: 31, field: '', message: 'unexpected end' }]
    const { client, journal } = await running({ problems: () => invalid, subscribe: () => () => {} })
    journal.drift({ family: 4, culprit: 'nft (pid 7)', reason: 'changed', at: Date.UTC(2026, 0, 2) })
    const summary = await client.summary()
    expect(summary.invalidManifests).toEqual(invalid)
    expect(summary.drifts).toEqual([
      { family: 4, culprit: 'nft (pid 7)', reason: 'changed', at: '2026-01-02T00:00:00Z' },
    ])
    expect(summary.reports.at(-1)?.causes).toEqual(['start'])
    expect(summary.families[0]?.lastSync?.startedAt).toMatch(/^2\d{3}-\d\d-\d\dT[\d:.]+Z$/)
  })

  it('reports the mode of the proxy to the doctor', async () => {
    const { path } = await running()
    expect(await examineProxy(path)).toMatchObject({
      mode: 'nftables',
      findings: [{ level: 'ok', about: 'running proxy (a)' }],
    })
    expect(await examineProxy(`${path}.none`)).toMatchObject({ mode: undefined, findings: [{ level: 'warning' }] })
  })

  it('explains a packet with the entries that the kernel holds', async () => {
    const { client, kernel } = await running()
    kernel.delete('cluster-ips 10.96.0.50')
    const [answer] = await client.explain({ target: '10.96.0.50:80', from: '10.1.0.77' })
    expect(answer).toMatchObject({ verdict: 'forward', packet: { origin: 'pod' }, snat: false, hairpin: false })
    expect(Object.fromEntries(answer!.entries.map(({ name, kernel: at }) => [name, at]))).toMatchObject({
      'element cluster-ips { 10.96.0.50 }': 'missing',
      'element service-ips { 10.96.0.50 . tcp . 80 }': 'present',
    })
    await expect(client.explain({ target: 'nonsense!', from: '' })).rejects.toThrow('is none of')
  })

  it('reports conflicts in the state and in explanations', async () => {
    const { client, engine, synced } = await running()
    const next = synced()
    engine.store.services.put('shop/late', service('late', '10.96.0.60', '2025-01-01T00:00:00Z').record!)
    await next
    expect((await client.summary()).conflicts).toEqual([
      { family: 4, frontend: ':30080/tcp', winner: 'shop/web', loser: 'shop/late', reason: 'age' },
    ])
    const [answer] = await client.explain({ target: '10.96.0.60:80', from: '' })
    expect(answer?.remarks).toContain(':30080/tcp is held by service shop/web because that service is older.')
  })

  it('returns all inputs of a plan', async () => {
    const { client } = await running()
    const inputs = await client.inputs()
    expect(inputs.services.map(({ key }) => key)).toEqual(['shop/web'])
    expect(inputs.slices.map(({ key }) => key)).toEqual(['shop/web-1'])
    expect(inputs.views).toEqual([node])
  })

  it('streams events', async () => {
    const { client, engine } = await running()
    const over = new AbortController()
    const events: AdminEvent[] = []
    const seen = new Promise<void>((resolve) => {
      void client.events((event) => {
        events.push(event)
        if (event.kind === 'sync') resolve()
      }, over.signal)
    })
    await new Promise((resolve) => setTimeout(resolve, 100))
    engine.store.services.drop('shop/web')
    await seen
    over.abort()
    expect(events.at(-1)).toMatchObject({ kind: 'sync', report: { ok: true, services: ['shop/web'] } })
    expect(describeEvent(events.at(-1)!)).toMatch(/^IPv4 objects changed: put 0, dropped 4, .*: shop\/web$/)
  })

  it('answers only GET, and 404 for unknown paths', async () => {
    const { path } = await running()
    const status = (method: string, at: string) =>
      new Promise((resolve) => {
        request({ socketPath: path, path: at, method }, (response) => resolve(response.resume().statusCode)).end()
      })
    expect(await status('POST', '/v1/summary')).toBe(405)
    expect(await status('GET', '/v2/anything')).toBe(404)
  })

  it('counts the syncs that changed a service, and lists them', async () => {
    const { client, engine } = await running()
    expect(await client.changes()).toEqual([])
    engine.store.services.drop('shop/web')
    await until('the change is reported', async () => (await client.changes()).length > 0)
    expect(await client.changes()).toEqual([{ service: 'shop/web', count: 1 }])
    expect((await client.reports('shop/web')).map(({ causes }) => causes)).toEqual([['change'], ['start']])
    expect(await client.reports('shop/other')).toEqual([])
  })
})

describe('which socket', () => {
  it('is the named one, that of the environment, or the only one that a process listens on', async () => {
    const folder = directory()
    const listen = async (name: string) => {
      const server = createServer()
      await new Promise<void>((resolve) => server.listen(join(folder, name), resolve))
      onTestFinished(() => void server.close())
    }
    expect(await findSocket('/x.sock', {}, folder)).toBe('/x.sock')
    expect(await findSocket('', { SLUICE_ADMIN_SOCKET: '/y.sock' }, folder)).toBe('/y.sock')
    writeFileSync(join(folder, 'dead.sock'), '')
    await expect(findSocket('', {}, folder)).rejects.toMatchObject({ code: 'no-proxy' })
    await listen('a.sock')
    expect(await findSocket('', {}, folder)).toBe(join(folder, 'a.sock'))
    await listen('b.sock')
    await expect(findSocket('', {}, folder)).rejects.toMatchObject({
      code: 'several',
      message: expect.stringContaining(`(${join(folder, 'a.sock')}, ${join(folder, 'b.sock')})`),
    })
    expect(socketPath('a', {})).toBe('/run/sluice/a.sock')
    expect(socketPath('a', { SLUICE_ADMIN_SOCKET: 'off' })).toBe('')
  })
})
