// Converts events between their two served forms: core/v1, which is also the stored form, and events.k8s.io/v1. Pure.

import type { Json, MutableJson } from './json.ts'

/** Pairs of the field's name in events.k8s.io/v1 and its name in core/v1. */
const renamedFields: readonly (readonly [string, string])[] = [
  ['regarding', 'involvedObject'],
  ['note', 'message'],
  ['reportingController', 'reportingComponent'],
  ['deprecatedSource', 'source'],
  ['deprecatedFirstTimestamp', 'firstTimestamp'],
  ['deprecatedLastTimestamp', 'lastTimestamp'],
  ['deprecatedCount', 'count'],
]
const toCore = new Map(renamedFields)
const fromCore = new Map(renamedFields.map(([served, stored]) => [stored, served]))

export const eventToCore = (event: Json): MutableJson => renameFields(event, toCore, 'v1')
export const eventFromCore = (event: Json): MutableJson => renameFields(event, fromCore, 'events.k8s.io/v1')

function renameFields(event: Json, names: ReadonlyMap<string, string>, apiVersion: string): MutableJson {
  const renamed: MutableJson = {}
  for (const [key, value] of Object.entries(event)) renamed[names.get(key) ?? key] = value
  renamed.kind = 'Event'
  renamed.apiVersion = apiVersion
  return renamed
}
