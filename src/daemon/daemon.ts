// The composition root of the daemon: from a valid configuration to a running proxy. It reads from top to bottom as the daemon starts, and
// each part pushes its closer when it opens, so that a stop goes the same way back.

import { hostname } from 'node:os'
import { findMode } from '../backend/modes.ts'
import { sluiceVersion } from '../config/sluice-version.ts'
import { Engine } from '../engine/engine.ts'
import { SyncJournal } from '../engine/journal.ts'
import type { ProxyIdentity } from '../http/admin.ts'
import { readObject, selectServices } from '../kube/api-objects.ts'
import { Client, defaultUserAgent } from '../kube/client.ts'
import { DialedAddresses } from '../kube/dialed-addresses.ts'
import { EventRecorder } from '../kube/events.ts'
import { loadConnection } from '../kube/kubeconfig.ts'
import { chooseAccept } from '../kube/protobuf/accept-types.ts'
import { Reflector } from '../kube/reflect/reflector.ts'
import { describeOwnNode, endpointSlices, serviceCidrs, services } from '../kube/reflect/watched-resources.ts'
import { Closers } from '../lib/closers.ts'
import { ProxyError } from '../lib/errors.ts'
import type { Family } from '../lib/ip.ts'
import { formatTime, nextTurn, systemClock } from '../lib/time.ts'
import type { NodeRecord } from '../model/types.ts'
import { platform } from '../sys/platform/platform.ts'
import { readCpuMs } from '../sys/process/cpu-time.ts'
import { readScatteredBytes } from '../sys/release-memory.ts'
import { openAdminSocket } from './admin-answers.ts'
import { startAfterSync } from './after-sync.ts'
import { makeSettings } from './backend-settings.ts'
import { runAfterFirstSyncs } from './first-syncs.ts'
import { publishReports } from './fleet/publish-reports.ts'
import { openHistory } from './history/open-history.ts'
import { HttpServers } from './http-servers.ts'
import { MemoryRelease } from './memory-release.ts'
import { ApiServerAddresses } from './node/api-server-addresses.ts'
import { followNode } from './node/follow-node.ts'
import { chooseNodeName, makeNodeFacts } from './node/node-facts.ts'
import { findUsableFamilies, protectFromOom, tuneConnectionTracking } from './node/node-setup.ts'
import { NodeViews, ServiceCidrs } from './node/node-views.ts'
import { NodeWatch } from './node/node-watch.ts'
import type { DaemonContext, DaemonOptions, OpenedDaemon } from './opened-daemon.ts'
import { openEarlyClients } from './resilience/early-clients.ts'
import { KeptApiService } from './resilience/kept-api-service.ts'
import { NodeCapacity } from './resilience/node-capacity.ts'
import { openCanary, openPolicies, openSavedStart, openSettingsReload } from './resilience/open-resilience.ts'
import { openAccounting, prepareAccounting } from './traffic/open-accounting.ts'
import { openFlows } from './traffic/open-flows.ts'
import { Sampler } from './traffic/sampler.ts'

