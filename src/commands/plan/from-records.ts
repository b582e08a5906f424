// What the objects of now become when those of a file are applied or deleted. What a server would fill in is taken from what is there.

import type { Inputs } from '../../http/admin.ts'
import type { Objects } from '../../inspect/dry-run.ts'
import { decodeEndpointSlice, decodeService } from '../../kube/reflect/objects.ts'
import { ProxyError } from '../../lib/errors.ts'
import { canonicalIp, contains, type Family, familyName, familyOf, formatIp, parseCidr, parseIp } from '../../lib/ip.ts'
import type { ServiceRecord } from '../../model/types.ts'

const decoders = { Service: decodeService, EndpointSlice: decodeEndpointSlice } as const

export interface WantedObject<K extends string = keyof typeof decoders> {
  readonly kind: K
  readonly json: ManifestJson
}

/** Takes objects of these kinds, and remarks on the rest. Throws a ProxyError 'manifests' if nothing is left. */
export function choose<K extends string>(
  objects: readonly unknown[],
  kinds: readonly K[],
): { readonly wishes: readonly WantedObject<K>[]; readonly remarks: readonly string[] } {
  const wishes: WantedObject<K>[] = []
  const remarks: string[] = []
  for (const json of objects) {
    const kind = kinds.find((one) => one === (json as { kind?: unknown } | null)?.kind)
    if (kind === undefined) remarks.push(leftOut(json))
    else wishes.push({ kind, json: json as ManifestJson })
  }
  if (wishes.length === 0) throw new ProxyError('manifests', [`it has no ${kinds.join(' or ')}`, ...remarks].join('; '))
  return { wishes, remarks }
}

function leftOut(json: unknown): string {
  const kind = (json as { kind?: unknown } | null)?.kind
  const why =
    kind === 'Pod'
      ? 'pods count through the EndpointSlices that their cluster makes of them'
      : 'it does not decide where packets of services go'
  return `${String(kind)} ${keyOf(json)}: left out: ${why}`
}

export interface PlannedChange {
  readonly after: Objects
  /** What was assumed. */
  readonly remarks: readonly string[]
}

export function planChange(inputs: Inputs, wishes: readonly WantedObject[], remove: boolean): PlannedChange {
  const services = new Map(inputs.services.map((record) => [record.key, record]))
  const slices = new Map(inputs.slices.map((record) => [record.key, record]))
  const remarks: string[] = []
  for (const { kind, json } of wishes) {
    const key = keyOf(json)
    if (remove) {
      if (kind === 'Service') {
        services.delete(key)
        // Its slices go with it, as the garbage collector would have it.
        for (const slice of [...slices.values()]) if (slice.service === key) slices.delete(slice.key)
      } else slices.delete(key)
      continue
    }
    if (kind === 'Service') {
      const record = readService(inputs, json, services, remarks)
      remarks.push(...standInRemarks(json, services.get(key), record))
      if (record === undefined) services.delete(key)
      else services.set(key, record)
    } else {
      const { record, problems } = decoders.EndpointSlice(withDefaults(json))
      for (const { field, message } of problems) remarks.push(`${key}: ${field}: ${message}`)
      if (record !== undefined) slices.set(record.key, record)
    }
  }
  return { after: { services: [...services.values()], slices: [...slices.values()] }, remarks }
}

export type ManifestJson = Readonly<Record<string, unknown>>

const metadataOf = (json: unknown): ManifestJson => ((json as ManifestJson | null)?.metadata ?? {}) as ManifestJson

export const keyOf = (json: unknown): string => {
  const { namespace = 'default', name } = metadataOf(json)
  if (typeof name !== 'string' || name === '') throw new ProxyError('manifests', 'an object has no metadata.name')
  return `${String(namespace)}/${name}`
}

const withDefaults = (json: unknown): ManifestJson => ({
  ...(json as ManifestJson),
  metadata: { namespace: 'default', ...metadataOf(json) },
})

/** A manifest rarely says its cluster IP and node ports: those it has are kept, those it lacks are stood in for. */
function readService(
  inputs: Inputs,
  json: unknown,
  services: ReadonlyMap<string, ServiceRecord>,
  remarks: string[],
): ServiceRecord | undefined {
  const key = keyOf(json)
  const now = services.get(key)
  const object = withDefaults(json)
  const spec = { ...((object.spec ?? {}) as ManifestJson) }
  if (spec.type !== 'ExternalName' && spec.clusterIP !== 'None') {
    const families = familiesOf(spec, now, inputs)
    const known = [...clusterIpsOf(spec), ...(now?.clusterIps ?? [])]
    const own = families.map((family) => {
      const ip = known.find((one) => familyOf(one) === family)
      return ip ?? standIn(inputs, family, services)
    })
    spec.clusterIP = own[0]
    spec.clusterIPs = own
    spec.ipFamilies = families.map(familyName)
  }
  const taken = portsTaken(services)
  spec.ports = portsOf(spec, now, taken)
  if (spec.type === 'LoadBalancer' && spec.externalTrafficPolicy === 'Local' && (spec.healthCheckNodePort ?? 0) === 0)
    spec.healthCheckNodePort = now?.healthCheckNodePort || standInPort(taken)
  const { record, problems } = decoders.Service({
    ...object,
    metadata: {
      ...metadataOf(object),
      creationTimestamp: new Date(now?.created ?? Date.now()).toISOString(),
      uid: now?.uid ?? '',
    },
    spec,
    status: object.status ?? {
      loadBalancer: { ingress: (now?.loadBalancerIps ?? []).map((ip) => ({ ip })) },
    },
  })
  for (const { field, message } of problems) remarks.push(`${key}: ${field}: ${message}`)
  return record
}

