// Reads EndpointSlices straight from their protobuf form into records. Only ordinary ones, of which there are thousands: where anything
// else than the usual fields and valid values is found, the table and the decoder decide, and report what is wrong.

import { canonicalIp, type Family, familyOf } from '../../lib/ip.ts'
import { WireCursor } from '../../lib/protobuf-wire.ts'
import type { EndpointRecord, SlicePortRecord, SliceRecord } from '../../model/types.ts'
import { serviceLabel, sharePorts, triggerAnnotation } from '../decode/decode-endpoint-slice.ts'
import { isPortName, isPortNumber, protocolOf } from '../decode/decode-parts.ts'
import { emptyList, isObjectName, isShortText, parseTime } from '../decode/fields.ts'
import { internName, internNames } from '../decode/interned.ts'
import { OrdinaryObject } from '../decode/ordinary-object.ts'
import { endpointSlice } from './message-tables.ts'
import { childOf, type MessageTable, skipUnnamed, tagOf, type UnreadBytes } from './read-message.ts'
import { MetadataReader, type OrdinaryMetadata } from './read-metadata.ts'
import { readCachedText } from './text-cache.ts'

const metadataReader = new MetadataReader(endpointSlice, { label: serviceLabel, annotation: triggerAnnotation })

const endpoint = childOf(endpointSlice, 'endpoints')
const conditions = childOf(endpoint, 'conditions')
const hints = childOf(endpoint, 'hints')
const zoneHint = childOf(hints, 'forZones')
const nodeHint = childOf(hints, 'forNodes')
const port = childOf(endpointSlice, 'ports')

const sliceTags = {
  metadata: tagOf(endpointSlice, 'metadata'),
  endpoints: tagOf(endpointSlice, 'endpoints'),
  ports: tagOf(endpointSlice, 'ports'),
  addressType: tagOf(endpointSlice, 'addressType'),
} as const
const endpointTags = {
  addresses: tagOf(endpoint, 'addresses'),
  conditions: tagOf(endpoint, 'conditions'),
  nodeName: tagOf(endpoint, 'nodeName'),
  hints: tagOf(endpoint, 'hints'),
} as const
const conditionTags = {
  ready: tagOf(conditions, 'ready'),
  serving: tagOf(conditions, 'serving'),
  terminating: tagOf(conditions, 'terminating'),
} as const
const portTags = { name: tagOf(port, 'name'), protocol: tagOf(port, 'protocol'), port: tagOf(port, 'port') } as const
const hintTags = { forZones: tagOf(hints, 'forZones'), forNodes: tagOf(hints, 'forNodes') } as const

/** The fields of a slice, but for its endpoints, whose family comes after them. */
class OrdinarySlice {
  metadata: OrdinaryMetadata | undefined = undefined
  addressType = ''
  /** Where the first endpoint is; -1 if there is none. */
  endpointsAt = -1
  readonly ports: SlicePortRecord[] = []
}

/** Returns undefined if the slice is not ordinary. Throws a SyntaxError. */
export function readOrdinarySlice({ bytes, at, end }: UnreadBytes): OrdinaryObject<SliceRecord> | undefined {
  const cursor = new WireCursor(bytes, at)
  const found = readFields(cursor, end)
  if (found?.metadata === undefined) return undefined
  const { metadata, addressType, endpointsAt, ports } = found
  if (addressType !== 'IPv4' && addressType !== 'IPv6') return undefined
  const { namespace, name, label, annotation } = metadata
  if (!isObjectName(namespace) || !isObjectName(name) || !isObjectName(label)) return undefined
  const family = addressType === 'IPv4' ? 4 : 6
  cursor.at = endpointsAt < 0 ? end : endpointsAt
  const endpoints = readEndpoints(cursor, end, family)
  const triggered = annotation === '' ? 0 : parseTime(annotation)
  if (endpoints === undefined || triggered === undefined || !isShortText(annotation)) return undefined
  const key = `${namespace}/${name}`
  const service = internName(`${namespace}/${label}`)
  const record: SliceRecord = { key, service, family, ports: sharePorts(ports), endpoints, triggered }
  return new OrdinaryObject(metadata, { key, record, problems: emptyList })
}

function readFields(cursor: WireCursor, end: number): OrdinarySlice | undefined {
  const found = new OrdinarySlice()
  while (cursor.at < end) {
    const start = cursor.at
    const tag = cursor.readVarint(end)
    let isOrdinary = true
    switch (tag) {
      case sliceTags.endpoints:
        if (found.endpointsAt < 0) found.endpointsAt = start
        cursor.at = cursor.readFieldEnd(end)
        break
      case sliceTags.ports:
        isOrdinary = addPort(found.ports, readPort(cursor, cursor.readFieldEnd(end)))
        break
      case sliceTags.metadata:
        found.metadata = metadataReader.read(cursor, cursor.readFieldEnd(end))
        isOrdinary = found.metadata !== undefined
        break
      case sliceTags.addressType:
        found.addressType = readCachedText(cursor, end)
        break
      default:
        isOrdinary = skipUnnamed(cursor, tag, end, endpointSlice)
    }
    if (!isOrdinary) return undefined
  }
  return found
}

