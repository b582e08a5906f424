// A proxy with very many services on a kernel in memory, its admin socket, and the dashboard of it, all in the test process.

import { join } from 'node:path'
import type { Backend, Held } from '../../src/backend/backend.ts'
import { base } from '../../src/backend/nftables/base.ts'
import { plan } from '../../src/backend/nftables/plan.ts'
import { startDashboard } from '../../src/commands/dashboard/dashboard-server.ts'
import { ProxyFeed } from '../../src/commands/dashboard/proxy-feed.ts'
import { configFrom } from '../../src/commands/sources/source.ts'
import { defaultSluiceConfig } from '../../src/config/sluice-config.ts'
import { type AdminOptions, makeAdminAnswers } from '../../src/daemon/admin-answers.ts'
import { makeSettings } from '../../src/daemon/backend-settings.ts'
import { TrafficReader } from '../../src/daemon/traffic/traffic-reader.ts'
import { Engine } from '../../src/engine/engine.ts'
import { History } from '../../src/engine/history/history.ts'
import { SyncJournal } from '../../src/engine/journal.ts'
import { AdminClient } from '../../src/http/admin-client.ts'
import { listenAdmin } from '../../src/http/admin-listener.ts'
import type { Sample } from '../../src/http/admin-samples.ts'
import { silentLogger } from '../../src/lib/log.ts'
import { systemClock } from '../../src/lib/time.ts'
import type { SliceRecord } from '../../src/model/types.ts'
import { endpoint, service, slice, view } from '../support/builders.ts'
import { until } from '../support/until.ts'

const node = view({ name: 'here', ip: '192.168.5.1', serviceCidrs: ['10.96.0.0/12'] })

export interface ManyServices {
  readonly url: string
  /** Ends the admin socket, as a proxy that stops, or opens it again. */
  stopProxy(): Promise<void>
  startProxy(): Promise<void>
  close(): Promise<void>
}

/** Besides the numbered services there are those with the given names, in the namespace `hostile`. */
export async function startManyServices(
  folder: string,
  count: number,
  names: readonly string[],
): Promise<ManyServices> {
  const journal = new SyncJournal({ log: silentLogger })
  const backend = makeBackend()
  const engine = new Engine({
    backend,
    families: [4],
    views: () => node,
    settings: { minSyncMs: 0, syncMs: 30_000 },
    clock: systemClock,
    log: silentLogger,
    journal,
  })
  const socket = join(folder, 'here.sock')
  const open = () => listenAdmin(socket, makeAdminAnswers(optionsOf(engine, journal, backend)), silentLogger)
  let admin = await open()
  let made = 0
  const put = (name: string): void => {
    const n = made++
    engine.store.services.put(name, service({ key: name, uid: name, clusterIps: [ipOf(96, n + 1)] }))
    engine.store.slices.put(`${name}-1`, makeSlice(name, n))
  }
  for (let i = 0; i < count; i++) put(`namespace-${i % 100}/service-${String(i).padStart(5, '0')}`)
  for (const name of names) put(`hostile/${name}`)
  engine.store.services.synced()
  engine.store.slices.synced()
  await engine.start()
  await until('all services are planned', () => [...engine.ports(4)].length >= count)
  const dashboard = await startDashboard({
    address: '127.0.0.1:0',
    hosts: new Set(),
    about: { program: 'sluice', flags: ['--socket', socket], fleetFlags: null, hasProxy: true, version: 'test' },
    feed: new ProxyFeed(async () => new AdminClient(socket)),
    readFleet: undefined,
    log: silentLogger,
  })
  return {
    url: dashboard.url,
    stopProxy: () => admin.close(),
    async startProxy() {
      admin = await open()
    },
    async close() {
      await dashboard.close()
      await admin.close()
      await engine.stop()
    },
  }
}

/** The plans of nftables mode on a kernel that is a map. */
function makeBackend(): Backend<Held> {
  const kernel = new Map<string, Held>()
  return {
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
}

const ipOf = (first: number, n: number): string => `10.${first + (n >> 16)}.${(n >> 8) & 255}.${n & 255}`

const makeSlice = (key: string, n: number): SliceRecord =>
  slice(
    Array.from({ length: 3 }, (_, i) => endpoint(ipOf(128, n * 4 + i), i === 0 ? 'here' : 'there')),
    { key: `${key}-1`, service: key },
  )

const optionsOf = (engine: Engine, journal: SyncJournal, backend: AdminOptions['backend']): AdminOptions => ({
  engine,
  journal,
  backend,
  history: new History({ maxRecords: 100, maxBytes: 1 << 20 }),
  settings: makeSettings(configFrom(new Map())),
  limits: defaultSluiceConfig().limits,
  savedState: () => null,
  identity: { node: 'here', mode: 'nftables', pid: process.pid, version: 'test', startedAt: new Date().toISOString() },
  families: [4],
  views: () => node,
  nodeAddresses: () => ['192.168.5.1'],
  readObject: async () => ({ unknown: 'there is no API server in this test' }),
  selectServices: async () => [],
  traffic: new TrafficReader({ backend, enabled: true, countsBytes: true, clock: systemClock }),
  flows: {
    list: async () => ({ flows: [], coverage: { sampled: 1, lost: 0, skipped: 0, watchers: 1, remarks: [] } }),
    watch: () => () => {},
  },
  samples: { samples: (after) => ({ everyMs: 10_000, samples: hourOfSamples().filter(({ at }) => at > after) }) },
  log: silentLogger,
})

/** An hour in which something happened, for the plots. */
const startedAt = Date.now()
const hourOfSamples = (): readonly Sample[] =>
  Array.from({ length: 360 }, (_, i) => ({
    at: startedAt - (360 - i) * 10_000,
    services: 10_000 + Math.round(30 * Math.sin(i / 40)),
    endpoints: 30_000 + Math.round(200 * Math.sin(i / 25)),
    tracked: 4_000 + Math.round(900 * Math.sin(i / 15)),
    connectionsPerSecond: 180 + 60 * Math.sin(i / 12),
    syncs: 1,
    syncMs: i % 7 === 0 ? 4 + (i % 5) : null,
    programmingMs: i % 7 === 0 ? 20 + (i % 30) : null,
    loopDelayMs: 0.4 + (i % 9) / 10,
    loopBusy: 0.01 + (i % 6) / 300,
    rssBytes: 180e6 + i * 1e4,
    drifts: i === 200 ? 1 : 0,
    quarantined: 0,
    conflicts: 0,
  }))
