// The two HTTP servers of the daemon, for health and for metrics, and the metrics themselves.

import { hostname } from 'node:os'
import type { Backend, Held } from '../backend/backend.ts'
import { findMode } from '../backend/modes.ts'
import type { PacketReader } from '../backend/proxy-mode.ts'
import { toV1alpha1 } from '../config/configuration.ts'
import type { Options } from '../config/flags/options.ts'
import { isFeatureEnabled, listFeatures } from '../config/gates.ts'
import { kubernetesVersion } from '../config/kubernetes-version.ts'
import { sluiceVersion } from '../config/sluice-version.ts'
import type { Engine } from '../engine/engine.ts'
import type { SyncJournal } from '../engine/journal.ts'
import type { KernelCounters } from '../http/feeds/kernel-metrics.ts'
import { BusiestPorts } from '../http/feeds/port-metrics.ts'
import { ProxyHealth } from '../http/health.ts'
import { createMetrics, type Metrics } from '../http/metrics.ts'
import { makeMetricsPages } from '../http/pages/pages.ts'
import { type Routes, routeRequests } from '../http/routing.ts'
import { healthLimits, type ServeOptions, serveWithRetry } from '../http/server.ts'
import type { RequestObserver } from '../kube/client.ts'
import type { EventRecorder } from '../kube/events.ts'
import { describeError, ProxyError } from '../lib/errors.ts'
import type { RootLogger } from '../lib/log.ts'
import type { Clock } from '../lib/time.ts'
import type { Canary } from './canary/canary.ts'
import type { OpenedHistory } from './history/open-history.ts'
import { countFiles, type ManifestProblems } from './manifest-problems.ts'
import type { SavedStart } from './resilience/saved-start.ts'
import { TrafficReader } from './traffic/traffic-reader.ts'

export interface HttpServersOptions {
  readonly options: Options
  readonly packetCounters: PacketReader | undefined
  readonly backend: Pick<Backend<Held>, 'counters' | 'name'>
  readonly log: RootLogger
  readonly journal: SyncJournal
  readonly clock: Clock
  readonly manifests?: ManifestProblems | undefined
  /** Name of the Node, for Events. */
  readonly node: string
  /** Called when a server cannot listen and `bindAddressHardFail` is set. */
  readonly onFatal: (error: ProxyError) => void
}

interface ServerDescription {
  readonly name: string
  readonly address: string
  readonly routes: Routes
  readonly limits?: ServeOptions['limits']
  /** Reason of the Event if the server cannot listen. */
  readonly failureReason: string
}

export class HttpServers {
  /** The metrics exist before the servers, so that they count the first request to the API server. */
  readonly metrics: Metrics
  readonly traffic: TrafficReader
  readonly #options: HttpServersOptions
  readonly #startedAt: number
  readonly #version: { readonly kubernetes: string; readonly sluice: string }
  readonly #servers: { close(): Promise<void> }[] = []
  #engine: Engine | undefined
  #savedState: Pick<SavedStart, 'servesSince' | 'bytesWritten'> | undefined
  #canary: Pick<Canary, 'broken'> | undefined
  #history: OpenedHistory | undefined
  #hasHeard = false
  #hasFailed = false
  /** Monotonic time. */
  #heardAt: number

  constructor(all: HttpServersOptions) {
    const { options, packetCounters, backend, log, clock } = all
    this.#options = all
    this.#startedAt = clock.now()
    this.#heardAt = clock.monotonic()
    // As with kube-proxy, `--version=vX.Y.Z` changes the version that is reported.
    const mode = findMode(options.config.mode)
    const { countsBytes } = mode.traffic
    this.traffic = new TrafficReader({ backend, enabled: options.sluice.traffic.counters, countsBytes, clock })
    this.#version = { kubernetes: options.version || kubernetesVersion.text, sluice: sluiceVersion }
    this.metrics = createMetrics({
      mode,
      version: this.#version,
      features: listFeatures(options.config),
      apiServerSilentMs: this.silentMs,
      conflicts: () => this.#engine?.conflicts().length ?? 0,
      quarantined: () => this.#engine?.quarantined().length ?? 0,
      savedState: () => ({
        inUse: this.#savedState?.servesSince !== undefined,
        bytesWritten: this.#savedState?.bytesWritten ?? 0,
      }),
      history: () => ({
        records: this.#history?.history.size ?? 0,
        bytes: this.#history?.history.bytes ?? 0,
        unwritten: this.#history?.isUnwritten() ?? false,
      }),
      invalidManifests: () => countFiles(all.manifests?.problems() ?? []),
      ...(packetCounters === undefined ? {} : { packetCounters }),
      ...this.#countedPorts(),
      log,
      clock,
    })
    all.journal.subscribe(this.metrics.journal)
  }

