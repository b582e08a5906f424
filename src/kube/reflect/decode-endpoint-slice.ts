// Decodes EndpointSlices to compact records. The only file that knows their field names; what the fields mean is decided in src/model.

import { canonicalIp, type Family, familyOf } from '../../lib/ip.ts'
import type { EndpointRecord, SlicePortRecord, SliceRecord } from '../../model/types.ts'
import { readWeight } from './annotations.ts'
import { readPort } from './decode-parts.ts'
import {
  asObject,
  type DecodedRecord,
  emptyList,
  type FieldReader,
  fitted,
  identifyObject,
  isObjectName,
  type JsonObject,
  readTime,
  show,
} from './fields.ts'
import { internName, internNames, internTables } from './interned.ts'

/** Slices with this label belong to services without a cluster IP. */
export const headlessLabel = 'service.kubernetes.io/headless'
const serviceLabel = 'kubernetes.io/service-name'
const triggerAnnotation = 'endpoints.kubernetes.io/last-change-trigger-time'

export function decodeEndpointSlice(json: unknown): DecodedRecord<SliceRecord> {
  const identified = identifyObject('EndpointSlice', json, 'namespaced')
  if ('problems' in identified) return identified
  const { key, reader, object, metadata } = identified
  const ignored = () => ({ key, record: undefined, problems: reader.problems() })
  const labels = reader.child(metadata, 'labels', 'metadata')
  if (labels[headlessLabel] !== undefined) return ignored()
  const addressType = reader.text(object, 'addressType', '') ?? ''
  if (addressType === 'FQDN') return ignored()
  const service = reader.text(labels, serviceLabel, 'metadata.labels') ?? ''
  if (addressType !== 'IPv4' && addressType !== 'IPv6') {
    reader.problem('addressType', `must be IPv4, IPv6 or FQDN, is ${show(object.addressType)}`)
    return ignored()
  }
  if (!isObjectName(service)) {
    const given = labels[serviceLabel]
    const message = given === undefined ? 'is missing' : `is not a valid name: ${show(given)}`
    reader.problem(`metadata.labels[${serviceLabel}]`, message)
    return ignored()
  }
  const family = addressType === 'IPv4' ? 4 : 6
  const annotations = reader.child(metadata, 'annotations', 'metadata')
  const record: SliceRecord = {
    key,
    service: internName(`${key.slice(0, key.indexOf('/'))}/${service}`),
    family,
    ports: readPorts(reader, object),
    endpoints: readEndpoints(reader, object, family),
    triggered: readTime(reader, annotations, triggerAnnotation, 'metadata.annotations'),
    ...readWeight(reader, metadata),
  }
  return { key, record, problems: reader.problems() }
}

/** An empty name is a valid name, a missing one is not. Like kube-proxy, this does not support "all ports" (a port without a number). */
function readPorts(reader: FieldReader, object: JsonObject): readonly SlicePortRecord[] {
  const { slicePorts, slicePortLists } = internTables
  const ports: SlicePortRecord[] = []
  let listKey = ''
  for (const [i, json] of reader.children(object, 'ports', '')) {
    const at = `ports[${i}]`
    const fields = readPort(reader, json, at, reader.text(json, 'name', at))
    if (fields === undefined) continue
    const { name, protocol, port } = fields
    const key = `${name}/${protocol}/${port}`
    ports.push(slicePorts.share(key, () => ({ name: internName(name), protocol, port })))
    listKey += `${key}\n`
  }
  return ports.length === 0 ? emptyList : slicePortLists.share(listKey, () => fitted(ports))
}

function readEndpoints(reader: FieldReader, object: JsonObject, family: Family): readonly EndpointRecord[] {
  const endpoints: EndpointRecord[] = []
  const list = reader.list(object, 'endpoints', '')
  for (let i = 0; i < list.length; i++) {
    const json = asObject(list[i])
    if (json === undefined) reader.problem(`endpoints[${i}]`, `must be an object, is ${show(list[i])}`)
    else {
      const endpoint = readEndpoint(reader, json, i, family)
      if (endpoint !== undefined) endpoints.push(endpoint)
    }
  }
  return fitted(endpoints)
}

/** Paths are built only for a problem or a rare field: slices hold most of the objects, and this is their hot loop. */
function readEndpoint(reader: FieldReader, json: JsonObject, i: number, family: Family): EndpointRecord | undefined {
  const ip = readAddress(reader, json, i, family)
  if (ip === undefined) return undefined
  const conditions = asObject(json.conditions) ?? reader.child(json, 'conditions', `endpoints[${i}]`)
  const { nodeName } = json
  const node = typeof nodeName === 'string' ? nodeName : (reader.text(json, 'nodeName', `endpoints[${i}]`) ?? '')
  const hints = json.hints === undefined ? undefined : reader.child(json, 'hints', `endpoints[${i}]`)
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
  return typeof value === 'boolean' ? value : reader.flag(conditions, name, `endpoints[${i}].conditions`)
}

/** Reads only the first address, as kube-proxy does: by contract, further addresses are equivalent. */
function readAddress(reader: FieldReader, json: JsonObject, i: number, family: Family): string | undefined {
  const { addresses } = json
  const list = Array.isArray(addresses) ? addresses : reader.list(json, 'addresses', `endpoints[${i}]`)
  const first: unknown = list[0]
  const ip = typeof first === 'string' ? canonicalIp(first) : undefined
  if (ip !== undefined && familyOf(ip) === family) return ip
  const field = `endpoints[${i}].addresses[0]`
  if (typeof first !== 'string') {
    reader.problem(field, first === undefined ? 'is missing' : `must be a string, is ${show(first)}`)
  } else if (ip === undefined) reader.problem(field, `is not a valid IP address: ${show(first)}`)
  else reader.problem(field, `${ip} is not of the slice's address type IPv${family}`)
  return undefined
}

function readHints(reader: FieldReader, hints: JsonObject, name: string, at: string): readonly string[] {
  if (hints[name] === undefined) return emptyList
  const names: string[] = []
  for (const [i, hint] of reader.children(hints, name, `${at}.hints`)) {
    const value = reader.text(hint, 'name', `${at}.hints.${name}[${i}]`)
    if (value !== undefined && value !== '') names.push(value)
  }
  return names.length === 0 ? emptyList : internNames(names)
}
