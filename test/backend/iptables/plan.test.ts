// The rules for each policy and each special case, as kube-proxy 1.36.4 writes them, and the two worked examples.

import { describe, expect, it } from 'vitest'
import { formatProbability } from '../../../src/backend/iptables/plan.ts'
import { endpoint, everyAddress, service, slice, tcp, view } from '../../support/builders.ts'
import { rulesOf, WriterHarness } from './writer-harness.ts'

const chain = (text: string, prefix: string): string => new RegExp(`^:(${prefix}\\S+) `, 'm').exec(text)?.[1] ?? ''
const chains = (text: string, prefix: string): string[] =>
  [...text.matchAll(new RegExp(`^:(${prefix}\\S+) `, 'gm'))].map((match) => match[1] as string)

/** The rules of a chain without `-A CHAIN`. */
const plain = (text: string, name: string): string[] => rulesOf(text, name).map((line) => line.slice(name.length + 4))

describe('worked examples', () => {
  it('004: three whoami pods', async () => {
    const harness = new WriterHarness(view({ local: undefined, nodePorts: everyAddress }))
    const whoami = service({
      key: 'default/whoami',
      clusterIps: ['10.10.10.28'],
      ports: [{ name: '', protocol: 'tcp', port: 3000, nodePort: 0 }],
    })
    const ips = ['10.11.32.6', '10.13.192.4', '10.16.192.3']
    const pods = slice(
      ips.map((ip) => endpoint(ip)),
      { service: 'default/whoami', name: '', port: 3000 },
    )
    harness.put(whoami, pods)
    await harness.sync()
    const svc = 'KUBE-SVC-DC3OOLRZIWFKJHLB'
    expect(plain(harness.text, 'KUBE-SERVICES')[0]).toBe(
      `-m comment --comment "default/whoami cluster IP" -m tcp -p tcp -d 10.10.10.28 --dport 3000 -j ${svc}`,
    )
    const seps = chains(harness.text, 'KUBE-SEP-')
    expect(seps).toHaveLength(3)
    expect(plain(harness.text, svc)).toEqual([
      `-m comment --comment "default/whoami -> 10.11.32.6:3000" -m statistic --mode random --probability 0.3333333333 -j ${seps[0]}`,
      `-m comment --comment "default/whoami -> 10.13.192.4:3000" -m statistic --mode random --probability 0.5000000000 -j ${seps[1]}`,
      `-m comment --comment "default/whoami -> 10.16.192.3:3000" -j ${seps[2]}`,
    ])
    expect(plain(harness.text, seps[0] as string)).toEqual([
      '-m comment --comment default/whoami -s 10.11.32.6 -j KUBE-MARK-MASQ',
      '-m comment --comment default/whoami -m tcp -p tcp -j DNAT --to-destination 10.11.32.6:3000',
    ])
  })

  it('001: saythx-redis on a node port, scaled from one pod to two', async () => {
    const harness = new WriterHarness(view({ nodePorts: everyAddress }))
    const redis = service({
      key: 'work/saythx-redis',
      type: 'NodePort',
      clusterIps: ['10.103.193.175'],
      ports: [{ name: '', protocol: 'tcp', port: 6379, nodePort: 31269 }],
    })
    const pods = (...ips: string[]) =>
      slice(
        ips.map((ip) => endpoint(ip)),
        { service: 'work/saythx-redis', name: '', port: 6379 },
      )
    harness.put(redis, pods('10.40.0.3'))
    await harness.sync()
    const [svc, ext] = ['KUBE-SVC-FWZO4IPCTY5IWGE6', 'KUBE-EXT-FWZO4IPCTY5IWGE6']
    const first = 'KUBE-SEP-WFOSBWGUUQ4EX27S'
    expect(plain(harness.text, 'KUBE-NODEPORTS').at(-1)).toBe(
      `-m comment --comment work/saythx-redis -m tcp -p tcp --dport 31269 -j ${ext}`,
    )
    expect(plain(harness.text, svc).at(-1)).toBe(
      `-m comment --comment "work/saythx-redis -> 10.40.0.3:6379" -j ${first}`,
    )

    harness.put(redis, pods('10.40.0.3', '10.40.0.4'))
    await harness.sync()
    // Only what changed is written: the chain of the service and of the new endpoint, not of the old endpoint.
    expect(chains(harness.text, 'KUBE-(?:SV|SEP)')).toEqual([svc, expect.stringMatching(/^KUBE-SEP-/)])
    expect(harness.text).not.toContain(`:${first}`)
    expect(harness.text).not.toContain(`:${ext}`)
    const second = chain(harness.text, 'KUBE-SEP-')
    expect(plain(harness.text, svc).slice(-2)).toEqual([
      `-m comment --comment "work/saythx-redis -> 10.40.0.3:6379" -m statistic --mode random --probability 0.5000000000 -j ${first}`,
      `-m comment --comment "work/saythx-redis -> 10.40.0.4:6379" -j ${second}`,
    ])
  })
})

