// Opens the parts that keep traffic working when the API server or endpoints fail, with what each needs of the daemon.

import { LocalDrains } from '../../engine/draining/local-drain.ts'
import type { Engine } from '../../engine/engine.ts'
import type { Resolve } from '../../engine/planner.ts'
import type { Connection } from '../../kube/connection.ts'
import { type Family, familyOf } from '../../lib/ip.ts'
import type { OptIn } from '../../model/types.ts'
import { Canary } from '../canary/canary.ts'
import type { DaemonContext, OpenedDaemon } from '../opened-daemon.ts'
import { SettingsReload } from '../settings-reload.ts'
import { DrainFile } from './drain-file.ts'
import { EndedConnections } from './ended-connections.ts'
import { EndpointBalancing } from './endpoint-balancing.ts'
import { OutlierEjection } from './outlier-ejection.ts'
import { findStateFile, SavedStart } from './saved-start.ts'

/** The state of `sluice up` is in files already, and its API server is in this process. */
export function openSavedStart({
  name,
  servers,
  recorder,
  connection,
  ...context
}: DaemonContext &
  Pick<OpenedDaemon, 'name' | 'servers' | 'recorder'> & { readonly connection: Connection }): SavedStart {
  const { options, clock, log, signal, manifests } = context
  const place = { settings: options.sluice.state, node: name, connection, log }
  return new SavedStart({
    file: manifests === undefined && !options.initOnly ? findStateFile(place) : undefined,
    hasHeard: servers.hasHeard,
    hasFailed: servers.hasFailed,
    isCurrent: () => servers.silentMs() < options.sluice.apiServer.silence,
    onReplaced: (note) =>
      recorder.record({
        type: 'Warning',
        reason: 'ServedSavedState',
        action: 'StartKubeProxy',
        note,
        regarding: { apiVersion: 'v1', kind: 'Node', namespace: '', name },
      }),
    clock,
    log,
    signal,
  })
}

function openBalancing(daemon: OpenedDaemon, engine: () => Engine | undefined): EndpointBalancing {
  const { options, closers, capacity, clock } = daemon
  const balancing = new EndpointBalancing({
    settings: options.sluice.balancing,
    store: () => engine()?.store,
    weighByCapacity: (...about) => capacity.weigh(...about),
    clock,
  })
  closers.push(() => balancing.close())
  return balancing
}

function openOutliers(daemon: OpenedDaemon, engine: () => Engine | undefined): OutlierEjection {
  const { options, backend, closers, servers, journal, clock, log } = daemon
  const outliers = new OutlierEjection({
    settings: options.sluice,
    backend,
    journal,
    resolve: openBalancing(daemon, engine).resolve,
    store: () => engine()?.store,
    metrics: servers.metrics,
    clock,
    log,
  })
  closers.push(() => outliers.close())
  return outliers
}

/** Every service is planned again after a change, since each may follow from the settings. What does not change is not written. */
export function openSettingsReload(
  { options, closers, servers, journal, capacity, clock, log }: OpenedDaemon,
  engine: Engine,
  families: readonly Family[],
): void {
  if (options.sluiceFile === '') return
  const reload = new SettingsReload({
    file: options.sluiceFile,
    settings: options.sluice,
    onChanged: (fields) => {
      capacity.update()
      for (const family of families) journal.cause(family, 'settings', '', fields.join(', '))
      for (const { key } of engine.store.records()) for (const family of families) engine.store.touch(key, family)
    },
    metrics: servers.metrics,
    clock,
    log,
  })
  closers.push(() => reload.close())
}

/** Opens the check of this node's own data path, if there are addresses for it. */
export function openCanary(daemon: OpenedDaemon, engine: Engine, families: readonly Family[]): void {
  const { options, name, journal, closers, servers, clock, log } = daemon
  const settings = options.sluice.canary
  if (settings.addresses.length === 0) return
  const { store } = engine
  const canary = new Canary({ settings, families, node: name, store, journal, metrics: servers.metrics, clock, log })
  servers.setCanary(canary)
  closers.push(() => canary.close())
  canary.open()
}

export interface Policies {
  readonly resolve: Resolve
  /** Undefined if the kernel translates nothing. */
  readonly ended: EndedConnections | undefined
}

/** Opens what changes the policy of the model while the proxy runs, and what follows the endpoints of services. */
export function openPolicies(
  daemon: OpenedDaemon,
  engine: () => Engine | undefined,
  views: { readonly addresses: readonly string[] },
): Policies {
  const resolve = addLocalDrain(daemon, engine, openOutliers(daemon, engine).resolve)
  const ended = openEndedConnections(daemon, engine, views)
  return { resolve: ended?.wrap(resolve) ?? resolve, ended }
}

function addLocalDrain(daemon: OpenedDaemon, engine: () => Engine | undefined, resolve: Resolve): Resolve {
  const { options, closers, servers, journal, clock, log, savedStart } = daemon
  const { draining } = options.sluice
  const file = savedStart.path === undefined ? undefined : new DrainFile(savedStart.path, log)
  const drains = new LocalDrains({
    drainMs: ({ localDrain = draining.local }) => readOptIn(localDrain, draining.time),
    onEnd: (service, family) => {
      journal.cause(family, 'drain', service, 'the local endpoints are drained')
      engine()?.store.touch(service, family)
    },
    hasService: (service) => engine()?.store.service(service) !== undefined,
    onCount: servers.metrics.draining,
    earlier: file?.read() ?? new Map(),
    onDrains: (since) => file?.write(since),
    clock,
  })
  closers.push(() => drains.close())
  return drains.wrap(resolve)
}

function openEndedConnections(
  { options, backend, closers, servers, clock, log }: OpenedDaemon,
  engine: () => Engine | undefined,
  views: { readonly addresses: readonly string[] },
): EndedConnections | undefined {
  if (backend.untracked) return undefined
  const { resets } = options.sluice
  const ended = new EndedConnections({
    graceMs: ({ resetConnections = resets.connections }) => readOptIn(resetConnections, resets.grace),
    hasService: (service) => engine()?.store.service(service) !== undefined,
    portsOf: (service, family) => engine()?.portsOf(service, family) ?? [],
    nodeAddresses: (family) => views.addresses.filter((ip) => familyOf(ip) === family),
    metrics: servers.metrics,
    clock,
    log,
  })
  closers.push(() => ended.close())
  return ended
}

const readOptIn = (wish: OptIn, configuredMs: number): number => {
  if (wish === 'off') return 0
  return wish === 'on' ? configuredMs : wish
}
