// Decides the fields of a service that depend on its previous version and on the cluster: which fields go with the type, which stay,
// and the IP families. Allocation of addresses and ports is in service-allocation.ts, defaults are in schema/service-defaults.ts. Pure.

import { deepEqual } from '../../lib/equal.ts'
import { canonicalIp, type Family, familyName, familyOf } from '../../lib/ip.ts'
import type { FieldErrors } from '../schema/field-errors.ts'
import {
  deepCopy,
  ensureObject,
  getMutableObjects,
  getObject,
  getObjects,
  getString,
  getStrings,
  isEmpty,
  type Json,
  type MutableJson,
} from '../schema/json.ts'
import { hasClusterIp, hasSelector, isExternal, isHeadless, needsHealthPort } from '../schema/service-defaults.ts'
import { validateAddresses, validateSingleStack } from '../schema/validate-service.ts'

const addressFields = ['clusterIP', 'clusterIPs', 'ipFamilies', 'ipFamilyPolicy']

/** Drops the fields that the new type does not have, unless the user changed them in the same request. */
export function dropTypeFields(service: MutableJson, old: Json): void {
  const spec = ensureObject(service, 'spec')
  const oldSpec = getObject(old, 'spec')
  const isUnchanged = (name: string) => deepEqual(spec[name], oldSpec[name])
  const dropUnchanged = (...names: readonly string[]) => {
    for (const name of names.filter(isUnchanged)) delete spec[name]
  }
  const lost = (has: (spec: Json) => boolean) => has(oldSpec) && !has(spec)
  if (lost(hasClusterIp) && isUnchanged('clusterIP') && isUnchanged('clusterIPs')) {
    for (const name of [...addressFields, 'internalTrafficPolicy']) delete spec[name]
  }
  if (lost(isExternal)) {
    dropUnchanged('externalTrafficPolicy')
    dropUnchangedNodePorts(spec, oldSpec)
  }
  if (lost(needsHealthPort)) dropUnchanged('healthCheckNodePort')
  if (lost(({ type }) => type === 'LoadBalancer')) {
    dropUnchanged('allocateLoadBalancerNodePorts', 'loadBalancerClass')
    service.status = { ...getObject(service, 'status'), loadBalancer: {} }
  }
}

function dropUnchangedNodePorts(spec: MutableJson, oldSpec: Json): void {
  const before = new Set(getObjects(oldSpec, 'ports').map(({ nodePort }) => nodePort))
  const ports = getMutableObjects(spec, 'ports').filter((port) => port.nodePort !== undefined)
  if (ports.every(({ nodePort }) => before.has(nodePort))) for (const port of ports) delete port.nodePort
}

/** Copies allocated values from the old service into a replacement that leaves them out. */
export function keepAllocations(service: MutableJson, old: Json): void {
  const spec = ensureObject(service, 'spec')
  const oldSpec = getObject(old, 'spec')
  if (hasClusterIp(oldSpec) && hasClusterIp(spec)) keepAddresses(spec, oldSpec)
  if (isExternal(oldSpec) && isExternal(spec)) keepNodePorts(spec, oldSpec)
  if (needsHealthPort(oldSpec) && needsHealthPort(spec)) spec.healthCheckNodePort ??= oldSpec.healthCheckNodePort
}

/** A list of addresses does not stay beside another address. */
function keepAddresses(spec: MutableJson, oldSpec: Json): void {
  if (getString(spec, 'clusterIP') === '') spec.clusterIP = oldSpec.clusterIP
  const isUnset = getStrings(spec, 'clusterIPs').length === 0 && spec.clusterIP === oldSpec.clusterIP
  if (isUnset && oldSpec.clusterIPs !== undefined) spec.clusterIPs = deepCopy(oldSpec.clusterIPs)
}

/** An applied file that no longer names its families removes only the field that it had set. */
function keepFamilies(spec: MutableJson, oldSpec: Json): void {
  if (!hasClusterIp(oldSpec)) return
  for (const field of ['ipFamilies', 'ipFamilyPolicy']) {
    const isUnset = spec[field] === undefined || isEmpty(spec[field])
    if (isUnset && oldSpec[field] !== undefined) spec[field] = deepCopy(oldSpec[field])
  }
}

/** Finds the old port by its name, as the real server does: a port that changes its number keeps its node port. */
function keepNodePorts(spec: MutableJson, oldSpec: Json): void {
  const ports = getMutableObjects(spec, 'ports')
  const used = new Set(ports.map(({ nodePort }) => nodePort))
  for (const port of ports.filter(({ nodePort }) => (nodePort ?? 0) === 0)) {
    const before = getObjects(oldSpec, 'ports').findLast((each) => getString(each, 'name') === getString(port, 'name'))
    if (before?.nodePort !== undefined && !used.has(before.nodePort)) port.nodePort = before.nodePort
  }
}

