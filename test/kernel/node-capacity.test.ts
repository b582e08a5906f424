// Weights by node capacity, with the whole program and real connections; nft shows the slots.

import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, beforeEach, expect, it } from 'vitest'
import type { Mode } from '../../src/backend/backend.ts'
import { AdminClient } from '../../src/http/admin-client.ts'
import { type Item, WatchedApi } from '../lab/watched-api.ts'
import { nodeName } from '../scenarios/expand.ts'
import { until } from '../support/until.ts'
import { clusterIp, NodeNetwork, nodeIp, podIps } from './node-network.ts'
import { expand } from './web-service.ts'
import { WholeProxy } from './whole-proxy.ts'

/** The node of endpoints that are `remote`. */
const otherNode = 'node-b'
const [first, second] = podIps

let network: NodeNetwork
let api: WatchedApi
let proxy: WholeProxy | undefined
let folder: string
let admin: AdminClient

beforeEach(async () => {
  folder = mkdtempSync(join(tmpdir(), 'sluice-capacity-'))
  network = await NodeNetwork.create()
  api = await WatchedApi.listen(network.node, 8001)
  putNode(nodeName, '2')
  putNode(otherNode, '6')
})

afterEach(async () => {
  await proxy?.stop('SIGKILL')
  proxy = undefined
  api.close()
  await network.close()
  rmSync(folder, { recursive: true, force: true })
})

/** With another time each time, as a kubelet reports it. */
let heartbeats = 0
const putNode = (name: string, cpu: string) => {
  const conditions = [
    { type: 'Ready', status: 'True', lastHeartbeatTime: `2026-11-17T10:00:${10 + (heartbeats++ % 50)}Z` },
  ]
  const addresses = name === nodeName ? [{ type: 'InternalIP', address: nodeIp }] : []
  const status = { addresses, conditions, capacity: { cpu: '64' }, allocatable: { cpu, memory: '8Gi' } }
  api.put({ apiVersion: 'v1', kind: 'Node', metadata: { name }, status } as Item)
}

/** The first pod is on this node, the second on the other one as far as the slice says. */
function putWeb(weights?: string): void {
  const annotations = weights === undefined ? {} : { 'sluice/weights': weights }
  const ports = ['http 80/tcp']
  const endpoints = [`${first} local`, `${second} remote`]
  api.put(expand({ service: 'ns1/web', clusterIP: clusterIp, ports, annotations }, 0) as Item)
  api.put(expand({ slice: 'ns1/web', ports: ['http 8080/tcp'], endpoints }, 1) as Item)
}

async function start(flags: readonly string[] = [], mode: Mode = 'nftables'): Promise<WholeProxy> {
  const env = { SLUICE_ADMIN_SOCKET: join(folder, 'admin.sock') }
  proxy = await WholeProxy.start({ network, api, mode, flags, env })
  await proxy.waitUntilSynced()
  admin = new AdminClient(env.SLUICE_ADMIN_SOCKET)
  return proxy
}

/** Counts the answers of the second pod among so many connections; the first gives all others. */
async function countSecond(times: number): Promise<number> {
  const answers: string[] = []
  for (let i = 0; i < times; i++) answers.push(await network.ask())
  expect(answers.filter((ip) => ip !== first && ip !== second)).toEqual([])
  return answers.filter((ip) => ip === second).length
}

/** What `sluice status` says about the endpoints. */
const readWeights = async () =>
  (await admin.services('ns1/web', false)).flatMap(({ ports }) =>
    ports.flatMap(({ endpoints }) => endpoints.map(({ weight, weightFrom }) => `${weight} ${weightFrom}`)),
  )

/** How many slots of the service each pod has, as nft shows it. */
async function countSlots(): Promise<string> {
  const text = await network.run('nft list map ip kube-proxy endpoints')
  const own = [...text.matchAll(/172\.30\.0\.41 \. tcp \. 80 \. [^:,]* : (\S+) \. 8080/g)].map((match) => match[1])
  return podIps.map((ip) => own.filter((one) => one === ip).length).join(':')
}

const untilSlots = (slots: string) =>
  until(`the slots are ${slots}`, async () => (await countSlots()) === slots, { limitMs: 60_000, everyMs: 50 })

/** Requests for all nodes, and not for the own one. */
const askedForNodes = () =>
  api.asked.filter(({ pathname, searchParams }) => pathname === '/api/v1/nodes' && !searchParams.has('fieldSelector'))

async function countSyncs(running: WholeProxy): Promise<number> {
  const metrics = await running.metrics()
  const found = /^kubeproxy_sync_proxy_rules_duration_seconds_count\{ip_family="IPv4"\} (\d+)/m.exec(metrics)?.[1]
  if (found === undefined) throw new Error('there is no count of syncs')
  return Number(found)
}

