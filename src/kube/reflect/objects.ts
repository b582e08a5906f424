// API objects to compact records, the only place that knows their field names; deciding what they mean is the model's.

import { canonicalIp, type Family, familyOf, parseCidr } from '../../lib/ip.ts'
import type {
  EndpointRecord,
  NodeRecord,
  ServiceCidrRecord,
  ServicePortRecord,
  ServiceRecord,
  SlicePortRecord,
  SliceRecord,
} from '../../model/types.ts'
import { readScheduler, readWeight } from './annotations.ts'
import {
  asObject,
  type DecodedRecord,
  type FieldReader,
  fitted,
  type JsonObject,
  join,
  nothing,
  openObject,
  readIp,
  readTime,
  show,
  wellNamed,
} from './fields.ts'
import { Interned, internName, internNames } from './interned.ts'

export const proxyNameLabel = 'service.kubernetes.io/service-proxy-name'
export const headlessLabel = 'service.kubernetes.io/headless'
const serviceLabel = 'kubernetes.io/service-name'
const triggerAnnotation = 'endpoints.kubernetes.io/last-change-trigger-time'
const zoneLabel = 'topology.kubernetes.io/zone'
const defaultAffinitySeconds = 10_800

export function decodeService(json: unknown): DecodedRecord<ServiceRecord> {
  const opened = openObject('Service', json, true)
  if ('problems' in opened) return opened
  const { key, reading, object, metadata } = opened
  const ignored = () => ({ key, record: undefined, problems: reading.problems() })
  if (reading.child(metadata, 'labels', 'metadata')[proxyNameLabel] !== undefined) return ignored()
  if (asObject(object.spec) === undefined) {
    reading.problem('spec', object.spec === undefined ? 'is missing' : `must be an object, is ${show(object.spec)}`)
    return ignored()
  }
  const spec = reading.child(object, 'spec', '')
  const clusterIp = reading.text(spec, 'clusterIP', 'spec') ?? ''
  const type = reading.text(spec, 'type', 'spec') ?? 'ClusterIP'
  if (clusterIp === '' || clusterIp === 'None' || type === 'ExternalName') return ignored()
  const clusterIps = readClusterIps(reading, spec, clusterIp)
  if (clusterIps.length === 0) return ignored()
  const record: ServiceRecord = {
    key,
    uid: reading.uid,
    created: readTime(reading, metadata, 'creationTimestamp', 'metadata'),
    type: choice(reading, 'spec.type', type, ['ClusterIP', 'NodePort', 'LoadBalancer']),
    clusterIps,
    ports: readPorts(reading, spec),
    externalIps: readIps(reading, spec, 'externalIPs'),
    loadBalancerIps: readIngress(reading, object),
    sourceRanges: readCidrs(reading, spec, 'loadBalancerSourceRanges'),
    externalPolicy: readPolicy(reading, spec, 'externalTrafficPolicy'),
    internalPolicy: readPolicy(reading, spec, 'internalTrafficPolicy'),
    affinitySeconds: readAffinity(reading, spec),
    healthCheckNodePort: readNodePort(reading, spec, 'healthCheckNodePort', 'spec'),
    ...readScheduler(reading, metadata),
  }
  if (type === 'LoadBalancer' && record.externalPolicy === 'Local' && record.healthCheckNodePort === 0) {
    reading.problem('spec.healthCheckNodePort', 'is not set on a load balancer with externalTrafficPolicy Local')
  }
  return { key, record, problems: reading.problems() }
}

export function decodeEndpointSlice(json: unknown): DecodedRecord<SliceRecord> {
  const opened = openObject('EndpointSlice', json, true)
  if ('problems' in opened) return opened
  const { key, reading, object, metadata } = opened
  const ignored = () => ({ key, record: undefined, problems: reading.problems() })
  const labels = reading.child(metadata, 'labels', 'metadata')
  if (labels[headlessLabel] !== undefined) return ignored()
  const addressType = reading.text(object, 'addressType', '') ?? ''
  if (addressType === 'FQDN') return ignored()
  const service = reading.text(labels, serviceLabel, 'metadata.labels') ?? ''
  if (addressType !== 'IPv4' && addressType !== 'IPv6') {
    reading.problem('addressType', `must be IPv4, IPv6 or FQDN, is ${show(object.addressType)}`)
    return ignored()
  }
  if (!wellNamed(service)) {
    const given = labels[serviceLabel]
    reading.problem(
      `metadata.labels[${serviceLabel}]`,
      given === undefined ? 'is missing' : `is no valid name: ${show(given)}`,
    )
    return ignored()
  }
  const family = addressType === 'IPv4' ? 4 : 6
  const annotations = reading.child(metadata, 'annotations', 'metadata')
  const record: SliceRecord = {
    key,
    service: internName(`${key.slice(0, key.indexOf('/'))}/${service}`),
    family,
    ports: readSlicePorts(reading, object),
    endpoints: readEndpoints(reading, object, family),
    triggered: readTime(reading, annotations, triggerAnnotation, 'metadata.annotations'),
    ...readWeight(reading, metadata),
  }
  return { key, record, problems: reading.problems() }
}