describe('policies', () => {
  const local = endpoint('10.180.0.1', 'here')
  const remote = endpoint('10.180.0.2', 'elsewhere')
  const exposed = service({
    type: 'LoadBalancer',
    ports: [tcp(80, 'p80', 3001)],
    loadBalancerIps: ['1.2.3.4'],
    externalPolicy: 'Local',
  })

  it('sends outside traffic to local endpoints only, this node and its pods to all', async () => {
    const harness = new WriterHarness()
    harness.put(exposed, slice([local, remote]))
    await harness.sync()
    const { text } = harness
    const [svc, svl, ext] = ['KUBE-SVC-', 'KUBE-SVL-', 'KUBE-EXT-'].map((prefix) => chain(text, prefix))
    expect(plain(text, ext as string)).toEqual([
      `-m comment --comment "pod traffic for ns1/svc1:p80 external destinations" -s 10.0.0.0/8 -j ${svc}`,
      '-m comment --comment "masquerade LOCAL traffic for ns1/svc1:p80 external destinations" -m addrtype --src-type LOCAL -j KUBE-MARK-MASQ',
      `-m comment --comment "route LOCAL traffic for ns1/svc1:p80 external destinations" -m addrtype --src-type LOCAL -j ${svc}`,
      `-j ${svl}`,
    ])
    expect(plain(text, svl as string)).toHaveLength(1)
    expect(plain(text, 'KUBE-EXTERNAL-SERVICES')).toEqual([])
  })

  it('sends cluster IP traffic to endpoints of this node with internalTrafficPolicy Local', async () => {
    const harness = new WriterHarness()
    harness.put(service({ internalPolicy: 'Local' }), slice([local, remote]))
    await harness.sync()
    const svl = chain(harness.text, 'KUBE-SVL-')
    expect(chain(harness.text, 'KUBE-SVC-')).toBe('')
    expect(plain(harness.text, 'KUBE-SERVICES')[0]).toContain(`-j ${svl}`)
    expect(plain(harness.text, svl)[0]).toContain('! -s 10.0.0.0/8 -j KUBE-MARK-MASQ')
    expect(chains(harness.text, 'KUBE-SEP-')).toHaveLength(1)
  })

  it('drops cluster IP traffic that internalTrafficPolicy Local cannot serve here', async () => {
    const harness = new WriterHarness()
    harness.put(service({ internalPolicy: 'Local' }), slice([remote]))
    await harness.sync()
    expect(plain(harness.text, 'KUBE-SERVICES')[0]).toBe(
      '-m comment --comment "ns1/svc1:p80 has no local endpoints" -m tcp -p tcp -d 172.30.0.41 --dport 80 -j DROP',
    )
  })

  it.each([
    ['an interface', { kind: 'interface', name: 'cbr0' }, '! -i cbr0'],
    ['a prefix', { kind: 'prefix', prefix: 'veth' }, '! -i veth+'],
    ['a CIDR', { kind: 'cidr', cidr: '10.0.0.0/8' }, '! -s 10.0.0.0/8'],
  ] as const)('recognises local pods by %s', async (_, detector, text) => {
    const harness = new WriterHarness(view({ local: detector, nodePorts: everyAddress }))
    harness.put(service(), slice([local]))
    await harness.sync()
    expect(plain(harness.text, chain(harness.text, 'KUBE-SVC-'))[0]).toContain(`--dport 80 ${text} -j KUBE-MARK-MASQ`)
  })

  it('masquerades nothing by its source without a detector, and everything with masqueradeAll', async () => {
    const without = new WriterHarness(view({ local: undefined, nodePorts: everyAddress }))
    without.put(exposed, slice([local]))
    await without.sync()
    expect(plain(without.text, chain(without.text, 'KUBE-SVC-'))).toHaveLength(1)
    expect(without.text).not.toContain('pod traffic for')
    const all = new WriterHarness(view({ masqueradeAll: true, nodePorts: everyAddress }))
    all.put(service(), slice([local]))
    await all.sync()
    expect(plain(all.text, chain(all.text, 'KUBE-SVC-'))[0]).toContain('-d 172.30.0.41 --dport 80 -j KUBE-MARK-MASQ')
  })

  it('lets the load balancer IPs pass the firewall if the node is in a source range', async () => {
    const harness = new WriterHarness()
    harness.put(
      service({
        type: 'LoadBalancer',
        loadBalancerIps: ['1.2.3.4', '5.6.7.8'],
        sourceRanges: ['192.168.0.0/24', '203.0.113.0/25'],
      }),
      slice([local]),
    )
    await harness.sync()
    const fw = chain(harness.text, 'KUBE-FW-')
    const sources = plain(harness.text, fw).map((rule) => / -s (\S+)/.exec(rule)?.[1])
    expect(sources).toEqual(['192.168.0.0/24', '203.0.113.0/25', '1.2.3.4', '5.6.7.8', undefined])
    expect(plain(harness.text, 'KUBE-PROXY-FIREWALL')).toHaveLength(2)
  })

  it('rejects on every address without endpoints, with and without a firewall', async () => {
    const harness = new WriterHarness()
    harness.put({ ...exposed, externalIps: ['192.168.99.22'], sourceRanges: ['203.0.113.0/25'] })
    await harness.sync()
    expect(chains(harness.text, 'KUBE-(?:SVC|EXT|FW|SEP)-')).toEqual([])
    expect(plain(harness.text, 'KUBE-PROXY-FIREWALL')).toEqual([])
    const refused = plain(harness.text, 'KUBE-EXTERNAL-SERVICES')
    expect(refused).toHaveLength(3)
    for (const rule of refused) expect(rule).toMatch(/"ns1\/svc1:p80 has no endpoints".*-j REJECT$/)
  })

  it('writes rules for IPv6, UDP and SCTP', async () => {
    const harness = new WriterHarness(
      view({
        family: 6,
        ip: 'fd00:192:168::2',
        local: { kind: 'cidr', cidr: 'fd00:10::/64' },
        nodePorts: everyAddress,
      }),
    )
    const ports = (['udp', 'sctp'] as const).map((protocol) => ({ name: protocol, protocol, port: 53, nodePort: 3001 }))
    harness.put(
      service({ type: 'NodePort', clusterIps: ['fd00:172:30::41'], ports, affinitySeconds: 60 }),
      slice([endpoint('fd00:10:180::1')], { name: 'udp', protocol: 'udp', port: 53 }),
      slice([endpoint('fd00:10:180::1')], { name: 'sctp', protocol: 'sctp', port: 53, key: 'ns1/svc1-b' }),
    )
    await harness.sync()
    expect(harness.text).toContain('-m udp -p udp -j DNAT --to-destination [fd00:10:180::1]:53')
    expect(harness.text).toContain('-m sctp -p sctp -d fd00:172:30::41 --dport 53')
    expect(harness.text).not.toContain('KUBE-FIREWALL')
    expect(harness.text).not.toContain('127.0.0.0')
    expect(plain(harness.text, 'KUBE-SERVICES').at(-1)).toContain('--dst-type LOCAL ! -d ::1/128 -j KUBE-NODEPORTS')
  })
})

