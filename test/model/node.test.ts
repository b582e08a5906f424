// Checks the node's addresses, node port addresses, local detection and family checks.

import { describe, expect, it } from 'vitest'
import { checkFamilies, type FamilyFacts, missingDetector } from '../../src/model/families.ts'
import {
  conntrackMax,
  type DetectLocal,
  detectNodeIps,
  expandNodePortAddresses,
  localDetector,
  makeNodeView,
  type NodeFacts,
  nodeAddresses,
  nodePortAddresses,
} from '../../src/model/node.ts'
import type { NodeRecord } from '../../src/model/types.ts'

const record = (given: Partial<NodeRecord>): NodeRecord => {
  return { name: 'here', addresses: [], podCidrs: [], zone: '', deleting: false, taints: [], ...given }
}

describe('node addresses', () => {
  it('B1: without a node and a specific bind address, the addresses are loopback and IPv4 is primary', () => {
    for (const bindAddress of ['', '0.0.0.0', '::']) {
      expect(detectNodeIps([], bindAddress)).toEqual({ 4: '127.0.0.1', 6: '::1', primary: 4 })
    }
  })

  it('B2: an IPv6-only node is IPv6-primary and keeps IPv4 loopback', () => {
    expect(detectNodeIps(['fd00::1'], '0.0.0.0')).toEqual({ 4: '127.0.0.1', 6: 'fd00::1', primary: 6 })
  })

  it('B3: a specific bind address replaces the address of its family and makes the family primary', () => {
    const ips = detectNodeIps(['192.168.1.1', 'fd00::1'], '2001:db8::555')
    expect(ips).toEqual({ 4: '192.168.1.1', 6: '2001:db8::555', primary: 6 })
  })

  it('B4: a loopback bind address does the same', () => {
    expect(detectNodeIps(['fd00::1', '192.168.1.1'], '127.0.0.1')).toEqual({ 4: '127.0.0.1', 6: 'fd00::1', primary: 4 })
  })

  it('B7: pod CIDRs without addresses give no addresses', () => {
    expect(nodeAddresses(record({ podCidrs: ['10.0.0.0/24'] }))).toEqual([])
    expect(nodeAddresses(undefined)).toEqual([])
  })

  it('B10: takes the first address, and the first of the other family', () => {
    expect(nodeAddresses(record({ addresses: ['fd00::1', '192.168.0.2', '203.0.113.9'] }))).toEqual([
      'fd00::1',
      '192.168.0.2',
    ])
    expect(nodeAddresses(record({ addresses: ['192.168.0.2', '192.168.0.3'] }))).toEqual(['192.168.0.2'])
  })
})

describe('node port addresses', () => {
  const single = detectNodeIps(['192.168.0.2'], '')
  const interfaces = ['127.0.0.1', '192.168.1.2', '192.168.0.2', '::1', 'fd00::2', '192.168.0.2']

  it('expands primary to the known addresses', () => {
    expect(expandNodePortAddresses(['primary'], single)).toEqual(['192.168.0.2/32'])
    const dual = detectNodeIps(['192.168.0.2', 'fd00::2'], '')
    expect(expandNodePortAddresses(['primary'], dual)).toEqual(['192.168.0.2/32', 'fd00::2/128'])
    expect(expandNodePortAddresses(['primary'], detectNodeIps([], ''))).toEqual([])
  })

  it('expands localhost and all next to other entries', () => {
    expect(expandNodePortAddresses(['localhost', '10.0.0.0/8'], single)).toEqual([
      '127.0.0.0/8',
      '::1/128',
      '10.0.0.0/8',
    ])
    expect(expandNodePortAddresses(['all'], single)).toEqual(['0.0.0.0/0', '::/0'])
  })

  it('as upstream: primary of one family leaves all addresses of the other family open', () => {
    const cidrs = expandNodePortAddresses(['primary'], single)
    expect(nodePortAddresses(cidrs, 4, interfaces)).toMatchObject({ all: false, addresses: ['192.168.0.2'] })
    expect(nodePortAddresses(cidrs, 6, interfaces)).toMatchObject({ all: true })
  })

  it('without CIDRs of the family, or with a CIDR of all addresses, every address serves', () => {
    const every = { all: true, addresses: ['127.0.0.1', '192.168.0.2', '192.168.1.2'], loopback: true }
    expect(nodePortAddresses([], 4, interfaces)).toEqual({ ...every, loopbackNamed: false })
    expect(nodePortAddresses(['192.168.0.0/24', '0.0.0.0/0'], 4, interfaces)).toEqual({
      ...every,
      loopbackNamed: false,
    })
    expect(nodePortAddresses(['0.0.0.0/0', '127.0.0.0/8'], 4, interfaces)).toEqual({ ...every, loopbackNamed: true })
    expect(nodePortAddresses(['192.168.0.0/24'], 6, interfaces)).toMatchObject({
      all: true,
      addresses: ['::1', 'fd00::2'],
    })
  })

  it('selects interface addresses by CIDR and detects whether loopback is covered', () => {
    expect(nodePortAddresses(['192.168.0.0/24', '127.0.0.1/32'], 4, interfaces)).toEqual({
      all: false,
      addresses: ['127.0.0.1', '192.168.0.2'],
      loopback: true,
      loopbackNamed: true,
    })
    expect(nodePortAddresses(['192.168.0.0/16'], 4, interfaces)).toMatchObject({
      loopback: false,
      loopbackNamed: false,
    })
    // Contains 127.0.0.0 without being loopback itself.
    expect(nodePortAddresses(['64.0.0.0/2'], 4, interfaces)).toMatchObject({ loopback: true, loopbackNamed: false })
    expect(nodePortAddresses(['::1/128'], 6, interfaces)).toMatchObject({ addresses: ['::1'], loopbackNamed: true })
    expect(nodePortAddresses(['::/1'], 6, interfaces)).toMatchObject({ loopback: true, loopbackNamed: false })
  })
})

