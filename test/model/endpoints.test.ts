// Checks which endpoints serve a port: conditions, duplicates, topology and draining.

import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { hostPort } from '../../src/lib/ip.ts'
import {
  candidatesOf,
  categorise,
  compareEndpoints,
  countLocalReady,
  reachableOf,
  servingOf,
  slicesOf,
  topologyOf,
} from '../../src/model/endpoints.ts'
import type { EndpointRecord, NodeView, SliceRecord } from '../../src/model/types.ts'
import { addresses, endpoint, type State, slice, view } from '../support/builders.ts'

const both = { cluster: true, local: true }
const clusterOnly = { cluster: true, local: false }
const localOnly = { cluster: false, local: true }
const here = view()

const of = (slices: readonly SliceRecord[], name = 'p80', protocol: 'tcp' | 'udp' = 'tcp', node: NodeView = here) =>
  candidatesOf(slicesOf('ns1/svc1', slices, node), name, protocol, node)

const listed = (slices: readonly SliceRecord[], name?: string, protocol?: 'tcp' | 'udp') =>
  addresses(of(slices, name, protocol).map((candidate) => candidate.endpoint))

const sorted = (endpoints: readonly EndpointRecord[], uses = both, node: NodeView = here) => {
  const result = categorise(of([slice(endpoints)], 'p80', 'tcp', node), uses, node)
  const bare = (list: readonly { ip: string }[]) => list.map(({ ip }) => ip)
  return {
    cluster: bare(result.cluster),
    local: bare(result.local),
    reachable: bare(reachableOf(result)),
    hasAny: result.hasAny,
  }
}