describe('the way to node ports', () => {
  const tail = async (given: Parameters<typeof view>[0], localhost: boolean) => {
    const harness = new WriterHarness(view(given), { localhost })
    await harness.sync()
    return plain(harness.text, 'KUBE-SERVICES').map((rule) => rule.slice(rule.lastIndexOf('"') + 2))
  }

  it('is open on all addresses, loopback as configured', async () => {
    const all = '-m addrtype --dst-type LOCAL'
    expect(await tail({ nodePorts: everyAddress }, true)).toEqual([`${all} -j KUBE-NODEPORTS`])
    expect(await tail({ nodePorts: everyAddress }, false)).toEqual([`${all} ! -d 127.0.0.0/8 -j KUBE-NODEPORTS`])
  })

  it('is open on named addresses, loopback only if localhost node ports are on', async () => {
    const nodePorts = { all: false, addresses: ['127.0.0.1', '192.168.0.2'], loopback: true, loopbackNamed: true }
    expect(await tail({ nodePorts }, true)).toEqual([
      '-d 127.0.0.1 -j KUBE-NODEPORTS',
      '-d 192.168.0.2 -j KUBE-NODEPORTS',
    ])
    expect(await tail({ nodePorts }, false)).toEqual(['-d 192.168.0.2 -j KUBE-NODEPORTS'])
    expect(await tail({ nodePorts: { ...nodePorts, addresses: [] } }, true)).toEqual([])
  })

  it('J20: counts packets to node ports on loopback', async () => {
    const harness = new WriterHarness(view({ nodePorts: everyAddress }))
    harness.put(service({ type: 'NodePort', ports: [tcp(80, 'p80', 3001)] }), slice([endpoint('10.180.0.1')]))
    await harness.sync()
    expect(plain(harness.text, 'KUBE-NODEPORTS').join()).toMatch(
      /-d 127\.0\.0\.0\/8 --dport 3001 -m nfacct --nfacct-name localhost_nps_accepted_pkts -j KUBE-EXT-/,
    )
  })

  it('does not serve loopback if nodePortAddresses leaves it out, and then writes no martian rule', async () => {
    const nodePorts = { all: false, addresses: ['192.168.0.2'], loopback: false, loopbackNamed: false }
    const harness = new WriterHarness(view({ nodePorts }))
    harness.put(service({ type: 'NodePort', ports: [tcp(80, 'p80', 3001)] }), slice([endpoint('10.180.0.1')]))
    await harness.sync()
    expect(harness.text).not.toContain('KUBE-FIREWALL')
    expect(harness.text).not.toContain('localhost_nps')
  })
})

