// The proxy's own health, /healthz for load balancers and /livez for the kubelet: whether queued changes get programmed in time.

import { type Family, familyName } from '../lib/ip.ts'
import { type Clock, formatTime, zeroTime } from '../lib/time.ts'
import type { NodeRecord } from '../model/types.ts'
import { type Route, type Routes, reply } from './routing.ts'

const drainTaint = 'ToBeDeletedByClusterAutoscaler'

/** When something was last heard from the API server. */
export interface ApiServerContact {
  /** Milliseconds since then, or since the start if nothing was heard yet. */
  readonly silentMs: () => number
  /** From this silence on, answers mention it. Their code stays: a restart would not help, and the rules still serve. */
  readonly maxSilentMs: number
}

export interface ProxyHealthOptions {
  /** A change that waits this long makes its family unhealthy: 2 × syncPeriod. */
  readonly timeoutMs: number
  readonly clock: Clock
  readonly apiServer?: ApiServerContact
  /** Unix ms of the saved state that serves now; undefined if the live state serves. */
  readonly savedState?: () => number | undefined
  /** Why the data path of a family is broken, and whether the status code says so; undefined if nothing checks it. */
  readonly dataPath?: () => DataPathHealth | undefined
  readonly onAnswer?: (endpoint: 'healthz' | 'livez', code: 200 | 503) => void
}

export interface DataPathHealth {
  readonly broken: ReadonlyMap<Family, string>
  /** True if a broken data path makes the proxy unhealthy. */
  readonly counts: boolean
}

interface FamilyHealth {
  readonly lastUpdated: number
  readonly healthy: boolean
}

export class ProxyHealth {
  readonly routes: Routes
  readonly #options: ProxyHealthOptions
  /** Unix time of the last sync, for people. */
  readonly #lastUpdated = new Map<Family, number>()
  /** Monotonic time of the oldest change that is not programmed yet. */
  readonly #oldestPending = new Map<Family, number>()
  #node: NodeRecord | undefined

  constructor(options: ProxyHealthOptions) {
    this.#options = options
    this.routes = { '/healthz': this.#answer('healthz'), '/livez': this.#answer('livez') }
  }

  /** Called when a change waits to be programmed; the waiting time counts from the first of several changes. */
  queued(family: Family): void {
    if (!this.#oldestPending.has(family)) this.#oldestPending.set(family, this.#options.clock.monotonic())
  }

  /** Called when everything queued so far is programmed. */
  updated(family: Family): void {
    this.#oldestPending.delete(family)
    this.#lastUpdated.set(family, this.#options.clock.now())
  }

  setNode(node: NodeRecord | undefined): void {
    this.#node = node
  }

  /** True if no family is late. Families that never synced are not considered. */
  healthy(): boolean {
    return this.#families().every(([, family]) => family.healthy) && !this.#isPathBroken()
  }

  #isPathBroken(): boolean {
    const path = this.#options.dataPath?.()
    return path?.counts === true && path.broken.size > 0
  }

  /** Undefined if nothing checks the data path, so that the body is then equal to kube-proxy's. */
  #describeDataPath(): object | undefined {
    const broken = this.#options.dataPath?.()?.broken
    if (broken === undefined) return undefined
    return {
      healthy: broken.size === 0,
      broken: Object.fromEntries([...broken].map(([f, why]) => [familyName(f), why])),
    }
  }

  /** True if the node is known and not about to be deleted. */
  nodeEligible(): boolean {
    return this.#node !== undefined && !this.#node.deleting && !this.#node.taints.includes(drainTaint)
  }

  /** Undefined while the API server is heard often enough, so that the body is then equal to kube-proxy's. */
  #describeSilence(now: number): { readonly lastHeard: string; readonly silentSeconds: number } | undefined {
    const { apiServer } = this.#options
    const silentMs = apiServer?.silentMs() ?? 0
    if (apiServer === undefined || silentMs <= apiServer.maxSilentMs) return undefined
    return { lastHeard: formatTime(now - silentMs), silentSeconds: Math.floor(silentMs / 1000) }
  }

  /** Undefined while the live state serves, so that the body is then equal to kube-proxy's. */
  #describeSavedState(): { readonly savedAt: string } | undefined {
    const savedAt = this.#options.savedState?.()
    return savedAt === undefined ? undefined : { savedAt: formatTime(savedAt) }
  }

  #families(): [Family, FamilyHealth][] {
    const now = this.#options.clock.monotonic()
    return [...this.#lastUpdated]
      .sort(([a], [b]) => a - b)
      .map(([family, lastUpdated]) => {
        const pending = this.#oldestPending.get(family)
        return [family, { lastUpdated, healthy: pending === undefined || now - pending < this.#options.timeoutMs }]
      })
  }

  #answer(endpoint: 'healthz' | 'livez'): Route {
    return ({ response }) => {
      const families = this.#families()
      const healthy = families.every(([, family]) => family.healthy)
      const eligible = this.nodeEligible()
      const serves = eligible && !this.#isPathBroken()
      const code = healthy && (serves || endpoint === 'livez') ? 200 : 503
      const now = this.#options.clock.now()
      const status = families.map(([family, health]) => [
        familyName(family),
        { lastUpdated: formatTime(health.lastUpdated), healthy: health.healthy },
      ])
      this.#options.onAnswer?.(endpoint, code)
      // The order of the members is part of the interface: probes and people grep in the text.
      const body = JSON.stringify({
        lastUpdated: code === 200 ? formatTime(now) : newestUpdate(families),
        currentTime: formatTime(now),
        nodeEligible: endpoint === 'healthz' ? eligible : undefined,
        healthy,
        status: status.length === 0 ? undefined : Object.fromEntries(status),
        apiServer: this.#describeSilence(now),
        savedState: this.#describeSavedState(),
        dataPath: this.#describeDataPath(),
      })
      reply(response, { status: code, type: 'application/json', body })
    }
  }
}

function newestUpdate(families: readonly (readonly [Family, FamilyHealth])[]): string {
  if (families.length === 0) return zeroTime
  return formatTime(Math.max(...families.map(([, family]) => family.lastUpdated)))
}
