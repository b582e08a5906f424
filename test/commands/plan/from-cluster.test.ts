// Tests how a change of a cluster is computed: what the API server cannot be asked for, placeholders, and server-side apply.

import { describe, expect, it } from 'vitest'
import { parseMixedManifests } from '../../../src/apiserver/manifests/parse.ts'
import { defaultNodePorts } from '../../../src/apiserver/requests/allocations.ts'
import type { Json } from '../../../src/apiserver/schema/json.ts'
import { chooseNodePorts, parseNodePortRange } from '../../../src/commands/node-port-range.ts'
import { type ClusterAccess, planCluster } from '../../../src/commands/plan/from-cluster.ts'
import { configFrom } from '../../../src/commands/sources/source.ts'
import { defaultSluiceConfig } from '../../../src/config/sluice-config.ts'
import { makeSettings } from '../../../src/daemon/backend-settings.ts'
import type { Inputs } from '../../../src/http/admin.ts'
import type { ServiceRecord } from '../../../src/model/types.ts'
import { endpoint, service, slice, tcp, view } from '../../support/builders.ts'

const web = service({
  key: 'default/web',
  type: 'NodePort',
  clusterIps: ['10.96.0.5'],
  ports: [tcp(80, 'http', 30080)],
})
const webSlice = slice([endpoint('10.1.0.1')], { key: 'default/web-1', service: 'default/web' })

const inputs = (services: readonly ServiceRecord[] = [web]): Inputs => ({
  identity: { node: 'a', mode: 'nftables', pid: 0, version: '', startedAt: '' },
  settings: makeSettings(configFrom(new Map([['mode', 'nftables']]))),
  views: [view({ family: 4, serviceCidrs: ['10.96.0.0/24'] }), view({ family: 6, serviceCidrs: ['fd00:10:96::/112'] })],
  limits: defaultSluiceConfig().limits,
  nodeAddresses: [],
  services,
  slices: [webSlice],
})

const unknown: ClusterAccess = { read: async () => ({ unknown: 'it is down' }) }
const holding = (object: Json | undefined): ClusterAccess => ({
  read: async ({ resource }) => ({ object: resource.kind === 'Namespace' ? { metadata: {} } : object }),
})

function change(given: Inputs, access: ClusterAccess, object: object, isDelete = false) {
  const { manifests, problems } = parseMixedManifests('x.yaml', JSON.stringify(object))
  expect(problems).toEqual([])
  const objects = manifests.map((manifest) => ({ file: 'x.yaml', manifest }))
  return planCluster(given, access, { objects, isDelete, nodePorts: defaultNodePorts })
}

const serviceObject = (name: string, spec: object) => ({ apiVersion: 'v1', kind: 'Service', metadata: { name }, spec })
const ports = [{ name: 'http', port: 80, targetPort: 8080 }]

describe('applying a Service that only its record describes', () => {
  it('keeps the cluster IP and node port that the service has, and says that the file counts as whole', async () => {
    const { after, remarks } = await change(inputs(), unknown, serviceObject('web', { type: 'NodePort', ports }))
    expect(after.services).toEqual([web])
    expect(remarks).toEqual([
      'the API server could not be asked for services (it is down): the files count as whole objects',
    ])
  })

  it('keeps policies, affinity, source ranges and load balancer addresses that the file repeats', async () => {
    const balancer = service({
      key: 'default/web',
      type: 'LoadBalancer',
      clusterIps: ['10.96.0.5', 'fd00:10:96::5'],
      ports: [tcp(80, 'http', 30080)],
      loadBalancerIps: ['192.0.2.9'],
      sourceRanges: ['192.0.2.0/24'],
      externalIps: ['192.0.2.8'],
      externalPolicy: 'Local',
      internalPolicy: 'Local',
      affinitySeconds: 60,
      healthCheckNodePort: 30500,
    })
    const spec = {
      type: 'LoadBalancer',
      ports,
      loadBalancerSourceRanges: ['192.0.2.0/24'],
      externalIPs: ['192.0.2.8'],
      externalTrafficPolicy: 'Local',
      internalTrafficPolicy: 'Local',
      sessionAffinity: 'ClientIP',
      sessionAffinityConfig: { clientIP: { timeoutSeconds: 60 } },
    }
    const { after } = await change(inputs([balancer]), unknown, serviceObject('web', spec))
    expect(after.services).toEqual([balancer])
  })

  it('removes the service that becomes an external name', async () => {
    const spec = { type: 'ExternalName', externalName: 'example.com' }
    expect((await change(inputs(), unknown, serviceObject('web', spec))).after.services).toEqual([])
  })
})

