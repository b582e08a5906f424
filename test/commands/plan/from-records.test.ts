// Tests how a change is computed for a cluster whose API server is not asked: present values are kept, missing ones get placeholders.

import { describe, expect, it } from 'vitest'
import type { ChangedObject } from '../../../src/commands/plan/change-file.ts'
import { type ChangeableKind, planChange } from '../../../src/commands/plan/from-records.ts'
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

const serviceObject = (name: string, spec: object): ChangedObject<ChangeableKind> => ({
  kind: 'Service',
  json: { apiVersion: 'v1', kind: 'Service', metadata: { name }, spec },
})

const ports = [{ name: 'http', port: 80, targetPort: 8080 }]

describe('applying a Service', () => {
  it('keeps the cluster IP and node port that the service has', () => {
    const { after, remarks } = planChange(inputs(), [serviceObject('web', { type: 'NodePort', ports })], false)
    expect(after.services).toMatchObject([{ clusterIps: ['10.96.0.5'], ports: [{ nodePort: 30080 }] }])
    expect(remarks).toEqual([])
  })

  it('uses the last free address and port as placeholders for a new service', () => {
    const used = service({ key: 'x/used', clusterIps: ['10.96.0.254'], ports: [tcp(80, 'a', 32767)] })
    const spec = { type: 'LoadBalancer', externalTrafficPolicy: 'Local', ports }
    const { after, remarks } = planChange(inputs([used]), [serviceObject('new', spec)], false)
    const added = after.services.find(({ key }) => key === 'default/new')
    expect(added).toMatchObject({
      clusterIps: ['10.96.0.253'],
      ports: [{ nodePort: 32766 }],
      healthCheckNodePort: 32765,
    })
    expect(remarks).toEqual([
      'default/new: the API server will allocate a cluster IP; 10.96.0.253 is a placeholder',
      'default/new: the API server will allocate a node port; 32766 is a placeholder',
      'default/new: the API server will allocate a health check port; 32765 is a placeholder',
    ])
  })

  it('adds the second family if the policy asks for it, and keeps the first', () => {
    const spec = { ipFamilyPolicy: 'RequireDualStack', ports }
    const { after } = planChange(inputs(), [serviceObject('web', spec)], false)
    expect(after.services[0]?.clusterIps).toEqual(['10.96.0.5', 'fd00:10:96::fe'])
  })

  it('removes a service that becomes headless, and reports a field that cannot be used', () => {
    const headless = planChange(inputs(), [serviceObject('web', { clusterIP: 'None', ports })], false)
    expect(headless.after.services).toEqual([])
    const broken = planChange(inputs(), [serviceObject('web', { ports: [{ name: 'http', port: 99_999 }] })], false)
    expect(broken.remarks.join()).toContain('default/web: ')
  })

  it('refuses a range without a free address', () => {
    const full = [view({ family: 4, serviceCidrs: ['10.96.0.5/32'] })]
    expect(() => planChange({ ...inputs(), views: full }, [serviceObject('new', { ports })], false)).toThrow(
      'give spec.clusterIP',
    )
  })
})

describe('applying and deleting', () => {
  it('replaces an EndpointSlice', () => {
    const json = {
      apiVersion: 'discovery.k8s.io/v1',
      kind: 'EndpointSlice',
      metadata: { name: 'web-1', labels: { 'kubernetes.io/service-name': 'web' } },
      addressType: 'IPv4',
      ports: [{ name: 'http', port: 8080, protocol: 'TCP' }],
      endpoints: [{ addresses: ['10.1.0.2'] }],
    }
    const { after } = planChange(inputs(), [{ kind: 'EndpointSlice', json }], false)
    expect(after.slices).toMatchObject([{ key: 'default/web-1', endpoints: [{ ip: '10.1.0.2' }] }])
  })

  it('deletes the slices of a deleted service too', () => {
    const { after } = planChange(inputs(), [serviceObject('web', {})], true)
    expect(after).toEqual({ services: [], slices: [] })
  })
})