/** Makes `clusterIP` the first of `clusterIPs`; the field that the user wrote decides. */
export function alignClusterIps(service: MutableJson, old: Json | undefined): void {
  const spec = ensureObject(service, 'spec')
  const oldSpec = getObject(old, 'spec')
  const listed = getStrings(spec, 'clusterIPs')
  const single = getString(spec, 'clusterIP')
  if (listed.length === 0) {
    if (single !== '') spec.clusterIPs = [single]
    return
  }
  const changedOnlySingle =
    old !== undefined &&
    single !== listed[0] &&
    single !== getString(oldSpec, 'clusterIP') &&
    deepEqual(listed, getStrings(oldSpec, 'clusterIPs'))
  if (!changedOnlySingle) return
  if (single === '') delete spec.clusterIPs
  else spec.clusterIPs = [single]
}

export function checkAddresses(service: Json, errors: FieldErrors): void {
  const spec = getObject(service, 'spec')
  if (hasClusterIp(spec)) validateAddresses(spec, errors)
}

/** Sets `ipFamilies` and `ipFamilyPolicy`. Adds only the errors that depend on the cluster; validate-service.ts finds the others. */
export function assignFamilies(
  service: MutableJson,
  old: Json | undefined,
  available: readonly Family[],
  errors: FieldErrors,
): void {
  const spec = ensureObject(service, 'spec')
  if (!hasClusterIp(spec)) return
  keepFamilies(spec, getObject(old, 'spec'))
  // Users write the endpoints of a headless service without a selector, in any family.
  const allowsAnyFamily = isHeadless(spec) && !hasSelector(spec)
  const namesFamilies = getStrings(spec, 'ipFamilies').length > 0
  spec.ipFamilyPolicy ??= allowsAnyFamily && !namesFamilies ? 'RequireDualStack' : 'SingleStack'
  if (spec.ipFamilyPolicy === 'SingleStack') dropSecondFamily(spec, getObject(old, 'spec'))
  validateSingleStack(spec, errors)
  validateRelease(spec, getObject(old, 'spec'), errors)
  if (!errors.isEmpty) return
  const families = requestedFamilies(spec, available)
  if (families.length === 1 && wantsTwoFamilies(spec, available)) {
    if (available.length > 1 || allowsAnyFamily) families.push(families[0] === 'IPv4' ? 'IPv6' : 'IPv4')
    else {
      const why = 'this cluster is not configured for dual-stack services'
      errors.invalid('spec.ipFamilyPolicy', spec.ipFamilyPolicy, why)
    }
  }
  if (!allowsAnyFamily) checkFamilies(families, available, errors)
  spec.ipFamilies = families
}

/** Only a service of one family gives up its second address. */
function validateRelease(spec: Json, oldSpec: Json, errors: FieldErrors): void {
  const isReleased = getStrings(oldSpec, 'clusterIPs').length === 2 && getStrings(spec, 'clusterIPs').length === 1
  if (isReleased && spec.ipFamilyPolicy !== 'SingleStack') {
    const why = "must be 'SingleStack' to release the secondary cluster IP"
    errors.invalid('spec.ipFamilyPolicy', spec.ipFamilyPolicy, why)
  }
}

/** When a service changes from dual to single stack, it loses the second family and address, unless the user changed them. */
function dropSecondFamily(spec: MutableJson, oldSpec: Json): void {
  if (oldSpec.ipFamilyPolicy === 'SingleStack' || oldSpec.ipFamilyPolicy === undefined) return
  for (const field of ['ipFamilies', 'clusterIPs']) {
    if (deepEqual(spec[field], oldSpec[field])) spec[field] = getStrings(spec, field).slice(0, 1)
  }
}

/** The families that the service names, or those of its addresses, or the first one of the cluster. */
function requestedFamilies(spec: Json, available: readonly Family[]): string[] {
  const named = getStrings(spec, 'ipFamilies')
  if (named.length > 0) return [...named]
  const ips = getStrings(spec, 'clusterIPs').flatMap((ip) => canonicalIp(ip) ?? [])
  return ips.length > 0 ? ips.map((ip) => familyName(familyOf(ip))) : [familyName(available[0] ?? 4)]
}

const wantsTwoFamilies = ({ ipFamilyPolicy }: Json, available: readonly Family[]): boolean =>
  ipFamilyPolicy === 'RequireDualStack' || (ipFamilyPolicy === 'PreferDualStack' && available.length > 1)

function checkFamilies(families: readonly string[], available: readonly Family[], errors: FieldErrors): void {
  const missing = (['IPv4', 'IPv6'] as const).filter((name) => !available.map(familyName).includes(name))
  for (const [i, family] of families.entries()) {
    if (missing.some((name) => name === family))
      errors.invalid(`spec.ipFamilies[${i}]`, family, 'not configured on this cluster')
  }
}
