// The composition root of the daemon: from a valid configuration to a running proxy. It reads from top to bottom as the daemon starts, and
// each part pushes its closer when it opens, so that a stop goes the same way back.

import { hostname } from 'node:os'
import type { Backend, Held } from '../backend/backend.ts'
import { findMode } from '../backend/modes.ts'
import type { Options } from '../config/flags/options.ts'
import { sluiceVersion } from '../config/sluice-version.ts'
import { Engine } from '../engine/engine.ts'
import { SyncJournal } from '../engine/journal.ts'
import type { ProxyIdentity } from '../http/admin.ts'
import { readObject, selectServices } from '../kube/api-objects.ts'
import { Client, defaultUserAgent } from '../kube/client.ts'
import type { Connection } from '../kube/connection.ts'
import { DialedAddresses } from '../kube/dialed-addresses.ts'
import { EventRecorder } from '../kube/events.ts'
import { loadConnection } from '../kube/kubeconfig.ts'
import { chooseAccept } from '../kube/protobuf/accept-types.ts'
import type { RecordSink } from '../kube/reflect/change-filter.ts'
import { Reflector } from '../kube/reflect/reflector.ts'
import {
  describeOwnNode,
  endpointSlices,
  serviceCidrs,
  services,
  type WatchedResource,
} from '../kube/reflect/watched-resources.ts'
import { Closers } from '../lib/closers.ts'
import { describeError, ProxyError } from '../lib/errors.ts'
import type { Family } from '../lib/ip.ts'
import type { Logger, RootLogger } from '../lib/log.ts'
import { formatTime, nextTurn, systemClock } from '../lib/time.ts'
import type { NodeRecord } from '../model/types.ts'
import { platform } from '../sys/platform/platform.ts'
import { openAdminSocket } from './admin-answers.ts'
import { startAfterSync } from './after-sync.ts'
import { ApiServerAddresses } from './api-server-addresses.ts'
import { makeSettings } from './backend-settings.ts'
import { CidrOverlaps } from './cidr-overlaps.ts'
import { publishReports } from './fleet/publish-reports.ts'
import { HttpServers } from './http-servers.ts'
import type { ManifestProblems } from './manifest-problems.ts'
import { chooseNodeName, makeNodeFacts } from './node-facts.ts'
import { findUsableFamilies, protectFromOom, tuneConnectionTracking } from './node-setup.ts'
import { NodeViews, ServiceCidrs } from './node-views.ts'
import { NodeWatch } from './node-watch.ts'
import { openEarlyClients } from './resilience/early-clients.ts'
import { KeptApiService } from './resilience/kept-api-service.ts'
import { OutlierEjection } from './resilience/outlier-ejection.ts'
import { findStateFile, SavedStart } from './resilience/saved-start.ts'

export interface DaemonOptions {
  readonly options: Options
  readonly backend: Backend<Held>
  readonly log: RootLogger
  /** Stops the daemon when it aborts. Every programmed rule stays. */
  readonly signal: AbortSignal
  /** The files that the objects come from, if this process applies them. */
  readonly manifests?: ManifestProblems
  /** Called once, after the first successful sync of every family. */
  readonly onServing?: () => Promise<void>
}

/** Resolves after `--init-only` or a stop; rejects with the reason why the daemon cannot go on. */
export async function runDaemon(given: DaemonOptions): Promise<void> {
  const { options, log } = given
  const stop = new AbortController()
  const signal = AbortSignal.any([given.signal, stop.signal])
  const closers = new Closers()
  try {
    const daemon = await openConnections({ ...given, signal, closers, onFatal: (error) => stop.abort(error) })
    const node = await awaitOwnNode(daemon)
    const views = await prepareNode(daemon, node.node)
    if (options.initOnly) return log.info('Initialised; exiting because of --init-only')
    const engine = await startEngine(daemon, node, views)
    reflectServices(daemon, engine, views)
    log.info('Running', { node: daemon.name, mode: options.config.mode, families: views.families.join(',') })
    await waitForAbort(signal)
  } catch (error) {
    if (!signal.aborted || error !== signal.reason) throw error
  } finally {
    stop.abort()
    await closers.closeAll()
  }
  if (signal.reason instanceof ProxyError) throw signal.reason
}

/** The parts that every later step of the start uses. */
interface OpenedDaemon extends DaemonContext {
  readonly name: string
  readonly journal: SyncJournal
  readonly servers: HttpServers
  readonly recorder: EventRecorder
  readonly apiServers: ApiServerAddresses
  readonly client: Client
  readonly savedStart: SavedStart
  /** Feeds a sink from the API server until the daemon stops. */
  reflect<R>(resource: WatchedResource<R>, sink: RecordSink<R>): void
}

interface DaemonContext extends DaemonOptions {
  readonly closers: Closers
  readonly onFatal: (error: ProxyError) => void
}

const clock = systemClock

