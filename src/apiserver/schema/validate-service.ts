// Validates a service after defaults and before anything is allocated; fields and messages are those of the real kube-apiserver. Pure.

import { deepEqual } from '../../lib/equal.ts'
import { canonicalIp, familyName, familyOf } from '../../lib/ip.ts'
import type { FieldErrors } from './field-errors.ts'
import { getNumber, getObject, getObjects, getString, getStrings, type Json } from './json.ts'
import {
  cidrRule,
  endpointIpRule,
  ipRule,
  labelNameRules,
  labelRule,
  labelValueRule,
  portNameRule,
  portRule,
  subdomainRule,
} from './name-rules.ts'
import { isExternal, isHeadless, needsHealthPort } from './service-defaults.ts'

const serviceTypes = ['ClusterIP', 'NodePort', 'LoadBalancer', 'ExternalName']
const protocols = ['TCP', 'UDP', 'SCTP']
const trafficPolicies = ['Cluster', 'Local']
const trafficDistributions = ['PreferClose', 'PreferSameZone', 'PreferSameNode']
const familyPolicies = ['SingleStack', 'PreferDualStack', 'RequireDualStack']
const ipFamilies = ['IPv4', 'IPv6']
const maxAffinitySeconds = 86_400

export function validateService(service: Json, old: Json | undefined, errors: FieldErrors): void {
  const spec = getObject(service, 'spec')
  validatePorts(spec, errors)
  for (const [key, value] of Object.entries(getObject(spec, 'selector'))) {
    errors.checkRules('spec.selector', key, labelNameRules(key))
    errors.checkRule('spec.selector', value, labelValueRule(String(value)))
  }
  validateAffinity(spec, errors)
  errors.checkOneOf('spec.type', spec.type, serviceTypes)
  if (spec.type === 'ExternalName') validateNoAddresses(spec, errors)
  else if (isHeadless(spec) && isExternal(spec))
    errors.invalid('spec.clusterIPs[0]', 'None', `may not be set to 'None' for ${String(spec.type)} services`)
  for (const [i, ip] of getStrings(spec, 'externalIPs').entries()) {
    errors.checkRule(`spec.externalIPs[${i}]`, ip, endpointIpRule(ip))
  }
  validatePolicies(spec, errors)
  validateTypeFields(spec, errors)
  if (old !== undefined) validateChange(spec, getObject(old, 'spec'), errors)
  validateIngress(spec, getObject(getObject(service, 'status'), 'loadBalancer'), errors)
}

function validateAffinity(spec: Json, errors: FieldErrors): void {
  errors.checkOneOf('spec.sessionAffinity', spec.sessionAffinity, ['ClientIP', 'None'])
  if (spec.sessionAffinity !== 'ClientIP') return
  const seconds = getObject(getObject(spec, 'sessionAffinityConfig'), 'clientIP').timeoutSeconds
  if (typeof seconds !== 'number' || seconds <= 0 || seconds > maxAffinitySeconds) {
    errors.invalid(
      'spec.sessionAffinityConfig.clientIP.timeoutSeconds',
      seconds,
      'must be greater than 0 and less than 86400',
    )
  }
}

function validatePorts(spec: Json, errors: FieldErrors): void {
  const ports = getObjects(spec, 'ports')
  if (ports.length === 0 && spec.type !== 'ExternalName' && !isHeadless(spec)) errors.required('spec.ports')
  const seen = { names: new Set<string>(), ports: new Set<string>(), nodePorts: new Set<string>() }
  for (const [i, port] of ports.entries()) {
    const at = `spec.ports[${i}]`
    const name = getString(port, 'name')
    if (name !== '') {
      errors.checkRule(`${at}.name`, name, labelRule(name))
      if (isRepeated(seen.names, name)) errors.duplicate(`${at}.name`, name)
    } else if (ports.length > 1) errors.required(`${at}.name`)
    validatePortNumbers(port, at, errors)
    if (isRepeated(seen.ports, `${String(port.protocol)}/${String(port.port)}`))
      errors.duplicate(at, describePort(port))
    const nodePort = getNumber(port, 'nodePort')
    if (nodePort === 0) continue
    if (spec.type === 'ClusterIP') errors.forbidden(`${at}.nodePort`, "may not be used when `type` is 'ClusterIP'")
    if (isRepeated(seen.nodePorts, `${String(port.protocol)}/${nodePort}`)) errors.duplicate(`${at}.nodePort`, nodePort)
  }
}

/** The part of a port that must be unique, as the real server prints it. */
const describePort = ({ protocol, port }: Json): Json => ({
  Name: '',
  Protocol: protocol,
  AppProtocol: null,
  Port: port ?? 0,
  TargetPort: 0,
  NodePort: 0,
})

