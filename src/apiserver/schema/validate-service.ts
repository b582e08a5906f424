// What a service may say, after defaults and before anything is allocated; the fields and words are the API's.

import { canonicalIp, familyName, familyOf, isLoopback, parseCidr } from '../../lib/ip.ts'
import { isExternal, needsHealthPort } from '../requests/service-admission.ts'
import type { Problems } from './field-errors.ts'
import { child, equal, isObject, items, type Json, text, texts, whole } from './json.ts'
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

const types = ['ClusterIP', 'NodePort', 'LoadBalancer', 'ExternalName']
const protocols = ['TCP', 'UDP', 'SCTP']
const policies = ['Cluster', 'Local']

export function validateService(service: Json, old: Json | undefined, problems: Problems): void {
  const spec = child(service, 'spec')
  const was = child(old, 'spec')
  validatePorts(spec, problems)
  for (const [key, value] of Object.entries(child(spec, 'selector'))) {
    problems.rule('spec.selector', key, labelNameRule(key))
    problems.rule('spec.selector', value, labelValueRule(String(value)))
  }
  problems.oneOf('spec.sessionAffinity', spec.sessionAffinity, ['ClientIP', 'None'])
  const seconds = child(child(spec, 'sessionAffinityConfig'), 'clientIP').timeoutSeconds
  if (spec.sessionAffinity === 'ClientIP' && (typeof seconds !== 'number' || seconds <= 0 || seconds > 86_400)) {
    problems.invalid(
      'spec.sessionAffinityConfig.clientIP.timeoutSeconds',
      seconds,
      'must be greater than 0 and less than 86400',
    )
  }
  problems.oneOf('spec.type', spec.type, types)
  validateAddresses(spec, problems)
  validatePolicies(spec, problems)
  validateTypeFields(spec, problems)
  if (old !== undefined) validateChange(spec, was, problems)
  validateIngress(spec, child(child(service, 'status'), 'loadBalancer'), problems)
}

function validateIngress(spec: Json, balancer: Json, problems: Problems): void {
  const ingress = items(balancer, 'ingress').filter(isObject)
  if (spec.type !== 'LoadBalancer') {
    if (ingress.length > 0)
      problems.forbidden('status.loadBalancer.ingress', "may only be used when `spec.type` is 'LoadBalancer'")
    return
  }
  for (const [i, one] of ingress.entries()) {
    const at = `status.loadBalancer.ingress[${i}]`
    const ip = text(one, 'ip')
    const hostname = text(one, 'hostname')
    if (ip !== '') problems.rule(`${at}.ip`, ip, ipRule(ip))
    if (one.ipMode !== undefined && ip === '')
      problems.forbidden(`${at}.ipMode`, 'may not be specified when `ip` is not set')
    else if (one.ipMode !== undefined) problems.oneOf(`${at}.ipMode`, one.ipMode, ['Proxy', 'VIP'])
    if (hostname !== '') problems.rule(`${at}.hostname`, hostname, subdomainRule(hostname))
    if (hostname !== '' && canonicalIp(hostname) !== undefined)
      problems.invalid(`${at}.hostname`, hostname, 'must be a DNS name, not an IP address')
  }
}

function validatePorts(spec: Json, problems: Problems): void {
  const ports = items(spec, 'ports').filter(isObject)
  const headless = text(spec, 'clusterIP') === 'None'
  if (ports.length === 0 && spec.type !== 'ExternalName' && !headless) problems.required('spec.ports')
  const names = new Set<string>()
  const seen = new Set<string>()
  const nodePorts = new Set<string>()
  for (const [i, port] of ports.entries()) {
    const at = `spec.ports[${i}]`
    const name = text(port, 'name')
    if (name === '') {
      if (ports.length > 1) problems.required(`${at}.name`)
    } else {
      problems.rule(`${at}.name`, name, labelRule(name))
      if (names.has(name)) problems.duplicate(`${at}.name`, name)
      names.add(name)
    }
    problems.rule(`${at}.port`, port.port ?? 0, portRule(port.port ?? 0))
    if (typeof port.targetPort === 'string')
      problems.rule(`${at}.targetPort`, port.targetPort, portNameRule(port.targetPort))
    else problems.rule(`${at}.targetPort`, port.targetPort ?? 0, portRule(port.targetPort ?? 0))
    problems.oneOf(`${at}.protocol`, port.protocol, protocols)
    const appProtocol = port.appProtocol
    if (appProtocol !== undefined) problems.rule(`${at}.appProtocol`, appProtocol, labelNameRule(String(appProtocol)))
    const id = `${String(port.protocol)}/${String(port.port)}`
    if (seen.has(id)) problems.duplicate(at, { port: port.port, protocol: port.protocol })
    seen.add(id)
    if (whole(port, 'nodePort') === 0) continue
    if (!isExternal(spec))
      problems.forbidden(`${at}.nodePort`, `may not be used when \`type\` is '${String(spec.type)}'`)
    const used = `${String(port.protocol)}/${whole(port, 'nodePort')}`
    if (nodePorts.has(used)) problems.duplicate(`${at}.nodePort`, port.nodePort)
    nodePorts.add(used)
  }
}

