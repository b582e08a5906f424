// Whole proxies of three modes whose services want the address of the API server or of the proxy's own health port.

import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import { join } from 'node:path'
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, it } from 'vitest'
import { type Item, WatchedApi } from '../lab/watched-api.ts'
import { nodeName } from '../scenarios/expand.ts'
import type { Json } from '../scenarios/twins.ts'
import { type Bundle, bundleProgram } from '../support/bundle-program.ts'
import { until } from '../support/until.ts'
import { privateLock } from './iptables-holdings.ts'
import { NodeNetwork, nodeIp, podIps } from './node-network.ts'
import { expand, single } from './web-service.ts'

privateLock()

/** The API server is on another machine of the node's network. */
const apiIp = '192.168.0.100'
const apiPort = 6443
const ownIp = '172.30.0.77'

let bundle: Bundle
beforeAll(async () => {
  bundle = await bundleProgram(join(import.meta.dirname, '../commands/sluice.worker.ts'))
})
afterAll(() => bundle.remove())

const manifests = (...objects: Json[]) => objects.map((object, i) => expand(object, 500 + i)) as unknown as Item[]
const pods = { slice: 'ns1/thief', ports: ['p 8080/tcp'], endpoints: [`${podIps[0]} local`] }
const theft = (fields: { readonly [key: string]: Json }): Json => {
  return { service: 'ns1/thief', clusterIP: ownIp, ports: [`p ${apiPort}/tcp`], ...fields }
}

/** A running proxy, its API server, and what it logged. */
interface Node {
  readonly network: NodeNetwork
  readonly api: WatchedApi
  readonly child: ChildProcess
  log: string
}

async function startNode(mode: string): Promise<Node> {
  const network = await NodeNetwork.create()
  if (mode !== 'nftables') await network.useFlavour('nft')
  const api = await WatchedApi.listen(network.client, apiPort, apiIp)
  const addresses = [{ type: 'InternalIP', address: nodeIp }]
  const node = { apiVersion: 'v1', kind: 'Node', metadata: { name: nodeName }, spec: {}, status: { addresses } }
  api.put(node, ...(single('ns1/first', '172.30.0.80') as unknown as Item[]))
  const flags = [
    ...[`--master=${api.url}`, `--proxy-mode=${mode}`, `--hostname-override=${nodeName}`],
    ...['--cluster-cidr=10.0.0.0/8', '--conntrack-max-per-core=0', '--conntrack-tcp-timeout-established=0'],
    ...[
      '--conntrack-tcp-timeout-close-wait=0',
      '--metrics-bind-address=127.0.0.1:10249',
      '--iptables-min-sync-period=0s',
    ],
  ]
  const args = ['netns', 'exec', network.node.name, process.execPath, bundle.file, 'proxy', ...flags]
  const child = spawn('ip', args, {
    stdio: ['ignore', 'ignore', 'pipe'],
    env: { ...process.env, SLUICE_ADMIN_SOCKET: 'off' },
  })
  const running: Node = { network, api, child, log: '' }
  child.stderr.on('data', (chunk) => {
    running.log += chunk
  })
  await untilServed(running, '172.30.0.80')
  return running
}

const untilServed = (node: Node, ip: string, port = 80) =>
  until(`${ip}:${port} is served\n${node.log.slice(-3000)}`, async () => {
    return (podIps as readonly string[]).includes(await node.network.ask(ip, port, 500))
  })

let marks = 0
/** Cuts the connection, and shows that the proxy hears of a change afterwards. */
async function expectReconnect(node: Node): Promise<void> {
  const ip = `172.30.1.${++marks}`
  node.api.cut()
  node.api.put(...(single(`marks/m${marks}`, ip) as unknown as Item[]))
  await untilServed(node, ip)
}

describe.each(['nftables', 'iptables', 'userspace'])('a proxy in mode %s and its API server', (mode) => {
  let node: Node
  beforeEach(async () => {
    node = await startNode(mode)
  })
  afterEach(async () => {
    const ended = once(node.child, 'exit')
    node.child.kill('SIGKILL')
    await ended
    node.api.close()
    await node.network.close()
  })

  it.each([
    ['an external IP', theft({ externalIPs: [apiIp] })],
    ['a load-balancer IP', theft({ type: 'LoadBalancer', lb: [apiIp] })],
    ['a cluster IP', theft({ clusterIP: apiIp })],
  ])('stay connected when %s is the address of the API server, with endpoints and without', async (_, thief) => {
    const [service, slice] = manifests(thief, pods) as [Item, Item]
    node.api.put(service)
    await until('the proxy names the holder', () => /ns1\/thief/.test(node.log) && /the API server/.test(node.log))
    await expectReconnect(node)
    node.api.put(slice)
    await expectReconnect(node)
    node.api.drop(service, slice)
    await expectReconnect(node)
    await until('the service gets an Event', () => node.api.posted.includes('is reserved for the API server'))
  })

  it('stay connected when a ServiceCIDR covers the network of the nodes, and the Node gets an Event', async () => {
    const cidr = {
      apiVersion: 'networking.k8s.io/v1',
      kind: 'ServiceCIDR',
      metadata: { name: 'wide' },
      spec: { cidrs: ['192.168.0.0/16'] },
    }
    node.api.put(cidr)
    await until('the overlap is reported', () => /contains an address.*API server/.test(node.log))
    await expectReconnect(node)
    await expectReconnect(node)
    await until('the Node gets an Event', () => /ServiceCIDROverlap/.test(node.api.posted))
  })

  it('a service cannot take the health port of the node, and gets other ports of its address', async () => {
    const ports = ['p 10256/tcp', 'q 80/tcp']
    node.api.put(
      ...manifests(theft({ externalIPs: [nodeIp], ports }), { ...pods, ports: ['p 8080/tcp', 'q 8080/tcp'] }),
    )
    await untilServed(node, nodeIp)
    const { stdout } = await node.network.client.exec('curl', ['-s', '--max-time', '3', `http://${nodeIp}:10256/livez`])
    expect(stdout).toContain('lastUpdated')
    expect(node.log).toMatch(/the health server of this proxy/)
  })
})