/** Resolves after `--init-only` or a stop; rejects with the reason why the daemon cannot go on. */
export async function runDaemon(given: DaemonOptions): Promise<void> {
  const { options, log } = given
  const stop = new AbortController()
  const signal = AbortSignal.any([given.signal, stop.signal])
  const closers = new Closers()
  try {
    const daemon = await openConnections({ ...given, signal, clock, closers, onFatal: (error) => stop.abort(error) })
    const node = await awaitOwnNode(daemon)
    const views = await prepareNode(daemon, node.node)
    if (options.initOnly) return log.info('Initialised; exiting because of --init-only')
    const engine = await startEngine(daemon, node, views)
    reflectServices(daemon, engine, views)
    openSettingsReload(daemon, engine, views.families)
    openCanary(daemon, engine, views.families)
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
  const { observer } = servers
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
  const history = await openHistory({ ...context, journal, name, savedStart })
  servers.setHistory(history)
  const reflectors: Promise<void>[] = []
  closers.push(() => Promise.allSettled(reflectors))
  const reflect: OpenedDaemon['reflect'] = (resource, sink, until = signal) => {
    const reflector = new Reflector({ client, clock, log, ...resource, sink: history.follow(resource.kind, sink) })
    reflectors.push(reflector.run(until === signal ? signal : AbortSignal.any([signal, until])))
  }
  const capacity = new NodeCapacity({ settings: options.sluice.balancing, reflect, journal, clock, log })
  closers.push(() => capacity.close())
  return {
    ...context,
    name,
    journal,
    history,
    servers,
    apiServers,
    client,
    recorder,
    savedStart,
    capacity,
    reflect,
  }
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
async function prepareNode(daemon: OpenedDaemon, record: NodeRecord | undefined) {
  const { options, backend, name, log, apiServers } = daemon
  const { config } = options
  const interfaceAddresses = await platform.listOwnIps()
  const facts = { ...makeNodeFacts(config, { name, record, interfaceAddresses }), apiServers: apiServers.list() }
  const families = await findUsableFamilies(config, backend, facts, log)
  const views = new NodeViews(facts, families)
  tuneConnectionTracking(config, log)
  prepareAccounting(daemon)
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
  const policies = openPolicies(daemon, () => engine, views)
  const engine: Engine = new Engine({
    resolve: policies.resolve,
    backend: early?.backend ?? backend,
    families,
    views: (family) => views.get(family),
    settings: { minSyncMs: config.minSyncPeriod, syncMs: config.syncPeriod },
    precedence: options.sluice.addresses.precedence,
    limits: options.sluice.limits,
    clock,
    log,
    journal,
    spentMs: readCpuMs,
  })
  const health = servers.start(engine, recorder)
  // The start runs much code for the first time, and from now on another process may ask for our health.
  await nextTurn()
  const afterSync = startAfterSync({
    ...daemon,
    ...policies,
    metrics: servers.metrics,
    engine,
    views,
    health,
    early: early?.cleaner,
  })
  closers.push(() => afterSync.close())
  // The engine stops first: its last sync may still report.
  closers.push(() => engine.stop())
  closers.push(followMemory(daemon, families))
  if (daemon.onServing !== undefined) runAfterFirstSyncs(journal, families, daemon.onServing, log)
  followNode(daemon, node, views, { engine, health })
  openAccounting(daemon, engine, views)
  const identity = identifyProxy(name, config.mode)
  closers.push(await openAdmin(daemon, engine, views, identity))
  closers.push(publishReports({ ...daemon, silentMs: servers.silentMs, engine, families, identity, clock }))
  await nextTurn()
  await engine.start()
  return engine
}

const identifyProxy = (node: string, mode: string): ProxyIdentity => ({
  node,
  mode,
  pid: process.pid,
  version: sluiceVersion,
  startedAt: formatTime(clock.now()),
})

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

/** Returns memory to the system after work. */
function followMemory({ journal, log }: OpenedDaemon, families: readonly Family[]): () => Promise<void> {
  const memory = new MemoryRelease({
    journal,
    families,
    clock,
    log,
    release: (how) => platform.releaseMemory(how),
    readResidentBytes: () => process.memoryUsage.rss(),
    readScatteredBytes,
  })
  return async () => memory.close()
}

async function openAdmin(
  daemon: OpenedDaemon,
  engine: Engine,
  views: NodeViews,
  identity: ProxyIdentity,
): Promise<() => Promise<void>> {
  const { options, backend, journal, client, log, history } = daemon
  const samples = new Sampler({
    engine,
    journal,
    clock,
    countConnections: () => daemon.servers.traffic.sumConnections(),
  })
  const admin = await openAdminSocket({
    engine,
    journal,
    history: history.history,
    backend,
    settings: makeSettings(options.config, options.sluice.traffic),
    limits: options.sluice.limits,
    identity,
    families: views.families,
    views: (family) => views.get(family),
    nodeAddresses: () => views.addresses,
    manifests: daemon.manifests,
    savedState: () => daemon.savedStart.summarise(),
    traffic: daemon.servers.traffic,
    readObject: (question) => readObject(client, question),
    selectServices: (labelSelector) => selectServices(client, labelSelector),
    samples,
    flows: openFlows(daemon, engine, views),
    log,
  })
  return () => {
    samples.close()
    return admin.close()
  }
}

function reflectServices(
  { reflect, journal, recorder, apiServers, savedStart, capacity, name, log }: OpenedDaemon,
  engine: Engine,
  views: NodeViews,
): void {
  const cidrs = new ServiceCidrs(
    (list) => views.update({ serviceCidrs: list }),
    (problem) => journal.problem(problem),
  )
  savedStart.keep(engine.store, views.families)
  capacity.follow({ store: engine.store, families: views.families })
  const { services: serviceSink, slices } = new KeptApiService({
    services: apiServers.readServices(capacity.readServices(engine.store.services)),
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

function waitForAbort(signal: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    if (signal.aborted) resolve()
    else signal.addEventListener('abort', () => resolve(), { once: true })
  })
}
