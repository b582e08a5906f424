// Does what follows a sync, in kube-proxy's order: reports to health, updates the health check ports, then removes connections
// of early clients and stale UDP flows. Also turns refusals, conflicts, drift, invalid objects and invalid manifests into Events.

import type { Backend, Held } from '../backend/backend.ts'
import type { Engine } from '../engine/engine.ts'
import { ConntrackCleaner } from '../engine/flows/stale-flows.ts'
import type { JournalListener, SyncJournal, SyncReport } from '../engine/journal.ts'
import type { ProxyHealth } from '../http/health.ts'
import type { Metrics } from '../http/metrics.ts'
import { ServiceHealth } from '../http/service-health.ts'
import type { EventRecorder } from '../kube/events.ts'
import { describeError } from '../lib/errors.ts'
import { familyName, familyOf } from '../lib/ip.ts'
import type { Logger } from '../lib/log.ts'
import type { Clock } from '../lib/time.ts'
import { describeHolder } from '../model/conflicts.ts'
import { ConntrackTable } from '../sys/netlink/conntrack.ts'
import type { ManifestProblems } from './manifest-problems.ts'
import type { NodeViews } from './node/node-views.ts'
import type { EarlyClients } from './resilience/early-clients.ts'
import type { EndedConnections } from './resilience/ended-connections.ts'
import { SyncEvents } from './sync-events.ts'

export interface AfterSyncOptions {
  readonly engine: Engine
  readonly journal: SyncJournal
  readonly views: NodeViews
  readonly health: ProxyHealth
  readonly recorder: EventRecorder
  readonly metrics: Pick<Metrics, 'conntrack'>
  readonly backend: Pick<Backend<Held>, 'answers' | 'untracked'>
  /** Absent if the kernel translates nothing. */
  readonly early: EarlyClients['cleaner'] | undefined
  /** Absent if the kernel translates nothing. */
  readonly ended?: Pick<EndedConnections, 'announce'> | undefined
  /** Name of this node. */
  readonly name: string
  readonly manifests?: ManifestProblems | undefined
  readonly clock: Clock
  readonly log: Logger
}

/** Subscribes to the journal. */
export function startAfterSync(options: AfterSyncOptions): { close(): Promise<void> } {
  const { engine, journal, recorder, backend, name } = options
  const uidOf = (service: string) => engine.store.service(service)?.uid ?? ''
  const events = new SyncEvents({ recorder, node: name, uidOf })
  const checks = openHealthChecks(options, events)
  const cleaner = backend.untracked ? undefined : openCleaner(options)
  journal.subscribe(makeEventListener(events, options.log))
  journal.subscribe(makeFollowUpListener(options, checks, cleaner))
  const stopManifests = options.manifests?.subscribe((invalid) => {
    for (const problem of invalid) events.onManifest(problem)
  })
  return {
    async close() {
      stopManifests?.()
      await options.early?.stop()
      await cleaner?.stop()
      await checks.close()
    },
  }
}

function openHealthChecks({ views, health, log }: AfterSyncOptions, events: SyncEvents): ServiceHealth {
  return new ServiceHealth({
    addresses: (family) => views.get(family).nodePorts,
    health,
    onBindFailure: (service, port, error) =>
      events.onService(service, {
        reason: 'FailedToStartServiceHealthcheck',
        action: 'Listen',
        note: `port ${port}: ${describeError(error)}`,
      }),
    log,
  })
}

function makeFollowUpListener(
  { engine, health, early, metrics, log }: AfterSyncOptions,
  checks: ServiceHealth,
  cleaner: ReturnType<typeof openCleaner> | undefined,
): JournalListener {
  const follow = async (report: SyncReport): Promise<void> => {
    const { family, udpChanged } = report
    health.updated(family)
    early?.clean(family, engine.takeLive(report))
    await checks.sync(engine.health(family), family)
    if (!udpChanged || cleaner === undefined) return
    const { durationMs, deleted } = await cleaner.clean(family)
    metrics.conntrack(family, durationMs, deleted)
  }
  return {
    started: (family) => health.updated(family),
    queued: (family) => health.queued(family),
    report(report) {
      if (report.ok) follow(report).catch((error) => log.error('A step after a sync failed', { error }))
    },
  }
}

function makeEventListener(events: SyncEvents, log: Logger): JournalListener {
  const action = 'SyncProxyRules'
  return {
    report({ refused }) {
      for (const { service, error } of refused) {
        events.onService(service, { reason: 'FailedToProgramService', action, note: describeError(error) })
      }
    },
    conflict(conflict) {
      const note = `${conflict.frontend} (${familyName(conflict.family)}) ${describeHolder(conflict)}`
      events.onService(conflict.loser, { reason: 'AddressConflict', action, note })
    },
    drift({ family, culprit }) {
      const note = `${familyName(family)} rules were changed by ${culprit}; repaired`
      events.onNode({ reason: 'RulesChanged', action, note })
    },
    problem(problem) {
      const { kind, object, field, message } = problem
      log.error('An object has an invalid field; the rest keeps working', { kind, object, field, problem: message })
      events.onProblem(problem)
    },
  }
}

function openCleaner({ engine, views, backend, ended, clock, log }: AfterSyncOptions) {
  const table = new ConntrackTable()
  logConntrackFeatures(table, log)
  return new ConntrackCleaner({
    table: ended?.announce(table) ?? table,
    ports: (family) => engine.udpPorts(family),
    nodeAddresses: (family) => views.addresses.filter((ip) => familyOf(ip) === family),
    answers: backend.answers,
    clock,
    log,
  })
}

/** The verbosity at which the features of connection tracking are logged. */
const featuresLevel = 2

/** The kernel walks its whole table to find them, so they are looked for only if they are logged. */
function logConntrackFeatures(table: ConntrackTable, log: Logger): void {
  if (!log.enabled(featuresLevel)) return
  const word = (has: boolean) => (has ? 'yes' : 'no')
  table.features().then(
    ({ filteredList, filteredDelete }) => {
      const found = `filtered-list=${word(filteredList)} filtered-delete=${word(filteredDelete)}`
      log.v(featuresLevel, 'Conntrack features of this kernel', { found })
    },
    (error) => log.v(featuresLevel, 'Cannot read the conntrack table on this node', { error }),
  )
}
