import { describe, expect, it } from 'vitest'
import { ServiceDigests } from '../../src/engine/service-digests.ts'
import type { SketchElement } from '../../src/lib/set-sketch.ts'
import type { ServiceRecord, SliceRecord } from '../../src/model/types.ts'

const web: ServiceRecord = {
  key: 'shop/web',
  uid: 'u1',
  created: 1,
  type: 'ClusterIP',
  clusterIps: ['10.96.0.1'],
  ports: [{ name: 'http', protocol: 'tcp', port: 80, nodePort: 0 }],
  externalIps: [],
  loadBalancerIps: [],
  sourceRanges: [],
  externalPolicy: 'Cluster',
  internalPolicy: 'Cluster',
  affinitySeconds: 0,
  healthCheckNodePort: 0,
}

const slice: SliceRecord = {
  key: 'shop/web-1',
  service: 'shop/web',
  family: 4,
  ports: [{ name: 'http', protocol: 'tcp', port: 8080 }],
  endpoints: [
    { ip: '10.1.0.1', node: 'a', ready: true, serving: true, terminating: false, zoneHints: [], nodeHints: [] },
  ],
  triggered: 5,
}

function digest(service: ServiceRecord, slices: readonly SliceRecord[], isApplied = true): SketchElement {
  const found: SketchElement[] = []
  const store = { records: () => [service], slicesOf: () => slices }
  const steps = new ServiceDigests().list(store, [4], {
    visit: (one) => void found.push(one),
    isApplied: () => isApplied,
  })
  while (steps.next().done !== true);
  return found[0] as SketchElement
}

describe('the digest of a service', () => {
  it('has the format that its number says: a new value needs a new digestFormat', () => {
    expect(digest(web, [slice])).toEqual({ key: 1083882110, content: 4145804722 })
  })

  it('changes with the service, with an endpoint and with a slice, but not with the time of the change', () => {
    const { content } = digest(web, [slice])
    const [endpoint] = slice.endpoints
    const unready = { ...slice, endpoints: [{ ...endpoint, ready: false }] } as SliceRecord
    expect(digest({ ...web, affinitySeconds: 10 }, [slice]).content).not.toBe(content)
    expect(digest(web, [unready]).content).not.toBe(content)
    expect(digest(web, [slice, slice]).content).not.toBe(content)
    expect(digest(web, [{ ...slice, triggered: 6 }]).content).toBe(content)
  })

  it('is another one as long as the objects are not programmed', () => {
    expect(digest(web, [slice], false).content).not.toBe(digest(web, [slice]).content)
  })
})
