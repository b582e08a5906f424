// The process that bench/control-plane.ts measures: reflectors, store, model, nftables planner and ledger, without a kernel. It prints one
// line of JSON. With port 0 there is no server either: lines come from memory, which leaves our own work without sockets and HTTP.

import type { Backend, Held } from '../src/backend/backend.ts'
import { base } from '../src/backend/nftables/base.ts'
import { plan } from '../src/backend/nftables/plan.ts'
import { Engine } from '../src/engine/engine.ts'
import { SyncJournal } from '../src/engine/journal.ts'
import { Client } from '../src/kube/client.ts'
import { loadConnection } from '../src/kube/kubeconfig.ts'
import { Reflector } from '../src/kube/reflect/reflector.ts'
import { endpointSlices, services as serviceResource } from '../src/kube/reflect/watched-resources.ts'
import type { Family } from '../src/lib/ip.ts'
import { silentLogger as log } from '../src/lib/log.ts'
import { systemClock as clock } from '../src/lib/time.ts'
import type { NodeView } from '../src/model/types.ts'
import { everyAddress, view } from '../test/support/builders.ts'
import { lastVersion, nth, service, slice } from './api-objects.ts'
import type { Figures } from './control-plane.ts'
import { chooseForm } from './object-forms.ts'

const [port, services, endpoints, warmUps, changes, everyMs] = process.argv.slice(2).map(Number) as Six
type Six = [number, number, number, number, number, number]
const families: readonly Family[] = [4, 6]

const nodeView = (family: Family): NodeView =>
  view({
    name: 'node-7',
    family,
    zone: 'zone-1',
    ip: family === 4 ? '192.0.2.1' : '2001:db8::1',
    nodePorts: everyAddress,
    local: { kind: 'cidr', cidr: family === 4 ? '10.128.0.0/9' : 'fd00::/48' },
    serviceCidrs: [],
  })

const backend: Backend<Held> = {
  name: 'nftables',
  periodic: false,
  families: async () => families,
  prepare: async () => {},
  base,
  plan,
  open: async () => ({
    observe: async () => [],
    apply: async () => ({ refused: [] }),
    drifted: () => false,
    close: async () => {},
  }),
}

const journal = new SyncJournal({ log })
const engine = new Engine({
  backend,
  families,
  views: nodeView,
  settings: { minSyncMs: 0, syncMs: 30_000 },
  clock,
  log,
  journal,
})

/** Resolves when `count` services have been synced in the IPv4 lane; calls `each` for every sync. */
function synced(count: number, each: (services: number) => void = () => {}): Promise<void> {
  return new Promise((resolve) => {
    let left = count
    const leave = journal.subscribe({
      report({ family, ok, services: done }) {
        if (family !== 4 || !ok) return
        each(done.length)
        left -= done.length
        if (left > 0) return
        leave()
        resolve()
      },
    })
  })
}

/** Measures `count` changes twice: the mean without, and single costs with, reading the CPU time after every sync. */
async function costOf(count: number): Promise<{ readonly mean: number; readonly sorted: readonly number[] }> {
  await collect()
  const start = cpuMicros()
  await Promise.all([synced(count), ask(count)])
  const mean = (cpuMicros() - start) / count
  const costs: number[] = []
  let before = cpuMicros()
  const sample = (services: number) => {
    const now = cpuMicros()
    // Two changes that arrive in one read are synced together.
    for (let i = 0; i < services; i++) costs.push((now - before) / services)
    before = now
  }
  await Promise.all([synced(count, sample), ask(count)])
  return { mean, sorted: costs.toSorted((a, b) => a - b) }
}

const cpuMicros = (): number => {
  const { user, system } = process.cpuUsage()
  return user + system
}

const collect = async (): Promise<number> => {
  for (let i = 0; i < 4; i++) {
    globalThis.gc?.()
    await new Promise((resolve) => setTimeout(resolve, 50))
  }
  return process.memoryUsage().rss
}

