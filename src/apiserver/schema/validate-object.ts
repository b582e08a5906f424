// Validates all kinds but services, which have validate-service.ts; metadata is in validate-metadata.ts. Messages are those of the real
// kube-apiserver. Pure.

import { deepEqual } from '../../lib/equal.ts'
import { canonicalIp, familyName, familyOf, parseCidr } from '../../lib/ip.ts'
import type { FieldErrors } from './field-errors.ts'
import { getList, getObject, getObjects, getString, getStrings, isObject, type Json } from './json.ts'
import {
  cidrRule,
  domainRule,
  endpointIpRule,
  ipRule,
  labelNameRules,
  labelRule,
  labelValueRule,
  portNameRule,
  portRule,
  subdomainRule,
} from './name-rules.ts'
import { namespaceOf } from './object-metadata.ts'

const addressTypes = ['FQDN', 'IPv4', 'IPv6']
const maxEndpoints = 1000
const maxPorts = 20_000
const maxAddresses = 100

export function validateEndpointSlice(slice: Json, old: Json | undefined, errors: FieldErrors): void {
  const type = getString(slice, 'addressType')
  if (type === '') errors.required('addressType')
  else errors.checkOneOf('addressType', type, addressTypes)
  if (old !== undefined && type !== getString(old, 'addressType'))
    errors.invalid('addressType', type, 'field is immutable')
  const endpoints = getObjects(slice, 'endpoints')
  if (endpoints.length > maxEndpoints) errors.tooMany('endpoints', endpoints.length, maxEndpoints)
  for (const [i, endpoint] of endpoints.slice(0, maxEndpoints).entries())
    validateEndpoint(endpoint, type, `endpoints[${i}]`, errors)
  validateSlicePorts(getObjects(slice, 'ports'), errors)
}

function validateSlicePorts(ports: readonly Json[], errors: FieldErrors): void {
  if (ports.length > maxPorts) errors.tooMany('ports', ports.length, maxPorts)
  const names = new Set<string>()
  for (const [i, port] of ports.entries()) {
    const name = getString(port, 'name')
    if (name !== '') errors.checkRule(`ports[${i}].name`, name, labelRule(name))
    if (names.has(name)) errors.duplicate(`ports[${i}].name`, name)
    names.add(name)
    errors.checkOneOf(`ports[${i}].protocol`, port.protocol, ['TCP', 'UDP', 'SCTP'])
    if (port.appProtocol !== undefined)
      errors.checkRules(`ports[${i}].appProtocol`, port.appProtocol, labelNameRules(String(port.appProtocol)))
  }
}

function validateEndpoint(endpoint: Json, type: string, at: string, errors: FieldErrors): void {
  const addresses = getList(endpoint, 'addresses')
  if (addresses.length === 0) errors.required(`${at}.addresses`, 'must contain at least 1 address')
  if (addresses.length > maxAddresses) errors.tooMany(`${at}.addresses`, addresses.length, maxAddresses)
  for (const [i, address] of addresses.slice(0, maxAddresses).entries()) {
    validateAddress(String(address), type, { list: `${at}.addresses`, index: i }, errors)
  }
  const nodeName = endpoint.nodeName
  if (typeof nodeName === 'string') errors.checkRule(`${at}.nodeName`, nodeName, subdomainRule(nodeName))
  const { hostname } = endpoint
  if (typeof hostname === 'string') errors.checkRule(`${at}.hostname`, hostname, labelRule(hostname))
  const zones = new Set<string>()
  for (const [i, zone] of getObjects(getObject(endpoint, 'hints'), 'forZones').entries()) {
    const name = getString(zone, 'name')
    errors.checkRule(`${at}.hints.forZones[${i}].name`, name, labelValueRule(name))
    if (zones.has(name)) errors.duplicate(`${at}.hints.forZones[${i}].name`, name)
    zones.add(name)
  }
}

/** The real server names the list if the family is wrong, and the element if the address is. */
function validateAddress(
  address: string,
  type: string,
  at: { list: string; index: number },
  errors: FieldErrors,
): void {
  const element = `${at.list}[${at.index}]`
  if (type === 'FQDN') {
    errors.checkRule(element, address, domainRule(address))
    return
  }
  if (!addressTypes.includes(type)) return
  const family = familyOf(canonicalIp(address) ?? '')
  if (ipRule(address) === '' && type !== familyName(family))
    errors.invalid(at.list, address, `must be an ${type} address`)
  errors.checkRule(element, address, endpointIpRule(address))
}