describe('endpoints of a port', () => {
  it('D1: two ports with three endpoints each; the node name decides which are local', () => {
    const ports = [
      { name: 'p80', protocol: 'tcp', port: 80 },
      { name: 'p443', protocol: 'tcp', port: 443 },
    ] as const
    const endpoints = [endpoint('10.0.1.1', 'here'), endpoint('10.0.1.2', 'here'), endpoint('10.0.1.3', 'other')]
    const slices = [slice(endpoints, { ports })]
    for (const { name, port } of ports) {
      const found = of(slices, name)
      expect(found.map(({ endpoint }) => [endpoint.ip, endpoint.port, endpoint.local])).toEqual([
        ['10.0.1.1', port, true],
        ['10.0.1.2', port, true],
        ['10.0.1.3', port, false],
      ])
    }
  })

  it('D2: slices are merged, and an address in two slices counts once', () => {
    const a = slice([endpoint('10.0.1.1'), endpoint('10.0.1.2')], { key: 'ns1/a' })
    const b = slice([endpoint('10.0.1.2'), endpoint('10.0.1.3')], { key: 'ns1/b' })
    expect(listed([a, b])).toEqual(['10.0.1.1:80', '10.0.1.2:80', '10.0.1.3:80'])
  })

  it('D3: one port name with two numbers keeps both', () => {
    const ips = [endpoint('10.0.1.1'), endpoint('10.0.1.2')]
    const slices = [slice(ips, { key: 'ns1/a' }), slice(ips, { key: 'ns1/b', port: 8080 })]
    expect(listed(slices)).toEqual(['10.0.1.1:80', '10.0.1.1:8080', '10.0.1.2:80', '10.0.1.2:8080'])
  })

  it('D4: a port without a number is ignored', () => {
    expect(listed([slice([endpoint('10.0.1.1')], { port: 0 })])).toEqual([])
  })

  it('D5: the unnamed port is treated as a name', () => {
    const slices = [slice([endpoint('10.0.1.1')], { name: '' })]
    expect(listed(slices, '')).toEqual(['10.0.1.1:80'])
    expect(listed(slices, 'p80')).toEqual([])
  })

  it('D6: the duplicate that is not terminating wins, in any order', () => {
    const copies = [
      endpoint('10.0.1.1', 'a', 'draining'),
      endpoint('10.0.1.1', 'b', 'ready'),
      endpoint('10.0.1.1', 'c', 'dead'),
    ]
    const orders = [
      [0, 1, 2],
      [0, 2, 1],
      [1, 0, 2],
      [1, 2, 0],
      [2, 0, 1],
      [2, 1, 0],
    ]
    for (const order of orders) {
      const records = order.map((i) => copies[i] as EndpointRecord)
      expect(of([slice(records)]).map(({ record }) => record.node)).toEqual(['b'])
      const apart = records.map((record, i) => slice([record], { key: `ns1/${i}` }))
      expect(of(apart).map(({ record }) => record.node)).toEqual(['b'])
    }
  })

  it('D6: the first of several terminating duplicates stays', () => {
    const copies = [endpoint('10.0.1.1', 'a', 'draining'), endpoint('10.0.1.1', 'b', 'dead')]
    expect(of([slice(copies)]).map(({ record }) => record.node)).toEqual(['a'])
  })

  it('D7: the slice key decides between contradicting slices, in any order', () => {
    const a = slice([endpoint('10.0.1.1', 'here', 'ready')], { key: 'ns1/a' })
    const b = slice([endpoint('10.0.1.1', 'here', 'unready')], { key: 'ns1/b' })
    for (const slices of [
      [a, b],
      [b, a],
    ]) {
      expect(of(slices).map(({ record }) => record.ready)).toEqual([false])
    }
  })

  it('D8: endpoints that are not ready are kept as candidates', () => {
    const slices = [slice([endpoint('10.0.1.1', 'a', 'unready'), endpoint('10.0.1.2', 'a', 'unready')])]
    expect(of(slices).map(({ record }) => record.ready)).toEqual([false, false])
  })

  it('D9: slices of the other family are ignored', () => {
    expect(of([slice([endpoint('fd00::1')])])).toEqual([])
    expect(of([slice([endpoint('fd00::1')])], 'p80', 'tcp', view({ family: 6 }))).toHaveLength(1)
  })

  it('D13: endpoints are ordered as strings, so .10 comes before .1', () => {
    expect(listed([slice([endpoint('10.0.1.1'), endpoint('10.0.1.10')])])).toEqual(['10.0.1.10:80', '10.0.1.1:80'])
  })

  it('D13: the order equals the bytewise order of ip:port for all addresses', () => {
    const four = fc
      .tuple(fc.constantFrom(1, 10, 100, 19), fc.constantFrom(1, 10, 11, 110))
      .map(([a, b]) => `10.0.${a}.${b}`)
    const six = fc.constantFrom(
      'fd00::1',
      'fd00::10',
      'fd00::1a',
      'fd00::',
      'fd00:1::',
      'fd00:1::1',
      'fd00::1:1',
      '::1',
    )
    const port = fc.constantFrom(80, 8, 8080, 443, 65535)
    const pair = fc.oneof(fc.tuple(four, port, four, port), fc.tuple(six, port, six, port))
    fc.assert(
      fc.property(pair, ([ipA, portA, ipB, portB]) => {
        const [a, b] = [hostPort(ipA, portA), hostPort(ipB, portB)]
        const order = compareEndpoints({ ip: ipA, port: portA, local: false }, { ip: ipB, port: portB, local: true })
        expect(Math.sign(order)).toBe(Math.sign(Buffer.compare(Buffer.from(a), Buffer.from(b))))
      }),
      { numRuns: 1000 },
    )
  })

  it('D14: slices of other services and namespaces are ignored', () => {
    const slices = [
      slice([endpoint('10.0.1.1')]),
      slice([endpoint('10.0.1.2')], { service: 'ns1/svc2' }),
      slice([endpoint('10.0.1.3')], { service: 'ns2/svc1' }),
    ]
    expect(listed(slices)).toEqual(['10.0.1.1:80'])
  })

  it('D15: the health count is the number of distinct ready local addresses of all ports', () => {
    const ports = [
      { name: 'a', protocol: 'tcp', port: 80 },
      { name: 'b', protocol: 'tcp', port: 443 },
    ] as const
    const slices = [
      slice([endpoint('10.0.1.1', 'here'), endpoint('10.0.9.9', 'other')], { key: 'ns1/1', ports }),
      slice([endpoint('10.0.1.2', 'here'), endpoint('10.0.1.3', 'here', 'draining')], { key: 'ns1/2', name: 'a' }),
    ]
    expect(countLocalReady(slices, here)).toBe(2)
    const terminating = [slice([endpoint('10.0.1.1', 'here', 'draining'), endpoint('10.0.1.2', 'here', 'dead')])]
    expect(countLocalReady(terminating, here)).toBe(0)
  })

  it('D16: with an empty node name nothing is local', () => {
    const nameless = view({ name: '' })
    const found = of([slice([endpoint('10.0.1.1', ''), endpoint('10.0.1.2', 'here')])], 'p80', 'tcp', nameless)
    expect(found.map((candidate) => candidate.endpoint.local)).toEqual([false, false])
  })

  it('D17: ports in separate slices stay separate', () => {
    const slices = [
      slice([endpoint('10.0.1.1')], { key: 'ns1/a', name: 'port80', port: 8090 }),
      slice([endpoint('10.0.1.2')], { key: 'ns1/b', name: 'port81', port: 9090 }),
    ]
    expect(listed(slices, 'port80')).toEqual(['10.0.1.1:8090'])
    expect(listed(slices, 'port81')).toEqual(['10.0.1.2:9090'])
  })

  it('J8: one port name under two protocols is two ports', () => {
    const slices = [
      slice([endpoint('10.0.1.1')], { key: 'ns1/a', name: 'dns' }),
      slice([endpoint('10.0.1.2')], { key: 'ns1/b', name: 'dns', protocol: 'udp' }),
    ]
    expect(listed(slices, 'dns', 'tcp')).toEqual(['10.0.1.1:80'])
    expect(listed(slices, 'dns', 'udp')).toEqual(['10.0.1.2:80'])
  })

  it('H: a UDP flow may stay with every endpoint that serves or is ready', () => {
    const found = of([
      slice([
        endpoint('10.0.1.1', 'a', 'ready'),
        endpoint('10.0.1.2', 'a', 'draining'),
        endpoint('10.0.1.3', 'a', 'dead'),
        endpoint('10.0.1.4', 'a', 'unready', { serving: true }),
        endpoint('10.0.1.5', 'a', 'ready', { serving: false }),
      ]),
    ])
    expect(servingOf(found).map(({ ip }) => ip)).toEqual(['10.0.1.1', '10.0.1.2', '10.0.1.4', '10.0.1.5'])
  })
})

