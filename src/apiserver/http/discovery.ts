// The documents that list what is served: API groups, resources, version.

import { platform } from '../../sys/platform/platform.ts'
import type { Json } from '../schema/json.ts'
import { resources } from '../schema/served-resources.ts'
import { reviews } from './access-reviews.ts'
import { jsonType } from './rest-messages.ts'
import { unservedResources } from './unserved-resources.ts'
import { verbsOf } from './verbs.ts'

/** The Kubernetes release whose behaviour this server follows. */
const release = { major: '1', minor: '36', gitVersion: 'v1.36.4+sluice' }

export const versionDocument: Json = {
  ...release,
  gitCommit: '',
  gitTreeState: 'clean',
  buildDate: '1970-01-01T00:00:00Z',
  goVersion: 'none',
  compiler: 'none',
  platform: `${platform.name.toLowerCase()}/${process.arch === 'x64' ? 'amd64' : process.arch}`,
}

/** A row of a discovery document. */
interface ListedResource {
  readonly group: string
  readonly version: string
  readonly plural: string
  readonly singular: string
  readonly kind: string
  readonly shortNames: readonly string[]
  readonly categories: readonly string[]
  readonly namespaced: boolean
  /** Empty for a resource that is listed only so that the server can say why it is not served. */
  readonly verbs: readonly string[]
  readonly hasStatus: boolean
}

const bare = { shortNames: [], categories: [], hasStatus: false }

const listed: readonly ListedResource[] = [
  ...resources.map((one) => ({ ...one, verbs: verbsOf(one), hasStatus: one.status !== 'none' })),
  ...reviews.map((one) => ({ ...bare, ...one, verbs: ['create'] })),
  ...unservedResources.map((one) => ({ ...bare, ...one, verbs: [] })),
]
const versionOf = ({ group, version }: ListedResource): string => (group === '' ? version : `${group}/${version}`)
const groupVersions = [...new Set(listed.map(versionOf))]
const groups = [...new Set(listed.map(({ group }) => group))].filter((group) => group !== '')

const namesOf = ({ shortNames, categories }: ListedResource): Json => ({
  ...(shortNames.length > 0 ? { shortNames } : {}),
  ...(categories.length > 0 ? { categories } : {}),
})

const statusVerbs = ['get', 'patch', 'update']

function resourceList(groupVersion: string): Json {
  const entries = listed
    .filter((each) => versionOf(each) === groupVersion)
    .flatMap((each) => {
      const { plural, singular, namespaced, kind, verbs, hasStatus } = each
      const main = { name: plural, singularName: singular, namespaced, kind, verbs, ...namesOf(each) }
      if (!hasStatus) return [main]
      return [main, { name: `${plural}/status`, singularName: '', namespaced, kind, verbs: statusVerbs }]
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
          resources: listed.filter(({ group }) => group === name).map(aggregatedResource),
        },
      ],
    })),
  }
}

function aggregatedResource(resource: ListedResource): Json {
  const { plural, singular, namespaced, kind, group, version, verbs, hasStatus } = resource
  const responseKind = { group, version, kind }
  return {
    resource: plural,
    responseKind,
    scope: namespaced ? 'Namespaced' : 'Cluster',
    singularResource: singular,
    verbs,
    ...namesOf(resource),
    ...(hasStatus ? { subresources: [{ subresource: 'status', responseKind, verbs: statusVerbs }] } : {}),
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
