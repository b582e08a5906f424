// What the daemon is given, and the parts of it that every later step of its start uses.

import type { Backend, Held } from '../backend/backend.ts'
import type { Options } from '../config/flags/options.ts'
import type { SyncJournal } from '../engine/journal.ts'
import type { Client } from '../kube/client.ts'
import type { EventRecorder } from '../kube/events.ts'
import type { RecordSink } from '../kube/reflect/change-filter.ts'
import type { WatchedResource } from '../kube/reflect/watched-resources.ts'
import type { Closers } from '../lib/closers.ts'
import type { ProxyError } from '../lib/errors.ts'
import type { RootLogger } from '../lib/log.ts'
import type { Clock } from '../lib/time.ts'
import type { OpenedHistory } from './history/open-history.ts'
import type { HttpServers } from './http-servers.ts'
import type { ManifestProblems } from './manifest-problems.ts'
import type { ApiServerAddresses } from './node/api-server-addresses.ts'
import type { NodeCapacity } from './resilience/node-capacity.ts'
import type { SavedStart } from './resilience/saved-start.ts'

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

export interface DaemonContext extends DaemonOptions {
  readonly clock: Clock
  readonly closers: Closers
  readonly onFatal: (error: ProxyError) => void
}

/** The parts that every later step of the start uses. */
export interface OpenedDaemon extends DaemonContext {
  readonly name: string
  readonly journal: SyncJournal
  readonly history: OpenedHistory
  readonly servers: HttpServers
  readonly recorder: EventRecorder
  readonly apiServers: ApiServerAddresses
  readonly client: Client
  readonly savedStart: SavedStart
  readonly capacity: NodeCapacity
  /** Feeds a sink from the API server until the daemon stops, or until the signal aborts if there is one. */
  reflect<R>(resource: WatchedResource<R>, sink: RecordSink<R>, until?: AbortSignal): void
}