describe('local detection', () => {
  const detect = (given: Partial<DetectLocal>): DetectLocal => {
    return {
      mode: 'ClusterCIDR',
      clusterCidrs: [],
      podCidrs: [],
      bridgeInterface: '',
      interfaceNamePrefix: '',
      ...given,
    }
  }

  it('B11: cluster CIDRs are selected by family, in any order', () => {
    for (const clusterCidrs of [
      ['fd00:10::/64', '10.0.0.0/14'],
      [' 10.0.0.0/14', '', 'bogus', 'fd00:10::/64', '11.0.0.0/8'],
    ]) {
      expect(localDetector(detect({ clusterCidrs }), 4)).toEqual({ kind: 'cidr', cidr: '10.0.0.0/14' })
      expect(localDetector(detect({ clusterCidrs }), 6)).toEqual({ kind: 'cidr', cidr: 'fd00:10::/64' })
    }
  })

  it('B12: a family without a CIDR has no detector', () => {
    const only4 = detect({ clusterCidrs: ['10.0.0.0/14'] })
    expect(localDetector(only4, 4)).toBeDefined()
    expect(localDetector(only4, 6)).toBeUndefined()
  })

  it('normalises CIDRs, and uses the pod CIDRs in NodeCIDR mode', () => {
    const both = detect({ mode: 'NodeCIDR', clusterCidrs: ['10.0.0.0/8'], podCidrs: ['10.1.2.3/24'] })
    expect(localDetector(both, 4)).toEqual({ kind: 'cidr', cidr: '10.1.2.0/24' })
  })

  it('B16: interfaces are the same for both families, long prefixes included', () => {
    const prefix = 'a-prefix-longer-than-an-interface-name'
    for (const family of [4, 6] as const) {
      expect(localDetector(detect({ mode: 'BridgeInterface', bridgeInterface: 'cni0' }), family)).toEqual({
        kind: 'interface',
        name: 'cni0',
      })
      expect(localDetector(detect({ mode: 'InterfaceNamePrefix', interfaceNamePrefix: prefix }), family)).toEqual({
        kind: 'prefix',
        prefix,
      })
    }
  })
})