/** Adds the key, and returns true if it was there before. */
function isRepeated(seen: Set<string>, key: string): boolean {
  const repeated = seen.has(key)
  seen.add(key)
  return repeated
}

function validatePortNumbers(port: Json, at: string, errors: FieldErrors): void {
  const { targetPort = 0, appProtocol } = port
  errors.checkRule(`${at}.port`, port.port ?? 0, portRule(port.port ?? 0))
  const complaint = typeof targetPort === 'string' ? portNameRule(targetPort) : portRule(targetPort)
  errors.checkRule(`${at}.targetPort`, targetPort, complaint)
  errors.checkOneOf(`${at}.protocol`, port.protocol, protocols)
  if (appProtocol !== undefined)
    errors.checkRules(`${at}.appProtocol`, appProtocol, labelNameRules(String(appProtocol)))
}

function validateNoAddresses(spec: Json, errors: FieldErrors): void {
  for (const name of ['clusterIPs', 'ipFamilies', 'ipFamilyPolicy']) {
    if (spec[name] !== undefined) errors.forbidden(`spec.${name}`, 'may not be set for ExternalName services')
  }
}

/** The addresses and families of a service with a cluster IP. The server checks them before it allocates, and all else afterwards. */
export function validateAddresses(spec: Json, errors: FieldErrors): void {
  const ips = getStrings(spec, 'clusterIPs')
  validateFirstIp(ips, getString(spec, 'clusterIP'), errors)
  validateFamilies(spec, errors)
  if (ips.length > 2) errors.invalid('spec.clusterIPs', ips, 'may only hold up to 2 values')
  if (ips[0] === 'None') {
    if (ips.length > 1) errors.invalid('spec.clusterIPs', ips, "'None' must be the first and only value")
  } else validateClusterIps(ips, getStrings(spec, 'ipFamilies'), errors)
}

/** A service of one family has one address. The server decides this after the families are well-formed. */
export function validateSingleStack(spec: Json, errors: FieldErrors): void {
  const [ips, families] = [getStrings(spec, 'clusterIPs'), getStrings(spec, 'ipFamilies')]
  if (spec.ipFamilyPolicy !== 'SingleStack') return
  for (const [list, what] of [
    [ips, 'cluster IPs'],
    [families, 'IP families'],
  ] as const) {
    const why = `must be 'RequireDualStack' or 'PreferDualStack' when multiple ${what} are specified`
    if (list.length > 1) errors.invalid('spec.ipFamilyPolicy', 'SingleStack', why)
  }
}

function validateFirstIp(ips: readonly string[], single: string, errors: FieldErrors): void {
  if (ips.length === 0) return
  if (single === '') errors.invalid('spec.clusterIPs', ips, 'must be empty when `clusterIP` is not specified')
  else if (ips[0] !== single) errors.invalid('spec.clusterIPs', ips, 'first value must match `clusterIP`')
}

function validateClusterIps(ips: readonly string[], families: readonly string[], errors: FieldErrors): void {
  const complaints = ips.map(ipRule)
  for (const [i, why] of complaints.entries()) errors.checkRule(`spec.clusterIPs[${i}]`, ips[i], why)
  if (complaints.some((why) => why !== '')) return
  const found = ips.map((ip) => familyName(familyOf(canonicalIp(ip) ?? ip)))
  if (new Set(found).size < ips.length)
    errors.invalid('spec.clusterIPs', ips, 'may specify no more than one IP for each IP family')
  for (const [i, family] of found.entries()) {
    if (families[i] === family || !ipFamilies.includes(families[i] ?? '')) continue
    const why = `expected an ${families[i]} value as indicated by \`ipFamilies[${i}]\``
    errors.invalid(`spec.clusterIPs[${i}]`, ips[i], why)
  }
}

function validateFamilies(spec: Json, errors: FieldErrors): void {
  const families = getStrings(spec, 'ipFamilies')
  if (spec.ipFamilyPolicy !== undefined) errors.checkOneOf('spec.ipFamilyPolicy', spec.ipFamilyPolicy, familyPolicies)
  for (const [i, family] of families.entries()) {
    errors.checkOneOf(`spec.ipFamilies[${i}]`, family, ipFamilies)
    if (families.indexOf(family) < i) errors.duplicate(`spec.ipFamilies[${i}]`, family)
  }
}

