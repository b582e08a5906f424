// Decodes Services to compact records. The only file that knows their field names; what the fields mean is decided in src/model.

import { cutText } from '../../lib/bounded-json.ts'
import { canonicalIp, familyOf } from '../../lib/ip.ts'
import { runAtOnce, type Steps } from '../../lib/yielding.ts'
import type { ServicePortRecord, ServiceRecord } from '../../model/types.ts'
import {
  readAlgorithm,
  readLocalDrain,
  readOutlierEjection,
  readResetConnections,
  readScheduler,
  readSlowStart,
  readWeights,
} from './annotations.ts'
import { readCidrs, readPort } from './decode-parts.ts'
import {
  asObject,
  copyFitted,
  type DecodedRecord,
  emptyList,
  type FieldReader,
  formatValue,
  identifyObject,
  isPause,
  type JsonObject,
  joinPath,
  readIp,
  readTime,
} from './fields.ts'
import { internName, internTables } from './interned.ts'
import { takeDecoded } from './ordinary-object.ts'
import { readProbe } from './probe-annotation.ts'

/** Services with this label belong to another proxy. */
export const proxyNameLabel = 'service.kubernetes.io/service-proxy-name'
const defaultAffinitySeconds = 10_800

export const decodeService = (json: unknown): DecodedRecord<ServiceRecord> =>
  takeDecoded<ServiceRecord>(json) ?? runAtOnce(decodeServiceInSteps(json))

/** One Service may have 60,000 ports or 100,000 addresses. */
export function* decodeServiceInSteps(json: unknown): Steps<DecodedRecord<ServiceRecord>> {
  const identified = identifyObject('Service', json, 'namespaced')
  if ('problems' in identified) return identified
  const { key, reader, object, metadata } = identified
  const ignored = () => ({ key, record: undefined, problems: reader.listProblems() })
  if (reader.readChild(metadata, 'labels', 'metadata')[proxyNameLabel] !== undefined) return ignored()
  const spec = asObject(object.spec)
  if (spec === undefined) {
    reader.report(
      'spec',
      object.spec === undefined ? 'is missing' : `must be an object, is ${formatValue(object.spec)}`,
    )
    return ignored()
  }
  const clusterIp = reader.readText(spec, 'clusterIP', 'spec') ?? ''
  const type = reader.readText(spec, 'type', 'spec') ?? 'ClusterIP'
  if (clusterIp === '' || clusterIp === 'None' || type === 'ExternalName') return ignored()
  const clusterIps = yield* readClusterIps(reader, spec, clusterIp)
  if (clusterIps.length === 0) return ignored()
  const record: ServiceRecord = {
    key,
    uid: reader.uid,
    created: readTime(reader, metadata, 'creationTimestamp', 'metadata'),
    type: readWord(reader, 'spec.type', type, ['ClusterIP', 'NodePort', 'LoadBalancer']),
    clusterIps,
    ports: yield* readPorts(reader, spec),
    externalIps: yield* readIps(reader, spec, 'externalIPs'),
    loadBalancerIps: yield* readIngress(reader, object),
    sourceRanges: yield* readCidrs(reader, spec, 'loadBalancerSourceRanges'),
    externalPolicy: readPolicy(reader, spec, 'externalTrafficPolicy'),
    internalPolicy: readPolicy(reader, spec, 'internalTrafficPolicy'),
    affinitySeconds: readAffinity(reader, spec),
    healthCheckNodePort: readNodePort(reader, spec, 'healthCheckNodePort', 'spec'),
    ...readScheduler(reader, metadata),
    ...readOutlierEjection(reader, metadata),
    ...readLocalDrain(reader, metadata),
    ...readProbe(reader, metadata),
    ...readAlgorithm(reader, metadata),
    ...readWeights(reader, metadata),
    ...readSlowStart(reader, metadata),
    ...readResetConnections(reader, metadata),
  }
  if (type === 'LoadBalancer' && record.externalPolicy === 'Local' && record.healthCheckNodePort === 0) {
    reader.report('spec.healthCheckNodePort', 'is not set on a load balancer with externalTrafficPolicy Local')
  }
  return { key, record, problems: reader.listProblems() }
}

/** With ipFamilies, each family has the address at its index. Old objects have neither ipFamilies nor clusterIPs, only clusterIP. */
function* readClusterIps(reader: FieldReader, spec: JsonObject, clusterIp: string): Steps<readonly string[]> {
  const families: string[] = []
  yield* reader.visitTexts(spec, 'ipFamilies', 'spec', (family) => families.push(family))
  if (families.length === 0) {
    const ip = readIp(reader, clusterIp, 'spec.clusterIP')
    return ip === undefined ? emptyList : [ip]
  }
  const given = reader.readList(spec, 'clusterIPs', 'spec')
  const found: string[] = []
  for (const [i, family] of families.entries()) {
    if (given[i] === undefined) continue
    const at = `spec.clusterIPs[${i}]`
    const ip = readIpAt(reader, given[i], at)
    if (ip === undefined) continue
    if (family !== `IPv${familyOf(ip)}`) {
      reader.report(at, `${ip} is not of the family ${cutText(family, 80)} of spec.ipFamilies[${i}]`)
    } else if (found.some((other) => familyOf(other) === familyOf(ip))) {
      reader.report(at, `is a second ${family} address`)
    } else found.push(ip)
  }
  return copyFitted(found)
}

