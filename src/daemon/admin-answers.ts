// Answers the requests on the admin socket. Every answer is computed from the engine when it is asked for; nothing is cached.

import type { Backend, Held, KernelCheck, Settings } from '../backend/backend.ts'
import { findMode } from '../backend/modes.ts'
import type { Engine } from '../engine/engine.ts'
import type { History } from '../engine/history/history.ts'
import type { DriftRecord, SyncJournal, SyncReport } from '../engine/journal.ts'
import type {
  AdminAnswers,
  AdminEvent,
  ChangeCount,
  DriftSummary,
  FamilySummary,
  Inputs,
  ObjectAnswer,
  ObjectQuestion,
  ProxyIdentity,
  ReportSummary,
  SavedStateSummary,
  Summary,
} from '../http/admin.ts'
import { socketPath } from '../http/admin-client.ts'
import type { FlowAnswers } from '../http/admin-flows.ts'
import { listenAdmin } from '../http/admin-listener.ts'
import type { SampleSource } from '../http/admin-samples.ts'
import type { TrafficAnswers } from '../http/admin-traffic.ts'
import { type ExplainContext, explain } from '../inspect/explanation.ts'
import { readKernelState } from '../inspect/kernel-state.ts'
import { compareAll, summariseServices } from '../inspect/service-summaries.ts'
import { describeError } from '../lib/errors.ts'
import type { Family } from '../lib/ip.ts'
import type { Logger } from '../lib/log.ts'
import { formatTime, systemClock } from '../lib/time.ts'
import type { ServiceLimits } from '../model/limits.ts'
import type { NodeView } from '../model/types.ts'
import { countConnections, readTrackedConnections } from './connection-counts.ts'
import type { ManifestProblems } from './manifest-problems.ts'
import { makeTraces } from './traffic/packet-trace.ts'

export interface AdminOptions {
  readonly engine: Engine
  readonly journal: SyncJournal
  readonly history: History
  readonly backend: Backend<Held>
  readonly settings: Settings
  readonly limits: ServiceLimits
  readonly identity: ProxyIdentity
  readonly families: readonly Family[]
  readonly views: (family: Family) => NodeView
  readonly nodeAddresses: () => readonly string[]
  readonly manifests?: ManifestProblems | undefined
  readonly savedState: () => SavedStateSummary | null
  readonly readObject: (question: ObjectQuestion) => Promise<ObjectAnswer>
  readonly selectServices: (labelSelector: string) => Promise<readonly string[]>
  readonly traffic: TrafficAnswers
  readonly samples: SampleSource
  readonly flows: FlowAnswers
  readonly log: Logger
}

/** Opens the admin socket, unless SLUICE_ADMIN_SOCKET is `off`. The proxy works without it, so a failure is only a warning. */
export async function openAdminSocket(options: AdminOptions): Promise<{ close(): Promise<void> }> {
  const log = options.log.named('admin')
  const closed = { close: async () => {} }
  const path = socketPath(options.identity.node, process.env)
  if (path === '') return closed
  try {
    const socket = await listenAdmin(path, makeAdminAnswers(options), log)
    log.v(1, 'Listening on the admin socket', { path })
    return socket
  } catch (error) {
    const message = 'Cannot open the admin socket; status, explain and plan cannot ask this proxy'
    log.warn(message, { path, error: describeError(error) })
    return closed
  }
}

export function makeAdminAnswers(options: AdminOptions): AdminAnswers {
  const { engine, families, journal, history } = options
  return {
    summary: () => summarise(options),
    services: (service, kernel) => summariseServices(makeExplainContext(options), service, kernel),
    comparison: (service, kernel) => compareAll(makeExplainContext(options), service, kernel),
    select: (labelSelector) => options.selectServices(labelSelector),
    explain: (question) => explain(makeExplainContext(options), question),
    inputs: () => readInputs(options),
    object: (question) => options.readObject(question),
    connections: () => countConnections(engine, families),
    traffic: (service) => options.traffic.traffic(service),
    changes: () => countChanges(journal.recent()),
    reports: (service) => listReports(journal, service),
    history: (question) => history.list(question),
    historyDifference: (from, to, service) => history.compare(from, to, service),
    samples: (after) => options.samples.samples(after),
    subscribe: (listener) => subscribe(options, listener),
    flows: options.flows,
    traces: makeTraces({
      explain: (question) => explain(makeExplainContext(options), question),
      obstacle: findMode(options.identity.mode).traffic.traceObstacle,
      clock: systemClock,
    }),
  }
}

