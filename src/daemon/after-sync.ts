// What follows a sync, in kube-proxy's order: health is told, health check ports follow, then stale UDP flows go; and Events for people.

import type { Backend, Held } from '../backend/backend.ts'
import type { Engine } from '../engine/engine.ts'
import type { SyncJournal, SyncReport } from '../engine/journal.ts'
import { ConntrackCleaner } from '../engine/stale-flows.ts'
import type { ProxyHealth } from '../http/health.ts'
import type { Metrics } from '../http/metrics.ts'
import { ServiceHealth } from '../http/service-health.ts'
import type { EventRecorder } from '../kube/events.ts'
import { describeError } from '../lib/errors.ts'
import { familyName, familyOf } from '../lib/ip.ts'
import type { Logger } from '../lib/log.ts'
import type { Clock } from '../lib/time.ts'
import { ConntrackTable } from '../sys/netlink/conntrack.ts'
import type { NodeViews } from './node-views.ts'

export interface AfterSyncOptions {
  readonly engine: Engine
  readonly journal: SyncJournal
  readonly views: NodeViews
  readonly health: ProxyHealth
  readonly recorder: EventRecorder
  readonly metrics: Pick<Metrics, 'conntrack'>
  readonly backend: Pick<Backend<Held>, 'answers' | 'untracked'>
  /** Of this node. */
  readonly name: string
  readonly clock: Clock
  readonly log: Logger
}

export function startAfterSync(options: AfterSyncOptions): { close(): Promise<void> } {
  const { engine, journal, views, health, metrics, backend, log } = options
  const tell = events(options)
  const checks = new ServiceHealth({
    addresses: (family) => views.of(family).nodePorts,
    health,
    onBindFailure: (service, port, error) =>
      tell.service(service, 'FailedToStartServiceHealthcheck', 'Listen', `port ${port}: ${describeError(error)}`),
    log,
  })
  const cleaner = backend.untracked ? undefined : openCleaner(options)

  const synced = async ({ family, udpChanged }: SyncReport): Promise<void> => {
    health.updated(family)
    await checks.sync(engine.health(family), family)
    if (!udpChanged || cleaner === undefined) return
    const { durationMs, deleted } = await cleaner.clean(family)
    metrics.conntrack(family, durationMs, deleted)
  }
  journal.subscribe({
    started: (family) => health.updated(family),
    queued: (family) => health.queued(family),
    report(report) {
      for (const { service, error } of report.refused) {
        tell.service(service, 'FailedToProgramService', 'SyncProxyRules', describeError(error))
      }
      if (report.ok) synced(report).catch((error) => log.error('follow-up of a sync failed', { error }))
    },
    conflict({ winner, loser, frontend, family }) {
      tell.service(
        loser,
        'AddressConflict',
        'SyncProxyRules',
        `${frontend} (${familyName(family)}) is held by ${winner}`,
      )
    },
    drift(family, culprit) {
      tell.node('RulesChanged', 'SyncProxyRules', `${familyName(family)} rules were changed by ${culprit}; repaired`)
    },
    problem({ kind, object, uid, field, message }) {
      log.error('bad object; everything else keeps working', { kind, object, field, problem: message })
      tell.object(kind, object, uid, 'InvalidField', 'ReadObject', `${field}: ${message}`)
    },
  })

  return {
    async close() {
      await cleaner?.stop()
      await checks.close()
    },
  }
}

function openCleaner({ engine, views, backend, clock, log }: AfterSyncOptions) {
  const table = new ConntrackTable()
  describeConntrack(table, log)
  return new ConntrackCleaner({
    table,
    ports: (family) => engine.udpPorts(family),
    nodeAddresses: (family) => views.addresses.filter((ip) => familyOf(ip) === family),
    answers: backend.answers,
    clock,
    log,
  })
}

function describeConntrack(table: ConntrackTable, log: Logger): void {
  table.features().then(
    ({ filteredList, filteredDelete }) => {
      const word = (has: boolean) => (has ? 'yes' : 'no')
      const found = `filtered-list=${word(filteredList)} filtered-delete=${word(filteredDelete)}`
      log.info('conntrack features of this kernel', { found })
    },
    (error) => log.v(2, 'conntrack cannot be asked here', { error }),
  )
}

/** Events as §9 of kube-proxy's has them, on the object they are about. */
function events({ recorder, name, engine }: AfterSyncOptions) {
  const apiVersions: Readonly<Record<string, string>> = {
    EndpointSlice: 'discovery.k8s.io/v1',
    ServiceCIDR: 'networking.k8s.io/v1',
  }
  const object = (kind: string, key: string, uid: string, reason: string, action: string, note: string) => {
    const slash = key.indexOf('/')
    const [namespace, objectName] = slash < 0 ? ['', key] : [key.slice(0, slash), key.slice(slash + 1)]
    const regarding = { apiVersion: apiVersions[kind] ?? 'v1', kind, namespace, name: objectName, ...(uid && { uid }) }
    recorder.record({ type: 'Warning', reason, action, note, regarding })
  }
  return {
    object,
    service: (key: string, reason: string, action: string, note: string) => {
      if (key !== '')
        object('Service', key, engine.store.service(key)?.uid ?? '', reason, action, `node ${name}: ${note}`)
    },
    node: (reason: string, action: string, note: string) => object('Node', name, '', reason, action, note),
  }
}