describe('applying a new Service', () => {
  it('uses free addresses and ports as placeholders', async () => {
    const spec = { type: 'LoadBalancer', externalTrafficPolicy: 'Local', ports }
    const { after, remarks } = await change(inputs(), holding(undefined), serviceObject('new', spec))
    const added = after.services.find(({ key }) => key === 'default/new')
    const [ip] = added?.clusterIps ?? []
    expect(added?.clusterIps).toHaveLength(1)
    expect(remarks).toEqual([
      `default/new: the API server will allocate a cluster IP; ${ip} is a placeholder`,
      `default/new: the API server will allocate a node port; ${added?.ports[0]?.nodePort} is a placeholder`,
      `default/new: the API server will allocate a health check port; ${added?.healthCheckNodePort} is a placeholder`,
    ])
  })

  it('accepts any address while the service ranges are not known', async () => {
    const given = { ...inputs(), views: [view({ family: 4, serviceCidrs: [] })] }
    const spec = { clusterIP: '172.20.0.7', ports }
    const { after } = await change(given, holding(undefined), serviceObject('new', spec))
    expect(after.services.map(({ clusterIps }) => clusterIps)).toContainEqual(['172.20.0.7'])
    await expect(change(inputs(), holding(undefined), serviceObject('new', spec))).rejects.toThrow(/current range/)
  })
})

describe('applying and deleting', () => {
  const sliceObject = (ip: string) => ({
    apiVersion: 'discovery.k8s.io/v1',
    kind: 'EndpointSlice',
    metadata: { name: 'web-1', namespace: 'default', labels: { 'kubernetes.io/service-name': 'web' } },
    addressType: 'IPv4',
    ports: [{ name: 'http', port: 8080, protocol: 'TCP' }],
    endpoints: [{ addresses: [ip] }],
  })

  it('replaces an EndpointSlice, and an applier gives up what its file no longer has', async () => {
    const owned = {
      'f:metadata': { 'f:labels': { 'f:kubernetes.io/service-name': {} } },
      'f:endpoints': {},
      'f:ports': {},
    }
    const managedFields = [{ manager: 'flux', operation: 'Apply', fieldsType: 'FieldsV1', fieldsV1: owned }]
    const current = sliceObject('10.1.0.1')
    const present = { ...current, metadata: { ...current.metadata, managedFields } }
    const { after } = await change(inputs(), holding(present), sliceObject('10.1.0.2'))
    expect(after.slices).toMatchObject([{ key: 'default/web-1', endpoints: [{ ip: '10.1.0.2' }] }])
    const { endpoints: _, ...empty } = sliceObject('10.1.0.2')
    expect((await change(inputs(), holding(present), empty)).after.slices).toMatchObject([{ endpoints: [] }])
  })

  it('deletes the slices of a deleted service too', async () => {
    expect((await change(inputs(), unknown, serviceObject('web', { ports }), true)).after).toEqual({
      services: [],
      slices: [],
    })
  })
})

describe('the range of node ports', () => {
  it('is the default unless a service proves another', () => {
    expect(chooseNodePorts(undefined, [web])).toEqual(defaultNodePorts)
    const low = service({ ports: [tcp(80, 'http', 80)] })
    expect(chooseNodePorts(undefined, [web, low])).toEqual({ first: 1, last: 65_535 })
    expect(chooseNodePorts('80-100', [web])).toEqual({ first: 80, last: 100 })
  })

  it.each(['', '80', '0-5', '9-5', '1-70000', 'a-b', '30000+10'])('is not %j', (text) => {
    expect(() => parseNodePortRange(text)).toThrow('must be FIRST-LAST with ports from 1 to 65535')
  })
})
