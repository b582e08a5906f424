// Checks which addresses no service may take, and which service CIDRs are reported as a mistake.

import { describe, expect, it } from 'vitest'
import {
  findCidrOverlaps,
  leadsToApiServers,
  reservedAddresses,
  reservedHolder,
  reservedPorts,
} from '../../src/model/reserved-addresses.ts'
import { everyAddress, servicePort, view } from '../support/builders.ts'

const facts = {
  listeners: [
    { ip: '0.0.0.0', port: 10256, holder: 'health' },
    { ip: '127.0.0.1', port: 10249, holder: 'metrics' },
  ],
  apiServers: [
    { ip: '192.0.2.9', port: 6443 },
    { ip: '2001:db8::9', port: 6443 },
  ],
  interfaceAddresses: ['127.0.0.1', '192.0.2.1', '::1', '2001:db8::1'],
}
const primaryOnly = { all: false, addresses: ['192.0.2.1'], loopback: false, loopbackNamed: false }

describe('reservedAddresses', () => {
  it('has the API server, and a listener on every address of the node if its address is unspecified', () => {
    expect(reservedAddresses(facts, 4, primaryOnly)).toEqual({
      '127.0.0.1:10249/tcp': 'metrics',
      '127.0.0.1:10256/tcp': 'health',
      '192.0.2.1:10256/tcp': 'health',
      '192.0.2.9:6443/tcp': 'the API server',
      ':10256/tcp': 'health',
    })
    expect(Object.keys(reservedAddresses(facts, 6, everyAddress))).toEqual([
      ':10256/tcp',
      '[2001:db8::1]:10256/tcp',
      '[2001:db8::9]:6443/tcp',
      '[::1]:10256/tcp',
    ])
  })

  it('reserves a node port if the socket is on an address of this node that serves node ports', () => {
    expect(reservedAddresses(facts, 4, everyAddress)).toHaveProperty([':10249/tcp'], 'metrics')
    const here = { ...facts, apiServers: [{ ip: '192.0.2.1', port: 6443 }] }
    expect(reservedAddresses(here, 4, primaryOnly)).toHaveProperty([':6443/tcp'], 'the API server')
    expect(reservedAddresses(facts, 4, primaryOnly)).not.toHaveProperty([':6443/tcp'])
  })

  it('gives equal results whatever the order of facts', () => {
    const other = {
      listeners: facts.listeners.toReversed(),
      apiServers: facts.apiServers.toReversed(),
      interfaceAddresses: facts.interfaceAddresses.toReversed(),
    }
    const text = (given: typeof facts) => JSON.stringify(reservedAddresses(given, 4, everyAddress))
    expect(text(other)).toBe(text(facts))
  })

  it('lists its port numbers', () => {
    expect([...reservedPorts(reservedAddresses(facts, 6, everyAddress))].sort()).toEqual([10256, 6443])
  })
})

describe('reservedHolder', () => {
  const node = view({
    apiServers: [{ ip: '192.0.2.9', port: 6443 }],
    reserved: { '192.0.2.9:6443/tcp': 'the API server' },
  })
  const frontend = { kind: 'external-ip', ip: '192.0.2.9' } as const
  const endpoint = (ip: string, port: number) => ({ ip, port, local: false })

  it('refuses the API server’s address to every kind of frontend, with and without endpoints', () => {
    for (const kind of ['cluster-ip', 'external-ip', 'load-balancer'] as const) {
      const port = servicePort({ cluster: [endpoint('10.0.0.1', 6443)] })
      expect(reservedHolder(port, { ...frontend, kind }, '192.0.2.9:6443/tcp', node)).toBe('the API server')
      expect(reservedHolder(servicePort(), { ...frontend, kind }, '192.0.2.9:6443/tcp', node)).toBe('the API server')
    }
    expect(reservedHolder(servicePort(), frontend, '192.0.2.9:80/tcp', node)).toBeUndefined()
  })

  it('allows it to a service that leads to API servers and nowhere else', () => {
    const port = servicePort({ cluster: [endpoint('192.0.2.9', 6443)] })
    expect(reservedHolder(port, frontend, '192.0.2.9:6443/tcp', node)).toBeUndefined()
    const mixed = servicePort({ cluster: [endpoint('192.0.2.9', 6443), endpoint('10.0.0.1', 6443)] })
    expect(leadsToApiServers(mixed, node)).toBe(false)
    expect(leadsToApiServers({ ...port, local: [endpoint('10.0.0.1', 6443)] }, node)).toBe(false)
    expect(leadsToApiServers(servicePort(), node)).toBe(false)
  })

  it('refuses loopback to external and load-balancer IPs on any port', () => {
    const holder = (kind: 'external-ip' | 'load-balancer' | 'cluster-ip', ip: string) =>
      reservedHolder(servicePort(), { kind, ip }, `${ip}:80/tcp`, node)
    expect(holder('external-ip', '127.0.0.53')).toMatch(/loopback/)
    expect(holder('load-balancer', '::1')).toMatch(/loopback/)
    expect(holder('cluster-ip', '127.0.0.53')).toBeUndefined()
  })
})

describe('findCidrOverlaps', () => {
  it('names service CIDRs that contain an address of this node or of an API server', () => {
    const node = view({
      serviceCidrs: ['172.30.0.0/16', '192.168.0.0/16'],
      apiServers: [{ ip: '172.30.9.9', port: 443 }],
    })
    expect(findCidrOverlaps(node, ['127.0.0.1', '192.168.0.2', '10.0.0.1'])).toEqual([
      { cidr: '172.30.0.0/16', address: 'the API server 172.30.9.9:443' },
      { cidr: '192.168.0.0/16', address: 'the address 192.168.0.2 of this node' },
    ])
    expect(findCidrOverlaps(view(), ['127.0.0.1', '10.0.0.1'])).toEqual([])
  })
})
