// Computes the records after a change of a cluster whose API server cannot be asked to try it: fields that the server would fill in
// keep their present values or become placeholders. plan/from-manifests.ts lets the API server itself apply the change.

import type { Inputs } from '../../http/admin.ts'
import type { Objects } from '../../inspect/dry-run.ts'
import { decodeEndpointSlice } from '../../kube/reflect/decode-endpoint-slice.ts'
import { decodeService } from '../../kube/reflect/decode-service.ts'
import { type Family, familyName, familyOf } from '../../lib/ip.ts'
import type { ServiceRecord, SliceRecord } from '../../model/types.ts'
import { type ChangedObject, keyOf, type ManifestJson, metadataOf, withNamespace } from './change-file.ts'
import { clusterIpsOf, placeholderIp, placeholderPort, placeholderRemarks, portsOf, usedPorts } from './placeholders.ts'

export interface PlannedChange {
  readonly after: Objects
  /** Sentences about what was ignored or assumed. */
  readonly remarks: readonly string[]
}

/** The records while the objects of the file are applied to them one by one. */
interface ChangingRecords {
  readonly inputs: Inputs
  readonly services: Map<string, ServiceRecord>
  readonly slices: Map<string, SliceRecord>
  readonly remarks: string[]
}

interface KindChanges {
  readonly apply: (records: ChangingRecords, json: ManifestJson) => void
  readonly remove: (records: ChangingRecords, key: string) => void
}

const changes = {
  Service: { apply: applyService, remove: removeService },
  EndpointSlice: { apply: applySlice, remove: ({ slices }, key) => slices.delete(key) },
} as const satisfies Record<string, KindChanges>

export type ChangeableKind = keyof typeof changes

export const changeableKinds: readonly ChangeableKind[] = ['Service', 'EndpointSlice']

export function planChange(
  inputs: Inputs,
  objects: readonly ChangedObject<ChangeableKind>[],
  isDelete: boolean,
): PlannedChange {
  const records: ChangingRecords = {
    inputs,
    services: new Map(inputs.services.map((record) => [record.key, record])),
    slices: new Map(inputs.slices.map((record) => [record.key, record])),
    remarks: [],
  }
  for (const { kind, json } of objects) {
    if (isDelete) changes[kind].remove(records, keyOf(json))
    else changes[kind].apply(records, json)
  }
  const { services, slices, remarks } = records
  return { after: { services: [...services.values()], slices: [...slices.values()] }, remarks }
}

/** Removes the slices of the service as well, as the garbage collector of a cluster does. */
function removeService({ services, slices }: ChangingRecords, key: string): void {
  services.delete(key)
  for (const slice of [...slices.values()]) if (slice.service === key) slices.delete(slice.key)
}

function applyService(records: ChangingRecords, json: ManifestJson): void {
  const { services, remarks } = records
  const key = keyOf(json)
  const { record, problems } = decodeService(completeService(records, withNamespace(json)))
  for (const { field, message } of problems) remarks.push(`${key}: ${field}: ${message}`)
  remarks.push(...placeholderRemarks(json, services.get(key), record))
  if (record === undefined) services.delete(key)
  else services.set(key, record)
}

function applySlice({ slices, remarks }: ChangingRecords, json: ManifestJson): void {
  const { record, problems } = decodeEndpointSlice(withNamespace(json))
  for (const { field, message } of problems) remarks.push(`${keyOf(json)}: ${field}: ${message}`)
  if (record !== undefined) slices.set(record.key, record)
}

/** Fills in what a manifest rarely says and an API server adds: cluster IPs, node ports, uid, creation time and status. */
function completeService({ inputs, services }: ChangingRecords, object: ManifestJson): ManifestJson {
  const present = services.get(keyOf(object))
  const spec = (object.spec ?? {}) as ManifestJson
  const records = [...services.values()]
  return {
    ...object,
    metadata: {
      ...metadataOf(object),
      creationTimestamp: new Date(present?.created ?? Date.now()).toISOString(),
      uid: present?.uid ?? '',
    },
    spec: {
      ...spec,
      ...completeAddresses(spec, present, { inputs, records }),
      ...completePorts(spec, present, usedPorts(records)),
    },
    status: object.status ?? { loadBalancer: { ingress: (present?.loadBalancerIps ?? []).map((ip) => ({ ip })) } },
  }
}

function completeAddresses(
  spec: ManifestJson,
  present: ServiceRecord | undefined,
  { inputs, records }: { readonly inputs: Inputs; readonly records: readonly ServiceRecord[] },
): ManifestJson {
  if (spec.type === 'ExternalName' || spec.clusterIP === 'None') return {}
  const families = familiesOf(spec, present, inputs)
  const known = [...clusterIpsOf(spec), ...(present?.clusterIps ?? [])]
  const clusterIPs = families.map(
    (family) => known.find((ip) => familyOf(ip) === family) ?? placeholderIp(inputs, family, records),
  )
  return { clusterIP: clusterIPs[0], clusterIPs, ipFamilies: families.map(familyName) }
}

/** Returns the families that the manifest asks for, else those the service has, else the node's first. The policy may add the other. */
function familiesOf(spec: ManifestJson, present: ServiceRecord | undefined, { views }: Inputs): readonly Family[] {
  const asked = Array.isArray(spec.ipFamilies)
    ? spec.ipFamilies.map((name): Family => (name === 'IPv6' ? 6 : 4))
    : clusterIpsOf(spec).map(familyOf)
  const had = (present?.clusterIps ?? []).map(familyOf)
  const families = [asked, had].find((list) => list.length > 0) ?? [views[0]?.family ?? 4]
  const first = families[0] as Family
  if (spec.ipFamilyPolicy === 'SingleStack') return [first]
  if (spec.ipFamilyPolicy === undefined || families.length > 1) return families
  return [first, ...views.map(({ family }) => family).filter((family) => family !== first)]
}

/** Placeholders are added to `used`, so that no port is chosen twice. */
function completePorts(spec: ManifestJson, present: ServiceRecord | undefined, used: Set<number>): ManifestJson {
  const ports = portsOf(spec)
  const isExposed = spec.type === 'NodePort' || spec.type === 'LoadBalancer'
  const completed =
    isExposed && spec.allocateLoadBalancerNodePorts !== false
      ? ports.map((port) => ({ ...port, nodePort: nodePortOf(port, present, used) }))
      : ports
  const needsHealthPort =
    spec.type === 'LoadBalancer' && spec.externalTrafficPolicy === 'Local' && (spec.healthCheckNodePort ?? 0) === 0
  if (!needsHealthPort) return { ports: completed }
  return { ports: completed, healthCheckNodePort: present?.healthCheckNodePort || placeholderPort(used) }
}

function nodePortOf(port: ManifestJson, present: ServiceRecord | undefined, used: Set<number>): unknown {
  if ((port.nodePort ?? 0) !== 0) return port.nodePort
  const had = present?.ports.find((one) => one.name === (port.name ?? ''))?.nodePort ?? 0
  if (had !== 0) return had
  const chosen = placeholderPort(used)
  used.add(chosen)
  return chosen
}