describe('topology', () => {
  const zoned = view({ zone: 'zone-a' })
  const inZones = (ip: string, zones: string[], state: State = 'ready') =>
    endpoint(ip, 'remote', state, { zoneHints: zones })
  const mixed = [
    inZones('10.1.2.3', ['zone-a']),
    inZones('10.1.2.4', ['zone-b']),
    inZones('10.1.2.5', ['zone-c']),
    inZones('10.1.2.6', ['zone-a']),
  ]
  const all = mixed.map(({ ip }) => ip)

  it('P1: hints for our zone select exactly the endpoints with these hints', () => {
    expect(sorted(mixed, clusterOnly, zoned).cluster).toEqual(['10.1.2.3', '10.1.2.6'])
  })

  it('P2: each of several zones of a hint counts', () => {
    const many = [
      inZones('10.1.2.3', ['zone-c', 'zone-b', 'zone-a']),
      inZones('10.1.2.4', ['zone-b', 'zone-c']),
      inZones('10.1.2.5', ['zone-b', 'zone-d']),
      inZones('10.1.2.6', ['zone-c', 'zone-a']),
    ]
    expect(sorted(many, clusterOnly, zoned).cluster).toEqual(['10.1.2.3', '10.1.2.6'])
  })

  it('P3: a ready endpoint without a hint turns hints off; an unready one does not', () => {
    const missing = [...mixed.slice(0, 3), inZones('10.1.2.6', [])]
    expect(sorted(missing, clusterOnly, zoned).cluster).toEqual(all)
    const unready = [...mixed.slice(0, 3), inZones('10.1.2.6', [], 'unready')]
    expect(sorted(unready, clusterOnly, zoned).cluster).toEqual(['10.1.2.3'])
  })

  it('P4: without a hint for our zone, or without a zone, all endpoints are used', () => {
    expect(sorted(mixed, clusterOnly, view({ zone: 'zone-d' })).cluster).toEqual(all)
    expect(sorted(mixed, clusterOnly, view({ zone: '' })).cluster).toEqual(all)
    const blank = mixed.map((record) => ({ ...record, zoneHints: [''] }))
    expect(topologyOf(of([slice(blank)]), view({ zone: '' }))).toBe('anywhere')
  })

  it('P5: if the endpoints of our zone are unready, ready endpoints of other zones are used', () => {
    const elsewhere = [inZones('10.1.2.3', ['zone-a'], 'unready'), inZones('10.1.2.4', ['zone-b'])]
    expect(sorted(elsewhere, clusterOnly, zoned).cluster).toEqual(['10.1.2.4'])
  })

  it('P6: node hints win over zone hints, and must be complete as well', () => {
    const near = (ip: string, node: string, zone: string) =>
      endpoint(ip, node, 'ready', { nodeHints: [node], zoneHints: [zone] })
    const complete = [
      near('10.1.2.3', 'here', 'zone-a'),
      near('10.1.2.4', 'other', 'zone-a'),
      near('10.1.2.5', 'x', 'zone-b'),
    ]
    expect(sorted(complete, clusterOnly, zoned).cluster).toEqual(['10.1.2.3'])
    expect(sorted(complete.slice(1), clusterOnly, zoned).cluster).toEqual(['10.1.2.4'])
    const partial = [...complete, endpoint('10.1.2.6')]
    expect(sorted(partial, clusterOnly, zoned).cluster).toHaveLength(4)
    const zonesOnly = [...complete, endpoint('10.1.2.6', 'y', 'ready', { zoneHints: ['zone-a'] })]
    expect(sorted(zonesOnly, clusterOnly, zoned).cluster).toEqual(['10.1.2.3', '10.1.2.4', '10.1.2.6'])
  })

  it('P7: the local list ignores hints, and both lists are reachable', () => {
    const records = [inZones('10.1.2.3', ['zone-a']), { ...inZones('10.1.2.4', ['zone-b']), node: 'here' }]
    expect(sorted(records, both, zoned)).toEqual({
      cluster: ['10.1.2.3'],
      local: ['10.1.2.4'],
      reachable: ['10.1.2.3', '10.1.2.4'],
      hasAny: true,
    })
  })

  it('the fallback to draining endpoints ignores hints', () => {
    const records = [inZones('10.1.2.3', ['zone-a'], 'draining'), inZones('10.1.2.4', ['zone-b'], 'draining')]
    expect(sorted(records, clusterOnly, zoned).cluster).toEqual(['10.1.2.3', '10.1.2.4'])
  })
})

