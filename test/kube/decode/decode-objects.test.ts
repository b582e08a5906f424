import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { decodeEndpointSlice } from '../../../src/kube/decode/decode-endpoint-slice.ts'
import { decodeNode, decodeNodeCapacity, decodeServiceCidr } from '../../../src/kube/decode/decode-node.ts'
import { decodeService } from '../../../src/kube/decode/decode-service.ts'

const serviceNameLabel = 'kubernetes.io/service-name'

type Fields = Record<string, unknown>

const service = (spec: Fields, more: Fields = {}) => ({
  metadata: {
    namespace: 'ns',
    name: 'web',
    uid: 'u1',
    creationTimestamp: '2026-01-02T03:04:05Z',
    ...(more.metadata as Fields),
  },
  spec: { clusterIP: '10.0.0.1', clusterIPs: ['10.0.0.1'], ipFamilies: ['IPv4'], ports: [{ port: 80 }], ...spec },
  status: more.status ?? {},
})

const slice = (fields: Fields, metadata: Fields = {}) => ({
  metadata: {
    namespace: 'ns',
    name: 'web-abc',
    uid: 'u2',
    labels: { [serviceNameLabel]: 'web' },
    ...metadata,
  },
  addressType: 'IPv4',
  ports: [{ name: 'http', port: 8080 }],
  endpoints: [{ addresses: ['10.1.0.1'] }],
  ...fields,
})

const record = (json: unknown) => {
  const decoded = decodeService(json)
  expect(decoded.problems).toEqual([])
  return decoded.record!
}

const complaints = (decoded: { problems: readonly { field: string; message: string }[] }) =>
  decoded.problems.map((problem) => problem.field)

