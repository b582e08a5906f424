// Reads Services straight from their protobuf form into records. Only ordinary ones, with cluster IPs and perhaps node ports: where anything
// else than the usual fields and valid values is found, the table and the decoder decide, and report what is wrong.

import { canonicalIp, familyName, familyOf } from '../../lib/ip.ts'
import { WireCursor } from '../../lib/protobuf-wire.ts'
import type { ServicePortRecord, ServiceRecord } from '../../model/types.ts'
import { isPortName, isPortNumber, protocolOf } from '../decode/decode-parts.ts'
import { sharePorts } from '../decode/decode-service.ts'
import { emptyList, isObjectName, readUid } from '../decode/fields.ts'
import { OrdinaryObject } from '../decode/ordinary-object.ts'
import { service } from './message-tables.ts'
import { childOf, replaceText, skipUnnamed, tagOf, type UnreadBytes } from './read-message.ts'
import { MetadataReader, type OrdinaryMetadata } from './read-metadata.ts'
import { readCachedText } from './text-cache.ts'

const metadataReader = new MetadataReader(service, {})

const spec = childOf(service, 'spec')
const port = childOf(spec, 'ports')
const status = childOf(service, 'status')

const serviceTags = {
  metadata: tagOf(service, 'metadata'),
  spec: tagOf(service, 'spec'),
  status: tagOf(service, 'status'),
} as const
const specTags = {
  ports: tagOf(spec, 'ports'),
  clusterIp: tagOf(spec, 'clusterIP'),
  type: tagOf(spec, 'type'),
  affinity: tagOf(spec, 'sessionAffinity'),
  externalPolicy: tagOf(spec, 'externalTrafficPolicy'),
  healthCheckNodePort: tagOf(spec, 'healthCheckNodePort'),
  clusterIps: tagOf(spec, 'clusterIPs'),
  families: tagOf(spec, 'ipFamilies'),
  internalPolicy: tagOf(spec, 'internalTrafficPolicy'),
} as const
const portTags = {
  name: tagOf(port, 'name'),
  protocol: tagOf(port, 'protocol'),
  port: tagOf(port, 'port'),
  nodePort: tagOf(port, 'nodePort'),
} as const
const balancerTag = tagOf(status, 'loadBalancer')

/** More ports are compared with each other by the decoder. */
const fewPorts = 8

/** The fields of a spec that an ordinary service has, with the values that absent ones stand for. */
class OrdinarySpec {
  clusterIp = ''
  type = 'ClusterIP'
  affinity = 'None'
  externalPolicy = 'Cluster'
  internalPolicy = 'Cluster'
  healthCheckNodePort = 0
  readonly clusterIps: string[] = []
  readonly families: string[] = []
  readonly ports: ServicePortRecord[] = []
}

/** Returns undefined if the service is not ordinary. Throws a SyntaxError. */
export function readOrdinaryService({ bytes, at, end }: UnreadBytes): OrdinaryObject<ServiceRecord> | undefined {
  const cursor = new WireCursor(bytes, at)
  let metadata: OrdinaryMetadata | undefined
  let found: OrdinarySpec | undefined
  while (cursor.at < end) {
    const tag = cursor.readVarint(end)
    let isOrdinary = true
    switch (tag) {
      case serviceTags.metadata:
        metadata = metadataReader.read(cursor, cursor.readFieldEnd(end))
        isOrdinary = metadata !== undefined
        break
      case serviceTags.spec:
        found = readSpec(cursor, cursor.readFieldEnd(end))
        isOrdinary = found !== undefined
        break
      case serviceTags.status:
        isOrdinary = isEmptyStatus(cursor, cursor.readFieldEnd(end))
        break
      default:
        isOrdinary = skipUnnamed(cursor, tag, end, service)
    }
    if (!isOrdinary) return undefined
  }
  return metadata === undefined || found === undefined ? undefined : makeObject(metadata, found)
}

function makeObject(metadata: OrdinaryMetadata, found: OrdinarySpec): OrdinaryObject<ServiceRecord> | undefined {
  const { namespace, name, created } = metadata
  if (!isObjectName(namespace) || !isObjectName(name)) return undefined
  const { type, affinity, externalPolicy, internalPolicy, healthCheckNodePort } = found
  if ((type !== 'ClusterIP' && type !== 'NodePort') || affinity !== 'None') return undefined
  if (!isPolicy(externalPolicy) || !isPolicy(internalPolicy)) return undefined
  if (healthCheckNodePort !== 0 && !isPortNumber(healthCheckNodePort)) return undefined
  const clusterIps = listClusterIps(found)
  if (clusterIps === undefined) return undefined
  const key = `${namespace}/${name}`
  const record: ServiceRecord = {
    key,
    uid: readUid(metadata),
    created: created * 1000,
    type,
    clusterIps,
    ports: sharePorts(found.ports),
    externalIps: emptyList,
    loadBalancerIps: emptyList,
    sourceRanges: emptyList,
    externalPolicy,
    internalPolicy,
    affinitySeconds: 0,
    healthCheckNodePort,
  }
  return new OrdinaryObject(metadata, { key, record, problems: emptyList })
}

