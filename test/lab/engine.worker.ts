// The program that EngineDriver and ProxyProcess start: the real engine and a real backend, inside the namespace of the node.

import type { Backend, Held, Settings } from '../../src/backend/backend.ts'
import { findMode } from '../../src/backend/modes.ts'
import { Engine } from '../../src/engine/engine.ts'
import { ConntrackCleaner } from '../../src/engine/flows/stale-flows.ts'
import { SyncJournal } from '../../src/engine/journal.ts'
import { decodeEndpointSlice } from '../../src/kube/decode/decode-endpoint-slice.ts'
import { decodeService } from '../../src/kube/decode/decode-service.ts'
import { describeError } from '../../src/lib/errors.ts'
import { type Family, familyOf } from '../../src/lib/ip.ts'
import { createLogger } from '../../src/lib/log.ts'
import { systemClock } from '../../src/lib/time.ts'
import { ConntrackTable } from '../../src/sys/netlink/conntrack.ts'
import type { Manifest, Mode, NodeSettings } from '../scenarios/format.ts'
import { nodeView } from '../scenarios/node-facts.ts'
import { useTestFolders } from '../support/program-folders.ts'
import type { Change } from './driver.ts'
import { timeLimit } from './vm.ts'

useTestFolders()

/** A request of the parent; it sends one at a time. */
export type DriverRequest =
  | {
      readonly ask: 'start'
      readonly mode: Mode
      readonly families: readonly Family[]
      readonly settings: NodeSettings
      readonly interfaceAddresses: readonly string[]
      /** Objects that exist before the first sync. Default: none. */
      readonly initial?: readonly Manifest[]
    }
  | ({ readonly ask: 'apply' } & Change)
  | { readonly ask: 'reconfigure'; readonly settings: NodeSettings }
  | { readonly ask: 'settle' }
  | { readonly ask: 'held' }
  /** Answers with a CountedPort for every service port. */
  | { readonly ask: 'count' }
  /** Waits for the end of the next sync that a change by someone else causes. */
  | { readonly ask: 'repaired'; readonly limitMs: number }
  | { readonly ask: 'stop'; readonly keepBase: boolean }

const log = createLogger({
  format: 'text',
  verbosity: Number(process.env.SLUICE_TEST_V ?? 0),
  write: (line) => process.stderr.write(line),
})

/** What was counted for a service port, as it can be sent to another process. */
export interface CountedPort {
  readonly port: string
  readonly connections: number
  readonly bytesIn: number | undefined
  readonly endpoints: Readonly<Record<string, { readonly connections: number }>>
}

interface Running {
  readonly engine: Engine
  readonly backend: Backend<Held>
  readonly mode: Mode
  readonly families: readonly Family[]
  readonly addresses: readonly string[]
  settled(): Promise<void>
  held(): readonly string[]
  repaired(limitMs: number): Promise<void>
}

let running: Running | undefined

process.on('message', (request: DriverRequest) => {
  answer(request)
    .then((result) => process.send?.({ result }))
    .catch((error) => process.send?.({ error: describeError(error) }))
})

async function answer(request: DriverRequest): Promise<unknown> {
  if (request.ask === 'start') {
    running = await start(request)
    return undefined
  }
  if (running === undefined) throw new Error('not started')
  const { engine, families } = running
  switch (request.ask) {
    case 'apply':
      // Times of requests and syncs are compared in whole milliseconds: a sync that has begun must not seem to include this change.
      await new Promise((resolve) => setTimeout(resolve, 2))
      for (const manifest of request.drop) sinkOf(engine, manifest).drop(keyOf(manifest))
      for (const manifest of request.put) put(engine, manifest)
      return undefined
    case 'reconfigure':
      for (const family of families) engine.setView(family, nodeView(request.settings, family, running.addresses))
      return undefined
    case 'settle':
      return running.settled()
    case 'held':
      return running.held()
    case 'count':
      return countPorts(running.backend)
    case 'repaired':
      return running.repaired(request.limitMs)
    case 'stop':
      await engine.stop()
      if (!request.keepBase) await findMode(running.mode).leftovers.cleanup(log)
      running = undefined
      return undefined
  }
}