describe('services', () => {
  it('keeps what the model needs', () => {
    const json = service({
      type: 'LoadBalancer',
      ports: [{ name: 'http', protocol: 'TCP', port: 80, nodePort: 30080, targetPort: 'x' }],
      externalIPs: ['1.2.3.4'],
      externalTrafficPolicy: 'Local',
      internalTrafficPolicy: 'Local',
      healthCheckNodePort: 31000,
      sessionAffinity: 'ClientIP',
    })
    expect(record(json)).toEqual({
      key: 'ns/web',
      uid: 'u1',
      created: Date.UTC(2026, 0, 2, 3, 4, 5),
      type: 'LoadBalancer',
      clusterIps: ['10.0.0.1'],
      ports: [{ name: 'http', protocol: 'tcp', port: 80, nodePort: 30080 }],
      externalIps: ['1.2.3.4'],
      loadBalancerIps: [],
      sourceRanges: [],
      externalPolicy: 'Local',
      internalPolicy: 'Local',
      affinitySeconds: 10800,
      healthCheckNodePort: 31000,
    })
  })

  it.each(['TCP', 'UDP', 'SCTP'])('C1: a headless service gives no record and no problem (%s)', (protocol) => {
    for (const clusterIP of ['None', '', undefined]) {
      const decoded = decodeService(service({ clusterIP, ports: [{ port: 80, protocol }] }))
      expect(decoded).toEqual({ key: 'ns/web', record: undefined, problems: [] })
    }
  })

  it('C2: ExternalName gives no record even with a cluster IP', () => {
    expect(decodeService(service({ type: 'ExternalName' }))).toEqual({ key: 'ns/web', record: undefined, problems: [] })
  })

  it('C3: keeps node ports whatever the type', () => {
    const ports = [
      { name: 'a', port: 80, nodePort: 30001 },
      { name: 'b', port: 81, nodePort: 30002 },
    ]
    expect(record(service({ ports })).ports.map((port) => port.nodePort)).toEqual([30001, 30002])
  })

  it('C4: an old object without ipFamilies has the one address of clusterIP', () => {
    const spec = { clusterIP: 'FD00::1', clusterIPs: undefined, ipFamilies: undefined }
    expect(record(service(spec)).clusterIps).toEqual(['fd00::1'])
  })

  it('C5: reads the addresses in the order of ipFamilies', () => {
    const spec = { ipFamilies: ['IPv6', 'IPv4'], clusterIP: 'fd00::1', clusterIPs: ['fd00::1', '10.0.0.1'] }
    expect(record(service(spec)).clusterIps).toEqual(['fd00::1', '10.0.0.1'])
  })

  it('C6: a family without an address is not served', () => {
    expect(record(service({ ipFamilies: ['IPv4', 'IPv6'] })).clusterIps).toEqual(['10.0.0.1'])
  })

  it('C7: keeps addresses and ranges of both families, which the model divides', () => {
    const status = { loadBalancer: { ingress: [{ ip: '4.4.4.4' }, { ip: '2001:db8::4' }] } }
    const spec = { externalIPs: ['5.5.5.5', '2001:DB8::5'], loadBalancerSourceRanges: ['10.0.0.0/8', 'fd00::/8'] }
    const got = record(service(spec, { status }))
    expect(got.externalIps).toEqual(['5.5.5.5', '2001:db8::5'])
    expect(got.loadBalancerIps).toEqual(['4.4.4.4', '2001:db8::4'])
    expect(got.sourceRanges).toEqual(['10.0.0.0/8', 'fd00::/8'])
  })

  it('C8: a source range may have blanks around it', () => {
    expect(record(service({ loadBalancerSourceRanges: [' 10.1.2.0/28', '10.9.0.0/16 ', ' '] })).sourceRanges).toEqual([
      '10.1.2.0/28',
      '10.9.0.0/16',
    ])
  })

  it('C9: keeps a range of all addresses, which the model interprets', () => {
    expect(record(service({ loadBalancerSourceRanges: ['10.0.0.0/8', '0.0.0.0/0'] })).sourceRanges).toEqual([
      '10.0.0.0/8',
      '0.0.0.0/0',
    ])
  })

  it('C10: only ingress addresses in VIP mode count', () => {
    const ingress = [
      { ip: '1.1.1.1', ipMode: 'VIP' },
      { ip: '2.2.2.2' },
      { ip: '3.3.3.3', ipMode: 'Proxy' },
      { hostname: 'lb' },
    ]
    expect(record(service({}, { status: { loadBalancer: { ingress } } })).loadBalancerIps).toEqual([
      '1.1.1.1',
      '2.2.2.2',
    ])
  })

  it('C14: reads leading zeros as decimal', () => {
    const spec = {
      clusterIP: '172.30.0.041',
      clusterIPs: ['172.30.0.041'],
      externalIPs: ['1.2.3.004'],
      loadBalancerSourceRanges: ['203.0.113.000/025'],
    }
    const got = record(service(spec))
    expect(got.clusterIps).toEqual(['172.30.0.41'])
    expect(got.externalIps).toEqual(['1.2.3.4'])
    expect(got.sourceRanges).toEqual(['203.0.113.0/25'])
  })

  it('C17: skips a blank external IP silently, and reports a wrong one by name', () => {
    const decoded = decodeService(service({ externalIPs: ['', 'bogus', '1.2.3.4'] }))
    expect(decoded.record?.externalIps).toEqual(['1.2.3.4'])
    expect(decoded.problems).toEqual([
      {
        kind: 'Service',
        object: 'ns/web',
        uid: 'u1',
        field: 'spec.externalIPs[1]',
        message: 'is not a valid IP address: "bogus"',
      },
    ])
  })

  it('C20: ignores a service of another proxy, whatever the value of the label', () => {
    for (const value of ['other', '']) {
      const labels = { 'service.kubernetes.io/service-proxy-name': value }
      expect(decodeService(service({}, { metadata: { labels } })).record).toBeUndefined()
    }
    const headless = { 'service.kubernetes.io/headless': '' }
    expect(decodeService(service({}, { metadata: { labels: headless } })).record).toBeDefined()
  })

  it('skips an invalid port, and keeps the others', () => {
    const ports = [
      { name: 'a', port: 80 },
      { name: 'b', port: 0 },
      { name: 'c', port: 65536 },
      { name: 'd', port: '80' },
      { name: 'e', port: 81, protocol: 'QUIC' },
      { name: 'f', port: 82, nodePort: 70000 },
      { name: 'g g', port: 83 },
      null,
      { name: 'z', port: 65535, protocol: 'UDP' },
    ]
    const decoded = decodeService(service({ ports }))
    expect(decoded.record?.ports.map((port) => `${port.name}/${port.port}/${port.nodePort}`)).toEqual([
      'a/80/0',
      'f/82/0',
      'z/65535/0',
    ])
    const fields = complaints(decoded)
    for (const field of ['spec.ports[1].port', 'spec.ports[2].port', 'spec.ports[3].port', 'spec.ports[4].protocol']) {
      expect(fields).toContain(field)
    }
    expect(fields).toContain('spec.ports[5].nodePort')
    expect(fields).toContain('spec.ports[6].name')
    expect(fields).toContain('spec.ports[7]')
  })

  it('uses the later of two ports with the same name and protocol', () => {
    const decoded = decodeService(
      service({
        ports: [
          { name: 'a', port: 1 },
          { name: 'a', port: 2 },
        ],
      }),
    )
    expect(decoded.record?.ports.map((port) => port.port)).toEqual([2])
    expect(complaints(decoded)).toEqual(['spec.ports[1]'])
  })

  it('survives wrong types everywhere, and reports their paths', () => {
    const decoded = decodeService(
      service({
        type: 'Magic',
        externalIPs: 'x',
        loadBalancerSourceRanges: [5, 'nonsense'],
        externalTrafficPolicy: 'Sideways',
        internalTrafficPolicy: 7,
        sessionAffinity: 'ClientIP',
        sessionAffinityConfig: { clientIP: { timeoutSeconds: -1 } },
        healthCheckNodePort: 99999,
      }),
    )
    expect(decoded.record).toMatchObject({
      type: 'ClusterIP',
      externalIps: [],
      sourceRanges: [],
      externalPolicy: 'Cluster',
      internalPolicy: 'Cluster',
      affinitySeconds: 10800,
      healthCheckNodePort: 0,
    })
    expect(complaints(decoded).sort()).toEqual([
      'spec.externalIPs',
      'spec.externalTrafficPolicy',
      'spec.healthCheckNodePort',
      'spec.internalTrafficPolicy',
      'spec.loadBalancerSourceRanges[0]',
      'spec.loadBalancerSourceRanges[1]',
      'spec.sessionAffinityConfig.clientIP.timeoutSeconds',
      'spec.type',
    ])
  })

  it('ignores a cluster IP that is not valid or of another family than stated', () => {
    for (const clusterIPs of [['nonsense'], ['fd00::1'], [5]]) {
      const decoded = decodeService(service({ clusterIPs }))
      expect(decoded.record).toBeUndefined()
      expect(complaints(decoded)).toEqual(['spec.clusterIPs[0]'])
    }
  })

  it('skips an object without identity', () => {
    for (const json of [
      null,
      5,
      [],
      {},
      { metadata: {} },
      { metadata: { name: 'x' } },
      { metadata: { name: 1, namespace: 'n' } },
    ]) {
      const decoded = decodeService(json)
      expect(decoded.key).toBe('')
      expect(decoded.record).toBeUndefined()
      expect(decoded.problems.length).toBeGreaterThan(0)
    }
    expect(decodeService({ metadata: { name: 'web', namespace: 'ns' } }).problems).toMatchObject([
      { object: 'ns/web', field: 'spec' },
    ])
  })

  it('accepts names of the maximum length, and no characters that could break rules', () => {
    const named = (name: string) => decodeService(service({}, { metadata: { name } }))
    expect(named('a'.repeat(253)).record?.key).toHaveLength(256)
    for (const name of ['a'.repeat(254), 'a b', 'a\nb', 'a/b', '"', '-a']) expect(named(name).record).toBeUndefined()
  })

  it('reports a load balancer without a health check node port', () => {
    expect(complaints(decodeService(service({ type: 'LoadBalancer', externalTrafficPolicy: 'Local' })))).toEqual([
      'spec.healthCheckNodePort',
    ])
  })

  it('share the list of their only port if it is the same, but not with a node port', () => {
    const portsOf = (name: string, port: Fields) =>
      decodeService(service({ ports: [port] }, { metadata: { name } })).record?.ports
    const [first, second] = [portsOf('a', { name: 'http', port: 80 }), portsOf('b', { name: 'http', port: 80 })]
    expect(first).toEqual([{ name: 'http', protocol: 'tcp', port: 80, nodePort: 0 }])
    expect(second).toBe(first)
    expect(portsOf('c', { name: 'http', port: 81 })).toEqual([{ name: 'http', protocol: 'tcp', port: 81, nodePort: 0 }])
    const node = { name: 'http', port: 80, nodePort: 30080 }
    expect(portsOf('d', node)).not.toBe(portsOf('e', node))
  })
})

