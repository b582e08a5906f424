// What can be seen of the running proxy from outside: the health server, the metrics server and what feeds them.

import type { Backend, Held } from '../backend/backend.ts'
import { findMode } from '../backend/modes.ts'
import type { PacketReader } from '../backend/proxy-mode.ts'
import { toV1alpha1 } from '../config/configuration.ts'
import type { Options } from '../config/flags/options.ts'
import { featureEnabled, featureStates } from '../config/gates.ts'
import { kubernetesVersion } from '../config/kubernetes-version.ts'
import { sluiceVersion } from '../config/sluice-version.ts'
import type { Engine } from '../engine/engine.ts'
import type { SyncJournal } from '../engine/journal.ts'
import { ProxyHealth } from '../http/health.ts'
import { createMetrics } from '../http/metrics.ts'
import { metricsPages } from '../http/pages.ts'
import { type Routes, routeRequests } from '../http/routing.ts'
import { serveWithRetry } from '../http/server.ts'
import type { EventRecorder } from '../kube/events.ts'
import { describeError, ProxyError } from '../lib/errors.ts'
import type { RootLogger } from '../lib/log.ts'
import type { Clock } from '../lib/time.ts'

export interface HttpServersOptions {
  readonly options: Options
  readonly packetCounters: PacketReader | undefined
  readonly backend: Pick<Backend<Held>, 'counters'>
  readonly log: RootLogger
  readonly journal: SyncJournal
  readonly clock: Clock
  readonly fatal: (error: ProxyError) => void
}

export function startServers({ options, packetCounters, backend, log, journal, clock, fatal }: HttpServersOptions) {
  const { config } = options
  const startedAt = clock.now()
  // `--version=vX.Y.Z` changes what is reported, as upstream's flag does.
  const version = { kubernetes: options.version || kubernetesVersion.text, sluice: sluiceVersion }
  // The servers start before there is an engine to ask.
  let engine: Engine | undefined
  const metrics = createMetrics({
    mode: findMode(config.mode),
    version,
    features: featureStates(config),
    conflicts: () => engine?.conflicts().length ?? 0,
    quarantined: () => engine?.quarantined().length ?? 0,
    ...(packetCounters === undefined ? {} : { packetCounters }),
    ...(backend.counters === undefined ? {} : { portCounters: backend.counters }),
    log,
    clock,
  })
  journal.subscribe(metrics.journal)
  const servers: { close(): Promise<void> }[] = []

  return {
    metrics,
    /** Starts both servers; each is tried again until its port is free, unless hard-fail says that this is fatal. */
    serve(running: Engine, recorder: EventRecorder, node: string): ProxyHealth {
      engine = running
      const health = new ProxyHealth({ timeoutMs: 2 * config.syncPeriod, clock, onAnswer: metrics.answered })
      const start = (name: string, address: string, routes: Routes, reason: string) =>
        servers.push(
          serveWithRetry({
            name,
            address,
            handler: routeRequests(routes, log),
            log,
            clock,
            hardFail: config.bindAddressHardFail,
            onFatal: (error) => {
              const regarding = { apiVersion: 'v1', kind: 'Node', namespace: '', name: node }
              recorder.record({
                type: 'Warning',
                reason,
                action: 'StartKubeProxy',
                note: describeError(error),
                regarding,
              })
              fatal(new ProxyError('listen', `${name}: ${error.message}`, { cause: error }))
            },
          }),
        )
      if (config.healthzBindAddress !== '') {
        start('health server', config.healthzBindAddress, health.routes, 'FailedToStartProxierHealthcheck')
      }
      const pages = metricsPages({
        mode: config.mode,
        metrics,
        configz: () => toV1alpha1(config),
        flags: options.flags,
        gates: {
          flagz: featureEnabled(config, 'ComponentFlagz'),
          statusz: featureEnabled(config, 'ComponentStatusz'),
        },
        version,
        startedAt,
        profiling: config.enableProfiling,
        setVerbosity: (level) => log.setVerbosity(level),
        clock,
      })
      start('metrics server', config.metricsBindAddress, pages, 'FailedToStartMetricServer')
      return health
    },
    async close(): Promise<void> {
      await Promise.all(servers.map((server) => server.close()))
    },
  }
}
