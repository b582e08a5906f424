// Starts to publish reports of this proxy, if the configuration asks for it.

import type { Options } from '../../config/flags/options.ts'
import type { Client } from '../../kube/client.ts'
import { describeError } from '../../lib/errors.ts'
import type { Logger } from '../../lib/log.ts'
import { countFiles, type ManifestProblems } from '../manifest-problems.ts'
import { LeasePublisher } from './lease-publisher.ts'
import { NodeReporter, type NodeReporterOptions } from './node-reporter.ts'

export interface PublishOptions
  extends Omit<NodeReporterOptions, 'intervalMs' | 'invalidManifests' | 'apiServerSilentMs'> {
  readonly options: Options
  readonly client: Client
  readonly manifests?: ManifestProblems | undefined
  readonly silentMs: () => number
  readonly log: Logger
}

/** A shorter interval would load the API server. */
const minIntervalMs = 1_000

/** Returns what ends the publishing. */
export function publishReports(given: PublishOptions): () => Promise<void> {
  const { namespace, interval } = given.options.sluice.fleet
  if (namespace === '') return async () => {}
  const { client, clock, identity, manifests } = given
  const log = given.log.named('fleet')
  const intervalMs = Math.max(interval, minIntervalMs)
  const reporter = new NodeReporter({
    ...given,
    intervalMs,
    invalidManifests: () => countFiles(manifests?.problems() ?? []),
    apiServerSilentMs: given.silentMs,
  })
  const publisher = new LeasePublisher({
    client,
    clock,
    log,
    node: identity.node,
    namespace,
    intervalMs,
    takeSnapshot: () => reporter.takeSnapshot(),
    describe: (snapshots) => reporter.describe(snapshots),
  })
  const stop = new AbortController()
  const done = publisher.run(stop.signal).catch((error: unknown) => {
    log.error('Reports are no longer published', { error: describeError(error) })
  })
  return async () => {
    stop.abort()
    await done
  }
}