const isPolicy = (text: string): text is 'Cluster' | 'Local' => text === 'Cluster' || text === 'Local'

/** Old objects have neither families nor a list of addresses. */
function listClusterIps({ clusterIp, clusterIps, families }: OrdinarySpec): readonly string[] | undefined {
  if (clusterIp === '' || clusterIp === 'None') return undefined
  if (families.length === 0) {
    const ip = canonicalIp(clusterIp)
    return ip === undefined ? undefined : [ip]
  }
  if (families.length > 2 || families.length !== clusterIps.length || families[0] === families[1]) return undefined
  for (let i = 0; i < families.length; i++) {
    const ip = canonicalIp(clusterIps[i] ?? '')
    if (ip === undefined || familyName(familyOf(ip)) !== families[i]) return undefined
    clusterIps[i] = ip
  }
  return clusterIps.slice()
}

function readSpec(cursor: WireCursor, end: number): OrdinarySpec | undefined {
  const found = new OrdinarySpec()
  while (cursor.at < end) {
    const tag = cursor.readVarint(end)
    let isOrdinary = true
    switch (tag) {
      case specTags.ports:
        isOrdinary = addPort(found.ports, readPort(cursor, cursor.readFieldEnd(end)))
        break
      case specTags.clusterIp:
        found.clusterIp = replaceText(found.clusterIp, cursor.readText(end))
        break
      case specTags.type:
        found.type = replaceText(found.type, readCachedText(cursor, end))
        break
      case specTags.affinity:
        found.affinity = replaceText(found.affinity, readCachedText(cursor, end))
        break
      case specTags.externalPolicy:
        found.externalPolicy = replaceText(found.externalPolicy, readCachedText(cursor, end))
        break
      case specTags.internalPolicy:
        found.internalPolicy = replaceText('Cluster', readCachedText(cursor, end))
        break
      case specTags.clusterIps:
        found.clusterIps.push(cursor.readText(end))
        break
      case specTags.families:
        found.families.push(readCachedText(cursor, end))
        break
      case specTags.healthCheckNodePort:
        found.healthCheckNodePort = cursor.readVarint(end) || found.healthCheckNodePort
        break
      default:
        isOrdinary = skipUnnamed(cursor, tag, end, spec)
    }
    if (!isOrdinary) return undefined
  }
  return found
}

/** Returns false for a port that is not valid, for a second one of the same name and protocol, and for too many. */
function addPort(ports: ServicePortRecord[], added: ServicePortRecord | undefined): boolean {
  if (added === undefined || ports.length === fewPorts) return false
  for (const { name, protocol } of ports) if (name === added.name && protocol === added.protocol) return false
  ports.push(added)
  return true
}

function readPort(cursor: WireCursor, end: number): ServicePortRecord | undefined {
  let name = ''
  let protocolName = 'TCP'
  let number = 0
  let nodePort = 0
  while (cursor.at < end) {
    const tag = cursor.readVarint(end)
    if (tag === portTags.name) name = replaceText(name, readCachedText(cursor, end))
    else if (tag === portTags.protocol) protocolName = replaceText(protocolName, readCachedText(cursor, end))
    else if (tag === portTags.port) number = cursor.readVarint(end)
    else if (tag === portTags.nodePort) nodePort = cursor.readVarint(end) || nodePort
    else if (!skipUnnamed(cursor, tag, end, port)) return undefined
  }
  const protocol = protocolOf(protocolName)
  if (protocol === undefined || !isPortNumber(number) || (nodePort !== 0 && !isPortNumber(nodePort))) return undefined
  return isPortName(name) ? { name, protocol, port: number, nodePort } : undefined
}

/** The API server always writes a load balancer, which is empty unless the service has one. */
function isEmptyStatus(cursor: WireCursor, end: number): boolean {
  while (cursor.at < end) {
    const tag = cursor.readVarint(end)
    if (tag === balancerTag) {
      if (cursor.readFieldEnd(end) !== cursor.at) return false
    } else if (!skipUnnamed(cursor, tag, end, status)) return false
  }
  return true
}
