// The proxy of an engine driver: the real engine and a real backend, in a process of its own inside the node's namespace.

import type { Backend, Held, Settings } from '../../src/backend/backend.ts'
import { findMode } from '../../src/backend/modes.ts'
import { Engine } from '../../src/engine/engine.ts'
import { SyncJournal } from '../../src/engine/journal.ts'
import { ConntrackCleaner } from '../../src/engine/stale-flows.ts'
import { decodeEndpointSlice } from '../../src/kube/reflect/decode-endpoint-slice.ts'
import { decodeService } from '../../src/kube/reflect/decode-service.ts'
import { describeError } from '../../src/lib/errors.ts'
import { type Family, familyOf } from '../../src/lib/ip.ts'
import { createLogger } from '../../src/lib/log.ts'
import { systemClock } from '../../src/lib/time.ts'
import { ConntrackTable } from '../../src/sys/netlink/conntrack.ts'
import { nodeView } from '../scenarios/facts.ts'
import type { Manifest, Mode, NodeSettings } from '../scenarios/format.ts'
import type { Change } from './driver.ts'
import { patience } from './vm.ts'

/** What the parent asks for, one at a time. */
export type Ask =
  | {
      readonly ask: 'start'
      readonly mode: Mode
      readonly families: readonly Family[]
      readonly settings: NodeSettings
      readonly interfaceAddresses: readonly string[]
      /** What there is before the first sync; nothing if absent. */
      readonly initial?: readonly Manifest[]
    }
  | ({ readonly ask: 'apply' } & Change)
  | { readonly ask: 'reconfigure'; readonly settings: NodeSettings }
  | { readonly ask: 'settle' }
  | { readonly ask: 'held' }
  /** For the end of the next sync that somebody else's change has led to. */
  | { readonly ask: 'repaired'; readonly limitMs: number }
  | { readonly ask: 'stop'; readonly keepBase: boolean }

const log = createLogger({
  format: 'text',
  verbosity: Number(process.env.SLUICE_TEST_V ?? 0),
  write: (line) => process.stderr.write(line),
})

interface Running {
  readonly engine: Engine
  readonly mode: Mode
  readonly families: readonly Family[]
  readonly addresses: readonly string[]
  settled(): Promise<void>
  held(): readonly string[]
  repaired(limitMs: number): Promise<void>
}

let running: Running | undefined

process.on('message', (ask: Ask) => {
  answer(ask)
    .then((result) => process.send?.({ result }))
    .catch((error) => process.send?.({ error: describeError(error) }))
})

async function answer(ask: Ask): Promise<unknown> {
  if (ask.ask === 'start') {
    running = await start(ask)
    return undefined
  }
  if (running === undefined) throw new Error('not started')
  const { engine, families } = running
  switch (ask.ask) {
    case 'apply':
      // Times of requests and of syncs are compared in whole milliseconds; a sync that has begun must not seem to know of this.
      await new Promise((resolve) => setTimeout(resolve, 2))
      for (const manifest of ask.drop) sinkOf(engine, manifest).drop(keyOf(manifest))
      for (const manifest of ask.put) put(engine, manifest)
      return undefined
    case 'reconfigure':
      for (const family of families) engine.setView(family, nodeView(ask.settings, family, running.addresses))
      return undefined
    case 'settle':
      return running.settled()
    case 'held':
      return running.held()
    case 'repaired':
      return running.repaired(ask.limitMs)
    case 'stop':
      await engine.stop()
      if (!ask.keepBase) await findMode(running.mode).leftovers.cleanup(log)
      running = undefined
      return undefined
  }
}

async function start(ask: Ask & { ask: 'start' }): Promise<Running> {
  const { mode, families, settings, interfaceAddresses } = ask
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
  /** Unix ms of the last request, and of the start of the last sync that worked, by family. */
  const asked = new Map<Family, number>()
  const done = new Map<Family, number>()
  const held = new Map<Family, number>()
  const drifts = new Map<Family, number>()
  let failure: string | undefined
  let changed = () => {}
  let repaired = () => {}
  journal.subscribe({
    drift: (family) => void drifts.set(family, Date.now()),
    queued: (family, at) => void asked.set(family, at),
    report(report) {
      failure = report.ok ? undefined : describeError(report.error)
      held.set(report.family, report.held)
      if (report.ok && report.startedAt >= (drifts.get(report.family) ?? Number.POSITIVE_INFINITY)) repaired()
      const finish = () => {
        if (report.ok) done.set(report.family, report.startedAt)
        changed()
      }
      if (report.ok && report.udpChanged) void cleaner.clean(report.family).then(finish)
      else finish()
    },
  })
  await engine.start()
  for (const manifest of ask.initial ?? []) put(engine, manifest)
  engine.store.services.synced()
  engine.store.slices.synced()
  return {
    engine,
    mode,
    families,
    addresses: interfaceAddresses,
    async settled() {
      const end = Date.now() + patience(20_000)
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

const backends = new Map<string, Backend<Held>>()

/** One for all scenarios with these settings: what it finds out about the machine takes a dozen programs in some modes. */
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