function validateAddresses(spec: Json, problems: Problems): void {
  const ips = texts(spec, 'clusterIPs')
  const single = text(spec, 'clusterIP')
  const families = texts(spec, 'ipFamilies')
  if (spec.type === 'ExternalName') {
    for (const name of ['clusterIP', 'clusterIPs', 'ipFamilies', 'ipFamilyPolicy']) {
      if (spec[name] !== undefined) problems.forbidden(`spec.${name}`, 'may not be set for ExternalName services')
    }
  } else {
    if (ips.length > 0 && single === '')
      problems.forbidden('spec.clusterIPs', 'must be empty when `clusterIP` is not specified')
    else if (ips.length > 0 && ips[0] !== single)
      problems.invalid('spec.clusterIPs', ips, 'first value must match `clusterIP`')
    if (ips.length > 2) problems.invalid('spec.clusterIPs', ips, 'may only hold up to 2 values')
    if (ips[0] === 'None') {
      if (ips.length > 1) problems.invalid('spec.clusterIPs', ips, "'None' must be the first and only value")
      if (isExternal(spec))
        problems.invalid('spec.clusterIPs[0]', 'None', `may not be set to 'None' for ${String(spec.type)} services`)
    } else validateClusterIps(ips, families, problems)
    problems.oneOf('spec.ipFamilyPolicy', spec.ipFamilyPolicy, ['SingleStack', 'PreferDualStack', 'RequireDualStack'])
    if (families.length > 2) problems.invalid('spec.ipFamilies', families, 'may only hold up to 2 values')
    for (const [i, family] of families.entries()) {
      problems.oneOf(`spec.ipFamilies[${i}]`, family, ['IPv4', 'IPv6'])
      if (families.indexOf(family) < i) problems.duplicate(`spec.ipFamilies[${i}]`, family)
    }
    if (spec.ipFamilyPolicy === 'SingleStack' && (families.length > 1 || ips.length > 1)) {
      const why = "must be 'RequireDualStack' or 'PreferDualStack' when multiple"
      problems.invalid(
        'spec.ipFamilyPolicy',
        'SingleStack',
        `${why} ${families.length > 1 ? 'IP families' : 'cluster IPs'} are specified`,
      )
    }
  }
  for (const [i, ip] of texts(spec, 'externalIPs').entries()) {
    problems.rule(`spec.externalIPs[${i}]`, ip, endpointIpRule(ip))
  }
}

function validateClusterIps(ips: readonly string[], families: readonly string[], problems: Problems): void {
  const seen = new Set<string>()
  for (const [i, ip] of ips.entries()) {
    const at = `spec.clusterIPs[${i}]`
    const why = ipRule(ip)
    const canonical = canonicalIp(ip)
    if (why !== '' || canonical === undefined) {
      problems.invalid(at, ip, why)
      continue
    }
    const family = familyName(familyOf(canonical))
    if (families[i] !== undefined && families[i] !== family) {
      problems.invalid(at, ip, `expected an ${families[i]} value as indicated by \`ipFamilies[${i}]\``)
    }
    if (seen.has(family))
      problems.invalid(
        'spec.clusterIPs',
        ips,
        'when more than one value is given, they must be of different IP families',
      )
    seen.add(family)
  }
}