const clusterIpsOf = ({ clusterIP, clusterIPs }: ManifestJson): readonly string[] =>
  (Array.isArray(clusterIPs) ? clusterIPs : [clusterIP]).flatMap((ip) => canonicalIp(String(ip)) ?? [])

/** Those asked for, else those it has, else the first; a second one as the policy says, where the cluster has it. */
function familiesOf(spec: ManifestJson, now: ServiceRecord | undefined, { views }: Inputs): readonly Family[] {
  const asked = Array.isArray(spec.ipFamilies)
    ? spec.ipFamilies.map((name): Family => (name === 'IPv6' ? 6 : 4))
    : clusterIpsOf(spec).map(familyOf)
  const had = (now?.clusterIps ?? []).map(familyOf)
  const families = asked.length > 0 ? asked : had.length > 0 ? had : [views[0]?.family ?? 4]
  const first = families[0] as Family
  if (spec.ipFamilyPolicy === 'SingleStack') return [first]
  if (spec.ipFamilyPolicy === undefined || families.length > 1) return families
  return [first, ...views.flatMap(({ family }) => (family === first ? [] : [family]))]
}

function portsOf(spec: ManifestJson, now: ServiceRecord | undefined, taken: Set<number>): readonly ManifestJson[] {
  const exposed = spec.type === 'NodePort' || spec.type === 'LoadBalancer'
  return ((spec.ports ?? []) as readonly ManifestJson[]).map((port) => {
    if (!exposed || spec.allocateLoadBalancerNodePorts === false || (port.nodePort ?? 0) !== 0) return port
    const had = now?.ports.find((one) => one.name === (port.name ?? ''))?.nodePort ?? 0
    if (had !== 0) return { ...port, nodePort: had }
    const nodePort = standInPort(taken)
    taken.add(nodePort)
    return { ...port, nodePort }
  })
}

/** The last free port of the range that servers use if they are not told another. */
function standInPort(taken: ReadonlySet<number>): number {
  let port = 32_767
  while (taken.has(port)) port--
  return port
}

/** What nobody asked for and the service did not have: a server would have chosen it otherwise. */
export function standInRemarks(
  json: ManifestJson,
  before: ServiceRecord | undefined,
  after: ServiceRecord | undefined,
): readonly string[] {
  if (after === undefined) return []
  const spec = (json.spec ?? {}) as ManifestJson
  const asked = ((spec.ports ?? []) as readonly ManifestJson[]).map(({ nodePort }) => nodePort)
  const known = [...asked, ...(before?.ports ?? []).map(({ nodePort }) => nodePort), 0]
  const chosen = [
    ...after.clusterIps
      .filter((ip) => ![...clusterIpsOf(spec), ...(before?.clusterIps ?? [])].includes(ip))
      .map((ip) => ['cluster IP', ip]),
    ...after.ports.filter(({ nodePort }) => !known.includes(nodePort)).map(({ nodePort }) => ['node port', nodePort]),
    ...[after.healthCheckNodePort]
      .filter((port) => ![0, spec.healthCheckNodePort, before?.healthCheckNodePort].includes(port))
      .map((port) => ['health check port', port]),
  ]
  return chosen.map(([what, value]) => `${after.key}: the API server will allocate a ${what}; ${value} stands for it`)
}

const portsTaken = (services: ReadonlyMap<string, ServiceRecord>): Set<number> =>
  new Set(
    [...services.values()].flatMap(({ ports, healthCheckNodePort }) => [
      healthCheckNodePort,
      ...ports.map(({ nodePort }) => nodePort),
    ]),
  )

/** The last free address of the service range. */
function standIn({ views }: Inputs, family: Family, services: ReadonlyMap<string, ServiceRecord>): string {
  const view = views.find((one) => one.family === family)
  const range = parseCidr(view?.serviceCidrs[0] ?? (family === 6 ? 'fd00:10:96::/112' : '10.96.0.0/16'))
  if (range === undefined) throw new ProxyError('manifests', 'no service range is known: give spec.clusterIP')
  const taken = new Set([...services.values()].flatMap(({ clusterIps }) => clusterIps))
  const bytes = Uint8Array.from(parseIp(range.ip) as Uint8Array)
  for (let i = 0; i < bytes.length * 8 - range.bits && i < 8; i++)
    bytes[bytes.length - 1] = (bytes[bytes.length - 1] as number) | (1 << i)
  for (let last = (bytes[bytes.length - 1] as number) - 1; last >= 0; last--) {
    bytes[bytes.length - 1] = last
    const ip = formatIp(bytes)
    if (contains(range, ip) && !taken.has(ip)) return ip
  }
  throw new ProxyError('manifests', 'no free address to stand in for the cluster IP: give spec.clusterIP')
}
