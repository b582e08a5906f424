// The documents that list what is served: API groups, resources, version.

import type { Json } from '../schema/json.ts'
import { apiVersionOf, resources, type ServedResource } from '../schema/served-resources.ts'
import { jsonType } from './rest-messages.ts'

/** The Kubernetes release whose behaviour this server follows. */
const release = { major: '1', minor: '36', gitVersion: 'v1.36.4+sluice' }

export const versionDocument: Json = {
  ...release,
  gitCommit: '',
  gitTreeState: 'clean',
  buildDate: '1970-01-01T00:00:00Z',
  goVersion: 'none',
  compiler: 'none',
  platform: `${process.platform}/${process.arch === 'x64' ? 'amd64' : process.arch}`,
}

const groupVersions = [...new Set(resources.map(apiVersionOf))]
const groups = [...new Set(resources.map(({ group }) => group))].filter((group) => group !== '')

const verbsOf = ({ readOnly, plural }: ServedResource): readonly string[] => {
  if (readOnly) return ['get', 'list', 'watch']
  const all = ['create', 'delete', 'deletecollection', 'get', 'list', 'patch', 'update', 'watch']
  return plural === 'namespaces' ? all.filter((verb) => verb !== 'deletecollection') : all
}

function resourceList(groupVersion: string): Json {
  const entries = resources
    .filter((each) => apiVersionOf(each) === groupVersion)
    .flatMap((each) => {
      const { plural, singular, namespaced, kind, shortNames, categories } = each
      const main = {
        name: plural,
        singularName: singular,
        namespaced,
        kind,
        verbs: verbsOf(each),
        ...(shortNames.length > 0 ? { shortNames } : {}),
        ...(categories.length > 0 ? { categories } : {}),
      }
      if (each.status === 'none') return [main]
      return [main, { name: `${plural}/status`, singularName: '', namespaced, kind, verbs: ['get', 'patch', 'update'] }]
    })
  return { kind: 'APIResourceList', apiVersion: 'v1', groupVersion, resources: entries }
}

const groupDocument = (name: string): Json => {
  const versions = groupVersions
    .filter((groupVersion) => groupVersion.startsWith(`${name}/`))
    .map((groupVersion) => ({ groupVersion, version: groupVersion.slice(name.length + 1) }))
  return { name, versions, preferredVersion: versions[0] }
}

/** One document for all groups at once, which newer clients ask for. */
function aggregatedDiscovery(names: readonly string[]): Json {
  return {
    kind: 'APIGroupDiscoveryList',
    apiVersion: 'apidiscovery.k8s.io/v2',
    metadata: {},
    items: names.map((name) => ({
      metadata: { ...(name === '' ? {} : { name }), creationTimestamp: null },
      versions: [
        {
          version: 'v1',
          freshness: 'Current',
          resources: resources.filter(({ group }) => group === name).map(aggregatedResource),
        },
      ],
    })),
  }
}

function aggregatedResource(resource: ServedResource): Json {
  const { plural, singular, namespaced, kind, shortNames, categories, group, version, status } = resource
  const responseKind = { group, version, kind }
  return {
    resource: plural,
    responseKind,
    scope: namespaced ? 'Namespaced' : 'Cluster',
    singularResource: singular,
    verbs: verbsOf(resource),
    ...(shortNames.length > 0 ? { shortNames } : {}),
    ...(categories.length > 0 ? { categories } : {}),
    ...(status === 'none'
      ? {}
      : { subresources: [{ subresource: 'status', responseKind, verbs: ['get', 'patch', 'update'] }] }),
  }
}

export interface Discovered {
  readonly document: Json
  readonly type: string
}

const aggregatedType = 'application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList'

const acceptsAggregated = (accept: string): boolean =>
  accept
    .split(',')
    .map((clause) => clause.replace(/\s/g, ''))
    .some(
      (clause) => clause.startsWith(jsonType) && /as=APIGroupDiscoveryList/.test(clause) && /v=v2(;|$)/.test(clause),
    )

/** undefined if the path has no discovery document. */
export function discover(path: string, accept: string, address: string): Discovered | undefined {
  const parts = path.split('/').filter((part) => part !== '')
  const isRoot = parts.length === 1 && (parts[0] === 'api' || parts[0] === 'apis')
  if (isRoot && acceptsAggregated(accept)) {
    return { document: aggregatedDiscovery(parts[0] === 'api' ? [''] : groups), type: aggregatedType }
  }
  const document = findDiscoveryDocument(parts, address)
  return document === undefined ? undefined : { document, type: jsonType }
}

function findDiscoveryDocument(parts: readonly string[], address: string): Json | undefined {
  const [root, group = '', version, ...extra] = parts
  if (extra.length > 0) return undefined
  if (root === 'api') return findCoreDocument(parts, address)
  if (root !== 'apis') return undefined
  if (parts.length === 1) return groupList()
  if (!groups.includes(group)) return undefined
  if (version === undefined) return { kind: 'APIGroup', apiVersion: 'v1', ...groupDocument(group) }
  const groupVersion = `${group}/${version}`
  return groupVersions.includes(groupVersion) ? resourceList(groupVersion) : undefined
}

function findCoreDocument(parts: readonly string[], address: string): Json | undefined {
  if (parts.length === 1) return coreVersions(address)
  return parts.length === 2 && parts[1] === 'v1' ? resourceList('v1') : undefined
}

const coreVersions = (address: string): Json => ({
  kind: 'APIVersions',
  versions: ['v1'],
  serverAddressByClientCIDRs: [{ clientCIDR: '0.0.0.0/0', serverAddress: address }],
})

const groupList = (): Json => ({ kind: 'APIGroupList', apiVersion: 'v1', groups: groups.map(groupDocument) })

export const rootPaths = (): Json => ({
  paths: [
    '/api',
    '/api/v1',
    '/apis',
    ...groups.flatMap((group) => [`/apis/${group}`, `/apis/${group}/v1`]),
    '/healthz',
    '/livez',
    '/openapi/v2',
    '/openapi/v3',
    '/readyz',
    '/version',
  ],
})
