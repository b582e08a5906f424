// Listens to the journal and makes one record per sync: collects what changed until a sync takes it over, and adds what the sync did. No
// I/O.
//
// Records may wait until several are made together, since making one takes a tenth of what a single change costs, and much less after
// another one. Large objects are described when they change, so that nothing of them is kept.

import { describeError } from '../../lib/errors.ts'
import type { Family } from '../../lib/ip.ts'
import { familyOf } from '../../lib/ip.ts'
import { formatTime } from '../../lib/time.ts'
import type { NodeView } from '../../model/types.ts'
import type { DriftRecord, JournalListener, OtherCause, RecordChange, SyncReport } from '../journal.ts'
import type { CauseNote, HistoryRecord, ObjectChange, ObjectOrigin } from './history-record.ts'
import { unknownOrigin } from './history-record.ts'
import { compareServices, compareSlices, countEndpointPorts, countFrontends } from './object-changes.ts'
import { describeViewChange } from './view-changes.ts'

/** The object whose event is being delivered. */
export interface DeliveredObject {
  readonly kind: string
  readonly key: string
  /** Reads the origin from the object: only changes that are recorded pay for it. */
  readOrigin(): ObjectOrigin
}

export interface RecorderOptions {
  /** The object whose event is being delivered now; undefined if there is none. */
  readonly delivered: () => DeliveredObject | undefined
  /** What is known about this start, for the first record. */
  readonly describeStart: () => string
  readonly onRecord: (record: HistoryRecord) => void
  /** The number of the last sync that is recorded already. */
  readonly lastSync?: number
  /** True if a record may wait until others follow, or until `recordWaiting` is called. */
  readonly mayWait?: boolean
}

/** Objects that one record names; the rest are counted. */
const maxObjects = 100
/** Objects of one service that one record names: a service with thousands of slices must not keep others waiting for their description. */
const maxPerService = 20
/** Characters of the parts of all objects in one record. */
const maxPartChars = 32 << 10
const maxNotes = 20
const maxServices = 50
const maxRefused = 20
const maxNoteChars = 500
/** Syncs and objects that wait at most. They are recorded in a millisecond or two. */
const maxWaiting = 32
/** An object with more frontends or endpoints is described at once. */
const maxWaitingParts = 100

/** A change that is not described yet. */
interface UndescribedChange {
  readonly change: RecordChange
  readonly service: string
  readonly action: ObjectChange['action']
  /** The object that was delivered when the record changed. */
  readonly object: DeliveredObject | undefined
}

/** What will be the cause of a sync. */
interface Causes {
  objects: (ObjectChange | UndescribedChange)[]
  moreObjects: number
  notes: CauseNote[]
  /** How many of the objects are about each service. */
  byService: Map<string, number>
}

const noCauses = (): Causes => ({ objects: [], moreObjects: 0, notes: [], byService: new Map() })

/** A sync that is not recorded yet. */
interface WaitingSync {
  readonly sync: number
  readonly report: SyncReport
  readonly causes: Causes
}

interface FamilyCauses {
  /** What changed since the last sync began. */
  waiting: Causes
  /** What the sync took over that runs now. */
  taken: Causes
}

export class HistoryRecorder implements JournalListener {
  readonly #options: RecorderOptions
  readonly #families = new Map<Family, FamilyCauses>()
  #sync: number
  #waiting: WaitingSync[] = []
  /** The objects of the syncs that wait. */
  #waitingObjects = 0

  constructor(options: RecorderOptions) {
    this.#options = options
    this.#sync = options.lastSync ?? 0
  }

  object(change: RecordChange): void {
    const action = nameAction(change.before, change.after)
    for (const part of splitMove(change)) {
      const waiting = { change: part, service: serviceOf(part), action, object: this.#options.delivered() }
      const isSmall = this.#options.mayWait === true && countParts(part) <= maxWaitingParts
      let kept: ObjectChange | UndescribedChange | undefined = isSmall ? waiting : undefined
      for (const family of familiesOf(part)) {
        const causes = this.#of(family).waiting
        if (!hasRoom(causes, waiting.service)) {
          causes.moreObjects++
          continue
        }
        kept ??= describe(waiting)
        addObject(causes, kept)
      }
    }
  }

