// Decodes EndpointSlices to compact records. The only file that knows their field names; what the fields mean is decided in src/model.

import { canonicalIp, type Family, familyOf } from '../../lib/ip.ts'
import { runAtOnce, type Steps } from '../../lib/yielding.ts'
import type { EndpointRecord, SlicePortRecord, SliceRecord } from '../../model/types.ts'
import { readWeight } from './annotations.ts'
import { readPort } from './decode-parts.ts'
import {
  asObject,
  copyFitted,
  type DecodedRecord,
  emptyList,
  type FieldReader,
  formatValue,
  identifyObject,
  isObjectName,
  isPause,
  isShortText,
  type JsonObject,
  readTime,
} from './fields.ts'
import { internName, internNames, internTables } from './interned.ts'
import { takeDecoded } from './ordinary-object.ts'

/** Slices with this label belong to services without a cluster IP. */
export const headlessLabel = 'service.kubernetes.io/headless'
export const serviceLabel = 'kubernetes.io/service-name'
export const triggerAnnotation = 'endpoints.kubernetes.io/last-change-trigger-time'

export const decodeEndpointSlice = (json: unknown): DecodedRecord<SliceRecord> =>
  takeDecoded<SliceRecord>(json) ?? runAtOnce(decodeEndpointSliceInSteps(json))

export function* decodeEndpointSliceInSteps(json: unknown): Steps<DecodedRecord<SliceRecord>> {
  const identified = identifyObject('EndpointSlice', json, 'namespaced')
  if ('problems' in identified) return identified
  const { key, reader, object, metadata } = identified
  const ignored = () => ({ key, record: undefined, problems: reader.listProblems() })
  const labels = reader.readChild(metadata, 'labels', 'metadata')
  if (labels[headlessLabel] !== undefined) return ignored()
  const addressType = reader.readText(object, 'addressType', '') ?? ''
  if (addressType === 'FQDN') return ignored()
  const service = reader.readText(labels, serviceLabel, 'metadata.labels') ?? ''
  if (addressType !== 'IPv4' && addressType !== 'IPv6') {
    reader.report('addressType', `must be IPv4, IPv6 or FQDN, is ${formatValue(object.addressType)}`)
    return ignored()
  }
  // Users may make slices for themselves: the API server accepts them, and upstream's conformance tests create one.
  if (isAbsent(labels[serviceLabel])) {
    return { ...ignored(), unused: `it belongs to no Service: it has no label ${serviceLabel}` }
  }
  if (!isObjectName(service)) {
    const message = `is not a valid name: ${formatValue(labels[serviceLabel])}`
    reader.report(`metadata.labels[${serviceLabel}]`, message)
    return ignored()
  }
  const family = addressType === 'IPv4' ? 4 : 6
  const annotations = reader.readChild(metadata, 'annotations', 'metadata')
  const record: SliceRecord = {
    key,
    service: internName(`${key.slice(0, key.indexOf('/'))}/${service}`),
    family,
    ports: yield* readPorts(reader, object),
    endpoints: yield* readEndpoints(reader, object, family),
    triggered: readTime(reader, annotations, triggerAnnotation, 'metadata.annotations'),
    ...readWeight(reader, metadata),
  }
  return { key, record, problems: reader.listProblems() }
}

const isAbsent = (label: unknown): boolean => label === undefined || label === null || label === ''

/** Longer lists are not shared: one slice must not displace the values that all others share. */
const fewPorts = 100

/** An empty name is a valid name, a missing one is not. Like kube-proxy, this does not support "all ports" (a port without a number). */
function* readPorts(reader: FieldReader, object: JsonObject): Steps<readonly SlicePortRecord[]> {
  const ports: SlicePortRecord[] = []
  for (const [i, json] of reader.readChildren(object, 'ports', '')) {
    if (isPause(i)) yield
    const at = `ports[${i}]`
    const fields = readPort(reader, json, at, reader.readText(json, 'name', at))
    if (fields !== undefined) ports.push(fields)
  }
  return sharePorts(ports)
}

