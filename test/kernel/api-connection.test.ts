// Whole proxies of three modes whose services want the address of the API server or of the proxy's own health port.

import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import type { Item } from '../lab/watched-api.ts'
import type { Json } from '../scenarios/twins.ts'
import { until } from '../support/until.ts'
import { ApiNode, apiIp, apiPort, manifests } from './api-node.ts'
import { privateLock } from './iptables-holdings.ts'
import { nodeIp, podIps } from './node-network.ts'

privateLock()

const ownIp = '172.30.0.77'
const pods = { slice: 'ns1/thief', ports: ['p 8080/tcp'], endpoints: [`${podIps[0]} local`] }
const theft = (fields: { readonly [key: string]: Json }): Json => {
  return { service: 'ns1/thief', clusterIP: ownIp, ports: [`p ${apiPort}/tcp`], ...fields }
}
const serviceCidr = (name: string, cidr: string): Item =>
  ({ apiVersion: 'networking.k8s.io/v1', kind: 'ServiceCIDR', metadata: { name }, spec: { cidrs: [cidr] } }) as Item

describe.each(['nftables', 'iptables', 'userspace'])('a proxy in mode %s and its API server', (mode) => {
  let node: ApiNode
  beforeEach(async () => {
    node = await ApiNode.create(mode)
    await node.start()
  })
  afterEach(() => node.close())

  it.each([
    ['an external IP', theft({ externalIPs: [apiIp] })],
    ['a load-balancer IP', theft({ type: 'LoadBalancer', lb: [apiIp] })],
    ['a cluster IP', theft({ clusterIP: apiIp })],
  ])('stay connected when %s is the address of the API server, with endpoints and without', async (_, thief) => {
    const [service, slice] = manifests(thief, pods) as [Item, Item]
    node.api.put(service)
    await until('the proxy names the holder', () => /ns1\/thief/.test(node.log) && /the API server/.test(node.log))
    await node.expectReconnect()
    node.api.put(slice)
    await node.expectReconnect()
    node.api.drop(service, slice)
    await node.expectReconnect()
    await until('the service gets an Event', () => node.api.posted.includes('is reserved for the API server'))
  })

  it('stay connected when a ServiceCIDR covers the network of the nodes, and the Node gets an Event', async () => {
    node.api.put(serviceCidr('wide', '192.168.0.0/16'))
    await until('the overlap is reported', () => /contains an address.*API server/.test(node.log))
    await node.expectReconnect()
    await node.expectReconnect()
    await until('the Node gets an Event', () => /ServiceCIDROverlap/.test(node.api.posted))
  })

  it('a service cannot take the health port of the node, and gets other ports of its address', async () => {
    const ports = ['p 10256/tcp', 'q 80/tcp']
    node.api.put(
      ...manifests(theft({ externalIPs: [nodeIp], ports }), { ...pods, ports: ['p 8080/tcp', 'q 8080/tcp'] }),
    )
    await node.untilServed(nodeIp)
    const { stdout } = await node.network.client.exec('curl', ['-s', '--max-time', '3', `http://${nodeIp}:10256/livez`])
    expect(stdout).toContain('lastUpdated')
    expect(node.log).toMatch(/the health server of this proxy/)
  })
})