  view(family: Family, before: NodeView, after: NodeView): void {
    const { parts, text } = describeViewChange(before, after)
    const object = this.#options.delivered()
    if (object?.kind !== 'Node' && object?.kind !== 'ServiceCIDR') {
      this.#note(family, 'node', '', text)
      return
    }
    const { kind, key } = object
    const named = { kind, name: key, service: '', action: 'changed', parts, moreParts: 0 } as const
    addObject(this.#of(family).waiting, { ...named, ...object.readOrigin() })
  }

  drift({ family, culprit }: DriftRecord): void {
    this.#note(family, 'drift', '', culprit)
  }

  cause(family: Family, kind: OtherCause, service: string, text: string): void {
    // A sync that runs decides by itself what it tries again.
    if (kind === 'retry') addNote(this.#of(family).taken, { kind, service, text })
    else this.#note(family, kind, service, text)
  }

  drained(family: Family): void {
    const causes = this.#of(family)
    causes.taken = join(causes.taken, causes.waiting)
    causes.waiting = noCauses()
  }

  report(report: SyncReport): void {
    const causes = this.#of(report.family)
    const sync = ++this.#sync
    const { taken } = causes
    if (report.ok) causes.taken = noCauses()
    const isStart = report.causes.includes('start')
    if (isStart) addNote(taken, { kind: 'start', service: '', text: this.#options.describeStart() })
    if (!isStart && isIdle(report, taken)) return
    this.#waiting.push({ sync, report, causes: taken })
    this.#waitingObjects += taken.objects.length
    const mayWait = this.#options.mayWait === true && this.#waiting.length + this.#waitingObjects < maxWaiting
    if (!mayWait) this.recordWaiting()
  }

  /** Records the syncs that wait. */
  recordWaiting(): void {
    const waiting = this.#waiting
    this.#waiting = []
    this.#waitingObjects = 0
    for (const { sync, report, causes } of waiting) this.#options.onRecord(makeRecord(sync, report, causes))
  }

  #note(family: Family, kind: CauseNote['kind'], service: string, text: string): void {
    addNote(this.#of(family).waiting, { kind, service, text })
  }

  #of(family: Family): FamilyCauses {
    let causes = this.#families.get(family)
    if (causes === undefined) {
      causes = { waiting: noCauses(), taken: noCauses() }
      this.#families.set(family, causes)
    }
    return causes
  }
}

/** A slice that moves to another service is removed from one and added to the other. */
function splitMove(change: RecordChange): readonly RecordChange[] {
  if (change.kind === 'Service' || change.before === undefined || change.after === undefined) return [change]
  const { before, after } = change
  if (before.service === after.service && before.family === after.family) return [change]
  return [
    { ...change, after: undefined },
    { ...change, before: undefined },
  ]
}

function nameAction(before: unknown, after: unknown): ObjectChange['action'] {
  if (before === undefined) return 'added'
  return after === undefined ? 'deleted' : 'changed'
}

const serviceOf = (change: RecordChange): string =>
  change.kind === 'Service' ? change.key : ((change.after ?? change.before)?.service ?? '')

const hasRoom = ({ objects, byService }: Causes, service: string): boolean =>
  objects.length < maxObjects && (byService.get(service) ?? 0) < maxPerService

/** A service matters in the families of its cluster IPs, although every family is planned. A slice that moves has been split. */
function familiesOf(change: RecordChange): Iterable<Family> {
  if (change.kind === 'Service') {
    return new Set([...(change.before?.clusterIps ?? []), ...(change.after?.clusterIps ?? [])].map(familyOf))
  }
  const slice = change.after ?? change.before
  return slice === undefined ? [] : [slice.family]
}

/** Frontends or endpoints of the object, whichever version has more. */
function countParts(change: RecordChange): number {
  if (change.kind === 'Service') return Math.max(countFrontends(change.before), countFrontends(change.after))
  return Math.max(countEndpointPorts(change.before), countEndpointPorts(change.after))
}

function describe({ change, service, action, object }: UndescribedChange): ObjectChange {
  const { kind, key } = change
  const isDelivered = object?.kind === kind && object.key === key
  const { parts, moreParts } =
    change.kind === 'Service'
      ? compareServices(change.before, change.after)
      : compareSlices(change.before, change.after)
  const origin = isDelivered ? object.readOrigin() : unknownOrigin
  return { kind, name: key, service, action, ...origin, parts, moreParts }
}

function addObject(causes: Causes, object: ObjectChange | UndescribedChange): void {
  causes.byService.set(object.service, (causes.byService.get(object.service) ?? 0) + 1)
  causes.objects.push(object)
}

/** Describes what is not described yet, and leaves out the parts for which one record has no room. */
function describeAll(objects: Causes['objects']): readonly ObjectChange[] {
  let room = maxPartChars
  return objects.map((object) => {
    const kept = fitParts('change' in object ? describe(object) : object, room)
    room -= countPartChars(kept)
    return kept
  })
}

const countPartChars = ({ parts }: ObjectChange): number =>
  parts.reduce((sum, { part, before, after }) => sum + part.length + before.length + after.length, 0)

function fitParts(change: ObjectChange, room: number): ObjectChange {
  if (countPartChars(change) <= room) return change
  return { ...change, parts: [], moreParts: change.moreParts + change.parts.length }
}

function addNote(causes: Causes, { kind, service, text }: CauseNote): void {
  if (causes.notes.length >= maxNotes) return
  causes.notes.push({ kind, service, text: text.slice(0, maxNoteChars) })
}

/** What a failed sync took over belongs to the next sync, too. */
function join(taken: Causes, waiting: Causes): Causes {
  if (taken.objects.length + taken.notes.length === 0) return waiting
  const objects = [...taken.objects, ...waiting.objects]
  const named = objects.slice(0, maxObjects)
  return {
    objects: named,
    moreObjects: taken.moreObjects + waiting.moreObjects + objects.length - named.length,
    notes: [...taken.notes, ...waiting.notes].slice(0, maxNotes),
    byService: waiting.byService,
  }
}

/** True for a sync that found nothing to do and that nobody asked for. */
const isIdle = ({ ok, put, dropped, refused }: SyncReport, { objects, notes }: Causes): boolean =>
  ok && put + dropped + refused.length + objects.length + notes.length === 0

function makeRecord(sync: number, report: SyncReport, { objects, moreObjects, notes }: Causes): HistoryRecord {
  return {
    sync,
    at: formatTime(report.startedAt),
    durationMs: Math.round(report.durationMs * 1000) / 1000,
    family: report.family,
    ok: report.ok,
    error: report.error === undefined ? '' : describeError(report.error).slice(0, maxNoteChars),
    full: report.full,
    causes: report.causes,
    objects: describeAll(objects),
    moreObjects,
    notes,
    services: report.services.slice(0, maxServices),
    moreServices: Math.max(0, report.services.length - maxServices),
    put: report.put,
    dropped: report.dropped,
    entries: report.entries ?? [],
    refused: report.refused.slice(0, maxRefused).map(({ service, id, error }) => ({
      service,
      id,
      error: describeError(error).slice(0, maxNoteChars),
    })),
  }
}
