// Plans service ports as virtual servers, set members and addresses, and checks the sets and rules that other tools look for.

import { describe, expect, it } from 'vitest'
import { base } from '../../../src/backend/ipvs/base.ts'
import type { IpvsEntry, ServerEntry } from '../../../src/backend/ipvs/entries.ts'
import { plan } from '../../../src/backend/ipvs/plan.ts'
import { composeRules } from '../../../src/backend/ipvs/rule-text.ts'
import { listSets, setName } from '../../../src/backend/ipvs/set-definitions.ts'
import type { ServiceRecord, SliceRecord } from '../../../src/model/types.ts'
import { endpoint, frozen, service, slice, tcp, view } from '../../support/builders.ts'
import { resolve } from '../../support/resolve.ts'

const node = view({ name: 'here' })
const here = endpoint('10.180.0.1', 'here')
const there = endpoint('10.180.2.1', 'remote')

function entriesOf(record: ServiceRecord, slices: readonly SliceRecord[], seen = node): readonly IpvsEntry[] {
  return resolve(record, slices, seen).flatMap((port) => plan(frozen(port), frozen(seen), { scheduler: 'rr' }))
}

const idsOf = (entries: readonly IpvsEntry[]) => entries.map(({ id }) => id)
const digestOf = (entries: readonly IpvsEntry[], id: string) => entries.find((one) => one.id === id)?.digest

describe('plan', () => {
  it('plans a cluster IP with affinity as ipvsadm shows it: rr persistent 10800', () => {
    const entries = entriesOf(service({ affinitySeconds: 10_800 }), [slice([here, there])])
    expect(idsOf(entries)).toEqual([
      'server tcp 172.30.0.41:80',
      'member KUBE-CLUSTER-IP 172.30.0.41,tcp:80',
      'address 172.30.0.41',
      'member KUBE-LOOP-BACK 10.180.0.1,tcp:80,10.180.0.1',
    ])
    expect(digestOf(entries, 'server tcp 172.30.0.41:80')).toBe('rr 1 10800 10.180.0.1:80=1 10.180.2.1:80=1')
  })

  it('puts every kind of frontend into the sets that other tools look for', () => {
    const record = service({
      type: 'LoadBalancer',
      ports: [tcp(80, 'p80', 3001)],
      externalIps: ['192.168.99.22'],
      loadBalancerIps: ['1.2.3.4'],
      sourceRanges: ['203.0.113.0/25', '192.168.0.0/24'],
    })
    expect(idsOf(entriesOf(record, [slice([there])])).filter((id) => !id.startsWith('server'))).toEqual([
      'member KUBE-CLUSTER-IP 172.30.0.41,tcp:80',
      'address 172.30.0.41',
      'member KUBE-EXTERNAL-IP 192.168.99.22,tcp:80',
      'address 192.168.99.22',
      'member KUBE-LOAD-BALANCER 1.2.3.4,tcp:80',
      'member KUBE-LOAD-BALANCER-FW 1.2.3.4,tcp:80',
      'member KUBE-LOAD-BALANCER-SOURCE-CIDR 1.2.3.4,tcp:80,203.0.113.0/25',
      'member KUBE-LOAD-BALANCER-SOURCE-CIDR 1.2.3.4,tcp:80,192.168.0.0/24',
      'member KUBE-LOAD-BALANCER-SOURCE-IP 1.2.3.4,tcp:80,1.2.3.4',
      'address 1.2.3.4',
      'member KUBE-NODE-PORT-TCP 3001',
      'node-port tcp 192.168.0.2:3001',
    ])
  })

  it('never binds the address of an API server to the device, unless the service leads to the API server', () => {
    const seen = view({ name: 'here', apiServers: [{ ip: '192.168.0.9', port: 6443 }] })
    const record = service({ externalIps: ['192.168.0.9'] })
    expect(idsOf(entriesOf(record, [slice([there])], seen))).not.toContain('address 192.168.0.9')
    const server = slice([endpoint('192.168.0.9', 'remote')], { port: 6443 })
    expect(idsOf(entriesOf(record, [server], seen))).toContain('address 192.168.0.9')
  })

  it('drops traffic under a Local policy without an endpoint here, and keeps endpoints of other nodes for the node itself', () => {
    const record = service({
      type: 'NodePort',
      ports: [tcp(80, 'p80', 3001)],
      externalPolicy: 'Local',
      internalPolicy: 'Local',
    })
    const entries = entriesOf(record, [slice([there])])
    expect(idsOf(entries)).toContain('member SLUICE-DROP-INTERNAL 172.30.0.41,tcp:80')
    expect(idsOf(entries)).toContain('member SLUICE-DROP-EXTERNAL 192.168.0.2,tcp:3001')
    expect(digestOf(entries, 'server tcp 172.30.0.41:80')).toBe('rr 0 0 ')
    expect(digestOf(entries, 'node-port tcp 192.168.0.2:3001')).toBe('rr 0 0 10.180.2.1:80=1')
  })

  it('plans a server without destinations for a service without endpoints, so that the kernel refuses clients', () => {
    const entries = entriesOf(service({}), [])
    expect(digestOf(entries, 'server tcp 172.30.0.41:80')).toBe('rr 0 0 ')
    expect(idsOf(entries).some((id) => id.includes('DROP'))).toBe(false)
  })

  it('plans node ports on every permitted address except loopback', () => {
    const all = view({
      nodePorts: {
        all: true,
        addresses: ['127.0.0.1', '192.168.0.2', '192.168.1.2'],
        loopback: true,
        loopbackNamed: false,
      },
    })
    const entries = entriesOf(service({ type: 'NodePort', ports: [tcp(80, 'p80', 3001)] }), [slice([there])], all)
    const ports = idsOf(entries).filter((id) => id.startsWith('node-port'))
    expect(ports).toEqual(['node-port tcp 192.168.0.2:3001', 'node-port tcp 192.168.1.2:3001'])
  })

  it('uses the scheduler and the weights of the annotations, and a weighted scheduler where weights differ', () => {
    const slices = [slice([here], { key: 'ns1/a', weight: 3 }), slice([there], { key: 'ns1/b' })]
    const server = (record: ServiceRecord) =>
      entriesOf(record, slices).find((one): one is ServerEntry => one.kind === 'server') as ServerEntry
    expect(server(service({})).digest).toBe('wrr 0 0 10.180.0.1:80=3 10.180.2.1:80=1')
    expect(server(service({ scheduler: 'lc' })).server.scheduler).toBe('wlc')
    expect(server(service({ scheduler: 'sh' })).server.scheduler).toBe('sh')
    expect(server(service({ scheduler: 'mh' })).server.flags).toBe(0x10)
  })
})