function addPort(ports: SlicePortRecord[], added: SlicePortRecord | undefined): boolean {
  if (added === undefined) return false
  ports.push(added)
  return true
}

/** Reads all endpoints from the first one on. */
function readEndpoints(cursor: WireCursor, end: number, family: Family): readonly EndpointRecord[] | undefined {
  if (cursor.at === end) return emptyList
  const endpoints: EndpointRecord[] = []
  while (cursor.at < end) {
    const tag = cursor.readVarint(end)
    if (tag !== sliceTags.endpoints) cursor.skipField(tag & 7, end)
    else {
      const one = readEndpoint(cursor, cursor.readFieldEnd(end), family)
      if (one === undefined) return undefined
      endpoints.push(one)
    }
  }
  return endpoints
}

/** The conditions and hints of an endpoint, with the values that absent ones stand for. */
class OrdinaryTraits {
  ready = true
  serving = true
  terminating = false
  zoneHints: readonly string[] = emptyList
  nodeHints: readonly string[] = emptyList
}

function readEndpoint(cursor: WireCursor, end: number, family: Family): EndpointRecord | undefined {
  let address = ''
  let addresses = 0
  let node = ''
  const traits = new OrdinaryTraits()
  while (cursor.at < end) {
    const tag = cursor.readVarint(end)
    let isOrdinary = true
    switch (tag) {
      case endpointTags.addresses:
        if (addresses++ === 0) address = cursor.readText(end)
        else cursor.at = cursor.readFieldEnd(end)
        break
      case endpointTags.conditions:
        isOrdinary = readConditions(traits, cursor, cursor.readFieldEnd(end))
        break
      case endpointTags.nodeName:
        node = readCachedText(cursor, end)
        break
      case endpointTags.hints:
        isOrdinary = readHints(traits, cursor, cursor.readFieldEnd(end))
        break
      default:
        isOrdinary = skipUnnamed(cursor, tag, end, endpoint)
    }
    if (!isOrdinary) return undefined
  }
  const ip = canonicalIp(address)
  if (ip === undefined || familyOf(ip) !== family || !isShortText(node)) return undefined
  const { ready, serving, terminating, zoneHints, nodeHints } = traits
  return { ip, node, ready, serving, terminating, zoneHints, nodeHints }
}

/** Returns false if only the table can tell what the conditions mean. */
function readConditions(traits: OrdinaryTraits, cursor: WireCursor, end: number): boolean {
  traits.ready = true
  traits.serving = true
  traits.terminating = false
  while (cursor.at < end) {
    const tag = cursor.readVarint(end)
    if (tag === conditionTags.ready) traits.ready = cursor.readVarint(end) !== 0
    else if (tag === conditionTags.serving) traits.serving = cursor.readVarint(end) !== 0
    else if (tag === conditionTags.terminating) traits.terminating = cursor.readVarint(end) !== 0
    else if (!skipUnnamed(cursor, tag, end, conditions)) return false
  }
  return true
}

/** Returns false if only the table can tell what the hints mean. */
function readHints(traits: OrdinaryTraits, cursor: WireCursor, end: number): boolean {
  const zones: string[] = []
  const nodes: string[] = []
  while (cursor.at < end) {
    const tag = cursor.readVarint(end)
    let isOrdinary = true
    if (tag === hintTags.forZones) isOrdinary = addName(zones, cursor, cursor.readFieldEnd(end), zoneHint)
    else if (tag === hintTags.forNodes) isOrdinary = addName(nodes, cursor, cursor.readFieldEnd(end), nodeHint)
    else isOrdinary = skipUnnamed(cursor, tag, end, hints)
    if (!isOrdinary) return false
  }
  traits.zoneHints = zones.length === 0 ? emptyList : internNames(zones)
  traits.nodeHints = nodes.length === 0 ? emptyList : internNames(nodes)
  return true
}

function addName(names: string[], cursor: WireCursor, end: number, table: MessageTable): boolean {
  let name = ''
  const nameTag = tagOf(table, 'name')
  while (cursor.at < end) {
    const tag = cursor.readVarint(end)
    if (tag === nameTag) name = readCachedText(cursor, end)
    else if (!skipUnnamed(cursor, tag, end, table)) return false
  }
  if (name !== '') names.push(name)
  return isShortText(name)
}

function readPort(cursor: WireCursor, end: number): SlicePortRecord | undefined {
  let name: string | undefined
  let protocolName = 'TCP'
  let number = 0
  while (cursor.at < end) {
    const tag = cursor.readVarint(end)
    if (tag === portTags.name) name = readCachedText(cursor, end)
    else if (tag === portTags.protocol) protocolName = readCachedText(cursor, end)
    else if (tag === portTags.port) number = cursor.readVarint(end)
    else if (!skipUnnamed(cursor, tag, end, port)) return undefined
  }
  const protocol = protocolOf(protocolName)
  if (name === undefined || protocol === undefined || !isPortNumber(number)) return undefined
  return isPortName(name) ? { name, protocol, port: number } : undefined
}
