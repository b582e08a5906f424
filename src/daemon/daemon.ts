// The daemon, from a valid configuration to a running proxy; the one composition root. Reads top to bottom as it starts.

import { hostname } from 'node:os'
import type { Backend, Held } from '../backend/backend.ts'
import { findMode } from '../backend/modes.ts'
import type { Config } from '../config/configuration.ts'
import type { Options } from '../config/flags/options.ts'
import { sluiceVersion } from '../config/sluice-version.ts'
import { Engine } from '../engine/engine.ts'
import { SyncJournal } from '../engine/journal.ts'
import { Client, defaultUserAgent } from '../kube/client.ts'
import { EventRecorder } from '../kube/events.ts'
import { loadConnection } from '../kube/kubeconfig.ts'
import { Reflector } from '../kube/reflect/reflector.ts'
import {
  endpointSlices,
  ownNode,
  serviceCidrs,
  services,
  type WatchedResource,
} from '../kube/reflect/watched-resources.ts'
import { describeError, ProxyError } from '../lib/errors.ts'
import type { Family } from '../lib/ip.ts'
import type { Logger, RootLogger } from '../lib/log.ts'
import { nextTurn, systemClock } from '../lib/time.ts'
import { checkFamilies, missingDetector } from '../model/families.ts'
import { conntrackMax, type NodeFacts } from '../model/node.ts'
import { ipv6Available } from '../sys/kernel-facts.ts'
import { listOwnIps, watchAddresses } from '../sys/netlink/interface-addresses.ts'
import { countCpus, setOomScore, tuneConntrack } from '../sys/tuning.ts'
import { startAdmin } from './admin-answers.ts'
import { startAfterSync } from './after-sync.ts'
import { settingsOf } from './backend-settings.ts'
import { startServers } from './http-servers.ts'
import { nodeFacts } from './node-facts.ts'
import { NodeViews, ServiceCidrs } from './node-views.ts'
import { NodeWatch } from './node-watch.ts'

export interface DaemonOptions {
  readonly options: Options
  readonly backend: Backend<Held>
  readonly log: RootLogger
  /** Aborted to stop; everything programmed stays. */
  readonly signal: AbortSignal
  /** Called once, after the first sync of every family has worked. */
  readonly onServing?: () => Promise<void>
}

/** Resolves after `--init-only` or a stop; rejects with what made it impossible to go on. */
export async function runDaemon({ options, backend, log, signal, onServing }: DaemonOptions): Promise<void> {
  const { config } = options
  const clock = systemClock
  const stop = new AbortController()
  // Who was asked to stop before this began is not asked again.
  if (signal.aborted) stop.abort(signal.reason)
  else signal.addEventListener('abort', () => stop.abort(signal.reason), { once: true })
  const fatal = (error: ProxyError) => stop.abort(error)

  const journal = new SyncJournal({ log })
  const name = nodeName(config)
  const packetCounters = await findMode(config.mode).metrics.openPacketCounters?.()
  const observe = startServers({ options, packetCounters, backend, log, journal, clock, fatal })
  const client = new Client(
    loadConnection({ kubeconfig: config.clientConnection.kubeconfig, master: options.master }),
    {
      qps: config.clientConnection.qps,
      burst: config.clientConnection.burst,
      userAgent: defaultUserAgent,
      log,
      clock,
      observer: observe.metrics.requests,
    },
  )
  const recorder = new EventRecorder({ client, clock, hostname: hostname(), log })
  const reflect = <R>(resource: WatchedResource<R>, sink: ConstructorParameters<typeof Reflector<R>>[0]['sink']) =>
    new Reflector<R>({ client, clock, log, ...resource, sink }).run(stop.signal)
  const running: Promise<void>[] = []
  // Events outlive the rest by a moment: the last one may say why we end.
  const telling = new AbortController()

  try {
    const node = new NodeWatch({
      name,
      needsPodCidrs: config.detectLocalMode === 'NodeCIDR',
      clock,
      log,
      onProblem: (problem) => journal.problem(problem),
      onFatal: fatal,
    })
    running.push(reflect(ownNode(name), node))
    await node.ready(stop.signal)

    const interfaceAddresses = await listOwnIps()
    const facts = nodeFacts(config, { name, record: node.node, interfaceAddresses })
    const families = await usableFamilies(config, backend, facts, log)
    const views = new NodeViews(facts, families)
    tune(config, log)
    for (const family of families) await backend.prepare(views.of(family), log)
    if (options.initOnly) return log.info('initialised; exiting because of --init-only')

    protectFromOom(config.oomScoreAdj, log)
    running.push(recorder.run(telling.signal))
    const engine = new Engine({
      backend,
      families,
      views: (family) => views.of(family),
      settings: { minSyncMs: config.minSyncPeriod, syncMs: config.syncPeriod },
      clock,
      log,
      journal,
    })
    const health = observe.serve(engine, recorder, name)
    // Much code runs for the first time here; from now on somebody may ask for our health.
    await nextTurn()
    const { metrics } = observe
    const follow = startAfterSync({ engine, journal, views, health, recorder, backend, metrics, name, clock, log })
    node.subscribe((record) => {
      health.setNode(record)
      views.update({ zone: record.zone })
    })
    if (onServing !== undefined) afterFirstSyncs(journal, families, onServing, log)
    views.watch((family, view) => engine.setView(family, view))
    const addresses = watchAddresses(() => void refreshAddresses(views, log))
    const admin = await startAdmin({
      engine,
      journal,
      backend,
      settings: settingsOf(config),
      identity: { node: name, mode: config.mode, pid: process.pid, version: sluiceVersion, startedAt: clock.now() },
      families,
      views: (family) => views.of(family),
      nodeAddresses: () => views.addresses,
      log,
    })
    await nextTurn()
    await engine.start()

    const cidrs = new ServiceCidrs(
      (list) => views.update({ serviceCidrs: list }),
      (problem) => journal.problem(problem),
    )
    running.push(reflect(serviceCidrs, cidrs), reflect(services, engine.store.services))
    running.push(reflect(endpointSlices, engine.store.slices))
    recorder.record(announceStart(name))
    log.info('running', { node: name, mode: config.mode, families: families.join(',') })

    await aborted(stop.signal)
    addresses.close()
    await admin.close()
    await engine.stop()
    await follow.close()
  } catch (error) {
    if (!stop.signal.aborted || error !== stop.signal.reason) throw error
  } finally {
    stop.abort()
    if (stop.signal.reason instanceof ProxyError) await recorder.drain(2_000)
    telling.abort()
    await Promise.allSettled(running)
    await observe.close()
    client.close()
  }
  if (stop.signal.reason instanceof ProxyError) throw stop.signal.reason
}