export function decodeNode(json: unknown): DecodedRecord<NodeRecord> {
  const opened = openObject('Node', json, false)
  if ('problems' in opened) return opened
  const { key, reading, object, metadata } = opened
  const spec = reading.child(object, 'spec', '')
  const internal: string[] = []
  const external: string[] = []
  for (const [i, address] of reading.children(reading.child(object, 'status', ''), 'addresses', 'status')) {
    const at = `status.addresses[${i}]`
    const wanted = address.type === 'InternalIP' ? internal : address.type === 'ExternalIP' ? external : undefined
    const ip = wanted && readIp(reading, reading.text(address, 'address', at) ?? '', `${at}.address`)
    if (ip !== undefined) wanted?.push(ip)
  }
  const taints: string[] = []
  for (const [i, taint] of reading.children(spec, 'taints', 'spec')) {
    const taintKey = reading.text(taint, 'key', `spec.taints[${i}]`)
    if (taintKey !== undefined) taints.push(taintKey)
  }
  const record: NodeRecord = {
    name: key,
    addresses: [...internal, ...external],
    podCidrs: readCidrs(reading, spec, 'podCIDRs'),
    zone: reading.text(reading.child(metadata, 'labels', 'metadata'), zoneLabel, 'metadata.labels') ?? '',
    deleting: typeof metadata.deletionTimestamp === 'string',
    taints,
  }
  return { key, record, problems: reading.problems() }
}

export function decodeServiceCidr(json: unknown): DecodedRecord<ServiceCidrRecord> {
  const opened = openObject('ServiceCIDR', json, false)
  if ('problems' in opened) return opened
  const { key, reading, object } = opened
  const cidrs = readCidrs(reading, reading.child(object, 'spec', ''), 'cidrs')
  return { key, record: { name: key, cidrs }, problems: reading.problems() }
}

function readProtocol(reading: FieldReader, from: JsonObject, at: string): ServicePortRecord['protocol'] | undefined {
  const text = reading.text(from, 'protocol', at) ?? 'TCP'
  if (text === 'TCP') return 'tcp'
  if (text === 'UDP') return 'udp'
  if (text === 'SCTP') return 'sctp'
  reading.problem(`${at}.protocol`, `must be TCP, UDP or SCTP, is ${show(text)}; the port is skipped`)
  return undefined
}

/** With ipFamilies, the address at the family's index; old objects without them have only clusterIP. */
function readClusterIps(reading: FieldReader, spec: JsonObject, clusterIp: string): readonly string[] {
  const families = [...reading.texts(spec, 'ipFamilies', 'spec')].map(([, family]) => family)
  if (families.length === 0) {
    const ip = readIp(reading, clusterIp, 'spec.clusterIP')
    return ip === undefined ? nothing : [ip]
  }
  const given = reading.list(spec, 'clusterIPs', 'spec')
  const found: string[] = []
  for (const [i, family] of families.entries()) {
    const at = `spec.clusterIPs[${i}]`
    const text = given[i]
    if (text === undefined) continue
    const ip =
      typeof text === 'string' ? readIp(reading, text, at) : reading.problem(at, `must be a string, is ${show(text)}`)
    if (typeof ip !== 'string') continue
    if (family !== `IPv${familyOf(ip)}`)
      reading.problem(at, `${ip} is not of the family ${family} of spec.ipFamilies[${i}]`)
    else if (found.some((other) => familyOf(other) === familyOf(ip)))
      reading.problem(at, `is a second ${family} address`)
    else found.push(ip)
  }
  return fitted(found)
}

const portRecords = new Interned<ServicePortRecord>()

