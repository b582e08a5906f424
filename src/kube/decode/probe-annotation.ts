// Reads the annotation sluice/probe: what is probed, and options after it: `http:/healthz interval=5s failures=2`. Pure.

import { parseDuration } from '../../lib/time.ts'
import type { ProbeRecord } from '../../model/types.ts'
import { makePath, readAnnotation } from './annotations.ts'
import { type FieldReader, formatValue, type JsonObject } from './fields.ts'

const annotation = 'sluice/probe'
const maxLength = 1_024
const shortestIntervalMs = 1_000
const longestMs = 3_600_000

type Options = {
  -readonly [name in 'port' | 'intervalMs' | 'timeoutMs' | 'failures' | 'successes']?: ProbeRecord[name]
}

/** A value that is not valid is reported, and nothing is probed. */
export function readProbe(reader: FieldReader, metadata: JsonObject): { readonly probe?: ProbeRecord } {
  const text = readAnnotation(reader, metadata, annotation)
  if (text === undefined) return {}
  const probe = text.length > maxLength ? `is longer than ${maxLength} characters` : parseProbe(text)
  if (typeof probe !== 'string') return { probe }
  reader.report(makePath(annotation), `${probe}; nothing is probed`)
  return {}
}

/** Returns what is wrong if the text is not valid. */
function parseProbe(text: string): ProbeRecord | string {
  const [what = '', ...words] = text.trim().split(/\s+/)
  const goal = parseGoal(what)
  if (goal === undefined) {
    return `must be tcp, http:/path, https:/path, grpc or grpc:service, with options such as interval=5s after it, is ${formatValue(text)}`
  }
  const options: Options = {}
  for (const word of words) {
    const wrong = readOption(word, options)
    if (wrong !== undefined) return wrong
  }
  return { ...goal, ...options }
}

function parseGoal(text: string): Pick<ProbeRecord, 'kind' | 'target'> | undefined {
  if (text === 'tcp') return { kind: 'tcp', target: '' }
  const [, kind, target] = /^(https?):(\/[\x21-\x7e]*)$/.exec(text) ?? []
  if (kind !== undefined && target !== undefined) return { kind: kind as 'http' | 'https', target }
  const grpc = /^grpc(?::([\w./-]{1,200}))?$/.exec(text)
  return grpc === null ? undefined : { kind: 'grpc', target: grpc[1] ?? '' }
}

/** Returns what is wrong if the option is not valid. */
function readOption(word: string, options: Options): string | undefined {
  const [name = '', value = ''] = word.split(/=(.*)/s)
  switch (name) {
    case 'port':
      if (!/^[a-z0-9-]{1,63}$/.test(value)) return `has a port that is not a port name: ${formatValue(word)}`
      options.port = value
      return undefined
    case 'interval':
      return readMs(word, value, shortestIntervalMs, (ms) => {
        options.intervalMs = ms
      })
    case 'timeout':
      return readMs(word, value, 10, (ms) => {
        options.timeoutMs = ms
      })
    case 'failures':
    case 'successes':
      if (!/^[1-9]\d?$/.test(value)) return `must have ${name} from 1 to 99, has ${formatValue(word)}`
      options[name] = Number(value)
      return undefined
    default:
      return `has an unknown option ${formatValue(word)}; known are port, interval, timeout, failures and successes`
  }
}

function readMs(word: string, value: string, least: number, store: (ms: number) => void): string | undefined {
  const ms = parseDuration(value)
  if (ms === undefined || ms < least || ms > longestMs) {
    return `must have a duration from ${least} ms to an hour, has ${formatValue(word)}`
  }
  store(ms)
  return undefined
}
