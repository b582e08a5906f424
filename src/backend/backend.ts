// The contract between the engine and a data plane. A backend never decides policy. What else differs between modes is in proxy-mode.ts.

import type { ProxyError } from '../lib/errors.ts'
import type { Family } from '../lib/ip.ts'
import type { Logger } from '../lib/log.ts'
import type { Clock } from '../lib/time.ts'
import type { NodeView, ServicePort } from '../model/types.ts'

/** The name of a proxy mode, as the configuration spells it. `modes.ts` lists the modes. */
export type Mode = string

/** One thing a data plane holds. Equal digests mean equal content. Ids are global in a lane. */
export interface Held {
  readonly id: string
  readonly kind: string
  readonly digest: string
}

export interface Changes<E extends Held> {
  /** New, or with another digest than what is there. */
  readonly put: readonly E[]
  /** Held and no longer wanted. */
  readonly drop: readonly Held[]
}

/** Everything wanted at this moment, for targets that must rewrite shared things whole. */
export interface Wanted<E extends Held> {
  readonly size: number
  entry(id: string): E | undefined
  entries(): Iterable<E>
}

/** An entry that the kernel refused for its own sake; every other entry of the changes went in. */
export interface RefusedEntry {
  readonly id: string
  readonly error: ProxyError
}

export interface Applied {
  readonly refused: readonly RefusedEntry[]
  /** Figures of this backend for metrics, e.g. `iptables_total{nat}`. */
  readonly figures?: Readonly<Record<string, number>>
}

/** The only part of a backend that does I/O: one per family. */
export interface Target<E extends Held> {
  /** What is there now: ids and digests, never parsed rules. */
  observe(signal: AbortSignal): Promise<readonly Held[]>
  /** All of the changes, or those but the refused ones; throws if it cannot tell which went in. */
  apply(changes: Changes<E>, signal: AbortSignal, wanted: Wanted<E>): Promise<Applied>
  /** Cheap: did someone else change what is ours since the last apply? */
  drifted(): boolean
  /** Releases sockets; leaves everything programmed as it is. */
  close(): Promise<void>
}

export interface OpenContext {
  readonly family: Family
  readonly node: NodeView
  readonly log: Logger
  readonly clock: Clock
  /** To be called when somebody else changed what is ours; `culprit` is for people. Leads to a sync at once. */
  readonly onDrift: (culprit: string) => void
  /** To be called when what made the last apply fail is over: leads to a sync at once. */
  readonly onDue?: () => void
}

/** What the configuration says to a backend; made by the composition root. */
export interface Settings {
  readonly syncPeriodMs: number
  readonly masqueradeBit: number
  readonly localhostNodePorts: boolean
  readonly ipvs: {
    readonly scheduler: string
    readonly excludeCidrs: readonly string[]
    readonly strictArp: boolean
    readonly tcpTimeoutMs: number
    readonly tcpFinTimeoutMs: number
    readonly udpTimeoutMs: number
  }
  readonly userspace: {
    /** First and last proxy port; undefined: the kernel chooses. */
    readonly portRange: readonly [number, number] | undefined
    readonly udpTimeoutMs: number
    readonly bindAddress: string
  }
}

/** What went through one service port; only ever grows. */
export interface PortCounters {
  readonly family: Family
  /** `ns/name:port`. */
  readonly port: string
  readonly connections: number
  readonly packetsIn: number
  readonly packetsOut: number
  readonly bytesIn: number
  readonly bytesOut: number
}

export interface Backend<E extends Held> {
  readonly name: Mode
  /** A periodic sync at every syncPeriod, as upstream's ipvs mode does, instead of hourly. */
  readonly periodic: boolean
  /** Families this machine can serve in this mode; throws a ProxyError that says what is missing if none. */
  families(): Promise<readonly Family[]>
  /** Privileged one-time settings (sysctls, modules): all that `--init-only` does. */
  prepare(node: NodeView, log: Logger): Promise<void>
  /** What must be there whatever services exist. Pure. */
  base(node: NodeView): readonly E[]
  /** What one service port needs. Pure. */
  plan(port: ServicePort, node: NodeView): readonly E[]
  /** What people tell apart in an entry, by the ids that `observe` of another process has for it; absent: an entry is one thing. */
  parts?(entry: E): readonly Held[]
  open(context: OpenContext): Promise<Target<E>>
  /** This process itself answers UDP there, for that service port: such flows are no less in use than those to endpoints. */
  answers?(family: Family, id: string, ip: string, port: number): boolean
  /** Listens on the services' own addresses, so that the kernel translates nothing and has no flows that could become stale. */
  readonly untracked?: true
  /** Statistics of the data plane itself, where it has any: read when asked for, of at most so many service ports and the rest as one. */
  counters?(limit: number): Promise<readonly PortCounters[]>
}

/** Removes all that a mode may have left on the node, by us or by kube-proxy; nothing of others. */
export type Cleanup = (log: Logger, spared?: Spared) => Promise<void>

/** What is not ours although it looks like it. */
export interface Spared {
  /** Virtual servers at these addresses. */
  readonly cidrs: readonly string[]
}

/**
 * As `Cleanup`, for a node on which another mode serves by now: what connections still need stays until they have ended. False if there
 * is such: to be called again, then with `again`.
 */
export type Retire = (log: Logger, again: boolean, spared?: Spared) => Promise<boolean>
