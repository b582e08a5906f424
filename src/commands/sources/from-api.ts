// Reads the inputs of plans and explanations for one node from an API server: its Node, Services, EndpointSlices and ServiceCIDRs.

import { hostname } from 'node:os'
import type { Config } from '../../config/configuration.ts'
import { sluiceVersion } from '../../config/sluice-version.ts'
import { makeSettings } from '../../daemon/backend-settings.ts'
import { makeNodeFacts } from '../../daemon/node/node-facts.ts'
import type { Inputs } from '../../http/admin.ts'
import { type ApiRequester, listObjects } from '../../kube/api-objects.ts'
import { asObject } from '../../kube/decode/fields.ts'
import {
  describeOwnNode,
  endpointSlices,
  serviceCidrs,
  services,
  type WatchedResource,
} from '../../kube/reflect/watched-resources.ts'
import { ProxyError } from '../../lib/errors.ts'
import { canonicalIp, familyOf, parseCidr } from '../../lib/ip.ts'
import { makeNodeView } from '../../model/node.ts'
import { apiServerEndpoints } from '../../model/reserved-addresses.ts'
import type { NodeRecord, NodeView } from '../../model/types.ts'
import { listAddresses } from '../../sys/netlink/interface-addresses.ts'

export interface NodeQuery {
  readonly name: string
  readonly config: Config
  /** The record to use if the API has no Node of this name. */
  readonly fallback?: NodeRecord | undefined
  /** The objects may be without any Node: then every name is accepted. */
  readonly nodesOptional?: boolean
}

export async function readFromApi(
  api: ApiRequester,
  { name, config, fallback, nodesOptional = false }: NodeQuery,
): Promise<Omit<Inputs, 'limits'>> {
  const [node = fallback] = await listRecords(api, describeOwnNode(name))
  if (node === undefined) await refuseUnknownNode(api, name, nodesOptional)
  const nodeAddresses = await nodeAddressesOf(name, node)
  const cidrs = (await listRecords(api, serviceCidrs).catch(noneIfNotFound)).flatMap((record) => record.cidrs)
  const slices = await listRecords(api, endpointSlices)
  const facts = {
    ...makeNodeFacts(config, { name, record: node, interfaceAddresses: nodeAddresses }),
    serviceCidrs: cidrs,
    apiServers: apiServerEndpoints(slices),
  }
  const allServices = await listRecords(api, services)
  const families = ([4, 6] as const).filter(
    (family) =>
      family === facts.ips.primary ||
      cidrs.some((cidr) => parseCidr(cidr)?.family === family) ||
      allServices.some(({ clusterIps }) => clusterIps.some((ip) => familyOf(ip) === family)),
  )
  return {
    identity: { node: name, mode: config.mode, pid: 0, version: sluiceVersion, startedAt: '' },
    settings: makeSettings(config),
    views: families.map((family): NodeView => makeNodeView(facts, family)),
    nodeAddresses,
    services: allServices,
    slices,
  }
}

/** Throws a ProxyError that lists the nodes: an answer for a node that does not exist would be wrong. */
async function refuseUnknownNode(api: ApiRequester, name: string, nodesOptional: boolean): Promise<void> {
  const nodes = (await listObjects(api, '/api/v1/nodes', {})).flatMap((node) => {
    const { name: one } = asObject(asObject(node)?.metadata) ?? {}
    return typeof one === 'string' ? [one] : []
  })
  if (nodes.length === 0 && nodesOptional) return
  const shown = nodes.sort().slice(0, 20).join(', ')
  const more = nodes.length > 20 ? `, and ${nodes.length - 20} more` : ''
  const known = nodes.length === 0 ? 'there is none' : `there is ${shown}${more}`
  throw new ProxyError('question', `there is no node ${name}: choose one with --node (${known})`)
}

/** API servers before 1.33, and the small one of `sluice up`, have no ServiceCIDRs. */
function noneIfNotFound(error: unknown): readonly never[] {
  if (error instanceof ProxyError && error.code === 'not-found') return []
  throw error
}

async function listRecords<R>(api: ApiRequester, resource: WatchedResource<R>): Promise<readonly R[]> {
  const objects = await listObjects(api, resource.resource, {
    labelSelector: resource.labelSelector,
    fieldSelector: resource.fieldSelectorOptional ? undefined : resource.fieldSelector,
  })
  // The items of a list carry no kind, which the decoder needs.
  return objects.flatMap((json) => resource.decode({ kind: resource.kind, ...(json as object) }).record ?? [])
}

export const isThisHost = (name: string): boolean => name === hostname().trim().toLowerCase()

/** Returns the interface addresses of this host; for another node, the addresses of its Node object. */
async function nodeAddressesOf(name: string, node: NodeRecord | undefined): Promise<readonly string[]> {
  if (isThisHost(name)) return (await listAddresses()).map(({ ip }) => ip)
  return ['127.0.0.1', '::1', ...(node?.addresses ?? []).flatMap((ip) => canonicalIp(ip) ?? [])]
}
