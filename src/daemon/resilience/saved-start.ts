// Serves the last good state from disk while the API server does not answer at a start, and keeps that state up to date afterwards.
//
// 1. The saved state is used if the first request to the API server fails without an answer, if nothing was heard from it in the first
//    quarter of a second, or if the live state is not complete after five seconds. Its objects serve until the live ones come, kind by kind and object by object (live-sinks.ts).
// 2. What is saved is what the API server sent, never what was read from disk.

import { createHash } from 'node:crypto'
import { accessSync, constants, existsSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import type { SluiceConfig } from '../../config/sluice-config.ts'
import type { Store } from '../../engine/store.ts'
import type { SavedStateSummary } from '../../http/admin.ts'
import type { Connection, PemSource } from '../../kube/connection.ts'
import type { RecordSink } from '../../kube/reflect/change-filter.ts'
import { describeError, ProxyError } from '../../lib/errors.ts'
import type { Family } from '../../lib/ip.ts'
import type { Logger } from '../../lib/log.ts'
import { type Clock, formatTime, sleep } from '../../lib/time.ts'
import { canaryService } from '../../model/canary-records.ts'
import type { NodeRecord, ServiceCidrRecord, ServiceRecord, SliceRecord } from '../../model/types.ts'
import { platform } from '../../sys/platform/platform.ts'
import { ensurePrivateDirectory } from '../../sys/private-files.ts'
import { LiveSink } from './live-sinks.ts'
import type { StateChange } from './state-format.ts'
import { readState, type SavedState, type StateFile } from './state-reader.ts'
import { StateWriter } from './state-writer.ts'

const silentMs = 250
const completeMs = 5_000
const pollMs = 10

export interface SavedStartOptions {
  /** Undefined if no state is kept. */
  readonly file: StateFile | undefined
  /** True if the API server has sent anything. */
  readonly hasHeard: () => boolean
  /** True if a request to the API server has failed without an answer: refused, or no route. */
  readonly hasFailed: () => boolean
  /** True while the live state is up to date, as far as this proxy knows. */
  readonly isCurrent: () => boolean
  /** Called when the live state has replaced the saved one, with a sentence for people. */
  readonly onReplaced: (sentence: string) => void
  readonly clock: Clock
  readonly log: Logger
  readonly signal: AbortSignal
}

export interface StateSinks {
  readonly services: RecordSink<ServiceRecord>
  readonly slices: RecordSink<SliceRecord>
  readonly cidrs: RecordSink<ServiceCidrRecord>
}

type LiveSinks = {
  readonly services: LiveSink<ServiceRecord>
  readonly slices: LiveSink<SliceRecord>
  readonly cidrs: LiveSink<ServiceCidrRecord>
}

export class SavedStart {
  readonly #options: SavedStartOptions
  readonly #started: number
  #saved: SavedState | undefined
  #hasRead = false
  /** Why the file is not used; '' if it is, or was not needed. */
  #refused = ''
  #sinks: LiveSinks | undefined
  #writer: StateWriter | undefined
  #node: NodeRecord | undefined
  readonly #cidrs = new Map<string, ServiceCidrRecord>()

  constructor(options: SavedStartOptions) {
    this.#options = options
    this.#started = options.clock.monotonic()
  }

  /** Waits for the live Node, or until the saved state is to be used. Returns the saved Node in that case. */
  async chooseNode(isLive: () => boolean): Promise<NodeRecord | undefined> {
    const { file, clock, signal } = this.#options
    while (file !== undefined && !this.#hasRead && !isLive()) {
      if (this.#isDue()) await this.#read()
      else await sleep(clock, pollMs, signal)
    }
    return isLive() ? undefined : this.#saved?.objects.node.values().next().value
  }

  /** Returns the sinks for live objects, and feeds saved objects to the given ones if the saved state is to be used. */
  openSinks({ services, slices, cidrs }: StateSinks): StateSinks {
    const onLive = () => this.#checkLive()
    const note = (change: StateChange) => this.#writer?.note(change)
    const sinks: LiveSinks = {
      services: new LiveSink(services, {
        onChange: (key, record) => note({ kind: 'service', key, record }),
        onLive,
      }),
      slices: new LiveSink(slices, { onChange: (key, record) => note({ kind: 'slice', key, record }), onLive }),
      cidrs: new LiveSink(cidrs, {
        onChange: (key, record) => {
          if (record === undefined) this.#cidrs.delete(key)
          else this.#cidrs.set(key, record)
          note({ kind: 'cidr', key, record })
        },
        onLive,
      }),
    }
    this.#sinks = sinks
    this.#feed()
    if (this.#options.file !== undefined && !this.#hasRead) void this.#feedLate()
    return sinks
  }

  /** Saves the objects of the store from now on, once the live state is complete. */
  keep(store: Store, families: readonly Family[]): void {
    const { file, isCurrent, clock, log } = this.#options
    if (file === undefined) return
    const snapshot = () => this.#listObjects(store, families)
    this.#writer = new StateWriter({ file, snapshot, isCurrent, clock, log })
    this.#checkLive()
  }

  noteNode(record: NodeRecord): void {
    this.#node = record
    this.#writer?.note({ kind: 'node', key: record.name, record })
  }

  /** Unix ms of the saved state that serves now; undefined if the live state serves. */
  get servesSince(): number | undefined {
    return this.#saved !== undefined && !this.#isLive() ? this.#saved.savedAt : undefined
  }

  /** The path of the file; undefined if no state is kept. */
  get path(): string | undefined {
    return this.#options.file?.path
  }

  get bytesWritten(): number {
    return this.#writer?.figures.bytesWritten ?? 0
  }

  /** Null if no state is kept. */
  summarise(): SavedStateSummary | null {
    const { file } = this.#options
    if (file === undefined) return null
    const { savedAt = 0, error = '' } = this.#writer?.figures ?? {}
    const servesSince = this.servesSince
    const time = servesSince ?? savedAt
    return {
      path: file.path,
      inUse: servesSince !== undefined,
      savedAt: time === 0 ? null : formatTime(time),
      problem: error || this.#refused,
    }
  }

  async close(): Promise<void> {
    await this.#writer?.close()
  }

  #isDue(): boolean {
    const { clock, hasHeard, hasFailed } = this.#options
    const passed = clock.monotonic() - this.#started
    return passed >= completeMs || (!hasHeard() && (passed >= silentMs || hasFailed()))
  }

  async #read(): Promise<void> {
    const { file, clock, log } = this.#options
    this.#hasRead = true
    if (file === undefined) return
    const saved = await readState(file, clock)
    if (typeof saved === 'string') {
      this.#refused = saved
      log.warn('A saved state is not used', { reason: saved })
    } else if (saved !== undefined) {
      this.#saved = saved
      const savedAt = formatTime(saved.savedAt)
      log.warn('The API server does not answer: serving the saved state', { path: file.path, savedAt })
    }
  }

  #feed(): void {
    if (this.#saved === undefined || this.#sinks === undefined) return
    const { service, slice, cidr } = this.#saved.objects
    this.#sinks.cidrs.feed(cidr)
    this.#sinks.slices.feed(slice)
    this.#sinks.services.feed(service)
  }

  /** The Node came from the API server in time. Its services may not. */
  async #feedLate(): Promise<void> {
    const { clock, signal, log } = this.#options
    try {
      while (!this.#isLive() && !this.#isDue()) await sleep(clock, pollMs, signal)
      if (this.#isLive()) return
      await this.#read()
      this.#feed()
    } catch (error) {
      if (!signal.aborted) log.error('The saved state cannot be used', { error: describeError(error) })
    }
  }

  #isLive(): boolean {
    const sinks = this.#sinks
    return sinks?.services.isLive === true && sinks.slices.isLive && sinks.cidrs.isLive
  }

  #checkLive(): void {
    const { clock, log, onReplaced } = this.#options
    if (!this.#isLive()) return
    const saved = this.#saved
    this.#saved = undefined
    if (saved !== undefined) {
      const seconds = Math.round((clock.monotonic() - this.#started) / 1000)
      const sentence = `the state saved at ${formatTime(saved.savedAt)} served for ${seconds} s, until the API server answered`
      log.info('The live state has replaced the saved one', { savedAt: formatTime(saved.savedAt), seconds })
      onReplaced(sentence)
    }
    this.#writer?.begin()
  }

  *#listObjects(store: Store, families: readonly Family[]): Iterable<StateChange> {
    if (this.#node !== undefined) yield { kind: 'node', key: this.#node.name, record: this.#node }
    for (const [key, record] of this.#cidrs) yield { kind: 'cidr', key, record }
    for (const record of store.records()) {
      if (record.key !== canaryService) yield { kind: 'service', key: record.key, record }
    }
    for (const family of families) {
      for (const slices of store.allSlices(family)) {
        if (slices[0]?.service === canaryService) continue
        for (const record of slices) yield { kind: 'slice', key: record.key, record }
      }
    }
  }
}

export interface StatePlace {
  readonly settings: SluiceConfig['state']
  readonly node: string
  /** The address and the certificate authority of the API server name the cluster. */
  readonly connection: Pick<Connection, 'server' | 'ca'>
  readonly log: Logger
}

/** The directory that packages and manifests make. Another one is made if the configuration names it. */
export const defaultStateDirectory = '/var/lib/sluice/proxy'

const canUseDefault = (): boolean => platform.keepsPrivateFiles && existsSync(defaultStateDirectory)

/** Finds the file in which the state of this node is kept. Undefined if there is no directory, or not a private one that can be written. */
export function findStateFile({ settings, node, connection, log }: StatePlace): StateFile | undefined {
  const { directory, maxAge, maxBytes } = settings
  if (directory === '' || (directory === defaultStateDirectory && !canUseDefault())) return undefined
  try {
    if (!platform.keepsPrivateFiles) throw new ProxyError('foreign', `this is not possible on ${platform.name}`)
    ensurePrivateDirectory(directory)
    accessSync(directory, constants.W_OK)
  } catch (error) {
    log.warn('No state is kept on disk', { directory, error: describeError(error) })
    return undefined
  }
  const owner = { node, cluster: identifyCluster(connection) }
  const path = join(directory, `${node.replaceAll(/[^a-z0-9.-]/g, '_')}.state`)
  return { path, owner, maxAgeMs: maxAge, maxBytes }
}

function identifyCluster({ server, ca }: StatePlace['connection']): string {
  const hash = createHash('sha256').update(server.href)
  if (ca !== undefined) hash.update(readAuthority(ca))
  return hash.digest('hex').slice(0, 32)
}

/** A file that cannot be read will be reported by the client. */
function readAuthority(ca: PemSource): string {
  if ('text' in ca) return ca.text
  try {
    return readFileSync(ca.file, 'utf8')
  } catch {
    return ca.file
  }
}