describe('base', () => {
  it('gives every set a name that the kernel accepts', () => {
    for (const family of [4, 6] as const) {
      const names = listSets(family).map(({ name }) => name)
      expect(new Set(names).size).toBe(19)
      expect(names.every((name) => name.length <= 31)).toBe(true)
    }
    expect(setName('KUBE-LOAD-BALANCER-SOURCE-CIDR', 6)).toBe('KUBE-6-LOAD-BALANCER-SOURCE-CID')
    expect(setName('KUBE-NODE-PORT-LOCAL-SCTP-HASH', 6)).toBe('KUBE-6-NODE-PORT-LOCAL-SCTP-HAS')
  })

  it('changes the rules only with the settings of the node that matter', () => {
    const digest = (seen = node) => base(seen).find(({ kind }) => kind === 'rules')?.digest
    expect(digest(view({ zone: 'b', serviceCidrs: [] }))).toBe(digest())
    expect(digest(view({ masqueradeAll: true }))).not.toBe(digest())
    expect(digest(view({ local: { kind: 'prefix', prefix: 'veth' } }))).not.toBe(digest())
  })

  it('masquerades cluster IP traffic by the detector of the node', () => {
    const line = (seen: typeof node) =>
      composeRules(seen)
        .split('\n')
        .find((text) => /KUBE-SERVICES .*KUBE-CLUSTER-IP .*-j KUBE-MARK-MASQ/.test(text))
    const comment = '-m comment --comment "Kubernetes service cluster ip + port for masquerade purpose"'
    const rule = (rest: string) =>
      `-A KUBE-SERVICES ${comment} -m set --match-set KUBE-CLUSTER-IP ${rest} -j KUBE-MARK-MASQ`
    expect(line(node)).toBe(rule('dst,dst ! -s 10.0.0.0/8'))
    expect(line(view({ masqueradeAll: true }))).toBe(rule('dst,dst'))
    expect(line(view({ local: undefined }))).toBe(rule('src,dst'))
    expect(line(view({ local: { kind: 'interface', name: 'cbr0' } }))).toBe(rule('dst,dst ! -i cbr0'))
    expect(line(view({ local: { kind: 'prefix', prefix: 'veth' } }))).toBe(rule('dst,dst ! -i veth+'))
  })
})

describe('the choice of an endpoint', () => {
  const digest = (given: Partial<ServiceRecord>) =>
    digestOf(entriesOf(service(given), [slice([here, there])]), 'server tcp 172.30.0.41:80')

  it('is made by the scheduler of the algorithm, and Maglev hashing leaves the port of the client out', () => {
    const destinations = '10.180.0.1:80=1 10.180.2.1:80=1'
    expect(digest({ algorithm: 'round-robin' })).toBe(`rr 0 0 ${destinations}`)
    expect(digest({ algorithm: 'random' })).toBe(`rr 0 0 ${destinations}`)
    expect(digest({ algorithm: 'consistent-hash' })).toBe(`mh 0 0 ${destinations}`)
    expect(digest({ scheduler: 'mh' })).toBe(`mh 16 0 ${destinations}`)
    expect(digest({ algorithm: 'consistent-hash', scheduler: 'lc' })).toBe(`lc 0 0 ${destinations}`)
  })

  it('follows the weights of the service, and leaves out weight 0', () => {
    expect(digest({ weights: { here: 3 } })).toBe('wrr 0 0 10.180.0.1:80=3 10.180.2.1:80=1')
    expect(digest({ weights: { here: 0 } })).toBe('rr 0 0 10.180.2.1:80=1')
  })
})