function readPorts(reading: FieldReader, spec: JsonObject): readonly ServicePortRecord[] {
  const ports: ServicePortRecord[] = []
  for (const [i, json] of reading.children(spec, 'ports', 'spec')) {
    const at = `spec.ports[${i}]`
    const name = reading.text(json, 'name', at) ?? ''
    const protocol = readProtocol(reading, json, at)
    const port = reading.integer(json, 'port', at)
    if (name !== '' && !wellNamed(name)) {
      reading.problem(`${at}.name`, `is no valid name: ${show(name)}; the port is skipped`)
    } else if (port === undefined || port < 1 || port > 65535) {
      reading.problem(`${at}.port`, `must be 1 to 65535, is ${show(json.port)}; the port is skipped`)
    } else if (protocol !== undefined) {
      const nodePort = readNodePort(reading, json, 'nodePort', at)
      const record = portRecords.share(`${name}/${protocol}/${port}/${nodePort}`, () => ({
        name: internName(name),
        protocol,
        port,
        nodePort,
      }))
      const twin = ports.findIndex((other) => other.name === name && other.protocol === protocol)
      if (twin < 0) ports.push(record)
      else {
        reading.problem(at, `has the name and protocol of an earlier port, which it replaces`)
        ports[twin] = record
      }
    }
  }
  return fitted(ports)
}

function readNodePort(reading: FieldReader, from: JsonObject, name: string, at: string): number {
  const port = reading.integer(from, name, at) ?? 0
  if (port >= 0 && port <= 65535) return port
  reading.problem(join(at, name), `must be 0 to 65535, is ${port}; it is ignored`)
  return 0
}

/** Blank entries are skipped without a word, as kube-proxy does. */
function readIps(reading: FieldReader, spec: JsonObject, name: string): readonly string[] {
  const ips: string[] = []
  for (const [i, text] of reading.texts(spec, name, 'spec')) {
    const ip = text.trim() === '' ? undefined : readIp(reading, text, `spec.${name}[${i}]`)
    if (ip !== undefined) ips.push(ip)
  }
  return fitted(ips)
}

function readIngress(reading: FieldReader, object: JsonObject): readonly string[] {
  const at = 'status.loadBalancer'
  const balancer = reading.child(reading.child(object, 'status', ''), 'loadBalancer', 'status')
  const ips: string[] = []
  for (const [i, ingress] of reading.children(balancer, 'ingress', at)) {
    const text = reading.text(ingress, 'ip', `${at}.ingress[${i}]`) ?? ''
    const mode = reading.text(ingress, 'ipMode', `${at}.ingress[${i}]`) ?? 'VIP'
    const ip = text === '' || mode !== 'VIP' ? undefined : readIp(reading, text, `${at}.ingress[${i}].ip`)
    if (ip !== undefined) ips.push(ip)
  }
  return fitted(ips)
}

function readCidrs(reading: FieldReader, spec: JsonObject, name: string): readonly string[] {
  const cidrs: string[] = []
  for (const [i, text] of reading.texts(spec, name, 'spec')) {
    if (text.trim() === '') continue
    const cidr = parseCidr(text.trim())
    if (cidr === undefined) reading.problem(`spec.${name}[${i}]`, `is no CIDR: ${show(text)}`)
    else cidrs.push(cidr.text)
  }
  return fitted(cidrs)
}

function readPolicy(reading: FieldReader, spec: JsonObject, name: string): 'Cluster' | 'Local' {
  return choice(reading, `spec.${name}`, reading.text(spec, name, 'spec') || 'Cluster', ['Cluster', 'Local'])
}

function readAffinity(reading: FieldReader, spec: JsonObject): number {
  const affinity = reading.text(spec, 'sessionAffinity', 'spec') || 'None'
  if (choice(reading, 'spec.sessionAffinity', affinity, ['None', 'ClientIP']) === 'None') return 0
  const at = 'spec.sessionAffinityConfig.clientIP'
  const config = reading.child(spec, 'sessionAffinityConfig', 'spec')
  const clientIp = reading.child(config, 'clientIP', 'spec.sessionAffinityConfig')
  const seconds = reading.integer(clientIp, 'timeoutSeconds', at) ?? defaultAffinitySeconds
  if (seconds > 0 && seconds <= 86_400) return seconds
  reading.problem(`${at}.timeoutSeconds`, `must be 1 to 86400, is ${seconds}; ${defaultAffinitySeconds} is used`)
  return defaultAffinitySeconds
}

const slicePortRecords = new Interned<SlicePortRecord>()
const slicePortLists = new Interned<readonly SlicePortRecord[]>()

