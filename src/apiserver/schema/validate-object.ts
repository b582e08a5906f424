// What the other kinds may say; metadata is checked the same way for all of them.

import { canonicalIp, familyOf, parseCidr } from '../../lib/ip.ts'
import type { Problems } from './field-errors.ts'
import { child, equal, isObject, items, type Json, objects, text, texts } from './json.ts'
import {
  endpointIpRule,
  ipRule,
  labelNameRule,
  labelRule,
  labelValueRule,
  portNameRule,
  portRule,
  subdomainRule,
} from './name-rules.ts'

const annotationLimit = 256 << 10

export function validateMeta(object: Json, nameRule: (name: string) => string, problems: Problems): void {
  const metadata = child(object, 'metadata')
  const name = text(metadata, 'name')
  if (name === '') problems.required('metadata.name', 'name or generateName is required')
  else problems.rule('metadata.name', name, nameRule(name))
  for (const [key, value] of Object.entries(child(metadata, 'labels'))) {
    problems.rule('metadata.labels', key, labelNameRule(key))
    problems.rule('metadata.labels', value, labelValueRule(String(value)))
  }
  let size = 0
  for (const [key, value] of Object.entries(child(metadata, 'annotations'))) {
    problems.rule('metadata.annotations', key, labelNameRule(key.toLowerCase()))
    size += key.length + String(value).length
  }
  if (size > annotationLimit) problems.tooLong('metadata.annotations', annotationLimit)
  for (const [i, owner] of objects(metadata, 'ownerReferences').entries()) {
    for (const field of ['apiVersion', 'kind', 'name', 'uid']) {
      if (text(owner, field) === '')
        problems.invalid(`metadata.ownerReferences[${i}].${field}`, '', 'must not be empty')
    }
  }
  for (const [i, finalizer] of texts(metadata, 'finalizers').entries()) {
    problems.rule(`metadata.finalizers[${i}]`, finalizer, labelNameRule(finalizer))
  }
}

/** Identity is for ever. */
export function validateMetaChange(object: Json, old: Json, problems: Problems): void {
  const [now, was] = [child(object, 'metadata'), child(old, 'metadata')]
  for (const field of ['uid', 'creationTimestamp', 'namespace', 'name', 'deletionTimestamp']) {
    if (now[field] !== undefined && !equal(now[field], was[field])) {
      problems.invalid(`metadata.${field}`, now[field], 'field is immutable')
    }
  }
  if (was.deletionTimestamp === undefined) return
  const before = new Set(texts(was, 'finalizers'))
  const added = texts(now, 'finalizers').filter((finalizer) => !before.has(finalizer))
  if (added.length > 0) {
    const list = added.map((each) => `"${each}"`).join(', ')
    problems.forbidden(
      'metadata.finalizers',
      `no new finalizers can be added if the object is being deleted, found new finalizers []string{${list}}`,
    )
  }
}

const addressTypes = ['FQDN', 'IPv4', 'IPv6']
const maxEndpoints = 1000
const maxPorts = 20_000
const maxAddresses = 100

export function validateSlice(slice: Json, old: Json | undefined, problems: Problems): void {
  const type = text(slice, 'addressType')
  if (type === '') problems.required('addressType')
  else problems.oneOf('addressType', type, addressTypes)
  if (old !== undefined && type !== text(old, 'addressType'))
    problems.invalid('addressType', type, 'field is immutable')
  const endpoints = objects(slice, 'endpoints')
  if (endpoints.length > maxEndpoints) problems.tooMany('endpoints', endpoints.length, maxEndpoints)
  for (const [i, endpoint] of endpoints.slice(0, maxEndpoints).entries())
    validateEndpoint(endpoint, type, `endpoints[${i}]`, problems)
  const ports = objects(slice, 'ports')
  if (ports.length > maxPorts) problems.tooMany('ports', ports.length, maxPorts)
  const names = new Set<string>()
  for (const [i, port] of ports.entries()) {
    const name = text(port, 'name')
    if (name !== '') problems.rule(`ports[${i}].name`, name, labelRule(name))
    if (names.has(name)) problems.duplicate(`ports[${i}].name`, name)
    names.add(name)
    problems.oneOf(`ports[${i}].protocol`, port.protocol, ['TCP', 'UDP', 'SCTP'])
    if (port.port !== undefined) problems.rule(`ports[${i}].port`, port.port, portRule(port.port))
    if (port.appProtocol !== undefined)
      problems.rule(`ports[${i}].appProtocol`, port.appProtocol, labelNameRule(String(port.appProtocol)))
  }
}