/** What EndpointSlices call this node. A name that differs from the Node's makes nothing local. */
function nodeName(config: Config): string {
  const name = (config.hostnameOverride || hostname()).trim().toLowerCase()
  if (name === '') throw new ProxyError('config', 'the host name is empty: give --hostname-override')
  return name
}

function afterFirstSyncs(
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
      then().catch((error: unknown) => log.v(1, 'stopped looking after other modes', { error: describeError(error) }))
    },
  })
}

/** Both families wherever the machine and the mode can; the primary one must be among them. */
async function usableFamilies(
  config: Config,
  backend: Backend<Held>,
  facts: NodeFacts,
  log: Logger,
): Promise<Family[]> {
  const ipv6 = ipv6Available()
  const supported = (await backend.families()).filter((family) => family === 4 || ipv6)
  const { primary } = facts.ips
  const check = {
    primary,
    supported,
    detectLocalMode: config.detectLocalMode,
    clusterCidrs: config.clusterCIDRs,
    podCidrs: facts.detectLocal.podCidrs,
    nodePortAddresses: config.nodePortAddresses,
    excludeCidrs: config.ipvs.excludeCIDRs,
    healthzBindAddress: config.healthzBindAddress,
    metricsBindAddress: config.metricsBindAddress,
  }
  const { warnings, fatal } = checkFamilies(check)
  for (const warning of warnings) log.warn(warning)
  if (fatal.length > 0) throw new ProxyError('config', fatal.join('; '))
  const undetected = missingDetector(check)
  if (undetected !== undefined) log.info(undetected)
  if (facts.ips[primary] === '127.0.0.1' || facts.ips[primary] === '::1') {
    log.warn("this node's address is unknown; set --bind-address if its Node has none")
  }
  return supported
}

function tune(config: Config, log: Logger): void {
  const { conntrack } = config
  const changed = tuneConntrack({
    max: conntrackMax({ maxPerCore: conntrack.maxPerCore, min: conntrack.min, cpus: countCpus() }),
    tcpEstablishedMs: conntrack.tcpEstablishedTimeout,
    tcpCloseWaitMs: conntrack.tcpCloseWaitTimeout,
    tcpBeLiberal: conntrack.tcpBeLiberal,
    udpMs: conntrack.udpTimeout,
    udpStreamMs: conntrack.udpStreamTimeout,
  })
  if (changed.length > 0) log.info('tuned connection tracking', { changed: changed.join(' ') })
}

/** Losing the proxy stops updates, not traffic: worth a try, not worth refusing to start. */
function protectFromOom(score: number, log: Logger): void {
  try {
    setOomScore(score)
  } catch (error) {
    log.v(2, 'cannot set the OOM score', { error: describeError(error) })
  }
}

async function refreshAddresses(views: NodeViews, log: Logger): Promise<void> {
  try {
    views.update({ interfaceAddresses: await listOwnIps() })
  } catch (error) {
    log.error('cannot list interface addresses; node ports stay where they are', { error })
  }
}

const announceStart = (node: string) =>
  ({
    type: 'Normal',
    reason: 'Starting',
    action: 'StartKubeProxy',
    note: '',
    regarding: { apiVersion: 'v1', kind: 'Node', namespace: '', name: node },
  }) as const

function aborted(signal: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    if (signal.aborted) resolve()
    else signal.addEventListener('abort', () => resolve(), { once: true })
  })
}