/** "All ports" (a port without number) is not implemented by kube-proxy either. An empty name is a name, a missing one is not. */
function readSlicePorts(reading: FieldReader, object: JsonObject): readonly SlicePortRecord[] {
  const ports: SlicePortRecord[] = []
  let listKey = ''
  for (const [i, json] of reading.children(object, 'ports', '')) {
    const at = `ports[${i}]`
    const name = reading.text(json, 'name', at)
    const port = reading.integer(json, 'port', at)
    const protocol = readProtocol(reading, json, at)
    if (name === undefined || (name !== '' && !wellNamed(name))) {
      reading.problem(
        `${at}.name`,
        `${name === undefined ? 'is missing' : `is no valid name: ${show(name)}`}; the port is skipped`,
      )
    } else if (port === undefined || port < 1 || port > 65535) {
      reading.problem(`${at}.port`, `must be 1 to 65535, is ${show(json.port)}; the port is skipped`)
    } else if (protocol !== undefined) {
      const key = `${name}/${protocol}/${port}`
      ports.push(slicePortRecords.share(key, () => ({ name: internName(name), protocol, port })))
      listKey += `${key}\n`
    }
  }
  return ports.length === 0 ? nothing : slicePortLists.share(listKey, () => fitted(ports))
}

function readEndpoints(reading: FieldReader, object: JsonObject, family: Family): readonly EndpointRecord[] {
  const endpoints: EndpointRecord[] = []
  const list = reading.list(object, 'endpoints', '')
  for (let i = 0; i < list.length; i++) {
    const json = asObject(list[i])
    if (json === undefined) {
      reading.problem(`endpoints[${i}]`, `must be an object, is ${show(list[i])}`)
      continue
    }
    const ip = readAddress(reading, json, i, family)
    if (ip === undefined) continue
    // The places of fields are only put into words where something is wrong or rare.
    const conditions = asObject(json.conditions) ?? reading.child(json, 'conditions', `endpoints[${i}]`)
    const { nodeName } = json
    const hints = json.hints === undefined ? undefined : reading.child(json, 'hints', `endpoints[${i}]`)
    endpoints.push({
      ip,
      node: internName(
        typeof nodeName === 'string' ? nodeName : (reading.text(json, 'nodeName', `endpoints[${i}]`) ?? ''),
      ),
      ready: readCondition(reading, conditions, 'ready', i) ?? true,
      serving: readCondition(reading, conditions, 'serving', i) ?? true,
      terminating: readCondition(reading, conditions, 'terminating', i) ?? false,
      zoneHints: hints === undefined ? nothing : readHints(reading, hints, 'forZones', `endpoints[${i}]`),
      nodeHints: hints === undefined ? nothing : readHints(reading, hints, 'forNodes', `endpoints[${i}]`),
    })
  }
  return fitted(endpoints)
}

function readCondition(reading: FieldReader, conditions: JsonObject, name: string, i: number): boolean | undefined {
  const value = conditions[name]
  return typeof value === 'boolean' ? value : reading.flag(conditions, name, `endpoints[${i}].conditions`)
}

/** Further addresses are by contract equivalent to the first, and kube-proxy uses only that. */
function readAddress(reading: FieldReader, json: JsonObject, i: number, family: Family): string | undefined {
  const { addresses } = json
  const list = Array.isArray(addresses) ? addresses : reading.list(json, 'addresses', `endpoints[${i}]`)
  const first: unknown = list[0]
  const ip = typeof first === 'string' ? canonicalIp(first) : undefined
  if (ip !== undefined && familyOf(ip) === family) return ip
  const field = `endpoints[${i}].addresses[0]`
  if (typeof first !== 'string') {
    reading.problem(field, first === undefined ? 'is missing' : `must be a string, is ${show(first)}`)
  } else if (ip === undefined) reading.problem(field, `is no IP address: ${show(first)}`)
  else reading.problem(field, `${ip} is not of the slice's address type IPv${family}`)
  return undefined
}

function readHints(reading: FieldReader, hints: JsonObject, name: string, at: string): readonly string[] {
  if (hints[name] === undefined) return nothing
  const names: string[] = []
  for (const [i, hint] of reading.children(hints, name, `${at}.hints`)) {
    const value = reading.text(hint, 'name', `${at}.hints.${name}[${i}]`)
    if (value !== undefined && value !== '') names.push(value)
  }
  return names.length === 0 ? nothing : internNames(names)
}

/** One of the known words; anything else is reported and read as the first. */
function choice<W extends string>(reading: FieldReader, field: string, text: string, words: readonly [W, ...W[]]): W {
  const word = words.find((known) => known === text)
  if (word !== undefined) return word
  reading.problem(field, `must be one of ${words.join(', ')}, is ${show(text)}; it is read as ${words[0]}`)
  return words[0]
}
