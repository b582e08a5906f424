// Reads the annotations that users may set for Sluice. A value that is not valid is reported and ignored. Pure.

import { type FieldReader, formatValue, type JsonObject } from './fields.ts'

const schedulerAnnotation = 'sluice/scheduler'
const ejectionAnnotation = 'sluice/outlier-ejection'
const weightAnnotation = 'sluice/weight'
/** A larger weight may not fit the schedulers that use it. Only the ratio of weights matters. */
const maxWeight = 65_535

/** Accepts any name that IPVS could have. Whether this kernel has the scheduler shows when it is used. */
export function readScheduler(reader: FieldReader, metadata: JsonObject): { readonly scheduler?: string } {
  const text = readAnnotation(reader, metadata, schedulerAnnotation)
  if (text === undefined) return {}
  if (/^[a-z]{1,15}$/.test(text)) return { scheduler: text }
  reader.report(makePath(schedulerAnnotation), `is not a valid scheduler name: ${formatValue(text)}`)
  return {}
}

export function readOutlierEjection(reader: FieldReader, metadata: JsonObject): { readonly outlierEjection?: boolean } {
  const text = readAnnotation(reader, metadata, ejectionAnnotation)
  if (text === undefined) return {}
  if (text === 'on' || text === 'off') return { outlierEjection: text === 'on' }
  reader.report(makePath(ejectionAnnotation), `must be on or off, is ${formatValue(text)}`)
  return {}
}

export function readWeight(reader: FieldReader, metadata: JsonObject): { readonly weight?: number } {
  const text = readAnnotation(reader, metadata, weightAnnotation)
  if (text === undefined) return {}
  const weight = /^\d{1,5}$/.test(text) ? Number(text) : 0
  if (weight >= 1 && weight <= maxWeight) return { weight }
  reader.report(makePath(weightAnnotation), `must be a number from 1 to ${maxWeight}, is ${formatValue(text)}`)
  return {}
}

function readAnnotation(reader: FieldReader, metadata: JsonObject, name: string): string | undefined {
  const annotations = reader.readChild(metadata, 'annotations', 'metadata')
  return annotations[name] === undefined ? undefined : reader.readText(annotations, name, 'metadata.annotations')
}

const makePath = (name: string): string => `metadata.annotations[${name}]`
