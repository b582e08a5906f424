// Reads the annotations that users may set for Sluice. A value that is not valid is reported and ignored. Pure.

import { canonicalIp } from '../../lib/ip.ts'
import { parseDuration } from '../../lib/time.ts'
import { type Algorithm, algorithms, type OptIn, type ServiceRecord } from '../../model/types.ts'
import { maxWeight } from '../../model/weights.ts'
import { type FieldReader, formatValue, isObjectName, type JsonObject } from './fields.ts'

const schedulerAnnotation = 'sluice/scheduler'
const ejectionAnnotation = 'sluice/outlier-ejection'
const drainAnnotation = 'sluice/local-drain'
const algorithmAnnotation = 'sluice/algorithm'
const slowStartAnnotation = 'sluice/slow-start'
const maxSlowStartMs = 3_600_000
const weightsAnnotation = 'sluice/weights'
const resetAnnotation = 'sluice/reset-connections'
const weightAnnotation = 'sluice/weight'
/** The part of sluice/weights that gives endpoints weights by their nodes. */
const capacityWord = 'node-capacity'
const longestMs = 3_600_000

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

export function readLocalDrain(reader: FieldReader, metadata: JsonObject): { readonly localDrain?: OptIn } {
  const wish = readOptIn(reader, metadata, drainAnnotation)
  return wish === undefined ? {} : { localDrain: wish }
}

export function readResetConnections(reader: FieldReader, metadata: JsonObject): { readonly resetConnections?: OptIn } {
  const wish = readOptIn(reader, metadata, resetAnnotation)
  return wish === undefined ? {} : { resetConnections: wish }
}

function readOptIn(reader: FieldReader, metadata: JsonObject, name: string): OptIn | undefined {
  const text = readAnnotation(reader, metadata, name)
  if (text === undefined || text === 'on' || text === 'off') return text
  const ms = parseDuration(text)
  if (ms !== undefined && ms > 0 && ms <= longestMs) return ms
  reader.report(makePath(name), `must be on, off, or a duration of at most 1h such as 30s, is ${formatValue(text)}`)
  return undefined
}

export function readWeight(reader: FieldReader, metadata: JsonObject): { readonly weight?: number } {
  const text = readAnnotation(reader, metadata, weightAnnotation)
  if (text === undefined) return {}
  const weight = parseWeight(text)
  if (weight !== undefined) return { weight }
  reader.report(makePath(weightAnnotation), `must be a number from 0 to ${maxWeight}, is ${formatValue(text)}`)
  return {}
}

function parseWeight(text: string): number | undefined {
  const weight = /^\d{1,5}$/.test(text) ? Number(text) : maxWeight + 1
  return weight <= maxWeight ? weight : undefined
}

export function readAlgorithm(reader: FieldReader, metadata: JsonObject): { readonly algorithm?: Algorithm } {
  const text = readAnnotation(reader, metadata, algorithmAnnotation)
  if (text === undefined) return {}
  const algorithm = algorithms.find((known) => known === text)
  if (algorithm !== undefined) return { algorithm }
  const message = `must be one of ${algorithms.join(', ')}, is ${formatValue(text)}; it is ignored`
  reader.report(makePath(algorithmAnnotation), message)
  return {}
}

/** Reads `node-a=2, 10.1.2.3=0, *=1` or `node-capacity`. A part that is not valid is reported and left out; all others count. */
export function readWeights(
  reader: FieldReader,
  metadata: JsonObject,
): Pick<ServiceRecord, 'weights' | 'nodeCapacity'> {
  const text = readAnnotation(reader, metadata, weightsAnnotation)
  if (text === undefined) return {}
  const weights: Record<string, number> = {}
  const parts = text.split(',').map((one) => one.trim())
  for (const part of parts) {
    if (part === '' || part === capacityWord) continue
    const split = part.lastIndexOf('=')
    const [name, weight] = [part.slice(0, split).trim(), parseWeight(part.slice(split + 1).trim())]
    const key = canonicalIp(name) ?? name
    if (split > 0 && weight !== undefined && (key !== name || isWeighted(key))) weights[key] = weight
    else {
      const weighted = `an endpoint address, a node or *, then = and a number from 0 to ${maxWeight}`
      const message = `must be ${capacityWord}, or ${weighted}, in each part; one part is ${formatValue(part)}`
      reader.report(makePath(weightsAnnotation), message)
    }
  }
  return {
    ...(Object.keys(weights).length === 0 ? {} : { weights }),
    ...(parts.includes(capacityWord) ? { nodeCapacity: true } : {}),
  }
}

/** `__proto__` is not a valid name of a node either. */
const isWeighted = (name: string): boolean => name === '*' || canonicalIp(name) !== undefined || isObjectName(name)

export function readSlowStart(reader: FieldReader, metadata: JsonObject): { readonly slowStartMs?: number } {
  const text = readAnnotation(reader, metadata, slowStartAnnotation)
  if (text === undefined) return {}
  const ms = parseDuration(text)
  if (ms !== undefined && ms >= 0 && ms <= maxSlowStartMs) return { slowStartMs: ms }
  reader.report(makePath(slowStartAnnotation), `must be a duration from 0 to 1h, such as 60s, is ${formatValue(text)}`)
  return {}
}

export function readAnnotation(reader: FieldReader, metadata: JsonObject, name: string): string | undefined {
  const annotations = reader.readChild(metadata, 'annotations', 'metadata')
  return annotations[name] === undefined ? undefined : reader.readText(annotations, name, 'metadata.annotations')
}

export const makePath = (name: string): string => `metadata.annotations[${name}]`
