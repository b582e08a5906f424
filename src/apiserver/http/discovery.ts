// The documents by which clients find out what is served: groups, resources, version. Pure.

import type { Json } from '../schema/json.ts'
import { apiVersionOf, resources, type ServedResource } from '../schema/served-resources.ts'

/** The release whose behaviour is followed. */
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

/** One document instead of many, which newer clients ask for. */
function aggregated(core: boolean): Json {
  const names = core ? [''] : groups
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

function aggregatedResource(each: ServedResource): Json {
  const { plural, singular, namespaced, kind, shortNames, categories, group, version, status } = each
  const responseKind = { group, version, kind }
  return {
    resource: plural,
    responseKind,
    scope: namespaced ? 'Namespaced' : 'Cluster',
    singularResource: singular,
    verbs: verbsOf(each),
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

const plain = 'application/json'
const aggregatedType = 'application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList'

/** undefined if the path is no discovery document. */
export function discover(path: string, accept: string, address: string): Discovered | undefined {
  const wantsAll = accept
    .split(',')
    .some(
      (clause) =>
        /as=APIGroupDiscoveryList/.test(clause) &&
        /v=v2(;|$)/.test(clause.replace(/\s/g, '')) &&
        clause.trim().startsWith(plain),
    )
  const parts = path.split('/').filter((part) => part !== '')
  const [root, group, version] = parts
  if (path !== '/' && path.endsWith('/')) return discover(path.slice(0, -1), accept, address)
  if (parts.length === 1 && (root === 'api' || root === 'apis')) {
    if (wantsAll) return { document: aggregated(root === 'api'), type: aggregatedType }
    return { type: plain, document: root === 'api' ? coreVersions(address) : groupList() }
  }
  if (parts.length === 2 && root === 'api' && group === 'v1') return { document: resourceList('v1'), type: plain }
  if (root !== 'apis' || group === undefined || !groups.includes(group)) return undefined
  if (parts.length === 2)
    return { document: { kind: 'APIGroup', apiVersion: 'v1', ...groupDocument(group) }, type: plain }
  const groupVersion = `${group}/${version}`
  if (parts.length === 3 && groupVersions.includes(groupVersion))
    return { document: resourceList(groupVersion), type: plain }
  return undefined
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