function readIpAt(reader: FieldReader, value: unknown, at: string): string | undefined {
  if (typeof value === 'string') return readIp(reader, value, at)
  reader.report(at, `must be a string, is ${formatValue(value)}`)
  return undefined
}

function* readPorts(reader: FieldReader, spec: JsonObject): Steps<readonly ServicePortRecord[]> {
  const ports = new Map<string, ServicePortRecord>()
  for (const [i, json] of reader.readChildren(spec, 'ports', 'spec')) {
    if (isPause(i)) yield
    const at = `spec.ports[${i}]`
    const fields = readPort(reader, json, at, reader.readText(json, 'name', at) ?? '')
    if (fields === undefined) continue
    const { name, protocol, port } = fields
    const nodePort = readNodePort(reader, json, 'nodePort', at)
    const key = `${protocol}/${name}`
    if (ports.has(key)) reader.report(at, 'has the name and protocol of an earlier port, which it replaces')
    ports.set(key, { name, protocol, port, nodePort })
  }
  return sharePorts([...ports.values()])
}

/** The ports of a service with more are not shared: one service must not displace the values that all others share. */
const fewPorts = 100

/** Most services have one port, and thousands of them the same: they share the list. No two services have the same node port. */
export function sharePorts(ports: readonly ServicePortRecord[]): readonly ServicePortRecord[] {
  const [first] = ports
  if (first === undefined || ports.length > fewPorts) return copyFitted(ports)
  if (ports.length > 1 || first.nodePort !== 0) return ports.map(sharePort)
  return internTables.servicePortLists.share(portKey(first), () => [sharePort(first)])
}

const portKey = ({ name, protocol, port, nodePort }: ServicePortRecord): string =>
  `${name}/${protocol}/${port}/${nodePort}`

const sharePort = (fields: ServicePortRecord): ServicePortRecord =>
  internTables.servicePorts.share(portKey(fields), () => ({ ...fields, name: internName(fields.name) }))

function readNodePort(reader: FieldReader, from: JsonObject, name: string, at: string): number {
  const port = reader.readInteger(from, name, at) ?? 0
  if (port >= 0 && port <= 65535) return port
  reader.report(joinPath(at, name), `must be 0 to 65535, is ${port}; it is ignored`)
  return 0
}

/** As in kube-proxy, blank entries are skipped without a problem. Paths are built only for a problem: there may be 100,000 entries. */
function* readIps(reader: FieldReader, spec: JsonObject, name: string): Steps<readonly string[]> {
  const ips: string[] = []
  yield* reader.visitTexts(spec, name, 'spec', (text, i) => {
    const ip = canonicalIp(text)
    if (ip !== undefined) ips.push(ip)
    else if (text.trim() !== '') readIp(reader, text, `spec.${name}[${i}]`)
  })
  return copyFitted(ips)
}

function* readIngress(reader: FieldReader, object: JsonObject): Steps<readonly string[]> {
  const at = 'status.loadBalancer'
  const balancer = reader.readChild(reader.readChild(object, 'status', ''), 'loadBalancer', 'status')
  const ips: string[] = []
  for (const [i, ingress] of reader.readChildren(balancer, 'ingress', at)) {
    if (isPause(i)) yield
    const text = reader.readText(ingress, 'ip', `${at}.ingress[${i}]`) ?? ''
    const mode = reader.readText(ingress, 'ipMode', `${at}.ingress[${i}]`) ?? 'VIP'
    const ip = text === '' || mode !== 'VIP' ? undefined : readIp(reader, text, `${at}.ingress[${i}].ip`)
    if (ip !== undefined) ips.push(ip)
  }
  return copyFitted(ips)
}

function readPolicy(reader: FieldReader, spec: JsonObject, name: string): 'Cluster' | 'Local' {
  return readWord(reader, `spec.${name}`, reader.readText(spec, name, 'spec') || 'Cluster', ['Cluster', 'Local'])
}

function readAffinity(reader: FieldReader, spec: JsonObject): number {
  const affinity = reader.readText(spec, 'sessionAffinity', 'spec') || 'None'
  if (readWord(reader, 'spec.sessionAffinity', affinity, ['None', 'ClientIP']) === 'None') return 0
  const at = 'spec.sessionAffinityConfig.clientIP'
  const config = reader.readChild(spec, 'sessionAffinityConfig', 'spec')
  const clientIp = reader.readChild(config, 'clientIP', 'spec.sessionAffinityConfig')
  const seconds = reader.readInteger(clientIp, 'timeoutSeconds', at) ?? defaultAffinitySeconds
  if (seconds > 0 && seconds <= 86_400) return seconds
  reader.report(`${at}.timeoutSeconds`, `must be 1 to 86400, is ${seconds}; ${defaultAffinitySeconds} is used`)
  return defaultAffinitySeconds
}

/** Reads one of the known words. Any other word is reported and read as the first. */
function readWord<W extends string>(reader: FieldReader, field: string, text: string, words: readonly [W, ...W[]]): W {
  const word = words.find((known) => known === text)
  if (word !== undefined) return word
  reader.report(field, `must be one of ${words.join(', ')}, is ${formatValue(text)}; it is read as ${words[0]}`)
  return words[0]
}
