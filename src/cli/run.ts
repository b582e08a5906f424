// The daemon, from a valid configuration to a running proxy; the one composition root. Reads top to bottom as it starts.

import { hostname } from 'node:os'
import type { Backend, Held } from '../backend/backend.ts'
import type { Config } from '../config/schema.ts'
import { Engine } from '../engine/engine.ts'
import { Journal } from '../engine/journal.ts'
import { Client, defaultUserAgent } from '../kube/client.ts'
import { EventRecorder } from '../kube/events.ts'
import { loadConnection } from '../kube/kubeconfig.ts'
import { Reflector } from '../kube/reflector.ts'
import { endpointSlices, ownNode, type Resource, serviceCidrs, services } from '../kube/resources.ts'
import { describeError, ProxyError } from '../lib/errors.ts'
import type { Family } from '../lib/ip.ts'
import type { Logger, RootLogger } from '../lib/log.ts'
import { nextTurn, systemClock } from '../lib/time.ts'
import { checkFamilies, missingDetector } from '../model/families.ts'
import { conntrackMax, type NodeFacts } from '../model/node.ts'
import { ipv6Available } from '../sys/families.ts'
import { listOwnIps, watchAddresses } from '../sys/netlink/route.ts'
import { countCpus, setOomScore, tuneConntrack } from '../sys/tuning.ts'
import { startAdmin } from './admin.ts'
import { nodeFacts } from './facts.ts'
import type { Options } from './flags.ts'
import { followUps } from './followups.ts'
import { NodeWatch } from './node.ts'
import { findPacketCounters, observability } from './observe.ts'
import { settingsOf } from './settings.ts'
import { sluiceVersion } from './version.ts'
import { ServiceCidrs, Views } from './views.ts'

export interface RunOptions {
  readonly options: Options
  readonly backend: Backend<Held>
  readonly log: RootLogger
  /** Aborted to stop; everything programmed stays. */
  readonly signal: AbortSignal
  /** Called once, after the first sync of every family has worked. */
  readonly onServing?: () => Promise<void>
}

/** Resolves after `--init-only` or a stop; rejects with what made it impossible to go on. */
export async function run({ options, backend, log, signal, onServing }: RunOptions): Promise<void> {
  const { config } = options
  const clock = systemClock
  const stop = new AbortController()
  // Who was asked to stop before this began is not asked again.
  if (signal.aborted) stop.abort(signal.reason)
  else signal.addEventListener('abort', () => stop.abort(signal.reason), { once: true })
  const fatal = (error: ProxyError) => stop.abort(error)

  const journal = new Journal({ log })
  const name = nodeName(config)
  const packetCounters = await findPacketCounters(config.mode)
  const observe = observability({ options, packetCounters, backend, log, journal, clock, fatal })
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
  const reflect = <R>(resource: Resource<R>, sink: ConstructorParameters<typeof Reflector<R>>[0]['sink']) =>
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
    const views = new Views(facts, families)
    tune(config, log)
    for (const family of families) await backend.prepare(views.of(family), log)
    if (options.initOnly) return log.info('initialised; exiting because of --init-only')

    protectFromOom(config.linux.oomScoreAdj, log)
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
    const follow = followUps({ engine, journal, views, health, recorder, backend, metrics, name, clock, log })
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
    recorder.record(birthCry(name))
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

function afterFirstSyncs(journal: Journal, families: readonly Family[], then: () => Promise<void>, log: Logger): void {
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
  const { conntrack } = config.linux
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

async function refreshAddresses(views: Views, log: Logger): Promise<void> {
  try {
    views.update({ interfaceAddresses: await listOwnIps() })
  } catch (error) {
    log.error('cannot list interface addresses; node ports stay where they are', { error })
  }
}

const birthCry = (node: string) =>
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
