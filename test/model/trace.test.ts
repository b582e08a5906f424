// Checks `trace` against rows of the packet-flow table, in two modes. The scenario corpus has the whole table.

import { describe, expect, it } from 'vitest'
import { findMode } from '../../src/backend/modes.ts'
import type { ModeBehaviour } from '../../src/model/mode-behaviour.ts'
import type { Outcome, Packet, TraceContext } from '../../src/model/packet.ts'
import { trace } from '../../src/model/trace.ts'
import type { NodeView, Protocol, ServiceRecord, SliceRecord } from '../../src/model/types.ts'
import { endpoint, everyAddress, service, slice, tcp, view } from '../support/builders.ts'
import { resolve } from '../support/resolve.ts'

const nftables = findMode('nftables').behaviour({ localhostNodePorts: true })
const iptables = findMode('iptables').behaviour({ localhostNodePorts: true })
const iptablesWithoutLocalhost = findMode('iptables').behaviour({ localhostNodePorts: false })

const nodeAddresses = ['192.168.0.2', '192.168.1.2', '192.168.99.11']
type Objects = readonly (readonly [ServiceRecord, readonly SliceRecord[]])[]

const contextOf = (objects: Objects, node: NodeView): TraceContext => {
  return { ports: objects.flatMap(([record, slices]) => resolve(record, slices, node)), node, nodeAddresses }
}

function packet(from: string, to: string, protocol: Protocol = 'tcp'): Packet {
  const [ip = '', port = ''] = to.split(':')
  return { from, to: ip, port: Number(port), protocol, origin: originOf(from) }
}

function originOf(from: string): Packet['origin'] {
  if (from.startsWith('10.')) return 'pod'
  return from.startsWith('203.') ? 'outside' : 'node'
}

/** `10.0.0.1:80 10.0.0.2:80 snat`, `REJECT`, `DROP`, `PASS`: the notation of the table. */
function summary(outcome: Outcome): string {
  if (outcome.verdict !== 'forward') return outcome.verdict.toUpperCase()
  const sources = new Set(outcome.endpoints.map(({ snat }) => snat))
  expect(sources.size).toBe(1)
  return `${outcome.endpoints.map(({ address }) => address).join(' ')}${sources.has(true) ? ' snat' : ''}`
}

/** id, source, destination, result in nftables, result in iptables if it differs (`-`: not applicable). */
type Row = readonly [string, string, string, string, string?]

function rows(name: string, objects: Objects, table: readonly Row[], node: Partial<NodeView> = {}) {
  const behaviours: readonly (readonly [ModeBehaviour, NodeView])[] = [
    [nftables, view(node)],
    [iptables, view({ nodePorts: everyAddress, ...node })],
  ]
  describe(name, () => {
    for (const [behaviour, seen] of behaviours) {
      const column = table.map(
        ([id, from, to, nft, ipt = nft]) => [id, from, to, behaviour === nftables ? nft : ipt] as const,
      )
      const applicable = column.filter(([, , , expected]) => expected !== '-')
      it.each(applicable)(`%s (${behaviour.name}): %s to %s`, (_, from, target, expected) => {
        const [to = '', protocol = 'tcp'] = target.split('/')
        const outcome = trace(contextOf(objects, seen), packet(from, to, protocol as Protocol), behaviour)
        expect(summary(outcome)).toBe(expected)
        expect(outcome.steps.length).toBeGreaterThan(0)
      })
    }
  })
}

const balancer = (given: Partial<ServiceRecord>): ServiceRecord =>
  service({ type: 'LoadBalancer', ports: [tcp(80, 'p80', 3001)], loadBalancerIps: ['1.2.3.4'], ...given })

const silent = balancer({ externalIps: ['192.168.99.11'] })
rows(
  'S1: no endpoints at all',
  [[silent, []]],
  [
    ['F1', '10.0.0.2', '172.30.0.41:80', 'REJECT'],
    ['F2', '203.0.113.2', '192.168.99.11:80', 'REJECT'],
    ['F3', '10.0.0.2', '192.168.0.2:3001', 'REJECT'],
    ['F4', '203.0.113.2', '192.168.0.2:3001', 'REJECT'],
    ['F5', '10.0.0.2', '1.2.3.4:80', 'REJECT'],
    ['F6', '203.0.113.2', '1.2.3.4:80', 'REJECT'],
    ['F7', '192.168.0.2', '172.30.0.41:80', 'REJECT'],
    ['F8', '192.168.0.2', '1.2.3.4:80', 'REJECT', 'PASS'],
    ['node -> own external IP', '192.168.0.2', '192.168.99.11:80', 'REJECT'],
  ],
)

