// The contract between the engine and a data plane. A backend never decides policy. What else differs between modes is in proxy-mode.ts. Pure.

import type { ProxyError } from '../lib/errors.ts'
import type { Family } from '../lib/ip.ts'
import type { Logger } from '../lib/log.ts'
import type { Clock } from '../lib/time.ts'
import type { Frontend, NodeView, Protocol, ServicePort } from '../model/types.ts'
import type { RelayedFlows } from './relayed-flows.ts'

/** The name of a proxy mode, as the configuration spells it. `modes.ts` lists the modes. */
export type Mode = string

/** An entry as the data plane holds it. Equal digests mean equal content. Ids are unique in a lane. */
export interface Held {
  readonly id: string
  readonly kind: string
  readonly digest: string
}

export interface Changes<E extends Held> {
  /** Entries that are new, or whose digest differs from what the data plane holds. */
  readonly put: readonly E[]
  /** Entries that the data plane holds and that are no longer wanted. */
  readonly drop: readonly Held[]
}

/** Makes empty lists of changes that the caller fills. */
export const beginChanges = <E extends Held>(): { readonly put: E[]; readonly drop: Held[] } => ({ put: [], drop: [] })

/** A live view of all wanted entries. */
export interface Wanted<E extends Held> {
  readonly size: number
  entry(id: string): E | undefined
  entries(): Iterable<E>
}

/** An entry that the kernel refused because of its own content. All other entries of the changes were applied. */
export interface RefusedEntry {
  readonly id: string
  readonly error: ProxyError
}

export interface Applied {
  readonly refused: readonly RefusedEntry[]
  /** The changes that this call wrote, or that were refused; absent if these are all. */
  readonly written?: Changes<Held>
  /**
   * Present if the target was asked to pause: writes what is left, or pauses again. Other changes may be applied before that. A caller
   * that drops this function must apply what is left again.
   */
  readonly resume?: (signal: AbortSignal) => Promise<Applied>
  /** Figures of this backend for metrics, e.g. `iptables_total{nat}`. */
  readonly figures?: Readonly<Record<string, number>>
}

/** The only part of a backend that does I/O. There is one target per family. */
export interface Target<E extends Held> {
  /** Returns what the data plane holds now: ids and digests, never parsed rules. */
  observe(signal: AbortSignal): Promise<readonly Held[]>
  /**
   * Applies all changes but the refused ones. Throws if it cannot know which changes were applied. `wanted` is for targets that must
   * rewrite shared objects as a whole; other targets leave the parameter out.
   */
  apply(changes: Changes<E>, signal: AbortSignal, wanted: Wanted<E>): Promise<Applied>
  /** True if another program changed what this target wrote since the last apply. Cheap. */
  drifted(): boolean
  /** Releases sockets. Everything that is programmed stays as it is. */
  close(): Promise<void>
}

/** How a target noticed that another program changed what it wrote; one of few words, for metrics. */
export type DriftReason = 'changed' | 'reports-lost' | 'refused' | 'undeletable'

export interface OpenContext {
  readonly family: Family
  readonly node: NodeView
  readonly log: Logger
  readonly clock: Clock
  /** The target calls this when another program changed what it wrote; `culprit` is for people. Leads to a sync at once. */
  readonly onDrift: (culprit: string, reason: DriftReason) => void
  /** The target calls this when the reason why the last apply failed is gone. Leads to a sync at once. */
  readonly onDue?: () => void
  /**
   * True if other changes wait while a large service is written. A target that writes in several transactions then returns after the
   * current one, with a way to write the rest. Targets may ignore this.
   */
  readonly shouldPause?: () => boolean
}

/** Whether the kernel has an entry. `byName`: it does, but its content cannot be compared in this mode. */
export type Presence = 'present' | 'byName' | 'missing' | 'differs' | 'unchecked'

/** What the kernel held when it was read. */
export interface KernelCheck {
  /** Never `unchecked`. */
  presence(part: Held): Presence
  /** Improves the command that shows a part by what is known of this node; absent if no command needs that. */
  adaptCommand?(command: string, part: Held): string
}

/** An observed entry without a digest proves that the entry exists, but not what it contains. */
export function compareDigests(part: Held, observed: Held | undefined): Presence {
  if (observed === undefined) return 'missing'
  if (observed.digest === part.digest) return 'present'
  return observed.digest === '' ? 'byName' : 'differs'
}

