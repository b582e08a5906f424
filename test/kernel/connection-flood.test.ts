// The watch of connections when the kernel drops notifications, because the proxy stood still under a flood: the loss is counted, nobody is
// judged by it, and afterwards the proxy watches again. Real packets, the whole program.

import { setTimeout as delay } from 'node:timers/promises'
import { afterAll, beforeAll, expect, it } from 'vitest'
import { type FixedApi, serveObjects } from '../lab/fixed-api.ts'
import { nodeName } from '../scenarios/expand.ts'
import type { Manifest } from '../scenarios/format.ts'
import { until } from '../support/until.ts'
import { Flood, floodedService } from './flood.ts'
import { clusterIp, NodeNetwork, nodeIp, podIps } from './node-network.ts'
import { expand } from './web-service.ts'
import { WholeProxy } from './whole-proxy.ts'

let network: NodeNetwork
let api: FixedApi
let proxy: WholeProxy
let flood: Flood

/** A service that wants ejection, with both pods as its endpoints. */
function watched(service: string, clusterIP: string, port: number): readonly Manifest[] {
  const annotations = { 'sluice/outlier-ejection': 'on' }
  const endpoints = podIps.map((ip) => `${ip} remote`)
  return [
    expand({ service, clusterIP, ports: ['http 80/tcp'], annotations }, port),
    expand({ slice: service, ports: [`http ${port}/tcp`], endpoints }, port + 1),
  ]
}

beforeAll(async () => {
  network = await NodeNetwork.create()
  // Nobody dials the last one: its endpoints have the port of the flooded service, whose connections are therefore watched.
  const objects = [
    ...floodedService(),
    ...watched('ns1/web', clusterIp, 8080),
    ...watched('ns1/idle', '172.30.0.51', 8081),
  ]
  api = await serveObjects(network.node, nodeName, nodeIp, objects)
  proxy = await WholeProxy.start({ network, api, mode: 'nftables' })
  flood = await Flood.prepare(network)
  await proxy.waitUntilSynced()
})

afterAll(async () => {
  flood.close()
  await proxy.stop('SIGKILL')
  api.close()
  await network.close()
})

const metric = async (name: string) =>
  Number(new RegExp(`^${name} (\\d+)`, 'm').exec(await proxy.metrics())?.[1] ?? Number.NaN)

/** Dials the service for a second. Returns who answers. */
async function answering(): Promise<readonly string[]> {
  const answers: Promise<string>[] = []
  for (let i = 0; i < 25; i++) {
    answers.push(network.ask(clusterIp, 80, 2_000))
    await delay(40)
  }
  return [...new Set(await Promise.all(answers))].sort()
}

it('counts a loss, and ejects an endpoint that fails afterwards', async () => {
  expect(await answering()).toEqual([...podIps])
  expect(await metric('sluice_connection_events_lost_total')).toBe(0)
  proxy.child.kill('SIGSTOP')
  // Two notifications per connection fill the receive buffer (8 MB, as the kernel counts) several times.
  const figures = await flood.run(20_000)
  proxy.child.kill('SIGCONT')
  expect(figures.failed).toBe(0)
  await until('the loss is counted', async () => (await metric('sluice_connection_events_lost_total')) > 0)
  expect(await metric('sluice_ejections_total')).toBe(0)
  const rule = 'add rule ip f c tcp dport 8080 reject with tcp reset'
  await network
    .pod(1)
    .exec('sh', ['-c', `nft 'add table ip f; add chain ip f c { type filter hook input priority 0; }; ${rule}'`])
  await expect.poll(answering, { timeout: 60_000 }).toEqual([podIps[0]])
  expect(await metric('sluice_ejections_total')).toBeGreaterThan(0)
})