const two = service({
  key: 'ns2/svc2',
  clusterIps: ['172.30.0.42'],
  ports: [
    tcp(80, 'http'),
    tcp(443, 'https'),
    tcp(53, 'dns-tcp'),
    { name: 'dns', protocol: 'udp', port: 53, nodePort: 0 },
    { name: 'dns-sctp', protocol: 'sctp', port: 53, nodePort: 0 },
  ],
})
const pair = slice([endpoint('10.180.0.1', 'here'), endpoint('10.180.2.1')], {
  key: 'ns2/svc2-a',
  service: 'ns2/svc2',
  ports: [
    { name: 'http', protocol: 'tcp', port: 80 },
    { name: 'https', protocol: 'tcp', port: 8443 },
    { name: 'dns-tcp', protocol: 'tcp', port: 5353 },
    { name: 'dns', protocol: 'udp', port: 53 },
    { name: 'dns-sctp', protocol: 'sctp', port: 53 },
  ],
})
const basics: Objects = [
  [service(), [slice([endpoint('10.180.0.1', 'here')])]],
  [two, [pair]],
]
rows('S2: cluster IP basics', basics, [
  ['F9', '10.180.0.2', '172.30.0.41:80', '10.180.0.1:80'],
  ['F10', '10.180.0.1', '172.30.0.41:80', '10.180.0.1:80 snat'],
  ['F11', '10.180.0.2', '172.30.0.42:80', '10.180.0.1:80 10.180.2.1:80'],
  ['F12', '10.180.0.2', '172.30.0.42:443', '10.180.0.1:8443 10.180.2.1:8443'],
  ['F13', '10.180.0.2', '172.30.0.42:53', '10.180.0.1:5353 10.180.2.1:5353'],
  ['F14', '10.180.0.2', '172.30.0.42:53/udp', '10.180.0.1:53 10.180.2.1:53'],
  ['F15', '10.180.0.2', '172.30.0.42:53/sctp', '10.180.0.1:53 10.180.2.1:53'],
  ['F16', '10.180.0.2', '172.30.0.42:80/udp', 'REJECT', 'PASS'],
  ['F17', '10.180.0.2', '172.30.0.41:443', 'REJECT', 'PASS'],
  ['F18', '10.180.0.2', '172.30.0.50:80', 'DROP', 'PASS'],
])

const fenced = balancer({
  loadBalancerIps: ['1.2.3.4', '5.6.7.8'],
  sourceRanges: ['192.168.0.0/24', '203.0.113.0/25'],
})
const single = [slice([endpoint('10.180.0.1')])]
rows(
  'S3: source ranges',
  [[fenced, single]],
  [
    ['F19', '10.0.0.2', '172.30.0.41:80', '10.180.0.1:80'],
    ['F20', '203.0.113.2', '192.168.0.2:3001', '10.180.0.1:80 snat'],
    ['F21', '203.0.113.130', '192.168.0.2:3001', '10.180.0.1:80 snat'],
    ['F22', '203.0.113.2', '1.2.3.4:80', '10.180.0.1:80 snat'],
    ['F23', '203.0.113.2', '5.6.7.8:80', '10.180.0.1:80 snat'],
    ['F24', '203.0.113.130', '1.2.3.4:80', 'DROP'],
    ['F25', '203.0.113.130', '5.6.7.8:80', 'DROP'],
    ['F26', '10.0.0.2', '1.2.3.4:80', 'DROP'],
    ['F27', '10.0.0.2', '5.6.7.8:80', 'DROP'],
    ['F28', '192.168.0.2', '1.2.3.4:80', '10.180.0.1:80 snat'],
    ['F29', '192.168.0.2', '5.6.7.8:80', '10.180.0.1:80 snat'],
    ['F30', '1.2.3.4', '1.2.3.4:80', '10.180.0.1:80 snat'],
    ['F31', '5.6.7.8', '5.6.7.8:80', '10.180.0.1:80 snat'],
  ],
)
rows(
  'S12: source ranges without endpoints',
  [[fenced, []]],
  [
    ['blocked', '203.0.113.130', '1.2.3.4:80', 'DROP', 'REJECT'],
    ['allowed', '203.0.113.2', '1.2.3.4:80', 'REJECT'],
  ],
)