function validateEndpoint(endpoint: Json, type: string, at: string, problems: Problems): void {
  const addresses = items(endpoint, 'addresses')
  if (addresses.length === 0) problems.required(`${at}.addresses`, 'must contain at least 1 address')
  if (addresses.length > maxAddresses) problems.tooMany(`${at}.addresses`, addresses.length, maxAddresses)
  for (const [i, address] of addresses.slice(0, maxAddresses).entries()) {
    validateAddress(String(address), type, `${at}.addresses[${i}]`, problems)
  }
  const nodeName = endpoint.nodeName
  if (typeof nodeName === 'string') problems.rule(`${at}.nodeName`, nodeName, subdomainRule(nodeName))
  const hostname = text(endpoint, 'hostname')
  if (hostname !== '') problems.rule(`${at}.hostname`, hostname, labelRule(hostname))
  const zones = new Set<string>()
  for (const [i, zone] of objects(child(endpoint, 'hints'), 'forZones').entries()) {
    const name = text(zone, 'name')
    if (name === '') problems.required(`${at}.hints.forZones[${i}].name`)
    if (zones.has(name)) problems.duplicate(`${at}.hints.forZones[${i}].name`, name)
    zones.add(name)
  }
}

function validateAddress(address: string, type: string, at: string, problems: Problems): void {
  problems.rule(
    at,
    address,
    type === 'FQDN' ? subdomainRule(address) : familyRule(address, type) || endpointIpRule(address),
  )
}

function familyRule(address: string, type: string): string {
  const why = ipRule(address)
  if (why !== '') return why
  const family = familyOf(canonicalIp(address) as string)
  if (type === 'IPv4' && family !== 4) return 'must be an IPv4 address'
  return type === 'IPv6' && family !== 6 ? 'must be an IPv6 address' : ''
}

export function validateServiceCidr(object: Json, old: Json | undefined, problems: Problems): void {
  const cidrs = texts(child(object, 'spec'), 'cidrs')
  if (cidrs.length === 0) problems.required('spec.cidrs', 'at least one CIDR required')
  if (cidrs.length > 2) problems.invalid('spec.cidrs', cidrs, 'may only hold up to 2 values')
  const families = new Set<number>()
  for (const [i, cidr] of cidrs.entries()) {
    const parsed = parseCidr(cidr)
    if (parsed === undefined) {
      problems.invalid(`spec.cidrs[${i}]`, cidr, 'must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)')
      continue
    }
    if (canonicalIp(cidr.split('/')[0] as string) !== parsed.ip) {
      problems.invalid(`spec.cidrs[${i}]`, cidr, 'must not have bits set beyond the prefix length')
    }
    if (families.has(parsed.family))
      problems.invalid(
        'spec.cidrs',
        cidrs,
        'may specify no more than one IP for each IP family, i.e 192.168.0.0/24 and 2001:db8::/64',
      )
    families.add(parsed.family)
  }
  if (old !== undefined && !equal(child(object, 'spec').cidrs, child(old, 'spec').cidrs)) {
    problems.invalid('spec.cidrs', cidrs, 'field is immutable')
  }
}