describe('slices', () => {
  it('keeps what the model needs', () => {
    const endpoint = {
      addresses: ['10.1.0.1'],
      nodeName: 'n1',
      conditions: { ready: false, serving: true, terminating: true },
      hints: { forZones: [{ name: 'z1' }, { name: 'z2' }], forNodes: [{ name: 'n1' }] },
    }
    const annotations = { 'endpoints.kubernetes.io/last-change-trigger-time': '2026-01-02T03:04:05.123456789Z' }
    expect(decodeEndpointSlice(slice({ endpoints: [endpoint] }, { annotations }))).toEqual({
      key: 'ns/web-abc',
      problems: [],
      record: {
        key: 'ns/web-abc',
        service: 'ns/web',
        family: 4,
        ports: [{ name: 'http', protocol: 'tcp', port: 8080 }],
        endpoints: [
          {
            ip: '10.1.0.1',
            node: 'n1',
            ready: false,
            serving: true,
            terminating: true,
            zoneHints: ['z1', 'z2'],
            nodeHints: ['n1'],
          },
        ],
        triggered: Date.UTC(2026, 0, 2, 3, 4, 5, 123),
      },
    })
  })

  it('D4: ignores a port without name or number, and keeps the others', () => {
    const ports = [
      { port: 1 },
      { name: 'a' },
      { name: 'b', port: 0 },
      { name: 'c', port: 70000 },
      { name: 'd', port: 2 },
    ]
    const decoded = decodeEndpointSlice(slice({ ports }))
    expect(decoded.record?.ports).toEqual([{ name: 'd', protocol: 'tcp', port: 2 }])
    expect(complaints(decoded)).toEqual(['ports[0].name', 'ports[1].port', 'ports[2].port', 'ports[3].port'])
  })

  it('D5: accepts an empty port name', () => {
    expect(decodeEndpointSlice(slice({ ports: [{ name: '', port: 1, protocol: 'UDP' }] })).record?.ports).toEqual([
      { name: '', protocol: 'udp', port: 1 },
    ])
  })

  it('D9: ignores host names, and reports unknown address types', () => {
    expect(decodeEndpointSlice(slice({ addressType: 'FQDN' }))).toEqual({
      key: 'ns/web-abc',
      record: undefined,
      problems: [],
    })
    expect(complaints(decodeEndpointSlice(slice({ addressType: 'IPX' })))).toEqual(['addressType'])
    expect(decodeEndpointSlice(slice({ addressType: 'IPv6', endpoints: [] })).record?.family).toBe(6)
  })

  it('D10: ignores a slice without the label of a service, which is legal and not a problem', () => {
    for (const labels of [undefined, {}, { [serviceNameLabel]: '' }, { [serviceNameLabel]: null }]) {
      const decoded = decodeEndpointSlice(slice({}, { labels }))
      expect(decoded).toEqual({ key: 'ns/web-abc', record: undefined, problems: [], unused: expect.any(String) })
      expect(decoded.unused).toContain(serviceNameLabel)
    }
  })

  it('D10: reports a slice whose label is not the name of a service', () => {
    for (const name of ['a/b', 7]) {
      const decoded = decodeEndpointSlice(slice({}, { labels: { [serviceNameLabel]: name } }))
      expect(decoded.record).toBeUndefined()
      expect(decoded.unused).toBeUndefined()
      expect(complaints(decoded)).toContain(`metadata.labels[${serviceNameLabel}]`)
    }
  })

  it('D11: without conditions an endpoint is ready, serving and not terminating', () => {
    for (const conditions of [undefined, {}, null, { ready: null }]) {
      const decoded = decodeEndpointSlice(slice({ endpoints: [{ addresses: ['10.1.0.1'], conditions }] }))
      expect([...(decoded.record?.endpoints ?? [])][0]).toMatchObject({
        ready: true,
        serving: true,
        terminating: false,
      })
    }
  })

  it('D12: uses only the first address, in canonical form', () => {
    const decoded = decodeEndpointSlice(slice({ endpoints: [{ addresses: ['10.180.00.001', '10.1.0.2'] }] }))
    expect(Array.from(decoded.record?.endpoints ?? [], (endpoint) => endpoint.ip)).toEqual(['10.180.0.1'])
  })

  it('D19: ignores a slice with the headless label', () => {
    const labels = { [serviceNameLabel]: 'web', 'service.kubernetes.io/headless': '' }
    expect(decodeEndpointSlice(slice({}, { labels }))).toEqual({ key: 'ns/web-abc', record: undefined, problems: [] })
  })

  it('skips the invalid endpoints of a slice and keeps the others', () => {
    const endpoints = [
      {},
      { addresses: [] },
      { addresses: ['x'] },
      { addresses: ['fd00::1'] },
      5,
      { addresses: ['10.1.0.9'] },
    ]
    const decoded = decodeEndpointSlice(slice({ endpoints }))
    expect(Array.from(decoded.record?.endpoints ?? [], (endpoint) => endpoint.ip)).toEqual(['10.1.0.9'])
    expect(complaints(decoded)).toEqual([
      'endpoints[0].addresses[0]',
      'endpoints[1].addresses[0]',
      'endpoints[2].addresses[0]',
      'endpoints[3].addresses[0]',
      'endpoints[4]',
    ])
  })

  it('decodes ten thousand endpoints, and does not report ten thousand problems', () => {
    const good = Array.from({ length: 10_000 }, (_, i) => ({
      addresses: [`10.${(i >> 16) & 255}.${(i >> 8) & 255}.${i & 255}`],
    }))
    expect(decodeEndpointSlice(slice({ endpoints: good })).record?.endpoints).toHaveLength(10_000)
    const decoded = decodeEndpointSlice(slice({ endpoints: good.map(() => ({ addresses: ['bad'] })) }))
    expect(decoded.problems).toHaveLength(21)
    expect(decoded.problems.at(-1)?.message).toBe('and 9980 more problems')
  })

  it('shares values that repeat: node names, hints, ports and empty lists', () => {
    const make = (name: string) =>
      decodeEndpointSlice(
        JSON.parse(
          JSON.stringify(
            slice(
              {
                endpoints: [{ addresses: ['10.1.0.1'], nodeName: 'n1', hints: { forZones: [{ name: 'z1' }] } }],
              },
              { name },
            ),
          ),
        ),
      ).record!
    const a = make('a')
    const b = make('b')
    expect(a.ports).toBe(b.ports)
    const [[first], [second]] = [[...a.endpoints], [...b.endpoints]]
    expect(first?.zoneHints).toBe(second?.zoneHints)
    expect(first?.nodeHints).toBe(second?.nodeHints)
  })
})