const nodePort: Objects = [
  [
    service({ type: 'NodePort', ports: [tcp(80, 'p80', 3001)] }),
    [slice([endpoint('10.180.0.1', 'here'), endpoint('10.180.2.1')])],
  ],
]
const both = '10.180.0.1:80 10.180.2.1:80'
rows('S4a, S4e: node ports, each mode as it is by default', nodePort, [
  ['F32/F52', '10.0.0.2', '172.30.0.41:80', both],
  ['F33/F53', '203.0.113.2', '192.168.0.2:3001', `${both} snat`],
  ['F34/F54', '192.168.0.2', '192.168.0.2:3001', `${both} snat`],
  ['F35/F55', '127.0.0.1', '127.0.0.1:3001', 'PASS', `${both} snat`],
  ['F36/F56', '203.0.113.2', '192.168.1.2:3001', 'PASS', `${both} snat`],
])
const twoNetworks = ['192.168.0.2', '192.168.1.2']
rows(
  'S4d: node ports in two networks',
  nodePort,
  [
    ['F47', '10.0.0.2', '172.30.0.41:80', both],
    ['F48', '203.0.113.2', '192.168.0.2:3001', `${both} snat`],
    ['F50', '127.0.0.1', '127.0.0.1:3001', 'PASS'],
    ['F51', '203.0.113.2', '192.168.1.2:3001', `${both} snat`],
  ],
  { nodePorts: { all: false, addresses: twoNetworks, loopback: false, loopbackNamed: false } },
)
rows(
  'S4f: node ports everywhere',
  nodePort,
  [
    ['F58', '203.0.113.2', '192.168.0.2:3001', `${both} snat`, '-'],
    ['F60', '127.0.0.1', '127.0.0.1:3001', 'PASS', '-'],
    ['F61', '203.0.113.2', '192.168.1.2:3001', `${both} snat`, '-'],
  ],
  { nodePorts: everyAddress },
)
describe('S4b, S4c: iptables with localhostNodePorts off', () => {
  const named = { all: false, addresses: ['127.0.0.1', '192.168.0.2'], loopback: true, loopbackNamed: true }
  it.each([
    ['F40', everyAddress, '127.0.0.1', '127.0.0.1:3001', 'PASS'],
    ['F41', everyAddress, '203.0.113.2', '192.168.1.2:3001', `${both} snat`],
    ['F43', named, '203.0.113.2', '192.168.0.2:3001', `${both} snat`],
    ['F45', named, '127.0.0.1', '127.0.0.1:3001', 'PASS'],
    ['F46', named, '203.0.113.2', '192.168.1.2:3001', 'PASS'],
  ])('%s', (...[, nodePorts, from, to, expected]) => {
    const context = contextOf(nodePort, view({ nodePorts }))
    expect(summary(trace(context, packet(from, to), iptablesWithoutLocalhost))).toBe(expected)
  })

  it('serves loopback where nodePortAddresses names it, in both modes', () => {
    const context = contextOf(nodePort, view({ nodePorts: named }))
    const local = packet('127.0.0.1', '127.0.0.1:3001')
    expect(summary(trace(context, local, nftables))).toBe(`${both} snat`)
    expect(summary(trace(context, local, iptables))).toBe(`${both} snat`)
    expect(summary(trace(context, packet('127.0.0.1', '127.0.0.2:3001'), nftables))).toBe('PASS')
  })
})

const near = balancer({ externalIps: ['192.168.99.11'], externalPolicy: 'Local' })
const mixed = [slice([endpoint('10.180.0.1', 'here'), endpoint('10.180.2.1')])]
rows(
  'S5: externalTrafficPolicy Local',
  [[near, mixed]],
  [
    ['F62', '10.0.0.2', '172.30.0.41:80', both],
    ['F63', '10.0.0.2', '192.168.99.11:80', both],
    ['F64', '203.0.113.2', '192.168.99.11:80', '10.180.0.1:80'],
    ['F65', '10.0.0.2', '1.2.3.4:80', both],
    ['F66', '203.0.113.2', '1.2.3.4:80', '10.180.0.1:80'],
    ['F67', '10.0.0.2', '192.168.0.2:3001', both],
    ['F68', '203.0.113.2', '192.168.0.2:3001', '10.180.0.1:80'],
  ],
)
rows(
  'S11: externalTrafficPolicy Local without local endpoints',
  [[near, [slice([endpoint('10.180.2.1')])]]],
  [
    ['pod is short-circuited', '10.0.0.2', '1.2.3.4:80', '10.180.2.1:80'],
    ['node is short-circuited', '192.168.0.2', '1.2.3.4:80', '10.180.2.1:80 snat'],
    ['outside is dropped', '203.0.113.2', '1.2.3.4:80', 'DROP'],
    ['node port from outside is dropped', '203.0.113.2', '192.168.0.2:3001', 'DROP'],
    ['on an address without node ports', '203.0.113.2', '192.168.1.2:3001', 'PASS', 'DROP'],
  ],
)

