// Checks how services become service ports: addresses, families, policies and dispositions.

import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { hostPort } from '../../src/lib/ip.ts'
import { compareEndpoints } from '../../src/model/endpoints.ts'
import { sourceRangesOf } from '../../src/model/frontends.ts'
import type { EndpointRecord, Frontend, ServicePort, ServiceRecord, SliceRecord } from '../../src/model/types.ts'
import { addresses, endpoint, frozen, type State, service, slice, tcp, view } from '../support/builders.ts'
import { resolve } from '../support/resolve.ts'

const six = view({ family: 6, ip: 'fd00::2', local: { kind: 'cidr', cidr: 'fd00:10::/64' }, serviceCidrs: [] })
const listed = (frontends: readonly Frontend[] | undefined) =>
  frontends?.map(({ kind, ip, port }) => `${kind} ${hostPort(ip, port)}`)
const one = (given: Partial<ServiceRecord>, slices: readonly SliceRecord[] = [], node = view()) => {
  const ports = resolve(service(given), slices, node)
  expect(ports).toHaveLength(1)
  return ports[0] as (typeof ports)[number]
}

describe('services and families', () => {
  it('C1, C2: a service without a cluster IP has no ports', () => {
    expect(resolve(service({ clusterIps: [] }), [slice([endpoint('10.0.1.1')])], view())).toEqual([])
  })

  it('C3: node ports are kept for every type', () => {
    const ports = resolve(service({ ports: [tcp(80, 'a', 3001), tcp(443, 'b', 3002)] }), [], view())
    expect(ports.map(({ frontends }) => listed(frontends))).toEqual([
      ['cluster-ip 172.30.0.41:80', 'node-port :3001'],
      ['cluster-ip 172.30.0.41:443', 'node-port :3002'],
    ])
  })

  it('C4, C6: a service with a cluster IP of the other family only has no ports', () => {
    expect(resolve(service({ clusterIps: ['fd00::41'] }), [], view())).toEqual([])
    expect(resolve(service(), [], six)).toEqual([])
  })

  it('C5: each family uses its own cluster IP, in any order', () => {
    const dual = { clusterIps: ['fd00::41', '172.30.0.41'] }
    expect(listed(one(dual).frontends)).toEqual(['cluster-ip 172.30.0.41:80'])
    expect(listed(one(dual, [], six).frontends)).toEqual(['cluster-ip [fd00::41]:80'])
  })

  it('C7: external IPs, load balancer IPs and source ranges count for their own family', () => {
    const dual = {
      type: 'LoadBalancer',
      clusterIps: ['172.30.0.41', 'fd00::41'],
      externalIps: ['fd00::99', '192.168.99.11'],
      loadBalancerIps: ['1.2.3.4', 'fd00::1234'],
      sourceRanges: ['203.0.113.0/25', 'fd00:1::/64'],
    } as const
    expect(one(dual).frontends.slice(1)).toEqual([
      { kind: 'external-ip', ip: '192.168.99.11', port: 80, allow: [] },
      { kind: 'load-balancer', ip: '1.2.3.4', port: 80, allow: ['203.0.113.0/25'] },
    ])
    expect(one(dual, [], six).frontends.slice(1)).toEqual([
      { kind: 'external-ip', ip: 'fd00::99', port: 80, allow: [] },
      { kind: 'load-balancer', ip: 'fd00::1234', port: 80, allow: ['fd00:1::/64'] },
    ])
  })

  it('the order of frontends is cluster IP, external IPs, load balancer IPs, node port', () => {
    const port = one({
      ports: [tcp(80, 'p80', 3001)],
      loadBalancerIps: ['1.2.3.4', '5.6.7.8'],
      externalIps: ['192.168.99.22', '192.168.99.11'],
    })
    expect(listed(port.frontends)).toEqual([
      'cluster-ip 172.30.0.41:80',
      'external-ip 192.168.99.22:80',
      'external-ip 192.168.99.11:80',
      'load-balancer 1.2.3.4:80',
      'load-balancer 5.6.7.8:80',
      'node-port :3001',
    ])
  })

  it('an address given twice appears once, and keeps its source ranges', () => {
    const port = one({
      externalIps: ['1.2.3.4', '192.168.99.22', '192.168.99.22', '172.30.0.41'],
      loadBalancerIps: ['1.2.3.4', '172.30.0.41'],
      sourceRanges: ['203.0.113.0/25'],
    })
    expect(listed(port.frontends)).toEqual([
      'cluster-ip 172.30.0.41:80',
      'external-ip 192.168.99.22:80',
      'load-balancer 1.2.3.4:80',
    ])
    expect(port.frontends[2]?.allow).toEqual(['203.0.113.0/25'])
  })

  it('C9: a range of all addresses, or ranges of the other family only, allow every source', () => {
    const ranges = (...sourceRanges: string[]) => sourceRangesOf(service({ sourceRanges }), 4)
    expect(ranges('10.0.0.0/8', '0.0.0.0/0')).toEqual([])
    expect(ranges('fd00::/8')).toEqual([])
    expect(ranges('10.0.0.0/8', '::/0')).toEqual(['10.0.0.0/8'])
    expect(ranges('10.0.0.0/8', '9.0.0.0/8', '10.0.0.0/8')).toEqual(['10.0.0.0/8', '9.0.0.0/8'])
  })

  it('J15: two ranges that together cover all addresses stay a list', () => {
    expect(sourceRangesOf(service({ sourceRanges: ['0.0.0.0/1', '128.0.0.0/1'] }), 4)).toHaveLength(2)
  })

  it('the node is allowed if one range contains its address', () => {
    const balanced = { loadBalancerIps: ['1.2.3.4'] }
    expect(one({ ...balanced, sourceRanges: ['203.0.113.0/25', '192.168.0.0/24'] }).nodeAllowed).toBe(true)
    expect(one({ ...balanced, sourceRanges: ['203.0.113.0/25'] }).nodeAllowed).toBe(false)
    expect(one(balanced).nodeAllowed).toBe(false)
  })

  it('C11: every port has the health check node port and the count', () => {
    const balanced = service({
      type: 'LoadBalancer',
      externalPolicy: 'Local',
      healthCheckNodePort: 345,
      ports: [tcp(80, 'p80'), tcp(443, 'p443')],
    })
    const slices = [slice([endpoint('10.0.1.1', 'here'), endpoint('10.0.1.2')])]
    expect(resolve(balanced, slices, view()).map(({ health }) => health)).toEqual([
      { port: 345, localEndpoints: 1 },
      { port: 345, localEndpoints: 1 },
    ])
  })

  it('C12: NodePort services and the Cluster policy have no health check', () => {
    expect(one({ type: 'NodePort', externalPolicy: 'Local', healthCheckNodePort: 345 }).health).toBeUndefined()
    expect(one({ type: 'LoadBalancer', externalPolicy: 'Cluster', healthCheckNodePort: 345 }).health).toBeUndefined()
    expect(one({ type: 'LoadBalancer', externalPolicy: 'Local', healthCheckNodePort: 0 }).health).toBeUndefined()
  })

  it('C13: externalTrafficPolicy has no effect without an external address', () => {
    const slices = [slice([endpoint('10.0.1.1', 'here'), endpoint('10.0.1.2')])]
    const plain = one({ externalPolicy: 'Local' }, slices)
    expect(plain).toMatchObject({ external: 'cluster', local: [] })
    const external = one({ externalPolicy: 'Local', externalIps: ['192.168.99.11'] }, slices)
    expect(external.external).toBe('local')
    expect(addresses(external.local)).toEqual(['10.0.1.1:80'])
  })

  it('C15: one number under two protocols is two ports', () => {
    const ports = [tcp(53, 'dns-tcp'), { name: 'dns', protocol: 'udp', port: 53, nodePort: 0 }] as const
    const slices = [slice([endpoint('10.0.1.1')], { name: 'dns', protocol: 'udp', port: 5353 })]
    const [first, second] = resolve(service({ ports }), slices, view())
    expect(first).toMatchObject({ id: 'ns1/svc1:dns-tcp/tcp', internal: 'reject', serving: [] })
    expect(second).toMatchObject({ id: 'ns1/svc1:dns/udp', name: 'ns1/svc1:dns', internal: 'cluster' })
    expect(addresses(second?.serving ?? [])).toEqual(['10.0.1.1:5353'])
  })

  it('C16: with the gate off, external IPs are not frontends but still make the service external', () => {
    const closed = view({ externalIps: false })
    const slices = [slice([endpoint('10.0.1.1', 'here'), endpoint('10.0.1.2')])]
    const port = one({ externalIps: ['192.168.99.11'], internalPolicy: 'Local' }, slices, closed)
    expect(listed(port.frontends)).toEqual(['cluster-ip 172.30.0.41:80'])
    expect(addresses(port.cluster)).toEqual(['10.0.1.1:80', '10.0.1.2:80'])
    const unexposed = one({ internalPolicy: 'Local' }, slices, closed)
    expect(unexposed.cluster).toEqual([])
  })

  it('C18, C19: the former type of a service has no effect', () => {
    const before = service({ type: 'LoadBalancer', externalPolicy: 'Local', healthCheckNodePort: 345 })
    const after = service({ ports: [tcp(81, 'renamed')] })
    resolve(before, [], view())
    expect(resolve(after, [], view()).map(({ id, health }) => [id, health])).toEqual([
      ['ns1/svc1:renamed/tcp', undefined],
    ])
  })

  it('the unnamed port has the name of its service', () => {
    expect(one({ ports: [tcp(80, '')] })).toMatchObject({ id: 'ns1/svc1/tcp', name: 'ns1/svc1', portName: '' })
  })

  it('the first of several ports with the same number, name or node port counts', () => {
    const ports = [tcp(80, 'a', 3001), tcp(80, 'b'), tcp(81, 'a'), tcp(82, 'c', 3001), tcp(83, 'd', 3002)]
    expect(resolve(service({ ports }), [], view()).map(({ portName }) => portName)).toEqual(['a', 'd'])
  })

  it('J10: affinity is in seconds', () => {
    expect(one({ affinitySeconds: 125 }).affinitySeconds).toBe(125)
  })
})