describe('nodes and service CIDRs', () => {
  it('puts internal addresses first, and skips addresses that are not IPs', () => {
    const status = {
      addresses: [
        { type: 'Hostname', address: 'n1' },
        { type: 'ExternalIP', address: '4.4.4.4' },
        { type: 'InternalIP', address: '10.0.0.5' },
        { type: 'InternalIP', address: 'bad' },
        { type: 'InternalIP', address: 'FD00::5' },
      ],
    }
    const json = {
      metadata: {
        name: 'n1',
        labels: { 'topology.kubernetes.io/zone': 'z1' },
        deletionTimestamp: '2026-01-02T03:04:05Z',
      },
      spec: {
        podCIDRs: ['10.244.1.0/24', 'fd00:1::/64'],
        taints: [{ key: 'ToBeDeletedByClusterAutoscaler', effect: 'NoSchedule' }],
      },
      status,
    }
    const decoded = decodeNode(json)
    expect(decoded.record).toEqual({
      name: 'n1',
      addresses: ['10.0.0.5', 'fd00::5', '4.4.4.4'],
      podCidrs: ['10.244.1.0/24', 'fd00:1::/64'],
      zone: 'z1',
      deleting: true,
      taints: ['ToBeDeletedByClusterAutoscaler'],
    })
    expect(complaints(decoded)).toEqual(['status.addresses[3].address'])
  })

  it('reads a bare node', () => {
    expect(decodeNode({ metadata: { name: 'n1' } })).toEqual({
      key: 'n1',
      problems: [],
      record: { name: 'n1', addresses: [], podCidrs: [], zone: '', deleting: false, taints: [] },
    })
  })

  it('reads the capacity of a node, and nothing else', () => {
    const read = (cpu: unknown) => decodeNodeCapacity({ metadata: { name: 'n1' }, status: { allocatable: { cpu } } })
    expect(read('3920m')).toEqual({ key: 'n1', record: { name: 'n1', milliCpu: 3_920 }, problems: [] })
    expect(read(4).record).toEqual({ name: 'n1', milliCpu: 4_000 })
    for (const json of [{}, { status: {} }, { status: { allocatable: { memory: '1Gi' } } }]) {
      const bare = decodeNodeCapacity({ metadata: { name: 'n1' }, ...json })
      expect(bare).toEqual({ key: 'n1', record: { name: 'n1', milliCpu: undefined }, problems: [] })
    }
  })

  it('names a capacity that is not valid, and the node counts as unknown', () => {
    for (const cpu of ['four', '-1', '', {}, true]) {
      const decoded = decodeNodeCapacity({ metadata: { name: 'n1' }, status: { allocatable: { cpu } } })
      expect(decoded.record).toEqual({ name: 'n1', milliCpu: undefined })
      expect(decoded.problems).toMatchObject([
        {
          kind: 'Node',
          object: 'n1',
          field: 'status.allocatable.cpu',
          message: expect.stringContaining(`is ${JSON.stringify(cpu)}`),
        },
      ])
    }
  })

  it('reads service CIDRs in canonical form', () => {
    const decoded = decodeServiceCidr({
      metadata: { name: 'kubernetes' },
      spec: { cidrs: ['10.96.0.1/12', 'x', 'FD00::/108'] },
    })
    expect(decoded.record).toEqual({ name: 'kubernetes', cidrs: ['10.96.0.0/12', 'fd00::/108'] })
    expect(complaints(decoded)).toEqual(['spec.cidrs[1]'])
  })
})