/** The part of the configuration that backends read. The daemon makes it. */
export interface Settings {
  readonly syncPeriodMs: number
  readonly masqueradeBit: number
  readonly localhostNodePorts: boolean
  /** Whether traffic is counted per service port and endpoint. */
  readonly counters: boolean
  readonly ipvs: {
    readonly scheduler: string
    readonly excludeCidrs: readonly string[]
    readonly strictArp: boolean
    readonly tcpTimeoutMs: number
    readonly tcpFinTimeoutMs: number
    readonly udpTimeoutMs: number
  }
  readonly userspace: {
    /** The first and the last proxy port; undefined if the kernel chooses ports. */
    readonly portRange: readonly [number, number] | undefined
    readonly udpTimeoutMs: number
    readonly bindAddress: string
  }
}

/** What was counted. Packets and bytes are undefined where nothing counts them. `in` is from clients, `out` is to them. */
export interface TrafficCounts {
  /** New connections; for UDP new flows. */
  readonly connections: number
  readonly packetsIn?: number | undefined
  readonly packetsOut?: number | undefined
  readonly bytesIn?: number | undefined
  readonly bytesOut?: number | undefined
}

/** The traffic of one service port in one family, since the data plane began to count. */
export interface PortCounters extends TrafficCounts {
  readonly family: Family
  /** `ns/name:port`. */
  readonly port: string
  readonly protocol: Protocol
  /** By `ip:port`. Endpoints that are gone are counted in the service port alone. */
  readonly endpoints: ReadonlyMap<string, TrafficCounts>
}

export interface Backend<E extends Held> {
  readonly name: Mode
  /** True if there is a sync at every syncPeriod, as in upstream's ipvs mode, instead of every hour. */
  readonly periodic: boolean
  /** The families that this machine can serve in this mode. Throws a ProxyError that names what is missing if there are none. */
  families(): Promise<readonly Family[]>
  /** Makes privileged one-time settings (sysctls, modules): all that `--init-only` does. */
  prepare(node: NodeView, log: Logger): Promise<void>
  /** The entries that must exist whatever services there are. Pure. */
  base(node: NodeView): readonly E[]
  /** The entries that one service port needs. Pure. */
  plan(port: ServicePort, node: NodeView): readonly E[]
  /** As `plan`, entry by entry while the caller iterates, for ports with thousands of endpoints or frontends. */
  planLazily?(port: ServicePort, node: NodeView): Iterable<E>
  /**
   * Splits an entry into the parts that `plan` and `status` show, with the ids that `observe` of another process reports. Absent if every
   * entry is one part.
   */
  parts?(entry: E): readonly Held[]
  open(context: OpenContext): Promise<Target<E>>
  /** Reads the kernel to compare parts with it, and writes nothing. Absent if `observe` of a second target tells everything. */
  openCheck?(node: NodeView, signal: AbortSignal): Promise<KernelCheck>
  /** True if this process itself answers UDP for that service port at this address and port: such flows are in use. */
  answers?(family: Family, id: string, ip: string, port: number): boolean
  /** Where clients reach a frontend: `127.96.0.80:10080`, '' for nowhere. Absent if every frontend answers on its own address. */
  answersAt?(frontend: Frontend): string
  /** Present if the proxy listens on the services' own addresses: the kernel translates nothing, and no flow can become stale. */
  readonly untracked?: true
  /** Present if this process itself connects to the endpoints: how those connections begin. */
  readonly dials?: {
    /** Replaces the listener. It returns true if it decides how long the endpoint gets no connections. */
    listen(listener: ((endpoint: string, result: 'answered' | 'refused' | 'unanswered') => boolean) | undefined): void
  }
  /** Present if this process itself relays all connections: then flows are read from it, and not from the kernel. */
  readonly relayed?: RelayedFlows
  /** Reads what was counted for every service port. Expensive, so the caller limits how often. Absent if nothing is counted. */
  counters?(): Promise<readonly PortCounters[]>
}

/** Removes everything that a mode may have left on the node, by us or by kube-proxy, and nothing else. */
export type Cleanup = (log: Logger, spared?: Spared) => Promise<void>

/** What looks like ours and is not. */
export interface Spared {
  /** Virtual servers at these addresses belong to others. */
  readonly cidrs: readonly string[]
}

/**
 * As `Cleanup`, for a node that another mode serves by now: what connections still need stays until they end. Resolves false while such
 * connections remain; the caller calls it again with `again` set.
 */
export type Retire = (log: Logger, again: boolean, spared?: Spared) => Promise<boolean>
