// The contract between a proxy mode and the rest of the program. The engine drives the mode's Backend; everything else that differs
// between modes is said by a ProxyMode: what explain, the doctor and the metrics report, and what a proxy leaves on a node.

import type { ProxyError } from '../lib/errors.ts'
import type { Family } from '../lib/ip.ts'
import type { MetricDeclaration } from '../lib/metric-declaration.ts'
import type { ModeBehaviour } from '../model/mode-behaviour.ts'
import type { ServiceRecord, SliceRecord } from '../model/types.ts'
import type { Backend, Cleanup, Held, Mode, Retire, Settings } from './backend.ts'
import type { Finding } from './finding.ts'

export interface ProxyMode {
  readonly name: Mode
  makeBackend(settings: Settings): Backend<Held>
  /** Present if the mode can also serve without root, for `sluice up`. */
  readonly unprivileged?: UnprivilegedTraits
  /** How the mode answers packets: the input of `trace`. */
  behaviour(settings: Pick<Settings, 'localhostNodePorts'>): ModeBehaviour
  readonly explain: ExplainTraits
  readonly metrics: MetricTraits
  readonly doctor: DoctorTraits
  readonly leftovers: LeftoverTraits
  readonly traffic: TrafficTraits
  /** Why `sluice plan` cannot try a change in a network namespace of its own; absent if it can. */
  readonly trialObstacle?: string
}

export interface UnprivilegedTraits {
  makeBackend(settings: Settings): Backend<Held>
  /** One sentence that says where services answer. */
  describe(): string
}

export interface ExplainTraits {
  /** Sentences that are added to every answer with the verdict "forward". */
  readonly remarks: readonly string[]
  /** How people find a part of an entry; absent if its id and digest say it. */
  describePart?(part: Held, family: Family): PartDescription
  /** The id under which another process observes an entry, where it differs from the id that `plan` gives. */
  observedId?(id: string): string
  /** A shell command that lists what the mode has programmed. */
  readonly listCommand: string
}

export interface PartDescription {
  /** As the program names it that lists the part: `chain service-ABC`. */
  readonly name: string
  readonly content: string
  /** A shell command that shows the part on the node; '' if there is none. */
  readonly command: string
}

export interface TrafficTraits {
  /** What `sluice flows` does not show in this mode, as sentences. */
  readonly flowRemarks: readonly string[]
  /** True if the data plane counts packets and bytes by itself; false if only connection tracking can. */
  readonly countsBytes: boolean
  /** Why `sluice trace` cannot follow packets in this mode; '' if it can. */
  readonly traceObstacle: string
}

/** What is known of a sync that failed. */
export interface SyncFailure {
  readonly full: boolean
  readonly error?: ProxyError
}

/** Reads packets by name of the nfacct object. */
export type PacketReader = () => Promise<Readonly<Record<string, number>>>

export interface MetricTraits {
  /** The metrics of this mode that not every mode has. */
  readonly declarations: readonly MetricDeclaration[]
  /** What `kubeproxy_sync_proxy_rules_no_local_endpoints_total` counts. */
  readonly noLocalUnit: 'service-ports' | 'services'
  /** The figures that a failed sync raises by one, unless the backend reports them itself. */
  failureFigures(failure: SyncFailure): readonly string[]
  /** Opens the packet counters that `declarations` name by `nfacct`. Resolves undefined if this kernel has none. */
  openPacketCounters?(): Promise<PacketReader | undefined>
}

export interface DoctorTraits {
  /** The oldest kernel that the mode works with; absent if every supported kernel does. */
  readonly minimumKernel?: readonly [major: number, minor: number]
  /** False if the mode also works, in some way, without CAP_NET_ADMIN. */
  readonly needsNetAdmin: boolean
  /** Open files that one connection takes; 0 if the kernel forwards connections. */
  readonly filesPerConnection: number
  /** Checks of this machine that only this mode needs. */
  findings(): Promise<readonly Finding[]>
  readonly migration: MigrationTraits
}

/** What `sluice doctor --migrate-to` says beyond the packets that it compares. */
export interface MigrationTraits {
  /** Differences for every service when a node leaves this mode. */
  readonly leaving: readonly ModeDifference[]
  /** Present if the doctor can compare other modes with this one as the new mode. */
  readonly entering?: {
    readonly differences: readonly ModeDifference[]
    /** One sentence about settings that keep the old behaviour. */
    readonly advice: string
  }
}

export interface ModeDifference {
  readonly packet: string
  readonly now: string
  readonly later: string
  readonly why: string
}

/** One thing that a proxy has on this node. */
export interface Leftover {
  readonly mode: Mode
  readonly what: string
  readonly where: string
}

/** Something that other programs use as well, so that no cleanup removes it. */
export interface KeptObject {
  readonly what: string
  readonly where: string
  readonly why: string
  /** Shell commands that remove it if no other program needs it. */
  readonly commands: readonly string[]
}

export interface LeftoverTraits {
  /** Reads what a proxy in this mode, ours or kube-proxy, has on this node now. Changes nothing. */
  find(): Promise<readonly Leftover[]>
  readonly cleanup: Cleanup
  /** Finds what `cleanup` leaves on the node although a proxy has written to it; absent if there is nothing of the kind. */
  findKept?(): Promise<readonly KeptObject[]>
  /** Present if connections live in the data plane itself: then parts of it stay until the connections have ended. */
  readonly retire?: Retire
  /** Modes with the same value cannot distinguish their leftovers, so they leave each other's alone. */
  readonly sharedWith?: string
  /** Reads the services that the rules on this node name; absent if the rules do not name services. */
  readServices?(): Promise<readonly RuleServices[]>
}

/** The services of one family, as the rules on this node name them. */
export interface RuleServices {
  readonly family: Family
  readonly services: readonly ServiceRecord[]
  readonly slices: readonly SliceRecord[]
}