describe('dispositions', () => {
  const external = { type: 'NodePort', ports: [tcp(80, 'p80', 3001)] } as const
  const remote = [slice([endpoint('10.0.1.2')])]
  const mixed = [slice([endpoint('10.0.1.1', 'here'), endpoint('10.0.1.2')])]

  it('J1: without usable endpoints traffic is refused, whatever the policies', () => {
    for (const policy of ['Cluster', 'Local'] as const) {
      const policies = { externalPolicy: policy, internalPolicy: policy }
      expect(one({ ...external, ...policies })).toMatchObject({ internal: 'reject', external: 'reject' })
    }
    const unready = [slice([endpoint('10.0.1.1', 'here', 'unready')])]
    expect(one(external, unready)).toMatchObject({ internal: 'reject', external: 'reject' })
  })

  it('P8, P17: Local with only remote endpoints is dropped, not refused', () => {
    const both = { ...external, externalPolicy: 'Local', internalPolicy: 'Local' } as const
    expect(one(both, remote)).toMatchObject({ internal: 'drop', external: 'drop' })
    expect(addresses(one(both, remote).cluster)).toEqual(['10.0.1.2:80'])
    expect(one({ internalPolicy: 'Local' }, remote)).toMatchObject({ internal: 'drop', cluster: [], local: [] })
  })

  it('P10, P11: each direction follows its own policy', () => {
    expect(one({ ...external, internalPolicy: 'Local' }, mixed)).toMatchObject({
      internal: 'local',
      external: 'cluster',
    })
    expect(one({ ...external, externalPolicy: 'Local' }, mixed)).toMatchObject({
      internal: 'cluster',
      external: 'local',
    })
  })

  it('P16: externalTrafficPolicy Local without external frontends is treated as Cluster', () => {
    expect(one({ type: 'LoadBalancer', externalPolicy: 'Local' }, mixed)).toMatchObject({
      external: 'cluster',
      local: [],
    })
  })

  it('P20, J17: a draining endpoint still serves its own node', () => {
    const draining = [slice([endpoint('10.0.1.1', 'here', 'draining'), endpoint('10.0.1.2')])]
    const port = one({ ...external, externalPolicy: 'Local' }, draining)
    expect(addresses(port.local)).toEqual(['10.0.1.1:80'])
    expect(addresses(port.cluster)).toEqual(['10.0.1.2:80'])
  })

  it('P23: the no-local-endpoints metric counts drops, and nothing if there are no endpoints', () => {
    const both = { ...external, externalPolicy: 'Local', internalPolicy: 'Local' } as const
    const drops = (slices: readonly SliceRecord[]) => {
      const port = one(both, slices)
      return [port.internal, port.external].filter((disposition) => disposition === 'drop').length
    }
    expect(drops(remote)).toBe(2)
    expect(drops([])).toBe(0)
    expect(drops(mixed)).toBe(0)
  })
})