describe('family checks', () => {
  const facts = (given: Partial<FamilyFacts>): FamilyFacts => {
    return {
      primary: 4,
      supported: [4, 6],
      detectLocalMode: 'ClusterCIDR',
      clusterCidrs: [],
      podCidrs: [],
      nodePortAddresses: ['primary'],
      excludeCidrs: [],
      healthzBindAddress: '',
      metricsBindAddress: '',
      ...given,
    }
  }
  const counts = (given: Partial<FamilyFacts>) => {
    const { warnings, fatal } = checkFamilies(facts(given))
    return [warnings.length, fatal.length]
  }

  it('reports nothing for a configuration that fits', () => {
    expect(counts({ clusterCidrs: ['10.0.0.0/8'], podCidrs: ['10.0.0.0/24'] })).toEqual([0, 0])
    expect(missingDetector(facts({ clusterCidrs: ['10.0.0.0/8'] }))).toBeUndefined()
  })

  it('B12: cluster CIDRs of the wrong family only are a warning on dual-stack nodes and fatal on others', () => {
    const wrong = { primary: 6, clusterCidrs: ['10.0.0.0/8'] } as const
    expect(counts({ ...wrong })).toEqual([1, 0])
    expect(counts({ ...wrong, supported: [6] })).toEqual([0, 1])
    expect(counts({ ...wrong, supported: [6], detectLocalMode: 'BridgeInterface' })).toEqual([1, 0])
    expect(missingDetector(facts({ ...wrong }))).toMatch(/IPv6/)
  })

  it('B13: pod CIDRs of the wrong family only are fatal in NodeCIDR mode, even on dual-stack nodes', () => {
    const wrong = { podCidrs: ['fd00:10::/64'] }
    expect(counts({ ...wrong, detectLocalMode: 'NodeCIDR' })).toEqual([0, 1])
    expect(counts(wrong)).toEqual([1, 0])
  })

  it('B14: a specific bind address of the wrong family is reported on single-stack nodes only', () => {
    const only6 = { primary: 6, supported: [6] } as const
    expect(counts({ ...only6, metricsBindAddress: '10.0.0.1:9999' })).toEqual([1, 0])
    expect(counts({ ...only6, healthzBindAddress: '10.0.0.1:9999' })).toEqual([1, 0])
    expect(counts({ ...only6, metricsBindAddress: '0.0.0.0:9999' })).toEqual([0, 0])
    expect(counts({ primary: 6, metricsBindAddress: '10.0.0.1:9999' })).toEqual([0, 0])
    expect(counts({ supported: [4], metricsBindAddress: '[fd00::1]:9999', excludeCidrs: ['fd00::/8'] })).toEqual([2, 0])
  })

  it('B15: warns about node port addresses that are missing or lack a family', () => {
    expect(counts({ nodePortAddresses: [] })).toEqual([1, 0])
    const only4 = { nodePortAddresses: ['10.0.0.0/8'] }
    expect(counts({ ...only4, clusterCidrs: ['10.0.0.0/8', 'fd00::/64'] })).toEqual([1, 0])
    expect(counts({ ...only4, clusterCidrs: ['10.0.0.0/8'] })).toEqual([0, 0])
    expect(counts({ ...only4, primary: 6 })).toEqual([1, 0])
  })

  it('a primary family that cannot be served is fatal', () => {
    expect(counts({ primary: 6, supported: [4] })).toEqual([0, 1])
  })
})

describe('the view', () => {
  const facts: NodeFacts = {
    name: 'here',
    zone: 'zone-a',
    ips: detectNodeIps(['192.168.0.2', 'fd00::2'], ''),
    nodePortAddresses: ['primary'],
    interfaceAddresses: ['127.0.0.1', '192.168.0.2', 'fd00::2'],
    detectLocal: {
      mode: 'ClusterCIDR',
      clusterCidrs: ['10.0.0.0/8'],
      podCidrs: [],
      bridgeInterface: '',
      interfaceNamePrefix: '',
    },
    masqueradeAll: false,
    masqueradeBit: 14,
    serviceCidrs: ['172.31.0.0/16', 'fd00:1::/112', '172.30.0.0/16', '172.31.0.0/16'],
    externalIps: true,
    listeners: [],
    apiServers: [
      { ip: '192.168.0.9', port: 6443 },
      { ip: '192.168.0.9', port: 6443 },
      { ip: 'fd00::9', port: 6443 },
    ],
  }

  it('has the facts of one family', () => {
    expect(makeNodeView(facts, 4)).toEqual({
      name: 'here',
      family: 4,
      zone: 'zone-a',
      ip: '192.168.0.2',
      nodePorts: { all: false, addresses: ['192.168.0.2'], loopback: false, loopbackNamed: false },
      local: { kind: 'cidr', cidr: '10.0.0.0/8' },
      masqueradeAll: false,
      masqueradeMark: 0x4000,
      serviceCidrs: ['172.30.0.0/16', '172.31.0.0/16'],
      externalIps: true,
      apiServers: [{ ip: '192.168.0.9', port: 6443 }],
      reserved: { '192.168.0.9:6443/tcp': 'the API server' },
    })
    expect(makeNodeView(facts, 6)).toMatchObject({ ip: 'fd00::2', local: undefined, serviceCidrs: ['fd00:1::/112'] })
  })

  it('has a positive mark also for the highest bit', () => {
    expect(makeNodeView({ ...facts, masqueradeBit: 31 }, 4).masqueradeMark).toBe(0x80000000)
  })
})

describe('connection tracking', () => {
  it('B18: grows with the cores, between the minimum and the cap; zero leaves the kernel setting alone', () => {
    expect(conntrackMax({ maxPerCore: 1, min: 123_456, cpus: 4 })).toBe(123_456)
    expect(conntrackMax({ maxPerCore: 0, min: 123_456, cpus: 4 })).toBeUndefined()
    expect(conntrackMax({ maxPerCore: 32_768, min: 131_072, cpus: 512 })).toBe(1_048_576)
    expect(conntrackMax({ maxPerCore: 0, min: 0, cpus: 4 })).toBeUndefined()
    expect(conntrackMax({ maxPerCore: 32_768, min: 131_072, cpus: 8 })).toBe(262_144)
    expect(conntrackMax({ maxPerCore: 32_768, min: 2_000_000, cpus: 512 })).toBe(1_048_576)
    expect(conntrackMax({ maxPerCore: 32_768, min: 2_000_000, cpus: 1 })).toBe(2_000_000)
  })
})