/** Returns one list for all slices that have the same ports. */
export function sharePorts(ports: readonly SlicePortRecord[]): readonly SlicePortRecord[] {
  if (ports.length === 0 || ports.length > fewPorts) return copyFitted(ports)
  let listKey = ''
  for (const { name, protocol, port } of ports) listKey += `${name}/${protocol}/${port}\n`
  return internTables.slicePortLists.share(listKey, () => ports.map(sharePort))
}

const sharePort = ({ name, protocol, port }: SlicePortRecord): SlicePortRecord =>
  internTables.slicePorts.share(`${name}/${protocol}/${port}`, () => ({ name: internName(name), protocol, port }))

function* readEndpoints(reader: FieldReader, object: JsonObject, family: Family): Steps<readonly EndpointRecord[]> {
  const endpoints: EndpointRecord[] = []
  const list = reader.readList(object, 'endpoints', '')
  for (let i = 0; i < list.length; i++) {
    if (isPause(i)) yield
    const json = asObject(list[i])
    if (json === undefined) reader.report(`endpoints[${i}]`, `must be an object, is ${formatValue(list[i])}`)
    else {
      const endpoint = readEndpoint(reader, json, i, family)
      if (endpoint !== undefined) endpoints.push(endpoint)
    }
  }
  return copyFitted(endpoints)
}

/** Paths are built only for a problem or a rare field: slices hold most of the objects, and this is their hot loop. */
function readEndpoint(reader: FieldReader, json: JsonObject, i: number, family: Family): EndpointRecord | undefined {
  const ip = readAddress(reader, json, i, family)
  if (ip === undefined) return undefined
  const conditions = asObject(json.conditions) ?? reader.readChild(json, 'conditions', `endpoints[${i}]`)
  const { nodeName } = json
  const node = isShortText(nodeName) ? nodeName : (reader.readText(json, 'nodeName', `endpoints[${i}]`) ?? '')
  const hints = json.hints === undefined ? undefined : reader.readChild(json, 'hints', `endpoints[${i}]`)
  return {
    ip,
    node: internName(node),
    ready: readCondition(reader, conditions, 'ready', i) ?? true,
    serving: readCondition(reader, conditions, 'serving', i) ?? true,
    terminating: readCondition(reader, conditions, 'terminating', i) ?? false,
    zoneHints: hints === undefined ? emptyList : readHints(reader, hints, 'forZones', `endpoints[${i}]`),
    nodeHints: hints === undefined ? emptyList : readHints(reader, hints, 'forNodes', `endpoints[${i}]`),
  }
}

function readCondition(reader: FieldReader, conditions: JsonObject, name: string, i: number): boolean | undefined {
  const value = conditions[name]
  return typeof value === 'boolean' ? value : reader.readFlag(conditions, name, `endpoints[${i}].conditions`)
}

/** Reads only the first address, as kube-proxy does: by contract, further addresses are equivalent. */
function readAddress(reader: FieldReader, json: JsonObject, i: number, family: Family): string | undefined {
  const { addresses } = json
  const list = Array.isArray(addresses) ? addresses : reader.readList(json, 'addresses', `endpoints[${i}]`)
  const first: unknown = list[0]
  const ip = typeof first === 'string' ? canonicalIp(first) : undefined
  if (ip !== undefined && familyOf(ip) === family) return ip
  const field = `endpoints[${i}].addresses[0]`
  if (typeof first !== 'string') {
    reader.report(field, first === undefined ? 'is missing' : `must be a string, is ${formatValue(first)}`)
  } else if (ip === undefined) reader.report(field, `is not a valid IP address: ${formatValue(first)}`)
  else reader.report(field, `${ip} is not of the slice's address type IPv${family}`)
  return undefined
}

function readHints(reader: FieldReader, hints: JsonObject, name: string, at: string): readonly string[] {
  if (hints[name] === undefined) return emptyList
  const names: string[] = []
  for (const [i, hint] of reader.readChildren(hints, name, `${at}.hints`)) {
    const value = reader.readText(hint, 'name', `${at}.hints.${name}[${i}]`)
    if (value !== undefined && value !== '') names.push(value)
  }
  return names.length === 0 ? emptyList : internNames(names)
}