  /** Starts both servers. Each tries again until its port is free, unless the configuration makes a failure fatal. */
  start(engine: Engine, recorder: EventRecorder): ProxyHealth {
    this.#engine = engine
    const { config, sluice } = this.#options.options
    const { clock } = this.#options
    const health = new ProxyHealth({
      timeoutMs: 2 * config.syncPeriod,
      clock,
      apiServer: { silentMs: this.silentMs, maxSilentMs: sluice.apiServer.silence },
      savedState: () => this.#savedState?.servesSince,
      dataPath: () =>
        this.#canary === undefined
          ? undefined
          : { broken: this.#canary.broken(), counts: sluice.canary.healthz === 'fail' },
      onAnswer: this.metrics.answered,
    })
    if (config.healthzBindAddress !== '') {
      this.#serve(recorder, {
        name: 'health server',
        address: config.healthzBindAddress,
        routes: health.routes,
        limits: healthLimits,
        failureReason: 'FailedToStartProxierHealthcheck',
      })
    }
    this.#serve(recorder, {
      name: 'metrics server',
      address: config.metricsBindAddress,
      routes: this.#metricsRoutes(),
      failureReason: 'FailedToStartMetricServer',
    })
    return health
  }

  /** Called whenever the API server sends something. */
  readonly noteHeard = (): void => {
    this.#hasHeard = true
    this.#heardAt = this.#options.clock.monotonic()
  }

  /** Counts the requests to the API server, and notices those that have no answer. */
  get observer(): RequestObserver {
    const { requests } = this.metrics
    return {
      ...requests,
      request: (measured) => {
        this.#hasFailed ||= measured.code === '<error>'
        requests.request(measured)
      },
    }
  }

  /** True if a request to the API server has failed without an answer. */
  readonly hasFailed = (): boolean => this.#hasFailed

  /** True if the API server has sent anything. */
  readonly hasHeard = (): boolean => this.#hasHeard

  setCanary(canary: Pick<Canary, 'broken'>): void {
    this.#canary = canary
  }

  setHistory(history: OpenedHistory): void {
    this.#history = history
  }

  setSavedState(savedState: Pick<SavedStart, 'servesSince' | 'bytesWritten'>): void {
    this.#savedState = savedState
  }

  /** How long the API server has not sent anything. */
  readonly silentMs = (): number => this.#options.clock.monotonic() - this.#heardAt

  async close(): Promise<void> {
    await Promise.all(this.#servers.map((server) => server.close()))
  }

  #serve(recorder: EventRecorder, { name, address, routes, limits = {}, failureReason }: ServerDescription): void {
    const { log, clock, options, node, onFatal } = this.#options
    const server = serveWithRetry({
      name,
      address,
      limits,
      handler: routeRequests(routes, log),
      log,
      clock,
      hardFail: options.config.bindAddressHardFail,
      onFatal: (error) => {
        recorder.record({
          type: 'Warning',
          reason: failureReason,
          action: 'StartKubeProxy',
          note: describeError(error),
          regarding: { apiVersion: 'v1', kind: 'Node', namespace: '', name: node },
        })
        onFatal(new ProxyError('listen', `${name}: ${error.message}`, { cause: error }))
      },
    })
    this.#servers.push(server)
  }

  #countedPorts(): Pick<KernelCounters, 'portCounters'> {
    const limit = this.#options.options.sluice.traffic.metricPorts
    if (!this.traffic.isCounting || limit <= 0) return {}
    const busiest = new BusiestPorts()
    return { portCounters: async () => busiest.report(await this.traffic.counters(), limit) }
  }

  #metricsRoutes(): Routes {
    const { options, log, clock, node } = this.#options
    const { config } = options
    const hostNames = [node, hostname(), ...options.sluice.metrics.hosts].map((name) => name.toLowerCase())
    return makeMetricsPages({
      mode: config.mode,
      metrics: this.metrics,
      configz: () => toV1alpha1(config),
      flags: options.flags,
      gates: {
        flagz: isFeatureEnabled(config, 'ComponentFlagz'),
        statusz: isFeatureEnabled(config, 'ComponentStatusz'),
      },
      version: this.#version,
      startedAt: this.#startedAt,
      profiling: config.enableProfiling,
      setVerbosity: (level) => log.setVerbosity(level),
      clock,
      hostNames: new Set(hostNames),
    })
  }
}