export function validateServiceCidr(object: Json, old: Json | undefined, errors: FieldErrors): void {
  const cidrs = getStrings(getObject(object, 'spec'), 'cidrs')
  if (cidrs.length === 0) errors.required('spec.cidrs', 'at least one CIDR required')
  if (cidrs.length > 2) errors.invalid('spec.cidrs', cidrs, 'may only hold up to 2 values')
  const families = new Set<number>()
  for (const [i, cidr] of cidrs.entries()) {
    const parsed = parseCidr(cidr)
    errors.checkRule(`spec.cidrs[${i}]`, cidr, cidrRule(cidr))
    if (parsed === undefined) continue
    if (families.has(parsed.family))
      errors.invalid(
        'spec.cidrs',
        cidrs,
        'may specify no more than one IP for each IP family, i.e 192.168.0.0/24 and 2001:db8::/64',
      )
    families.add(parsed.family)
  }
  if (old !== undefined && !deepEqual(getObject(object, 'spec').cidrs, getObject(old, 'spec').cidrs)) {
    errors.invalid('spec.cidrs', cidrs, 'field is immutable')
  }
}

/** Pods are records with an address, labels and readiness. Only the fields that other parts of the server read are checked. */
export function validatePod(pod: Json, old: Json | undefined, errors: FieldErrors): void {
  const spec = getObject(pod, 'spec')
  const status = getObject(pod, 'status')
  validateContainers(getObjects(spec, 'containers'), errors)
  const nodeName = getString(spec, 'nodeName')
  if (nodeName !== '') errors.checkRule('spec.nodeName', nodeName, subdomainRule(nodeName))
  const oldNodeName = getString(getObject(old, 'spec'), 'nodeName')
  if (oldNodeName !== '' && oldNodeName !== nodeName)
    errors.forbidden('spec.nodeName', 'a pod does not move to another node')
  const grace = spec.terminationGracePeriodSeconds
  if (typeof grace === 'number' && grace < 0)
    errors.invalid('spec.terminationGracePeriodSeconds', grace, 'must be greater than or equal to 0')
  const podIp = getString(status, 'podIP')
  if (podIp !== '') errors.checkRule('status.podIP', podIp, ipRule(podIp))
  for (const [i, entry] of getObjects(status, 'podIPs').entries()) {
    errors.checkRule(`status.podIPs[${i}].ip`, entry.ip, ipRule(getString(entry, 'ip')))
  }
  for (const [i, condition] of getObjects(status, 'conditions').entries()) {
    if (getString(condition, 'type') === '') errors.required(`status.conditions[${i}].type`)
    errors.checkOneOf(`status.conditions[${i}].status`, condition.status, ['True', 'False', 'Unknown'])
  }
}

function validateContainers(containers: readonly Json[], errors: FieldErrors): void {
  for (const [i, container] of containers.entries()) {
    if (getString(container, 'name') === '') errors.required(`spec.containers[${i}].name`)
    for (const [k, port] of getObjects(container, 'ports').entries()) {
      const at = `spec.containers[${i}].ports[${k}]`
      errors.checkRule(`${at}.containerPort`, port.containerPort ?? 0, portRule(port.containerPort ?? 0))
      const name = getString(port, 'name')
      if (name !== '') errors.checkRule(`${at}.name`, name, portNameRule(name))
    }
  }
}

export function validateNode(node: Json, errors: FieldErrors): void {
  const spec = getObject(node, 'spec')
  const cidrs = getStrings(spec, 'podCIDRs')
  for (const [i, cidr] of cidrs.entries()) {
    if (parseCidr(cidr) === undefined) errors.checkRule(`spec.podCIDRs[${i}]`, cidr, cidrRule(cidr))
  }
  if (cidrs.length > 2) errors.invalid('spec.podCIDRs', cidrs, 'may specify no more than one CIDR for each IP family')
  for (const [i, address] of getObjects(getObject(node, 'status'), 'addresses').entries()) {
    if (getString(address, 'type') === '') errors.required(`status.addresses[${i}].type`)
    if (getString(address, 'address') === '') errors.required(`status.addresses[${i}].address`)
  }
}

export function validateEvent(event: Json, errors: FieldErrors): void {
  const namespace = namespaceOf(event)
  const regarding = getString(getObject(event, 'involvedObject'), 'namespace')
  // Events about objects without a namespace are in `default` or `kube-system`.
  const matches = regarding === '' ? ['default', 'kube-system'].includes(namespace) : regarding === namespace
  if (!matches) errors.invalid('involvedObject.namespace', regarding, 'does not match event.namespace')
  if (event.eventTime !== undefined) validateTimedEvent(event, errors)
  const series = event.series
  if (isObject(series) && typeof series.count === 'number' && series.count < 2) {
    errors.invalid('series.count', series.count, 'should be at least 2')
  }
}

/** Events with a time are those of events.k8s.io/v1, which has more rules than core/v1. */
function validateTimedEvent(event: Json, errors: FieldErrors): void {
  if (Buffer.byteLength(getString(event, 'message')) > 1024) errors.tooLong('message', 1024)
  if (getString(event, 'reportingComponent') === '') errors.required('reportingController')
  for (const field of ['reportingInstance', 'action', 'reason']) {
    if (getString(event, field) === '') errors.required(field)
  }
  errors.checkOneOf('type', event.type, ['Normal', 'Warning'])
}