function validatePolicies(spec: Json, errors: FieldErrors): void {
  const { externalTrafficPolicy, internalTrafficPolicy, trafficDistribution } = spec
  if (externalTrafficPolicy !== undefined) {
    const field = 'spec.externalTrafficPolicy'
    if (isExternal(spec) || getStrings(spec, 'externalIPs').length > 0)
      errors.checkOneOf(field, externalTrafficPolicy, trafficPolicies)
    else errors.invalid(field, externalTrafficPolicy, 'may only be set for externally-accessible services')
  }
  if (internalTrafficPolicy !== undefined)
    errors.checkOneOf('spec.internalTrafficPolicy', internalTrafficPolicy, trafficPolicies)
  if (!trafficDistributions.some((each) => each === (trafficDistribution ?? each)))
    errors.unsupported('spec.trafficDistribution', trafficDistribution, trafficDistributions)
  const healthPort = getNumber(spec, 'healthCheckNodePort')
  if (healthPort !== 0 && !needsHealthPort(spec)) {
    errors.invalid(
      'spec.healthCheckNodePort',
      healthPort,
      "may only be set when `type` is 'LoadBalancer' and `externalTrafficPolicy` is 'Local'",
    )
  }
}

function validateTypeFields(spec: Json, errors: FieldErrors): void {
  if (spec.type === 'ExternalName') {
    const name = getString(spec, 'externalName').replace(/\.$/, '')
    if (name === '') errors.required('spec.externalName')
    else errors.checkRule('spec.externalName', spec.externalName, subdomainRule(name))
  }
  const balancerOnly = "may only be used when `type` is 'LoadBalancer'"
  const isBalancer = spec.type === 'LoadBalancer'
  const ranges = getStrings(spec, 'loadBalancerSourceRanges')
  // The real server spells this field so.
  const rangesField = 'spec.LoadBalancerSourceRanges'
  if (ranges.length > 0 && !isBalancer) errors.forbidden(rangesField, balancerOnly)
  for (const [i, range] of ranges.entries()) errors.checkRule(`${rangesField}[${i}]`, range, cidrRule(range.trim()))
  for (const name of ['allocateLoadBalancerNodePorts', 'loadBalancerClass']) {
    if (spec[name] !== undefined && !isBalancer) errors.forbidden(`spec.${name}`, balancerOnly)
  }
  const { loadBalancerClass } = spec
  if (isBalancer && loadBalancerClass !== undefined)
    errors.checkRules('spec.loadBalancerClass', loadBalancerClass, labelNameRules(String(loadBalancerClass)))
}

function validateIngress(spec: Json, balancer: Json, errors: FieldErrors): void {
  const ingress = getObjects(balancer, 'ingress')
  if (spec.type !== 'LoadBalancer') {
    if (ingress.length > 0)
      errors.forbidden('status.loadBalancer.ingress', "may only be used when `spec.type` is 'LoadBalancer'")
    return
  }
  for (const [i, entry] of ingress.entries()) {
    const at = `status.loadBalancer.ingress[${i}]`
    const ip = getString(entry, 'ip')
    const hostname = getString(entry, 'hostname')
    if (ip !== '') errors.checkRule(`${at}.ip`, ip, ipRule(ip))
    if (entry.ipMode !== undefined && ip === '')
      errors.forbidden(`${at}.ipMode`, 'may not be specified when `ip` is not set')
    else if (entry.ipMode !== undefined) errors.checkOneOf(`${at}.ipMode`, entry.ipMode, ['Proxy', 'VIP'])
    if (hostname !== '') errors.checkRule(`${at}.hostname`, hostname, subdomainRule(hostname))
    if (hostname !== '' && canonicalIp(hostname) !== undefined)
      errors.invalid(`${at}.hostname`, hostname, 'must be a DNS name, not an IP address')
  }
}

function validateChange(spec: Json, oldSpec: Json, errors: FieldErrors): void {
  if (spec.type === 'ExternalName' || oldSpec.type === 'ExternalName') return
  const [oldIps, ips] = [getStrings(oldSpec, 'clusterIPs'), getStrings(spec, 'clusterIPs')]
  for (const [i, oldIp] of oldIps.entries()) {
    if (i < ips.length && ips[i] !== oldIp) errors.invalid(`spec.clusterIPs[${i}]`, ips, 'may not change once set')
  }
  if (oldIps.length > 0 && ips.length === 0)
    errors.invalid('spec.clusterIPs[0]', ips, 'primary clusterIP can not be unset')
  const [oldFamilies, families] = [getStrings(oldSpec, 'ipFamilies'), getStrings(spec, 'ipFamilies')]
  if (oldIps[0] !== 'None' && oldFamilies.length > 0 && families[0] !== oldFamilies[0]) {
    errors.invalid('spec.ipFamilies[0]', families, 'may not change once set')
  }
  const differs = (field: string) => !deepEqual(spec[field], oldSpec[field])
  if (needsHealthPort(spec) && needsHealthPort(oldSpec) && differs('healthCheckNodePort')) {
    errors.forbidden('spec.healthCheckNodePort', 'field is immutable')
  }
  if (spec.type === 'LoadBalancer' && oldSpec.type === 'LoadBalancer' && differs('loadBalancerClass')) {
    errors.invalid('spec.loadBalancerClass', spec.loadBalancerClass, 'may not change once set')
  }
}
