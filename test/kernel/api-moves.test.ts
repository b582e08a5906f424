// Whole proxies of three modes that reach their API server behind default/kubernetes, by a name, or over IPv6, while it moves and while
// other services want its addresses.

import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout as delay } from 'node:timers/promises'
import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import type { Item } from '../lab/watched-api.ts'
import { until } from '../support/until.ts'
import { ApiNode, apiIp, apiPort, manifests } from './api-node.ts'
import { privateLock } from './iptables-holdings.ts'
import { podIps } from './node-network.ts'

privateLock()

const serviceIp = '172.30.0.1'
const serviceUrl = `http://${serviceIp}:443`
const nextIp = '192.168.0.101'

/** The Service default/kubernetes, and the slice with the addresses of its API servers. */
const [kubernetes] = manifests({ service: 'default/kubernetes', clusterIP: serviceIp, ports: ['https 443/tcp'] }) as [
  Item,
]
const servers = (...ips: string[]): Item =>
  manifests({
    slice: 'default/kubernetes',
    ports: [`https ${apiPort}/tcp`],
    endpoints: ips.map((ip) => `${ip} remote`),
  })[0] as Item

/** A service that wants an address of the API server, and has endpoints that answer. */
const thief = (externalIp: string, port = apiPort, name = 'ns1/thief'): readonly Item[] =>
  manifests(
    { service: name, clusterIP: `172.30.0.${name.length}`, ports: [`p ${port}/tcp`], externalIPs: [externalIp] },
    { slice: name, ports: ['p 8080/tcp'], endpoints: [`${podIps[0]} local`] },
  )

const serviceCidr = (name: string, cidr: string): Item =>
  ({ apiVersion: 'networking.k8s.io/v1', kind: 'ServiceCIDR', metadata: { name }, spec: { cidrs: [cidr] } }) as Item

describe.each(['nftables', 'iptables', 'userspace'])('mode %s, an API server behind default/kubernetes', (mode) => {
  let node: ApiNode

  beforeEach(async () => {
    node = await ApiNode.create(mode)
    node.api.put(kubernetes, servers(apiIp))
    // Someone must serve the address before a proxy can ask it.
    await node.start()
    await node.stop()
    await node.start(serviceUrl)
    await node.expectReconnect()
  })
  afterEach(() => node.close())

  it('is reached when other services want the cluster IP and the address behind it', async () => {
    const objects = [...thief(serviceIp, 443), ...thief(apiIp, apiPort, 'ns1/second')]
    node.api.put(...objects, serviceCidr('wide', '192.168.0.0/16'))
    await until('both are reported', () => /ns1\/thief/.test(node.log) && /ns1\/second/.test(node.log))
    await until('the overlap is reported', () => /contains an address.*API server/.test(node.log))
    await node.expectReconnect()
    node.api.drop(...objects)
    await node.expectReconnect()
  })

  it('is followed to a new address, which another service wanted', async () => {
    node.api.put(...thief(nextIp))
    await untilStolen(node)
    node.api.put(servers(apiIp, nextIp))
    await until('the service loses the address', () => node.log.includes('ns1/thief'))
    const next = await node.startApiAt(nextIp)
    node.api.put(servers(nextIp))
    await until('the new endpoint is programmed', async () => !(await leadsTo(node, apiIp)))
    next.put(servers(nextIp))
    node.api.close()
    node.api = next
    await node.expectProgress()
    await node.expectReconnect()
  })

  it('is reached while default/kubernetes has lost its endpoints, its slice and itself', async () => {
    node.api.put(servers())
    await delay(500)
    await node.expectReconnect()
    node.api.drop(servers())
    await delay(500)
    await node.expectReconnect()
    node.api.drop(kubernetes)
    await delay(500)
    await node.expectReconnect()
    expect(node.log).toContain('default/kubernetes')
    // It is there again, with another address: this is what counts.
    const next = await node.startApiAt(nextIp)
    node.api.put(kubernetes, servers(nextIp))
    await until('the new endpoint is programmed', async () => !(await leadsTo(node, apiIp)))
    next.put(kubernetes, servers(nextIp))
    node.api.close()
    node.api = next
    await node.expectProgress()
  })
})

/** Whether connections to default/kubernetes go to the address, asked from the node. */
async function leadsTo(node: ApiNode, ip: string): Promise<boolean> {
  const { stdout } = await node.network.node.exec('curl', ['-s', '-m', '3', `${serviceUrl}/where`])
  return stdout.includes(ip)
}

/** Resolves when a pod answers at the address that the API server will have. The machine that has the address cannot ask itself. */
const untilStolen = (node: ApiNode) =>
  until('the service has the address', async () => {
    const args = ['-s', '-m', '1', '--http0.9', `http://${nextIp}:${apiPort}/`]
    return (await node.network.node.exec('curl', args)).stdout.includes(podIps[0])
  })

describe.each(['nftables', 'iptables', 'userspace'])('mode %s, an API server with a name', (mode) => {
  let node: ApiNode
  let folder: string

  beforeEach(async () => {
    folder = mkdtempSync(join(tmpdir(), 'sluice-hosts-'))
    node = await ApiNode.create(mode)
  })
  afterEach(async () => {
    await node.close()
    rmSync(folder, { recursive: true })
  })

  it('is followed to an address that a service holds, with endpoints and without', async () => {
    const hosts = join(folder, 'hosts')
    writeFileSync(hosts, `${apiIp} api.test\n`)
    await node.start(`http://api.test:${apiPort}`, hosts)
    const [service, slice] = thief(nextIp) as [Item, Item]
    node.api.put(service, slice)
    await untilStolen(node)
    // The API server moves, and no object says so.
    const next = await node.startApiAt(nextIp)
    writeFileSync(hosts, `${nextIp} api.test\n`)
    node.api.close()
    node.api = next
    await node.expectProgress()
    expect(node.log).toMatch(/ns1\/thief/)
    next.drop(slice)
    await node.expectReconnect()
  })
})

describe.each(['nftables', 'iptables', 'userspace'])('mode %s, an API server over IPv6', (mode) => {
  let node: ApiNode

  beforeEach(async () => {
    node = await ApiNode.create(mode, 'fd77::100')
    await node.start()
  })
  afterEach(() => node.close())

  it('is reached when services and a ServiceCIDR want its address', async () => {
    const ports = [`p ${apiPort}/tcp`]
    const wanted = manifests(
      { service: 'ns1/thief', clusterIP: 'fd00:172:30::77', ports, externalIPs: ['fd77::100'] },
      { slice: 'ns1/thief', ports: ['p 8080/tcp'], endpoints: ['fd00:10:180::1 local'] },
      { service: 'ns1/second', clusterIP: 'fd77::100', ports },
    )
    node.api.put(...wanted)
    await until('both are reported', () => /ns1\/thief/.test(node.log) && /ns1\/second/.test(node.log))
    await node.expectReconnect()
    node.api.put(serviceCidr('six', 'fd77::/64'))
    await until('the overlap is reported', () => /contains an address.*API server/.test(node.log))
    await node.expectReconnect()
    node.api.drop(...wanted)
    await node.expectReconnect()
  })
})
