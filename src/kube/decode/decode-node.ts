// Decodes Nodes, their capacity alone, and ServiceCIDRs to compact records. The only file that knows their field names. Pure.

import { runAtOnce } from '../../lib/yielding.ts'
import type { NodeCapacityRecord, NodeRecord, ServiceCidrRecord } from '../../model/types.ts'
import { readCidrs } from './decode-parts.ts'
import { type DecodedRecord, type FieldReader, formatValue, identifyObject, type JsonObject, readIp } from './fields.ts'
import { parseMilliQuantity } from './quantity.ts'

const zoneLabel = 'topology.kubernetes.io/zone'

export function decodeNode(json: unknown): DecodedRecord<NodeRecord> {
  const identified = identifyObject('Node', json, 'cluster')
  if ('problems' in identified) return identified
  const { key, reader, object, metadata } = identified
  const spec = reader.readChild(object, 'spec', '')
  const record: NodeRecord = {
    name: key,
    addresses: readAddresses(reader, object),
    podCidrs: runAtOnce(readCidrs(reader, spec, 'podCIDRs')),
    zone: reader.readText(reader.readChild(metadata, 'labels', 'metadata'), zoneLabel, 'metadata.labels') ?? '',
    deleting: typeof metadata.deletionTimestamp === 'string',
    taints: readTaints(reader, spec),
  }
  return { key, record, problems: reader.listProblems() }
}

/** Returns internal addresses before external ones. Other types of addresses are ignored. */
function readAddresses(reader: FieldReader, object: JsonObject): readonly string[] {
  const byType = { InternalIP: [] as string[], ExternalIP: [] as string[] }
  for (const [i, address] of reader.readChildren(reader.readChild(object, 'status', ''), 'addresses', 'status')) {
    if (address.type !== 'InternalIP' && address.type !== 'ExternalIP') continue
    const at = `status.addresses[${i}]`
    const ip = readIp(reader, reader.readText(address, 'address', at) ?? '', `${at}.address`)
    if (ip !== undefined) byType[address.type].push(ip)
  }
  return [...byType.InternalIP, ...byType.ExternalIP]
}

function readTaints(reader: FieldReader, spec: JsonObject): readonly string[] {
  const keys: string[] = []
  for (const [i, taint] of reader.readChildren(spec, 'taints', 'spec')) {
    const key = reader.readText(taint, 'key', `spec.taints[${i}]`)
    if (key !== undefined) keys.push(key)
  }
  return keys
}

export function decodeNodeCapacity(json: unknown): DecodedRecord<NodeCapacityRecord> {
  const identified = identifyObject('Node', json, 'cluster')
  if ('problems' in identified) return identified
  const { key, reader, object } = identified
  const record = { name: key, milliCpu: readMilliCpu(reader, object) }
  return { key, record, problems: reader.listProblems() }
}

function readMilliCpu(reader: FieldReader, object: JsonObject): number | undefined {
  const { cpu } = reader.readChild(reader.readChild(object, 'status', ''), 'allocatable', 'status')
  if (cpu === undefined) return undefined
  // Kubernetes accepts a number for a quantity, and an API server that stores what it is given returns it.
  const milli = typeof cpu === 'string' || typeof cpu === 'number' ? parseMilliQuantity(String(cpu)) : undefined
  if (milli !== undefined && milli >= 0) return milli
  reader.report('status.allocatable.cpu', `must be a quantity such as 4 or 3920m, is ${formatValue(cpu)}`)
  return undefined
}

export function decodeServiceCidr(json: unknown): DecodedRecord<ServiceCidrRecord> {
  const identified = identifyObject('ServiceCIDR', json, 'cluster')
  if ('problems' in identified) return identified
  const { key, reader, object } = identified
  const cidrs = runAtOnce(readCidrs(reader, reader.readChild(object, 'spec', ''), 'cidrs'))
  return { key, record: { name: key, cidrs }, problems: reader.listProblems() }
}