async function openConnections(context: DaemonContext): Promise<OpenedDaemon> {
  const { options, log, signal, closers } = context
  const { mode, clientConnection } = options.config
  const name = chooseNodeName(options.config, hostname())
  const journal = new SyncJournal({ log })
  const packetCounters = await findMode(mode).metrics.openPacketCounters?.()
  const servers = new HttpServers({ ...context, packetCounters, journal, clock, node: name })
  const connection = loadConnection({ kubeconfig: clientConnection.kubeconfig, master: options.master })
  const { qps, burst } = clientConnection
  const observer = servers.metrics.requests
  const dialed = new DialedAddresses(clock)
  const apiServers = new ApiServerAddresses()
  dialed.subscribe((addresses) => apiServers.setDialed(addresses))
  const listeners = { observer, dialed, onHeard: servers.noteHeard }
  const accept = chooseAccept(clientConnection)
  const client = new Client(connection, { qps, burst, accept, userAgent: defaultUserAgent, log, clock, ...listeners })
  closers.push(() => client.close())
  closers.push(() => servers.close())
  const recorder = new EventRecorder({ client, clock, hostname: hostname(), log })
  const savedStart = openSavedStart({ ...context, name, servers, recorder, connection })
  servers.setSavedState(savedStart)
  closers.push(() => savedStart.close())
  const reflectors: Promise<void>[] = []
  closers.push(() => Promise.allSettled(reflectors))
  return {
    ...context,
    name,
    journal,
    servers,
    apiServers,
    client,
    recorder,
    savedStart,
    reflect(resource, sink) {
      reflectors.push(new Reflector({ client, clock, log, ...resource, sink }).run(signal))
    },
  }
}