function makeExplainContext(options: AdminOptions): ExplainContext {
  const { engine, backend, identity, settings, families, views } = options
  const mode = findMode(identity.mode)
  return {
    desired: engine,
    backend,
    mode,
    behaviour: mode.behaviour(settings),
    views: families.map(views),
    nodeAddresses: options.nodeAddresses(),
    readKernel: (family) => tryReadKernel(options, family),
  }
}

/** If the kernel cannot be read, the answer goes without its state. */
async function tryReadKernel({ backend, views, log }: AdminOptions, family: Family): Promise<KernelCheck | undefined> {
  try {
    return await readKernelState(backend, views(family))
  } catch (error) {
    log.warn('Cannot read what the kernel holds', { error: describeError(error) })
    return undefined
  }
}

function summarise({ engine, journal, identity, families, manifests, savedState }: AdminOptions): Summary {
  return {
    ...identity,
    services: [...engine.store.records()].length,
    families: families.map((family) => summariseFamily(engine, journal, family)),
    conflicts: engine.conflicts(),
    quarantined: engine.quarantined().map(({ service, family, error, attempts, since, retryAt, ids }) => ({
      service,
      family,
      error: error.message,
      attempts,
      since: formatTime(since),
      retryAt: formatTime(retryAt),
      entries: ids,
    })),
    drifts: journal.drifts().toReversed().map(summariseDrift),
    invalidManifests: manifests?.problems() ?? [],
    reports: journal.recent().toReversed().map(summariseReport),
    counters: journal.counters(),
    savedState: savedState(),
    connections: readTrackedConnections(),
  }
}

function summariseFamily(engine: Engine, journal: SyncJournal, family: Family): FamilySummary {
  const last = journal.recent().findLast((report) => report.family === family)
  const stateHash = engine.stateHash(family)
  return {
    family,
    stateHash,
    // The hash begins with the number of entries.
    entries: Number.parseInt(stateHash.slice(0, 8), 16),
    lastSync: last === undefined ? undefined : summariseReport(last),
  }
}

const summariseDrift = ({ family, at, reason, culprit }: DriftRecord): DriftSummary => ({
  family,
  at: formatTime(at),
  reason,
  culprit,
})

const summariseReport = (report: SyncReport): ReportSummary => ({
  family: report.family,
  startedAt: formatTime(report.startedAt),
  causes: report.causes,
  durationMs: report.durationMs,
  full: report.full,
  ok: report.ok,
  error: report.error === undefined ? '' : describeError(report.error),
  put: report.put,
  dropped: report.dropped,
  held: report.held,
  services: report.services.slice(0, 20),
  refused: report.refused.map(({ service, id, error }) => ({ service, id, error: error.message })),
})

function countChanges(reports: readonly SyncReport[]): readonly ChangeCount[] {
  const counts = new Map<string, number>()
  for (const { causes, services } of reports) {
    if (causes.includes('start')) continue
    for (const service of services) counts.set(service, (counts.get(service) ?? 0) + 1)
  }
  return [...counts].map(([service, count]) => ({ service, count }))
}

const listReports = (journal: SyncJournal, service: string): readonly ReportSummary[] =>
  journal
    .recent()
    .filter(({ services, refused }) => services.includes(service) || refused.some((one) => one.service === service))
    .toReversed()
    .map(summariseReport)

function readInputs({ engine, identity, settings, limits, families, views, nodeAddresses }: AdminOptions): Inputs {
  const services = [...engine.store.records()]
  return {
    identity,
    settings,
    limits,
    views: families.map(views),
    nodeAddresses: nodeAddresses(),
    services,
    slices: services.flatMap(({ key }) => families.flatMap((family) => engine.store.slicesOf(key, family))),
  }
}

function subscribe({ journal, manifests }: AdminOptions, listener: (event: AdminEvent) => void): () => void {
  let known = '[]'
  const stopManifests = manifests?.subscribe((invalid) => {
    const text = JSON.stringify(invalid)
    if (text !== known) listener({ kind: 'manifests', invalid })
    known = text
  })
  const stopJournal = journal.subscribe({
    report: (report) => {
      if (!report.idle) listener({ kind: 'sync', report: summariseReport(report) })
    },
    conflict: (conflict) => listener({ kind: 'conflict', conflict }),
    resolved: (conflict) => listener({ kind: 'resolved', conflict }),
    drift: (drift) => listener({ kind: 'drift', drift: summariseDrift(drift) }),
    problem: ({ kind, object, field, message }) =>
      listener({ kind: 'problem', object: `${kind} ${object}`, message: `${field}: ${message}` }),
  })
  return () => {
    stopManifests?.()
    stopJournal()
  }
}
