// One stored event, two served forms: core/v1 is how it is kept, events.k8s.io/v1 is made of it. Pure.

import type { Json, MutableJson } from './json.ts'

/** events.k8s.io/v1 name, core/v1 name. */
const renamed: readonly (readonly [string, string])[] = [
  ['regarding', 'involvedObject'],
  ['note', 'message'],
  ['reportingController', 'reportingComponent'],
  ['deprecatedSource', 'source'],
  ['deprecatedFirstTimestamp', 'firstTimestamp'],
  ['deprecatedLastTimestamp', 'lastTimestamp'],
  ['deprecatedCount', 'count'],
]
const toCore = new Map(renamed)
const fromCore = new Map(renamed.map(([served, stored]) => [stored, served]))

export const eventToCore = (event: Json): MutableJson => rename(event, toCore, 'v1')
export const eventFromCore = (event: Json): MutableJson => rename(event, fromCore, 'events.k8s.io/v1')

function rename(event: Json, names: ReadonlyMap<string, string>, apiVersion: string): MutableJson {
  const made: MutableJson = {}
  for (const [key, value] of Object.entries(event)) made[names.get(key) ?? key] = value
  made.kind = 'Event'
  made.apiVersion = apiVersion
  return made
}