it('spreads connections by the CPUs of the nodes, follows them, and stops when the annotation goes', async () => {
  putWeb('node-capacity')
  const running = await start()
  await untilSlots('1:3')
  const share = await countSecond(200)
  // The mean is 150 and the deviation 6.1: chance alone leaves this range once in a million runs.
  expect(share).toBeGreaterThan(119)
  expect(share).toBeLessThan(181)
  expect(await readWeights()).toEqual(['4 node-capacity', '12 node-capacity'])
  const [explanation] = await admin.explain({ target: 'ns1/web:http', from: 'node' })
  expect(explanation?.endpoints.map(({ probability, why }) => `${probability} ${why}`)).toEqual([
    '0.25 ready, on this node, weight 4 by the capacity of its node',
    '0.75 ready, weight 12 by the capacity of its node',
  ])

  const syncs = await countSyncs(running)
  for (let i = 0; i < 20; i++) putNode(i % 2 === 0 ? nodeName : otherNode, i % 2 === 0 ? '2' : '6')
  putNode('node-c', '16')
  // The change comes after the heartbeats on the same watch, and is one sync.
  putNode(otherNode, '7910m')
  await untilSlots('1:4')
  await until('the sync is counted', async () => (await countSyncs(running)) > syncs)
  expect(await countSyncs(running)).toBe(syncs + 1)

  putNode(otherNode, 'none')
  await untilSlots('1:1')
  expect(await readWeights()).toEqual(['4 node-capacity', '4 smallest-node'])
  await until('the Event names the field', () => api.posted.includes('status.allocatable.cpu'), { limitMs: 60_000 })
  putNode(otherNode, '3')
  await untilSlots('2:3')
  putWeb(`node-capacity, ${otherNode}=0`)
  await untilSlots('1:0')
  putWeb()
  await untilSlots('1:1')
  expect(askedForNodes()).toHaveLength(1)
  const { records } = await admin.history({ service: 'ns1/web', since: 0, beforeSync: 0, afterSync: 0, limit: 50 })
  const causes = records.flatMap(({ notes }) => notes.filter(({ kind }) => kind === 'capacity').map(({ text }) => text))
  // The newest first: three changes of the other node, one perhaps together with node-c, and the first list.
  expect(causes.map((text) => text.split(', ').at(-1))).toEqual([otherNode, otherNode, otherNode, otherNode])
  await until('the watch has ended', () => running.log.includes('No longer watching the capacity of nodes'))
})

it.each<Mode>(['iptables', 'userspace'])('spreads connections by the CPUs of the nodes in %s mode', async (mode) => {
  putWeb('node-capacity')
  await start([], mode)
  const weights = '4 node-capacity,12 node-capacity'
  await until('status has the weights', async () => (await readWeights()).join() === weights, { limitMs: 60_000 })
  await until('the other is preferred', async () => (await countSecond(20)) > 12, { limitMs: 60_000 })
  const share = await countSecond(200)
  expect(share).toBeGreaterThan(119)
  expect(share).toBeLessThan(181)
})

it('asks for all nodes only while the settings want it, and services with weights of their own keep them', async () => {
  const file = join(folder, 'sluice.yaml')
  const write = (weights: string) =>
    writeFileSync(file, `apiVersion: sluice/v1alpha1\nkind: SluiceConfiguration\nbalancing:\n  weights: ${weights}\n`)
  write('none')
  putWeb()
  await start([`--sluice-config=${file}`])
  await untilSlots('1:1')
  putNode(otherNode, '8')
  expect([...new Set(api.asked.map(({ pathname }) => pathname))].sort()).toEqual([
    '/api/v1/nodes',
    '/api/v1/services',
    '/apis/discovery.k8s.io/v1/endpointslices',
    '/apis/networking.k8s.io/v1/servicecidrs',
  ])
  expect(askedForNodes()).toEqual([])
  write('node-capacity')
  await untilSlots('1:4')
  putWeb(`${nodeName}=5`)
  await untilSlots('5:1')
  putWeb()
  await untilSlots('1:4')
  write('none')
  await untilSlots('1:1')
  expect(askedForNodes()).toHaveLength(1)
})

it('leaves weights equal while it may not read nodes, says so once, and follows when it may', async () => {
  api.refuses = (url) => url.pathname === '/api/v1/nodes' && !url.searchParams.has('fieldSelector')
  putWeb('node-capacity')
  const running = await start()
  await until('it has asked several times', () => askedForNodes().length >= 6, { limitMs: 60_000 })
  expect(await countSlots()).toBe('1:1')
  expect(running.log.match(/Cannot read from the API server/g)).toHaveLength(1)
  expect(running.log).toContain('before the first answer they are equal')
  api.refuses = () => false
  await untilSlots('1:3')
})
