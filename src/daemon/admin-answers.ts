// What a running proxy tells through its admin socket: answers computed from its engine when somebody asks, never kept.

import { readFileSync } from 'node:fs'
import type { Backend, Held, Settings } from '../backend/backend.ts'
import { findMode } from '../backend/modes.ts'
import type { Engine } from '../engine/engine.ts'
import type { SyncJournal, SyncReport } from '../engine/journal.ts'
import {
  type AdminAnswers,
  type AdminEvent,
  type AdminSocket,
  type Connections,
  type FamilySummary,
  listenAdmin,
  type Presence,
  type ProxyIdentity,
  type ReportSummary,
  type ServiceSummary,
} from '../http/admin.ts'
import { socketPath } from '../http/admin-client.ts'
import type { Desired } from '../inspect/dry-run.ts'
import { type ExplainContext, explain } from '../inspect/explanation.ts'
import { type KernelState, presence, readKernelState } from '../inspect/kernel-state.ts'
import { describeError } from '../lib/errors.ts'
import { type Family, hostPort } from '../lib/ip.ts'
import type { Logger } from '../lib/log.ts'
import { nextTurn } from '../lib/time.ts'
import type { NodeView, ServicePort } from '../model/types.ts'
import { ConntrackTable } from '../sys/netlink/conntrack.ts'
import { errnoOf } from '../sys/netlink/netlink-errors.ts'

export interface AdminOptions {
  readonly engine: Engine
  readonly journal: SyncJournal
  readonly backend: Backend<Held>
  readonly settings: Settings
  readonly identity: ProxyIdentity
  readonly families: readonly Family[]
  readonly views: (family: Family) => NodeView
  readonly nodeAddresses: () => readonly string[]
  readonly log: Logger
}

/** A proxy works without it, so failing to make it is only a warning. SLUICE_ADMIN_SOCKET=off: none is wanted. */
export async function startAdmin(options: AdminOptions): Promise<{ close(): Promise<void> }> {
  const log = options.log.named('admin')
  const path = socketPath(options.identity.node, process.env)
  if (path === '') return { close: async () => {} }
  try {
    const socket: AdminSocket = await listenAdmin(path, adminAnswers(options), log)
    log.v(1, 'admin socket', { path })
    return socket
  } catch (error) {
    log.warn('no admin socket: status, explain and plan cannot ask this proxy', { path, error: describeError(error) })
    return { close: async () => {} }
  }
}

export function adminAnswers(options: AdminOptions): AdminAnswers {
  const { engine, journal, backend, identity, families } = options
  const views = () => families.map((family) => options.views(family))
  const mode = findMode(identity.mode)
  const context = (): ExplainContext => ({
    desired: engine,
    backend,
    mode,
    behaviour: mode.behaviour(options.settings),
    views: views(),
    nodeAddresses: options.nodeAddresses(),
    readKernel: (family) => tryLook(backend, options.views(family), options.log),
  })
  return {
    summary: () => ({
      ...identity,
      services: [...engine.store.records()].length,
      families: families.map((family) => familySummary(engine, journal, family)),
      conflicts: engine.conflicts(),
      quarantined: engine.quarantined().map(({ service, family, error, attempts, since, retryAt, ids }) => ({
        service,
        family,
        error: error.message,
        attempts,
        since,
        retryAt,
        entries: ids,
      })),
      reports: journal.recent().toReversed().map(reportSummary),
      counters: journal.counters(),
      connections: trackedConnections(),
    }),
    services: (one, kernel) => serviceSummaries(context(), one, kernel),
    explain: (question) => explain(context(), question),
    inputs: () => ({
      identity,
      settings: options.settings,
      views: views(),
      nodeAddresses: options.nodeAddresses(),
      services: [...engine.store.records()],
      slices: [...engine.store.records()].flatMap(({ key }) =>
        families.flatMap((family) => engine.store.slicesOf(key, family)),
      ),
    }),
    connections: () => countConnections(engine, families).catch(noneIfForbidden),
    subscribe: (listener) => subscribe(journal, listener),
  }
}

function subscribe(journal: SyncJournal, listener: (event: AdminEvent) => void): () => void {
  return journal.subscribe({
    report: (report) => listener({ kind: 'sync', report: reportSummary(report) }),
    conflict: (conflict) => listener({ kind: 'conflict', conflict }),
    resolved: (conflict) => listener({ kind: 'resolved', conflict }),
    drift: (family, culprit) => listener({ kind: 'drift', family, culprit }),
    problem: ({ kind, object, field, message }) =>
      listener({ kind: 'problem', object: `${kind} ${object}`, message: `${field}: ${message}` }),
  })
}

function familySummary(engine: Engine, journal: SyncJournal, family: Family): FamilySummary {
  const last = journal.recent().findLast((report) => report.family === family)
  const stateHash = engine.stateHash(family)
  return {
    family,
    stateHash,
    entries: Number.parseInt(stateHash.slice(0, 8), 16),
    lastSync: last === undefined ? undefined : reportSummary(last),
  }
}