/** Measures parsing the JSON of one change, which shows the speed of the machine. */
function parseMicros(): number {
  const line = JSON.stringify({ type: 'MODIFIED', object: slice(1, endpoints, 1) })
  for (let i = 0; i < 5000; i++) JSON.parse(line)
  const start = cpuMicros()
  for (let i = 0; i < 5000; i++) JSON.parse(line)
  return (cpuMicros() - start) / 5000
}

const mega = (bytes: number): number => bytes / 2 ** 20
const at = (sorted: readonly number[], share: number): number =>
  sorted[Math.floor((sorted.length - 1) * share)] as number

const { client, ask, close } = port === 0 ? fromMemory() : fromServer()

const idleRss = await collect()
const started = { cpu: cpuMicros(), at: clock.monotonic() }
await engine.start()
const abort = new AbortController()
const running = [
  new Reflector({ ...serviceResource, client, sink: engine.store.services, clock, log }).run(abort.signal),
  new Reflector({ ...endpointSlices, client, sink: engine.store.slices, clock, log }).run(abort.signal),
]
await synced(1)
const initial = { cpu: cpuMicros() - started.cpu, wall: clock.monotonic() - started.at }
const peakRss = process.resourceUsage().maxRSS * 1024
const rss = await collect()
const held = journal.recent().reduce((sum, report) => sum + report.put, 0)

await Promise.all([synced(warmUps), ask(warmUps)])
const { mean, sorted } = await costOf(changes)

const figures: Figures = {
  entries: held,
  initialCpuMs: initial.cpu / 1000,
  initialWallMs: initial.wall,
  idleRssMb: mega(idleRss),
  rssMb: mega(rss),
  peakRssMb: mega(peakRss),
  changeMicros: mean,
  p50Micros: at(sorted, 0.5),
  p99Micros: at(sorted, 0.99),
  parseMicros: parseMicros(),
  rssAfterMb: mega(await collect()),
  heapMb: mega(process.memoryUsage().heapUsed),
}
process.stdout.write(`${JSON.stringify(figures)}\n`)
abort.abort()
await Promise.all(running)
close()
await engine.stop()

interface Source {
  readonly client: Pick<Client, 'request' | 'stream'>
  /** Requests this many changes, one at a time. */
  readonly ask: (count: number) => Promise<void>
  readonly close: () => void
}

function fromServer(): Source {
  const connection = loadConnection({ kubeconfig: '', master: `http://127.0.0.1:${port}`, env: {} })
  const client = new Client(connection, { qps: 5, burst: 10, userAgent: 'bench', log, clock })
  const ask = async (count: number) => {
    await client.request({ path: '/changes', query: { count: String(count), everyMs: String(everyMs) } })
  }
  return { client, ask, close: () => client.close() }
}

function fromMemory(): Source {
  const added = (object: object) => JSON.stringify({ type: 'ADDED', object })
  const lines = Array.from({ length: warmUps + 2 * changes }, (_, n) =>
    JSON.stringify({ type: 'MODIFIED', object: slice(nth(n, services), endpoints, n + 1) }),
  )
  let [sent, asked, wake] = [0, 0, () => {}]
  async function* stream(path: string, signal: AbortSignal | undefined): AsyncGenerator<readonly string[]> {
    const isService = path.endsWith('/services')
    for (let i = 0; i < services; i++) yield [added(isService ? service(i) : slice(i, endpoints, 0))]
    yield [
      chooseForm(isService ? 'services' : 'endpointslices')
        .writeBookmark(lastVersion())
        .toString(),
    ]
    while (!signal?.aborted) {
      if (isService || sent === asked) {
        await new Promise<void>((resolve) => {
          signal?.addEventListener('abort', () => resolve())
          if (!isService) wake = resolve
        })
        continue
      }
      // The sync is awaited from before the line is sent: the reader may yield after a line, and be synced when it reads the next.
      const done = synced(1)
      yield [lines[sent++] as string]
      await done
    }
  }
  return {
    client: {
      stream: async ({ path, signal }) => stream(path, signal),
      request: async () => ({ status: 404, json: undefined }),
    },
    ask: async (count) => {
      asked += count
      wake()
    },
    close: () => {},
  }
}