describe('for any service and slices', () => {
  const states: State[] = ['ready', 'draining', 'dead', 'unready']
  const hints = fc.subarray(['zone-a', 'zone-b'])
  const anyEndpoint: fc.Arbitrary<EndpointRecord> = fc
    .record({
      ip: fc.integer({ min: 1, max: 12 }),
      node: fc.constantFrom('here', 'other', ''),
      state: fc.constantFrom(...states),
      zoneHints: hints,
      nodeHints: fc.subarray(['here', 'other']),
    })
    .map(({ ip, node, state, ...rest }) => endpoint(`10.0.1.${ip}`, node, state, rest))
  const anySlices = fc
    .array(fc.tuple(fc.array(anyEndpoint, { maxLength: 8 }), fc.constantFrom(80, 8080)), { maxLength: 4 })
    .map((parts) => parts.map(([endpoints, port], i) => slice(endpoints, { key: `ns1/${i}`, port, family: 4 })))
  const policy = fc.constantFrom('Cluster' as const, 'Local' as const)
  const anyService = fc
    .record({
      type: fc.constantFrom('ClusterIP' as const, 'NodePort' as const, 'LoadBalancer' as const),
      nodePort: fc.constantFrom(0, 3001),
      externalIps: fc.subarray(['192.168.99.11', 'fd00::99']),
      loadBalancerIps: fc.subarray(['1.2.3.4']),
      externalPolicy: policy,
      internalPolicy: policy,
      healthCheckNodePort: fc.constantFrom(0, 345),
    })
    .map(({ nodePort, ...given }) => service({ ...given, ports: [tcp(80, 'p80', nodePort)] }))
  const node = frozen(view({ zone: 'zone-a' }))
  const usable = (record: EndpointRecord) => record.ready || (record.serving && record.terminating)

  function checkLists({ cluster, local }: ServicePort, slices: readonly SliceRecord[]): void {
    for (const list of [cluster, local]) {
      expect([...list].sort(compareEndpoints)).toEqual(list)
      expect(new Set(addresses(list)).size).toBe(list.length)
    }
    const here = slices
      .flatMap((one) => [...one.endpoints])
      .filter((record) => record.node === 'here' && usable(record))
    const ips = new Set(here.map(({ ip }) => ip))
    expect(local.filter(({ ip }) => !ips.has(ip))).toEqual([])
  }

  function checkDispositions({ internal, external, cluster, local, frontends }: ServicePort): void {
    for (const disposition of [internal, external]) {
      if (disposition === 'local') expect(local.length).toBeGreaterThan(0)
      if (disposition === 'drop') expect(local).toEqual([])
    }
    if (internal === 'cluster') expect(cluster.length).toBeGreaterThan(0)
    const exposed = frontends.some(({ kind }) => kind !== 'cluster-ip')
    if (exposed && external !== 'reject') expect(cluster.length).toBeGreaterThan(0)
  }

  it('lists are sorted, local endpoints are on this node, and dispositions agree with the lists', () => {
    fc.assert(
      fc.property(anyService, anySlices, (record, slices) => {
        const [port] = resolve(record, slices, node)
        if (port === undefined) throw new Error('resolve returned no port')
        checkLists(port, slices)
        checkDispositions(port)
      }),
      { numRuns: 500 },
    )
  })

  it('traffic is rejected if and only if no endpoint is usable', () => {
    fc.assert(
      fc.property(anyService, anySlices, (record, slices) => {
        const port = resolve(record, slices, node)[0]
        const all = slices.flatMap((s) => [...s.endpoints])
        if (!all.some(usable)) expect(port).toMatchObject({ internal: 'reject', external: 'reject' })
        // Duplicates may hide a usable endpoint behind an unusable one, so only distinct addresses prove the converse.
        const distinct = new Set(slices.flatMap((s) => Array.from(s.endpoints, (e) => `${e.ip}:${s.ports[0]?.port}`)))
          .size
        if (distinct === all.length && all.some(usable)) {
          expect(port?.internal).not.toBe('reject')
          expect(port?.external).not.toBe('reject')
        }
      }),
      { numRuns: 500 },
    )
  })

  it('is pure, and the order of slices does not matter', () => {
    const shuffled = anySlices.chain((slices) =>
      fc.tuple(fc.constant(slices), fc.shuffledSubarray(slices, { minLength: slices.length })),
    )
    fc.assert(
      fc.property(anyService, shuffled, (record, [slices, other]) => {
        const first = resolve(frozen(record), frozen(slices), node)
        expect(resolve(record, frozen(other), node)).toEqual(first)
        expect(resolve(record, slices, node)).toEqual(first)
      }),
      { numRuns: 300 },
    )
  })
})