describe('any input', () => {
  const decoders = { decodeService, decodeEndpointSlice, decodeNode, decodeNodeCapacity, decodeServiceCidr }
  const status = { addresses: [{}], allocatable: { cpu: '4' } }
  const shapes = [service({}), slice({}), { metadata: { name: 'n' }, spec: {}, status }]

  it.each(Object.entries(decoders))('%s never throws, and never returns a record without a key', (_, decode) => {
    fc.assert(
      fc.property(fc.jsonValue(), (json) => {
        const decoded = decode(json)
        expect(decoded.record !== undefined && decoded.key === '').toBe(false)
      }),
    )
  })

  it.each(Object.entries(decoders))('%s survives an object with one part replaced', (_, decode) => {
    fc.assert(
      fc.property(fc.constantFrom(...shapes), fc.nat(), fc.jsonValue(), (shape, where, value) => {
        const copy = structuredClone(shape) as Fields
        const places: [Fields, string][] = []
        const walk = (node: unknown) => {
          if (typeof node !== 'object' || node === null) return
          for (const key of Object.keys(node)) {
            places.push([node as Fields, key])
            walk((node as Fields)[key])
          }
        }
        walk(copy)
        const [owner, key] = places[where % places.length] as [Fields, string]
        owner[key] = value
        decode(copy)
      }),
      { numRuns: 500 },
    )
  })
})
