// What the history remembers of one sync: why there was a sync, and what it changed. Pure.

import type { Family } from '../../lib/ip.ts'
import type { OtherCause, SyncCause } from '../journal.ts'

/** One sync. The admin socket, `-o json` and the file on disk have this form. */
export interface HistoryRecord {
  /** Counts the syncs of both families. With a history on disk the count goes on after a restart. */
  readonly sync: number
  /** RFC 3339: when the sync began. */
  readonly at: string
  readonly durationMs: number
  readonly family: Family
  readonly ok: boolean
  /** '' if the sync succeeded. */
  readonly error: string
  /** True if the data plane was read and everything was compared. */
  readonly full: boolean
  readonly causes: readonly SyncCause[]
  /** The objects whose changes the sync took over. */
  readonly objects: readonly ObjectChange[]
  /** How many further objects changed that are not named. */
  readonly moreObjects: number
  /** Causes that are not changes of objects. */
  readonly notes: readonly CauseNote[]
  /** The services that the sync changed. */
  readonly services: readonly string[]
  readonly moreServices: number
  /** How many entries were written. */
  readonly put: number
  /** How many entries were removed. */
  readonly dropped: number
  /** The entries that were written or removed; fewer than `put` and `dropped` count if there were many. */
  readonly entries: readonly EntryWrite[]
  readonly refused: readonly { readonly service: string; readonly id: string; readonly error: string }[]
}

/** What the object itself says about its last change. */
export interface ObjectOrigin {
  /** '' if unknown. */
  readonly resourceVersion: string
  /** The field manager that changed the object last, as metadata.managedFields names it: the name that a client gives itself. '' if unknown. */
  readonly manager: string
  /** `Update` or `Apply`; '' if the manager is unknown. */
  readonly operation: string
  /** `status` and the like; '' for the object itself. */
  readonly subresource: string
}

export const unknownOrigin: ObjectOrigin = { resourceVersion: '', manager: '', operation: '', subresource: '' }

export interface ObjectChange extends ObjectOrigin {
  readonly kind: 'Service' | 'EndpointSlice' | 'Node' | 'ServiceCIDR'
  /** `namespace/name`, or `name`. */
  readonly name: string
  /** The service that the change is about; '' for all. */
  readonly service: string
  readonly action: 'added' | 'changed' | 'deleted'
  readonly parts: readonly PartChange[]
  /** How many further parts changed that are not named. */
  readonly moreParts: number
}

/** A frontend, an endpoint or a setting. '' stands for one that is not there. */
export interface PartChange {
  readonly part: string
  readonly before: string
  readonly after: string
}

/**
 * An entry that was put or dropped, with hashes of its content. '' stands for an entry that is not there. `before` is what this proxy had
 * written: it equals `after` if another program changed the entry, and the sync restored it.
 */
export interface EntryWrite {
  readonly id: string
  readonly before: string
  readonly after: string
}

/**
 * `start`: the proxy started; `drift`: another program changed our rules; `node`: the view of the node changed without a change of an
 * object; the others are those of the journal.
 */
export interface CauseNote {
  readonly kind: 'start' | 'drift' | 'node' | OtherCause
  /** '' for all services. */
  readonly service: string
  /** For people. Names the program that changed our rules, if the kernel names it. */
  readonly text: string
}
