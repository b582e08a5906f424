// Checks the names of chains against names that kube-proxy made.

import { describe, expect, it } from 'vitest'
import { hash32, iptablesEndpointHash, iptablesHash, nftEndpointBase, nftServiceBase } from '../../src/backend/names.ts'
import { hostPort } from '../../src/lib/ip.ts'
import type { ServicePort } from '../../src/model/types.ts'
import { servicePort } from '../support/builders.ts'

const port = (service: string, portName: string, protocol: ServicePort['protocol'] = 'tcp'): ServicePort =>
  servicePort({ service, portName, protocol })

describe('names that kube-proxy gives to iptables chains', () => {
  it.each([
    ['default/kubernetes', 'https', 'tcp', 'NPX46M4PTMTKRN6Y'],
    ['kube-system/kube-dns', 'dns', 'udp', 'TCOU7JCQXEZGVUNU'],
    ['kube-system/kube-dns', 'dns-tcp', 'tcp', 'ERIFXISQEP7F7OF4'],
    ['kube-system/kube-dns', 'metrics', 'tcp', 'JD5MR3NA4I4DYORP'],
    ['ns1/svc1', 'p80', 'tcp', 'XPGD46QRK7WJZT7O'],
    ['ns5/svc5', 'p80', 'tcp', 'NUKIZ6OKUXPJNT4C'],
    ['ns4/svc4', 'p8082', 'tcp', 'EBDQOQU5SJFXRIL3'],
    ['work/saythx-redis', '', 'tcp', 'FWZO4IPCTY5IWGE6'],
    ['default/http', '', 'tcp', 'EC7LQBUW7TSHRMAH'],
    ['default/whoami', '', 'tcp', 'DC3OOLRZIWFKJHLB'],
  ] as const)('%s:%s/%s', (service, name, protocol, hash) => {
    expect(iptablesHash(port(service, name, protocol))).toBe(hash)
  })

  it.each([
    ['default/kubernetes', 'https', '172.17.0.120', 6443, '3IDG7DUGN3QC2UZF'],
    ['ns1/svc1', 'p80', '10.180.0.1', 80, 'SXIVWICOYRO3J4NJ'],
    ['ns3/svc3', 'p8081', '203.0.113.4', 8081, 'RUVVH7YV3PHQBDOS'],
    ['ns1/svc1', 'p80', 'fd00:10:180::1', 80, 'OGYCNMB4EMRUSJ6N'],
    ['work/saythx-redis', '', '10.40.0.3', 6379, 'WFOSBWGUUQ4EX27S'],
  ] as const)('%s:%s -> %s:%d', (...[service, name, ip, number, hash]) => {
    expect(iptablesEndpointHash(port(service, name), hostPort(ip, number))).toBe(hash)
  })

  it('gives the names in old dumps if the old text is hashed', () => {
    expect(hash32('work/saythx-redis:tcp', 16)).toBe('SMQNAAUIAENDDGYQ')
    expect(hash32('default/whoami:tcp', 16)).toBe('OQCLJJ5GLLNFY3XB')
    expect(hash32('default/http:tcp10.244.1.6:80', 16)).toBe('55QZ6T7MF3AHPOOB')
  })
})

describe('names that kube-proxy gives to nftables chains', () => {
  it.each([
    ['ns1/svc1', 'p80', 'ULMVA6XW-ns1/svc1/tcp/p80'],
    ['testing/service', 'https', 'LZBRENCP-testing/service/tcp/https'],
    ['work/saythx-redis', '', 'KCVW2RHA-work/saythx-redis/tcp/'],
  ])('%s:%s', (service, name, base) => {
    expect(nftServiceBase(port(service, name))).toBe(base)
  })

  it('replaces the colons of IPv6 addresses by dots', () => {
    const endpoint = { ip: 'fd80:abcd:12::a1b2:c3d4:e5f6:9999', port: 80, local: false }
    expect(nftEndpointBase(port('testing/service', 'http'), endpoint)).toBe(
      'U7E2ET36-testing/service/tcp/http__fd80.abcd.12..a1b2.c3d4.e5f6.9999/80',
    )
  })

  it('truncates names at 240 characters, and the hash keeps them unique', () => {
    const long = port(`${'n'.repeat(63)}/${'s'.repeat(63)}`, 'p'.repeat(63), 'sctp')
    const a = nftEndpointBase(long, { ip: '1234:5678:9abc:def0::abcd:1234:5678', port: 443, local: false })
    const b = nftEndpointBase(long, { ip: '1234:5678:9abc:def0::abcd:1234:5678', port: 8765, local: false })
    expect(a).toHaveLength(240)
    expect(a.endsWith('...')).toBe(true)
    expect(a.slice(8)).toBe(b.slice(8))
    expect(a).not.toBe(b)
  })
})