function validatePolicies(spec: Json, problems: Problems): void {
  if (isExternal(spec) || texts(spec, 'externalIPs').length > 0) {
    if (spec.externalTrafficPolicy !== undefined)
      problems.oneOf('spec.externalTrafficPolicy', spec.externalTrafficPolicy, policies)
  } else if (spec.externalTrafficPolicy !== undefined) {
    problems.invalid(
      'spec.externalTrafficPolicy',
      spec.externalTrafficPolicy,
      'may only be set for externally-accessible services',
    )
  }
  if (spec.internalTrafficPolicy !== undefined)
    problems.oneOf('spec.internalTrafficPolicy', spec.internalTrafficPolicy, policies)
  if (spec.trafficDistribution !== undefined) {
    const known = ['PreferClose', 'PreferSameZone', 'PreferSameNode']
    problems.oneOf('spec.trafficDistribution', spec.trafficDistribution, known)
  }
  const health = whole(spec, 'healthCheckNodePort')
  if (health !== 0 && !needsHealthPort(spec)) {
    problems.invalid(
      'spec.healthCheckNodePort',
      health,
      "may only be set when `type` is 'LoadBalancer' and `externalTrafficPolicy` is 'Local'",
    )
  }
}

function validateTypeFields(spec: Json, problems: Problems): void {
  if (spec.type === 'ExternalName') {
    const name = text(spec, 'externalName').replace(/\.$/, '')
    if (name === '') problems.required('spec.externalName')
    else problems.rule('spec.externalName', spec.externalName, subdomainRule(name))
  }
  const ranges = texts(spec, 'loadBalancerSourceRanges')
  if (ranges.length > 0 && spec.type !== 'LoadBalancer') {
    problems.forbidden('spec.loadBalancerSourceRanges', "may only be used when `type` is 'LoadBalancer'")
  }
  for (const [i, range] of ranges.entries()) {
    if (parseCidr(range.trim()) === undefined) {
      problems.invalid(
        `spec.loadBalancerSourceRanges[${i}]`,
        range,
        'must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)',
      )
    }
  }
  for (const name of ['allocateLoadBalancerNodePorts', 'loadBalancerClass']) {
    if (spec[name] !== undefined && spec.type !== 'LoadBalancer') {
      problems.forbidden(`spec.${name}`, "may only be used when `type` is 'LoadBalancer'")
    }
  }
  const loadBalancerIp = text(spec, 'loadBalancerIP')
  if (loadBalancerIp !== '' && isLoopback(loadBalancerIp)) {
    problems.invalid('spec.loadBalancerIP', loadBalancerIp, 'may not be in the loopback range (127.0.0.0/8, ::1/128)')
  }
}

function validateChange(spec: Json, was: Json, problems: Problems): void {
  if (spec.type === 'ExternalName' || was.type === 'ExternalName') return
  const [before, now] = [texts(was, 'clusterIPs'), texts(spec, 'clusterIPs')]
  const kept = Math.min(before.length, now.length)
  for (let i = 0; i < kept; i++) {
    if (before[i] !== now[i]) problems.invalid(`spec.clusterIPs[${i}]`, now, 'may not change once set')
  }
  if (before.length > 0 && now.length === 0)
    problems.invalid('spec.clusterIPs[0]', now, 'primary clusterIP can not be unset')
  const [families, oldFamilies] = [texts(spec, 'ipFamilies'), texts(was, 'ipFamilies')]
  if (before[0] !== 'None' && oldFamilies.length > 0 && families[0] !== oldFamilies[0]) {
    problems.invalid('spec.ipFamilies[0]', families, 'may not change once set')
  }
  if (needsHealthPort(spec) && needsHealthPort(was) && !equal(spec.healthCheckNodePort, was.healthCheckNodePort)) {
    problems.forbidden('spec.healthCheckNodePort', 'field is immutable')
  }
  if (
    spec.type === 'LoadBalancer' &&
    was.type === 'LoadBalancer' &&
    !equal(spec.loadBalancerClass, was.loadBalancerClass)
  ) {
    problems.invalid('spec.loadBalancerClass', spec.loadBalancerClass, 'may not change once set')
  }
}