export const reportSummary = (report: SyncReport): ReportSummary => ({
  family: report.family,
  startedAt: report.startedAt,
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

/** A kernel that cannot be asked is no reason to answer nothing. */
async function tryLook(backend: Backend<Held>, view: NodeView, log: Logger): Promise<KernelState | undefined> {
  try {
    return await readKernelState(backend, view)
  } catch (error) {
    log.warn('cannot look at what the kernel holds', { error: describeError(error) })
    return undefined
  }
}

/** By service and family; the event loop has its turn in between. */
export async function serviceSummaries(
  { desired, views, readKernel }: Pick<ExplainContext, 'desired' | 'views' | 'readKernel'>,
  one: string,
  kernel: boolean,
): Promise<readonly ServiceSummary[]> {
  const keys = one === '' ? [...desired.store.records()].map(({ key }) => key).sort() : [one]
  const sights = new Map<Family, KernelState | undefined>()
  if (kernel) for (const { family } of views) sights.set(family, await readKernel?.(family))
  const lines: ServiceSummary[] = []
  for (const [i, key] of keys.entries()) {
    if (i % 100 === 99) await nextTurn()
    lines.push(...summaries(desired, key, kernel ? sights : undefined))
  }
  return lines
}

function summaries(
  desired: Desired,
  service: string,
  sights: ReadonlyMap<Family, KernelState | undefined> | undefined,
): readonly ServiceSummary[] {
  const { known, families } = desired.status(service)
  if (!known) return []
  return families
    .filter(({ ports, entries, lost, quarantine }) => ports.length + entries.length + lost.length > 0 || quarantine)
    .map(({ family, pending, ports, lost, quarantine, entries }): ServiceSummary => {
      const found = entries.map((entry) => ({ entry, at: presence(entry, sights?.get(family)) }))
      const tally: Record<Presence, number> = { held: 0, present: 0, missing: 0, differs: 0, 'not checked': 0 }
      for (const { at } of found) tally[at]++
      return {
        service,
        family,
        pending,
        ports: ports.map(portSummary),
        entries: entries.length,
        inKernel: sights === undefined ? undefined : tally,
        wrong: found
          .filter(({ at }) => at === 'missing' || at === 'differs')
          .map(
            ({ entry, at }) =>
              `${entry.id}: ${at === 'missing' ? 'is not in the kernel' : 'has other content in the kernel'}`,
          ),
        lost: lost.map(({ frontend, winner }) => `${frontend} (${winner})`),
        quarantine: quarantine?.error.message ?? '',
      }
    })
}

const portSummary = (port: ServicePort) => ({
  name: port.name,
  protocol: port.protocol,
  frontends: port.frontends.map(({ kind, ip, port: number }) =>
    kind === 'node-port' ? `node-port ${number}` : `${kind} ${hostPort(ip, number)}`,
  ),
  internal: port.internal,
  external: port.external,
  endpoints: port.cluster.map(({ ip, port: number }) => hostPort(ip, number)),
  localEndpoints: port.local.map(({ ip, port: number }) => hostPort(ip, number)),
  affinitySeconds: port.affinitySeconds,
})

// ---- Connections. ----

function trackedConnections(): { tracked: number; limit: number } | undefined {
  try {
    const read = (name: string) => Number(readFileSync(`/proc/sys/net/netfilter/${name}`, 'utf8'))
    return { tracked: read('nf_conntrack_count'), limit: read('nf_conntrack_max') }
  } catch {
    return undefined
  }
}

/** Only those who may change rules may see connections; a proxy without that right has none in the kernel anyway. */
function noneIfForbidden(error: unknown): readonly Connections[] {
  if (errnoOf(error) === 'EPERM') return []
  throw error
}

const protocols = { tcp: 6, udp: 17, sctp: 132 } as const

/** Flows to a service's address, by the endpoint that answers them. */
async function countConnections(desired: Desired, families: readonly Family[]): Promise<readonly Connections[]> {
  const counts = new Map<string, Connections & { count: number }>()
  const table = new ConntrackTable()
  try {
    for (const family of families) {
      for (const protocol of ['tcp', 'udp'] as const) {
        const { exact, nodePorts, numbers } = frontendIndex(desired, family, protocol)
        if (numbers.size === 0) continue
        const filter = { family, protocol: protocols[protocol], destinationPorts: numbers }
        await table.list(filter, (flows) => {
          for (const flow of flows) {
            const service =
              exact.get(hostPort(flow.destination, flow.destinationPort)) ?? nodePorts.get(flow.destinationPort)
            const endpoint = hostPort(flow.replySource, flow.replySourcePort)
            // Without translation it went to whoever has the address.
            if (service === undefined || flow.replySource === flow.destination) continue
            const key = `${service} ${endpoint}`
            const known = counts.get(key)
            if (known === undefined) counts.set(key, { service, endpoint, count: 1 })
            else known.count++
          }
        })
      }
    }
  } finally {
    table.close()
  }
  return [...counts.values()].sort((a, b) => (`${a.service} ${a.endpoint}` < `${b.service} ${b.endpoint}` ? -1 : 1))
}

function frontendIndex(desired: Desired, family: Family, protocol: 'tcp' | 'udp') {
  const exact = new Map<string, string>()
  const nodePorts = new Map<number, string>()
  const numbers = new Set<number>()
  for (const port of desired.ports(family)) {
    if (port.protocol !== protocol) continue
    for (const frontend of port.frontends) {
      numbers.add(frontend.port)
      if (frontend.kind === 'node-port') nodePorts.set(frontend.port, port.name)
      else exact.set(hostPort(frontend.ip, frontend.port), port.name)
    }
  }
  return { exact, nodePorts, numbers }
}
