// One collection of an API server in memory: resource versions, history, WatchList, pages, compaction, and faults that a test orders.

import type { ServerResponse } from 'node:http'
import { type Answer, json, refuse, ScriptServer, type Seen } from './script-server.ts'

export interface FakeObject {
  readonly metadata: { readonly namespace: string; readonly name: string; readonly resourceVersion: string }
  readonly value: number
}

export type State = 'watchlist' | 'list' | 'page' | 'watch'

interface Change {
  readonly version: number
  readonly line: string
}

export class FakeApi {
  readonly objects = new Map<string, FakeObject>()
  version = 100
  /** The server has forgotten the history up to this version. */
  compacted = 0
  watchList = true
  pageSize = 3
  /** Each fault hits one request, the next in its state. */
  readonly faults: { state: State; answer: Answer }[] = []
  readonly states: { state: State; seen: Seen }[] = []
  readonly server: ScriptServer
  readonly #history: Change[] = []
  readonly #watchers = new Set<ServerResponse>()
  /** The snapshots that pages come from, by version. */
  readonly #snapshots = new Map<number, readonly FakeObject[]>()

  constructor() {
    this.server = new ScriptServer((response, seen) => this.#answer(response, seen))
  }

  put(name: string): FakeObject {
    const key = `ns/${name}`
    const type = this.objects.has(key) ? 'MODIFIED' : 'ADDED'
    const metadata = { namespace: 'ns', name, resourceVersion: String(++this.version) }
    const object = { metadata, value: this.version }
    this.objects.set(key, object)
    this.#publish(type, object)
    return object
  }

  remove(name: string): void {
    const object = this.objects.get(`ns/${name}`)
    if (object === undefined) return
    this.objects.delete(`ns/${name}`)
    this.#publish('DELETED', { ...object, metadata: { ...object.metadata, resourceVersion: String(++this.version) } })
  }

  bookmark(): void {
    this.send(bookmark(this.version))
  }

  /** Sends raw text to all watchers. */
  send(text: string): void {
    for (const watcher of this.#watchers) watcher.write(text)
  }

  /** Ends all watches: cut off in the middle, or in good order. */
  endWatches(how: 'cut' | 'end'): void {
    for (const watcher of this.#watchers) {
      if (how === 'end') watcher.end()
      else watcher.destroy()
    }
    this.#watchers.clear()
  }

  compact(): void {
    this.compacted = this.version
  }

  get watchers(): number {
    return this.#watchers.size
  }

  #publish(type: string, object: object): void {
    const line = `${JSON.stringify({ type, object })}\n`
    this.#history.push({ version: this.version, line })
    this.send(line)
  }

  #answer(response: ServerResponse, seen: Seen): void {
    const state = stateOf(seen.query)
    this.states.push({ state, seen })
    const fault = this.faults.findIndex((one) => one.state === state)
    if (fault >= 0) this.faults.splice(fault, 1)[0]?.answer(response, seen)
    else if (state === 'list' || state === 'page') this.#list(response, seen)
    else if (state === 'watchlist' && !this.watchList) unsupported(response, seen)
    else if (state === 'watch' && Number(seen.query.get('resourceVersion')) < this.compacted) expired(response, seen)
    else this.#watch(response, state === 'watch' ? Number(seen.query.get('resourceVersion')) : undefined)
  }

  #watch(response: ServerResponse, from: number | undefined): void {
    response.writeHead(200, { 'content-type': 'application/json' })
    response.flushHeaders()
    if (from === undefined) {
      for (const object of this.objects.values()) response.write(`${JSON.stringify({ type: 'ADDED', object })}\n`)
      response.write(bookmark(this.version, true))
    } else for (const { version, line } of this.#history) if (version > from) response.write(line)
    this.#watchers.add(response)
    response.on('close', () => this.#watchers.delete(response))
  }

  #list(response: ServerResponse, seen: Seen): void {
    const limited = seen.query.get('limit') !== null
    const token = seen.query.get('continue')
    const [snapshot, start] = token === null ? [this.version, 0] : (token.split('@').map(Number) as [number, number])
    const all = token === null ? [...this.objects.values()] : (this.#snapshots.get(snapshot) as readonly FakeObject[])
    this.#snapshots.set(snapshot, all)
    const end = limited ? Math.min(all.length, start + this.pageSize) : all.length
    const metadata = {
      resourceVersion: String(snapshot),
      ...(end < all.length ? { continue: `${snapshot}@${end}` } : {}),
    }
    if (snapshot < this.compacted) expired(response, seen)
    else json({ kind: 'List', metadata, items: all.slice(start, end) })(response, seen)
  }
}

export const bookmark = (version: number, end = false): string => {
  const annotations = end ? { 'k8s.io/initial-events-end': 'true' } : undefined
  return `${JSON.stringify({ type: 'BOOKMARK', object: { metadata: { resourceVersion: String(version), annotations } } })}\n`
}

export const errorLine = (code: number, reason: string, message = reason, details: object = {}): string =>
  `${JSON.stringify({ type: 'ERROR', object: { kind: 'Status', code, reason, message, details } })}\n`

const unsupported = refuse(422, 'Invalid', 'sendInitialEvents is forbidden for watch')
const expired = refuse(410, 'Expired', 'too old resource version')

function stateOf(query: URLSearchParams): State {
  if (query.get('watch') === null) return query.get('continue') === null ? 'list' : 'page'
  return query.get('sendInitialEvents') === 'true' ? 'watchlist' : 'watch'
}