/** Pods are records: an address, labels, readiness. Only what others build on is checked. */
export function validatePod(pod: Json, old: Json | undefined, problems: Problems): void {
  const spec = child(pod, 'spec')
  const status = child(pod, 'status')
  for (const [i, container] of objects(spec, 'containers').entries()) {
    if (text(container, 'name') === '') problems.required(`spec.containers[${i}].name`)
    for (const [k, port] of objects(container, 'ports').entries()) {
      const at = `spec.containers[${i}].ports[${k}]`
      problems.rule(`${at}.containerPort`, port.containerPort ?? 0, portRule(port.containerPort ?? 0))
      const name = text(port, 'name')
      if (name !== '') problems.rule(`${at}.name`, name, portNameRule(name))
    }
  }
  const nodeName = text(spec, 'nodeName')
  if (nodeName !== '') problems.rule('spec.nodeName', nodeName, subdomainRule(nodeName))
  const was = text(child(old, 'spec'), 'nodeName')
  if (was !== '' && was !== nodeName) problems.forbidden('spec.nodeName', 'a pod does not move to another node')
  const grace = spec.terminationGracePeriodSeconds
  if (typeof grace === 'number' && grace < 0)
    problems.invalid('spec.terminationGracePeriodSeconds', grace, 'must be greater than or equal to 0')
  const podIp = text(status, 'podIP')
  if (podIp !== '') problems.rule('status.podIP', podIp, ipRule(podIp))
  for (const [i, entry] of objects(status, 'podIPs').entries()) {
    problems.rule(`status.podIPs[${i}].ip`, entry.ip, ipRule(text(entry, 'ip')))
  }
  for (const [i, condition] of objects(status, 'conditions').entries()) {
    if (text(condition, 'type') === '') problems.required(`status.conditions[${i}].type`)
    problems.oneOf(`status.conditions[${i}].status`, condition.status, ['True', 'False', 'Unknown'])
  }
}

export function validateNode(node: Json, problems: Problems): void {
  const spec = child(node, 'spec')
  const cidrs = texts(spec, 'podCIDRs')
  for (const [i, cidr] of cidrs.entries()) {
    if (parseCidr(cidr) === undefined)
      problems.invalid(`spec.podCIDRs[${i}]`, cidr, 'must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)')
  }
  if (cidrs.length > 2) problems.invalid('spec.podCIDRs', cidrs, 'may specify no more than one CIDR for each IP family')
  for (const [i, address] of objects(child(node, 'status'), 'addresses').entries()) {
    if (text(address, 'type') === '') problems.required(`status.addresses[${i}].type`)
    if (text(address, 'address') === '') problems.required(`status.addresses[${i}].address`)
  }
}

export function validateEvent(event: Json, problems: Problems): void {
  const involved = child(event, 'involvedObject')
  const namespace = text(child(event, 'metadata'), 'namespace')
  const regarding = text(involved, 'namespace')
  if (regarding !== '' && regarding !== namespace) {
    problems.invalid('involvedObject.namespace', regarding, 'does not match event.namespace')
  }
  if (regarding === '' && namespace !== 'default' && namespace !== 'kube-system') {
    problems.invalid('involvedObject.namespace', '', 'does not match event.namespace')
  }
  if (Buffer.byteLength(text(event, 'message')) > 1024 && event.eventTime !== undefined)
    problems.tooLong('message', 1024)
  if (event.eventTime !== undefined) {
    if (text(event, 'reportingComponent') === '') problems.required('reportingController')
    if (text(event, 'reportingInstance') === '') problems.required('reportingInstance')
    if (text(event, 'action') === '') problems.required('action')
    if (text(event, 'reason') === '') problems.required('reason')
    problems.oneOf('type', event.type, ['Normal', 'Warning'])
  }
  const series = event.series
  if (isObject(series) && typeof series.count === 'number' && series.count < 2) {
    problems.invalid('series.count', series.count, 'should be at least 2')
  }
}