describe('large clusters', () => {
  it('counts every endpoint of every port, reached from here or not', async () => {
    const harness = new WriterHarness()
    const many = (n: number) =>
      slice(
        Array.from({ length: n }, (_, i) => ({
          ...endpoint(`10.1.${i >> 8}.${i & 255}`),
          ready: i === 0,
          serving: i === 0,
        })),
      )
    harness.put(service(), many(1000))
    await harness.sync()
    expect(harness.text).toContain('"ns1/svc1:p80 -> 10.1.0.0:80"')
    expect(harness.written.endpoints).toBe(1000)
    // No rule changes now, but rules that are written from now on have no comments.
    harness.put(service(), many(1001))
    await harness.sync()
    expect(harness.written.endpoints).toBe(1001)
    harness.put(
      service({ key: 'ns1/other', clusterIps: ['172.30.0.99'] }),
      slice([endpoint('10.2.0.1')], { service: 'ns1/other' }),
    )
    await harness.sync()
    expect(harness.text).toContain('"ns1/other:p80 cluster IP"')
    expect(harness.text).not.toContain(' -> ')
    harness.drop('ns1/svc1')
    await harness.sync()
    expect(harness.written.endpoints).toBe(1)
  })

  it('G12: leaves out the comments of endpoints above 1000, and no others', async () => {
    const harness = new WriterHarness()
    const many = (n: number) => slice(Array.from({ length: n }, (_, i) => endpoint(`10.1.${i >> 8}.${i & 255}`)))
    harness.put(service(), many(1000))
    await harness.sync()
    expect(harness.text).toContain('"ns1/svc1:p80 -> 10.1.0.1:80"')
    harness.put(service(), many(1001))
    await harness.sync()
    expect(harness.text).not.toContain(' -> ')
    expect(harness.text).toMatch(/-A KUBE-SEP-\S+ -m tcp -p tcp -j DNAT/)
    expect(harness.text).toContain('"ns1/svc1:p80 cluster IP"')
    // The other thousand are not rewritten for that.
    expect(chains(harness.text, 'KUBE-SEP-')).toHaveLength(1)
  })
})

it('prints probabilities as C does', () => {
  expect([1, 2, 3, 10, 2048, 100001].map(formatProbability)).toEqual([
    '1.0000000000',
    '0.5000000000',
    '0.3333333333',
    '0.1000000000',
    '0.0004882812',
    '0.0000099999',
  ])
})

describe('the choice of an endpoint', () => {
  const three = slice([endpoint('10.180.2.1'), endpoint('10.180.2.2'), endpoint('10.180.2.3')])
  const statistics = async (given: Parameters<typeof service>[0]) => {
    const harness = new WriterHarness(view())
    harness.put(service(given), three)
    await harness.sync()
    const rules = plain(harness.text, chain(harness.text, 'KUBE-SVC-'))
    return rules.flatMap((rule) => /--mode (.*) -j KUBE-SEP/.exec(rule)?.[1] ?? [])
  }

  it('follows the weights: each has its part of what is left', async () => {
    expect(await statistics({ weights: { '10.180.2.1': 6, '10.180.2.2': 3 } })).toEqual([
      'random --probability 0.6000000000',
      'random --probability 0.7500000000',
    ])
  })

  it('goes by turns, if the weights are equal', async () => {
    expect(await statistics({ algorithm: 'round-robin' })).toEqual([
      'nth --every 3 --packet 0',
      'nth --every 2 --packet 0',
    ])
    expect(await statistics({ algorithm: 'round-robin', weights: { '10.180.2.1': 2 } })).toEqual([
      'random --probability 0.5000000000',
      'random --probability 0.5000000000',
    ])
  })

  it('is at random where the service wants a hash', async () => {
    expect(await statistics({ algorithm: 'consistent-hash' })).toEqual(await statistics({}))
  })
})