const restricted = { nodePorts: { all: false, addresses: ['192.168.0.2'], loopback: false, loopbackNamed: false } }
rows(
  'node ports that cannot be served, on addresses that serve none: only iptables answers there',
  [
    [near, [slice([endpoint('10.180.2.1')])]],
    [service({ key: 'ns2/svc2', clusterIps: ['172.30.0.42'], ports: [tcp(80, 'p80', 3002)] }), []],
  ],
  [
    ['no local endpoints', '203.0.113.2', '192.168.1.2:3001', 'PASS', 'DROP'],
    ['no endpoints', '203.0.113.2', '192.168.1.2:3002', 'PASS', 'REJECT'],
    ['no endpoints, on loopback', '127.0.0.1', '127.0.0.1:3002', 'PASS', 'REJECT'],
    ['no endpoints, where node ports are served', '203.0.113.2', '192.168.0.2:3002', 'REJECT'],
  ],
  restricted,
)

const three: Objects = [1, 2, 3].map((i) => {
  const lb = ['1.2.3.4', '5.6.7.8', '9.10.11.12'][i - 1] as string
  const record = balancer({
    key: `ns${i}/svc${i}`,
    clusterIps: [`172.30.0.4${i}`],
    ports: [tcp(80, 'p80', 3000 + i)],
    loadBalancerIps: [lb],
    externalPolicy: i === 2 ? 'Local' : 'Cluster',
    internalPolicy: i === 3 ? 'Local' : 'Cluster',
  })
  const endpoints = [endpoint(`10.180.0.${i}`, 'here'), endpoint(`10.180.1.${i}`)]
  return [record, [slice(endpoints, { key: `ns${i}/svc${i}-a`, service: `ns${i}/svc${i}` })]]
})
const all = (i: number) => `10.180.0.${i}:80 10.180.1.${i}:80`
rows('S10a: three policies side by side', three, [
  ['F97', '10.0.0.2', '172.30.0.41:80', all(1)],
  ['F98', '10.0.0.2', '192.168.0.2:3001', `${all(1)} snat`],
  ['F99', '10.0.0.2', '1.2.3.4:80', `${all(1)} snat`],
  ['F100', '192.168.0.2', '172.30.0.41:80', `${all(1)} snat`],
  ['F101', '192.168.0.2', '192.168.0.2:3001', `${all(1)} snat`],
  ['F102', '127.0.0.1', '127.0.0.1:3001', 'PASS', `${all(1)} snat`],
  ['F103', '192.168.0.2', '1.2.3.4:80', `${all(1)} snat`],
  ['F104', '203.0.113.2', '172.30.0.41:80', `${all(1)} snat`],
  ['F105', '203.0.113.2', '192.168.0.2:3001', `${all(1)} snat`],
  ['F106', '203.0.113.2', '1.2.3.4:80', `${all(1)} snat`],
  ['F107', '10.0.0.2', '172.30.0.42:80', all(2)],
  ['F108', '10.0.0.2', '192.168.0.2:3002', all(2)],
  ['F109', '10.0.0.2', '5.6.7.8:80', all(2)],
  ['F110', '192.168.0.2', '172.30.0.42:80', `${all(2)} snat`],
  ['F111', '192.168.0.2', '192.168.0.2:3002', `${all(2)} snat`],
  ['F112', '127.0.0.1', '127.0.0.1:3002', 'PASS', `${all(2)} snat`],
  ['F113', '192.168.0.2', '5.6.7.8:80', `${all(2)} snat`],
  ['F114', '203.0.113.2', '172.30.0.42:80', `${all(2)} snat`],
  ['F115', '203.0.113.2', '192.168.0.2:3002', '10.180.0.2:80'],
  ['F116', '203.0.113.2', '5.6.7.8:80', '10.180.0.2:80'],
  ['F117', '10.0.0.2', '172.30.0.43:80', '10.180.0.3:80'],
  ['F118', '10.0.0.2', '192.168.0.2:3003', `${all(3)} snat`],
  ['F119', '10.0.0.2', '9.10.11.12:80', `${all(3)} snat`],
  ['F120', '192.168.0.2', '172.30.0.43:80', '10.180.0.3:80 snat'],
  ['F121', '192.168.0.2', '192.168.0.2:3003', `${all(3)} snat`],
  ['F122', '127.0.0.1', '127.0.0.1:3003', 'PASS', `${all(3)} snat`],
  ['F123', '192.168.0.2', '9.10.11.12:80', `${all(3)} snat`],
  ['F124', '203.0.113.2', '172.30.0.43:80', '10.180.0.3:80 snat'],
  ['F125', '203.0.113.2', '192.168.0.2:3003', `${all(3)} snat`],
  ['F126', '203.0.113.2', '9.10.11.12:80', `${all(3)} snat`],
])
rows(
  'S10b: masqueradeAll',
  three,
  [
    ['pod -> ClusterIP', '10.0.0.2', '172.30.0.41:80', `${all(1)} snat`],
    ['pod -> LB, short-circuited', '10.0.0.2', '5.6.7.8:80', all(2)],
  ],
  { masqueradeAll: true },
)
rows(
  'S10c: no local detector',
  three,
  [
    ['external -> ClusterIP', '203.0.113.2', '172.30.0.41:80', all(1)],
    ['pod -> LB is not short-circuited', '10.0.0.2', '5.6.7.8:80', '10.180.0.2:80'],
    ['node -> LB still is', '192.168.0.2', '5.6.7.8:80', `${all(2)} snat`],
  ],
  { local: undefined },
)