async function start(request: DriverRequest & { ask: 'start' }): Promise<Running> {
  const { mode, families, settings, interfaceAddresses } = request
  const backend = backendOf(mode, settings)
  const journal = new SyncJournal({ log })
  const views = new Map(families.map((family) => [family, nodeView(settings, family, interfaceAddresses)]))
  for (const view of views.values()) await backend.prepare(view, log)
  const engine = new Engine({
    backend,
    families,
    views: (family) => views.get(family) as ReturnType<typeof nodeView>,
    settings: { minSyncMs: 0, syncMs: 500 },
    clock: systemClock,
    log,
    journal,
  })
  const cleaner = new ConntrackCleaner({
    table: new ConntrackTable(),
    ports: (family) => engine.udpPorts(family),
    nodeAddresses: (family) => interfaceAddresses.filter((ip) => familyOf(ip) === family),
    answers: backend.answers,
    clock: systemClock,
    log,
  })
  /** Unix ms of the last sync request, and of the start of the last successful sync, by family. */
  const asked = new Map<Family, number>()
  const done = new Map<Family, number>()
  const held = new Map<Family, number>()
  const drifts = new Map<Family, number>()
  let failure: string | undefined
  let changed = () => {}
  let repaired = () => {}
  let finishing: Promise<void> = Promise.resolve()
  journal.subscribe({
    drift: ({ family }) => void drifts.set(family, Date.now()),
    queued: (family, at) => void asked.set(family, at),
    report(report) {
      failure = report.ok ? undefined : describeError(report.error)
      held.set(report.family, report.held)
      if (report.ok && report.startedAt >= (drifts.get(report.family) ?? Number.POSITIVE_INFINITY)) repaired()
      const finish = () => {
        if (report.ok) done.set(report.family, report.startedAt)
        changed()
      }
      // In order: a sync that follows soon ends before the flows of the one before it are removed.
      finishing = finishing
        .then(() => (report.ok && report.udpChanged ? cleaner.clean(report.family) : undefined))
        .then(finish)
    },
  })
  await engine.start()
  for (const manifest of request.initial ?? []) put(engine, manifest)
  engine.store.services.synced()
  engine.store.slices.synced()
  return {
    engine,
    backend,
    mode,
    families,
    addresses: interfaceAddresses,
    async settled() {
      const end = Date.now() + timeLimit(20_000)
      while ([...asked].some(([family, at]) => (done.get(family) ?? 0) < at)) {
        if (Date.now() > end) throw new Error(`not settled: ${failure ?? 'still busy'}`)
        await new Promise<void>((resolve) => {
          const timer = setTimeout(resolve, 200)
          changed = () => {
            clearTimeout(timer)
            resolve()
          }
        })
      }
    },
    held: () => families.map((family) => `${family} ${held.get(family)}`),
    repaired(limitMs) {
      drifts.clear()
      return new Promise((resolve, reject) => {
        const timer = setTimeout(() => reject(new Error(`nothing was repaired in ${limitMs} ms`)), limitMs)
        repaired = () => {
          clearTimeout(timer)
          resolve()
        }
      })
    },
  }
}

async function countPorts(backend: Backend<Held>): Promise<readonly CountedPort[]> {
  const ports = (await backend.counters?.()) ?? []
  return ports.map(({ port, connections, bytesIn, endpoints }) => ({
    ...{ port, connections, bytesIn },
    endpoints: Object.fromEntries(endpoints),
  }))
}

const backends = new Map<string, Backend<Held>>()

/** Returns one backend for all scenarios with these settings: in some modes it runs a dozen programs to learn about the machine. */
function backendOf(mode: Mode, settings: NodeSettings): Backend<Held> {
  const chosen = backendSettings(settings)
  const key = `${mode} ${JSON.stringify(chosen)}`
  const backend = backends.get(key) ?? findMode(mode).makeBackend(chosen)
  if (backend === undefined) throw new Error(`no backend ${mode}`)
  backends.set(key, backend)
  return backend
}

function backendSettings(settings: NodeSettings): Settings {
  return {
    syncPeriodMs: 500,
    masqueradeBit: 14,
    localhostNodePorts: settings.localhostNodePorts,
    counters: true,
    ipvs: { scheduler: '', excludeCidrs: [], strictArp: false, tcpTimeoutMs: 0, tcpFinTimeoutMs: 0, udpTimeoutMs: 0 },
    userspace: {
      portRange: undefined,
      udpTimeoutMs: Number(process.env.SLUICE_TEST_UDP_IDLE_MS ?? 250),
      bindAddress: '0.0.0.0',
    },
  }
}

const keyOf = ({ metadata }: Manifest): string => `${metadata.namespace}/${metadata.name}`

const sinkOf = (engine: Engine, { kind }: Manifest) =>
  kind === 'Service' ? engine.store.services : engine.store.slices

function put(engine: Engine, manifest: Manifest): void {
  if (manifest.kind === 'Service') deliver(engine.store.services, decodeService(manifest))
  else deliver(engine.store.slices, decodeEndpointSlice(manifest))
}

function deliver<R>(
  sink: { put(key: string, record: R): void; drop(key: string): void },
  { key, record }: { key: string; record: R | undefined },
): void {
  if (record === undefined) sink.drop(key)
  else sink.put(key, record)
}