/** The state of `sluice up` is in files already, and its API server is in this process. */
function openSavedStart({
  name,
  servers,
  recorder,
  connection,
  ...context
}: DaemonContext &
  Pick<OpenedDaemon, 'name' | 'servers' | 'recorder'> & { readonly connection: Connection }): SavedStart {
  const { options, log, signal, manifests } = context
  const place = { settings: options.sluice.state, node: name, connection, log }
  return new SavedStart({
    file: manifests === undefined && !options.initOnly ? findStateFile(place) : undefined,
    hasHeard: servers.hasHeard,
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

async function awaitOwnNode(daemon: OpenedDaemon) {
  const { options, name, journal, log, signal, reflect, savedStart, onFatal } = daemon
  const node = new NodeWatch({
    name,
    needsPodCidrs: options.config.detectLocalMode === 'NodeCIDR',
    clock,
    log,
    onProblem: (problem) => journal.problem(problem),
    onFatal,
  })
  reflect(describeOwnNode(name), node)
  const saved = await savedStart.chooseNode(() => node.isSynced)
  if (saved !== undefined) node.adopt(saved)
  await node.waitUntilReady(signal)
  return node
}

/** Does everything that `--init-only` does. */
async function prepareNode({ options, backend, name, log, apiServers }: OpenedDaemon, record: NodeRecord | undefined) {
  const { config } = options
  const interfaceAddresses = await platform.listOwnIps()
  const facts = { ...makeNodeFacts(config, { name, record, interfaceAddresses }), apiServers: apiServers.list() }
  const families = await findUsableFamilies(config, backend, facts, log)
  const views = new NodeViews(facts, families)
  tuneConnectionTracking(config, log)
  for (const family of families) await backend.prepare(views.get(family), log)
  return views
}

async function startEngine(daemon: OpenedDaemon, node: NodeWatch, views: NodeViews): Promise<Engine> {
  const { options, backend, closers, journal, servers, recorder, name, log } = daemon
  const { config } = options
  const { families } = views
  protectFromOom(config.oomScoreAdj, log)
  closers.push(sendEvents(daemon))
  const early = openEarlyClients({ backend, engine: () => engine, views, metrics: servers.metrics, clock, log })
  const outliers = openOutliers(daemon, () => engine)
  const engine: Engine = new Engine({
    resolve: outliers.resolve,
    backend: early?.backend ?? backend,
    families,
    views: (family) => views.get(family),
    settings: { minSyncMs: config.minSyncPeriod, syncMs: config.syncPeriod },
    precedence: options.sluice.addresses.precedence,
    limits: options.sluice.limits,
    clock,
    log,
    journal,
  })
  const health = servers.start(engine, recorder)
  // The start runs much code for the first time, and from now on another process may ask for our health.
  await nextTurn()
  const afterSync = startAfterSync({
    ...daemon,
    metrics: servers.metrics,
    engine,
    views,
    health,
    early: early?.cleaner,
    clock,
  })
  closers.push(() => afterSync.close())
  // The engine stops first: its last sync may still report.
  closers.push(() => engine.stop())
  if (daemon.onServing !== undefined) runAfterFirstSyncs(journal, families, daemon.onServing, log)
  followNode(daemon, node, views, { engine, health })
  const identity = {
    node: name,
    mode: config.mode,
    pid: process.pid,
    version: sluiceVersion,
    startedAt: formatTime(clock.now()),
  }
  closers.push(await openAdmin(daemon, engine, views, identity))
  closers.push(publishReports({ ...daemon, silentMs: servers.silentMs, engine, families, identity, clock }))
  await nextTurn()
  await engine.start()
  return engine
}

function openOutliers({ options, backend, closers, servers, log }: OpenedDaemon, engine: () => Engine | undefined) {
  const outliers = new OutlierEjection({
    settings: options.sluice.outliers,
    untracked: backend.untracked === true,
    store: () => engine()?.store,
    metrics: servers.metrics,
    clock,
    log,
  })
  closers.push(() => outliers.close())
  return outliers
}

/** Passes changes of the node, of its interface addresses and of the API server's addresses on to the engine and to health. */
function followNode(
  { apiServers, closers, recorder, savedStart, name, log }: OpenedDaemon,
  node: NodeWatch,
  views: NodeViews,
  { engine, health }: { readonly engine: Engine; readonly health: ReturnType<HttpServers['start']> },
): void {
  node.subscribe((record) => {
    health.setNode(record)
    savedStart.noteNode(record)
    views.update({ zone: record.zone })
  })
  const overlaps = new CidrOverlaps({ recorder, node: name, log })
  views.watch((family, view) => {
    engine.setView(family, view)
    overlaps.check(view, views.addresses)
  })
  apiServers.watch((addresses) => views.update({ apiServers: addresses }))
  views.update({ apiServers: apiServers.list() })
  const onLost = (reason: string) => log.warn('Interface addresses are listed again', { reason })
  const addresses = platform.watchAddresses(() => void refreshAddresses(views, log), { onLost })
  closers.push(() => addresses.close())
}

/** Starts to send Events. They are sent until the rest has stopped, since the last one may say why the daemon ends. */
function sendEvents({ recorder, signal }: OpenedDaemon): () => Promise<void> {
  const sending = new AbortController()
  const done = recorder.run(sending.signal)
  return async () => {
    if (signal.reason instanceof ProxyError) await recorder.drain(2_000)
    sending.abort()
    await Promise.allSettled([done])
  }
}

async function openAdmin(
  daemon: OpenedDaemon,
  engine: Engine,
  views: NodeViews,
  identity: ProxyIdentity,
): Promise<() => Promise<void>> {
  const { options, backend, journal, client, log } = daemon
  const admin = await openAdminSocket({
    engine,
    journal,
    backend,
    settings: makeSettings(options.config),
    limits: options.sluice.limits,
    identity,
    families: views.families,
    views: (family) => views.get(family),
    nodeAddresses: () => views.addresses,
    manifests: daemon.manifests,
    savedState: () => daemon.savedStart.summarise(),
    readObject: (question) => readObject(client, question),
    selectServices: (labelSelector) => selectServices(client, labelSelector),
    log,
  })
  return () => admin.close()
}

function reflectServices(
  { reflect, journal, recorder, apiServers, savedStart, name, log }: OpenedDaemon,
  engine: Engine,
  views: NodeViews,
): void {
  const cidrs = new ServiceCidrs(
    (list) => views.update({ serviceCidrs: list }),
    (problem) => journal.problem(problem),
  )
  savedStart.keep(engine.store, views.families)
  const { services: serviceSink, slices } = new KeptApiService({
    services: apiServers.readServices(engine.store.services),
    slices: apiServers.readSlices(engine.store.slices),
    isDialed: (ip) => apiServers.isDialed(ip),
    log,
  })
  const sinks = savedStart.openSinks({ services: serviceSink, slices, cidrs })
  reflect(serviceCidrs, sinks.cidrs)
  reflect(services, sinks.services)
  reflect(endpointSlices, sinks.slices)
  recorder.record({
    type: 'Normal',
    reason: 'Starting',
    action: 'StartKubeProxy',
    note: '',
    regarding: { apiVersion: 'v1', kind: 'Node', namespace: '', name },
  })
}

function runAfterFirstSyncs(
  journal: SyncJournal,
  families: readonly Family[],
  then: () => Promise<void>,
  log: Logger,
): void {
  const waiting = new Set(families)
  const unsubscribe = journal.subscribe({
    report({ family, ok }) {
      if (!ok || !waiting.delete(family) || waiting.size > 0) return
      unsubscribe()
      then().catch((error: unknown) =>
        log.v(1, 'Stopped removing the rules of other modes', { error: describeError(error) }),
      )
    },
  })
}

async function refreshAddresses(views: NodeViews, log: Logger): Promise<void> {
  try {
    views.update({ interfaceAddresses: await platform.listOwnIps() })
  } catch (error) {
    log.error('Cannot list interface addresses; node ports keep their addresses', { error })
  }
}

function waitForAbort(signal: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    if (signal.aborted) resolve()
    else signal.addEventListener('abort', () => resolve(), { once: true })
  })
}