describe('policies and draining endpoints', () => {
  it('P8: Local without endpoints has none; with only remote endpoints, hasAny is true', () => {
    expect(sorted([], localOnly)).toEqual({ cluster: [], local: [], reachable: [], hasAny: false })
    expect(sorted([endpoint('10.0.0.1')], localOnly)).toEqual({ cluster: [], local: [], reachable: [], hasAny: true })
    expect(sorted([endpoint('10.0.0.1', 'other', 'draining')], localOnly).hasAny).toBe(true)
  })

  it('P9: the cluster list is empty if no policy needs it', () => {
    const records = [endpoint('10.0.0.0', 'here'), endpoint('10.0.0.1')]
    expect(sorted(records, localOnly)).toMatchObject({ cluster: [], local: ['10.0.0.0'], reachable: ['10.0.0.0'] })
  })

  it('P10: both lists are filled if one policy is Local and the other is Cluster', () => {
    const records = [endpoint('10.0.0.0', 'here'), endpoint('10.0.0.1')]
    expect(sorted(records)).toEqual({
      cluster: ['10.0.0.0', '10.0.0.1'],
      local: ['10.0.0.0'],
      reachable: ['10.0.0.0', '10.0.0.1'],
      hasAny: true,
    })
  })

  it('P11: both policies are Local and all endpoints are remote', () => {
    const records = [endpoint('10.0.0.0'), endpoint('10.0.0.1')]
    expect(sorted(records)).toMatchObject({ cluster: ['10.0.0.0', '10.0.0.1'], local: [], hasAny: true })
  })

  it('P12: if all endpoints are draining, all are used', () => {
    const records = [endpoint('10.0.0.0', 'here', 'draining'), endpoint('10.0.0.1', 'x', 'draining')]
    expect(sorted(records, clusterOnly).cluster).toEqual(['10.0.0.0', '10.0.0.1'])
  })

  it('P13: the local list falls back to draining endpoints even if a remote endpoint is ready', () => {
    const records = [
      endpoint('10.0.0.0', 'other', 'ready'),
      endpoint('10.0.0.1', 'here', 'unready'),
      endpoint('10.0.0.2', 'here', 'draining'),
      endpoint('10.0.0.3', 'other', 'draining'),
    ]
    expect(sorted(records)).toEqual({
      cluster: ['10.0.0.0'],
      local: ['10.0.0.2'],
      reachable: ['10.0.0.0', '10.0.0.2'],
      hasAny: true,
    })
  })

  it('P14: draining endpoints are not used if one endpoint is ready', () => {
    const records = [endpoint('10.0.0.0'), endpoint('10.0.0.1', 'x', 'draining'), endpoint('10.0.0.2', 'x', 'draining')]
    expect(sorted(records, clusterOnly).cluster).toEqual(['10.0.0.0'])
  })

  it('P15: an endpoint that is neither ready nor draining is never used', () => {
    const records = [
      endpoint('10.0.0.0', 'here', 'unready'),
      endpoint('10.0.0.1', 'here', 'unready', { serving: true }),
      endpoint('10.0.0.2', 'here', 'dead'),
    ]
    expect(sorted(records)).toEqual({ cluster: [], local: [], reachable: [], hasAny: false })
  })

  it('J11: a ready endpoint counts even if it terminates (publishNotReadyAddresses)', () => {
    const records = [endpoint('10.0.0.0', 'here', 'dead', { ready: true }), endpoint('10.0.0.1', 'x', 'draining')]
    expect(sorted(records)).toMatchObject({ cluster: ['10.0.0.0'], local: ['10.0.0.0'] })
  })
})