describe('detection of local pods', () => {
  const to = packet('10.0.0.2', '172.30.0.41:80')
  const masquerades = (local: NodeView['local'], given: Partial<Packet>) => {
    const outcome = trace(contextOf(basics, view({ local })), { ...to, ...given }, nftables)
    return outcome.verdict === 'forward' && outcome.masquerade
  }

  it('goes by interface, and the node itself is never a pod', () => {
    const bridge = { kind: 'interface', name: 'cni0' } as const
    expect(masquerades(bridge, { inInterface: 'cni0' })).toBe(false)
    expect(masquerades(bridge, { inInterface: 'cni01' })).toBe(true)
    expect(masquerades(bridge, { origin: 'node' })).toBe(true)
    expect(masquerades(bridge, { origin: 'pod' })).toBe(false)
    expect(masquerades(bridge, { origin: 'outside' })).toBe(true)
  })

  it('goes by the prefix of the interface', () => {
    const veth = { kind: 'prefix', prefix: 'veth' } as const
    expect(masquerades(veth, { inInterface: 'veth1234' })).toBe(false)
    expect(masquerades(veth, { inInterface: 'eth0' })).toBe(true)
  })
})

describe('details', () => {
  it('J3: hairpin is decided per endpoint; only iptables mode rewrites the source for remote endpoints', () => {
    const context = contextOf(basics, view())
    const chosen = (from: string, behaviour: ModeBehaviour) => {
      const outcome = trace(context, packet(from, '172.30.0.42:80'), behaviour)
      return outcome.verdict === 'forward' ? outcome.endpoints.map(({ snat }) => snat) : undefined
    }
    expect(chosen('10.180.0.1', nftables)).toEqual([true, false])
    expect(chosen('10.180.2.1', nftables)).toEqual([false, false])
    expect(chosen('10.180.2.1', iptables)).toEqual([false, true])
  })

  it('J15: load balancer IPs as sources are allowed only if the node is in a range', () => {
    const fencedOff = balancer({ sourceRanges: ['203.0.113.0/25'] })
    expect(summary(trace(contextOf([[fencedOff, single]], view()), packet('1.2.3.4', '1.2.3.4:80'), nftables))).toBe(
      'DROP',
    )
  })

  it('explains each decision and names the service', () => {
    const outcome = trace(contextOf([[fenced, single]], view()), packet('203.0.113.130', '1.2.3.4:80'), nftables)
    expect(outcome).toMatchObject({ verdict: 'drop', reason: 'source-range', port: { name: 'ns1/svc1:p80' } })
    expect(outcome.steps).toEqual([
      'A packet from 203.0.113.130 to 1.2.3.4:80/tcp is for load balancer IP 1.2.3.4 of ns1/svc1:p80.',
      '203.0.113.130 is in none of the source ranges 192.168.0.0/24, 203.0.113.0/25: dropped.',
    ])
  })

  it('gives a reason for every packet it does not forward', () => {
    const context = contextOf(basics, view())
    const reason = (from: string, to: string) => {
      const outcome = trace(context, packet(from, to), nftables)
      return outcome.verdict === 'forward' ? undefined : outcome.reason
    }
    expect(reason('10.0.0.2', '172.30.0.41:81')).toBe('unused-port')
    expect(reason('10.0.0.2', '172.30.9.9:80')).toBe('unallocated')
    expect(reason('10.0.0.2', '8.8.8.8:80')).toBe('no-service')
    expect(reason('10.0.0.2', '192.168.0.2:22')).toBe('no-service')
    expect(trace(context, { ...packet('10.0.0.2', '1.1.1.1:80'), to: 'fd00::1' }, nftables)).toMatchObject({
      reason: 'other-family',
    })
  })

  it('leaves health check node ports to the proxy itself', () => {
    const checked = balancer({ externalPolicy: 'Local', healthCheckNodePort: 30_000 })
    const outcome = trace(contextOf([[checked, mixed]], view()), packet('203.0.113.2', '192.168.0.2:30000'), nftables)
    expect(outcome).toMatchObject({ verdict: 'pass', reason: 'health-check', port: { service: 'ns1/svc1' } })
  })

  it('J10: reports how long a client keeps its endpoint', () => {
    const sticky = contextOf([[service({ affinitySeconds: 10_800 }), single]], view())
    expect(trace(sticky, packet('10.0.0.2', '172.30.0.41:80'), nftables)).toMatchObject({ affinity: 10_800 })
  })

  it('an exact address wins over a node port of the same number', () => {
    const exact = service({
      key: 'ns9/exact',
      clusterIps: ['172.30.0.49'],
      externalIps: ['192.168.0.2'],
      ports: [tcp(3001)],
    })
    const slices = [slice([endpoint('10.180.9.9')], { key: 'ns9/e', service: 'ns9/exact' })]
    const context = contextOf([...nodePort, [exact, slices]], view())
    expect(summary(trace(context, packet('203.0.113.2', '192.168.0.2:3001'), nftables))).toBe('10.180.9.9:80 snat')
  })

  it('IPv6: loopback serves node ports if nodePortAddresses names it', () => {
    const six = view({
      family: 6,
      ip: 'fd00::2',
      local: { kind: 'cidr', cidr: 'fd00:10::/64' },
      serviceCidrs: [],
      nodePorts: { all: false, addresses: ['::1', 'fd00::2'], loopback: true, loopbackNamed: true },
    })
    const record = service({ type: 'NodePort', clusterIps: ['fd00:172::41'], ports: [tcp(80, 'p80', 3001)] })
    const ports = resolve(record, [slice([endpoint('fd00:10::1', 'here'), endpoint('fd00:10:2::1')])], six)
    const context: TraceContext = { ports, node: six, nodeAddresses: ['fd00::2', 'fd00::3'] }
    const from6 = (to: string, port: number, from = '2001:db8::1') =>
      summary(trace(context, { from, to, port, protocol: 'tcp', origin: 'outside' }, nftables))
    expect(from6('fd00::2', 3001)).toBe('[fd00:10:2::1]:80 [fd00:10::1]:80 snat')
    expect(from6('fd00::3', 3001)).toBe('PASS')
    expect(from6('::1', 3001, '::1')).toBe('[fd00:10:2::1]:80 [fd00:10::1]:80 snat')
    const unnamed = { ...six, nodePorts: { ...six.nodePorts, loopbackNamed: false } }
    const local: Packet = { from: '::1', to: '::1', port: 3001, protocol: 'tcp', origin: 'node' }
    expect(summary(trace({ ...context, node: unnamed }, local, nftables))).toBe('PASS')
    expect(from6('fd00:172::41', 80, 'fd00:10::99')).toBe('[fd00:10:2::1]:80 [fd00:10::1]:80')
    expect(from6('fd00:172::41', 81)).toBe('REJECT')
  })
})
