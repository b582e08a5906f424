// Our own annotations: what users may say on an object beyond what Kubernetes knows. What is wrong in them is told and ignored.

import { type FieldReader, type JsonObject, show } from './fields.ts'

const schedulerAnnotation = 'sluice/scheduler'
const weightAnnotation = 'sluice/weight'
/** More would not fit what balances by them; the ratio is what counts. */
const maxWeight = 65_535

/** Names as IPVS has them: whether this kernel has one of that name is seen when it is used. */
export function readScheduler(reading: FieldReader, metadata: JsonObject): { readonly scheduler?: string } {
  const text = readAnnotation(reading, metadata, schedulerAnnotation)
  if (text === undefined) return {}
  if (/^[a-z]{1,15}$/.test(text)) return { scheduler: text }
  reading.problem(field(schedulerAnnotation), `is no name of a scheduler: ${show(text)}`)
  return {}
}

export function readWeight(reading: FieldReader, metadata: JsonObject): { readonly weight?: number } {
  const text = readAnnotation(reading, metadata, weightAnnotation)
  if (text === undefined) return {}
  const weight = /^\d{1,5}$/.test(text) ? Number(text) : 0
  if (weight >= 1 && weight <= maxWeight) return { weight }
  reading.problem(field(weightAnnotation), `must be a number from 1 to ${maxWeight}, is ${show(text)}`)
  return {}
}

function readAnnotation(reading: FieldReader, metadata: JsonObject, name: string): string | undefined {
  const annotations = reading.child(metadata, 'annotations', 'metadata')
  return annotations[name] === undefined ? undefined : reading.text(annotations, name, 'metadata.annotations')
}

const field = (name: string): string => `metadata.annotations[${name}]`
