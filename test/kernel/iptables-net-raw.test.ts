// iptables mode without CAP_NET_RAW on a node with legacy tables: nobody can read them, and the log says so.

import { afterAll, beforeAll, expect, it } from 'vitest'
import { type FixedApi, serveObjects } from '../lab/fixed-api.ts'
import { nodeName } from '../scenarios/expand.ts'
import { privateLock } from './iptables-holdings.ts'
import { NodeNetwork, nodeIp, podIps } from './node-network.ts'
import { web } from './web-service.ts'
import { WholeProxy } from './whole-proxy.ts'

privateLock()

let network: NodeNetwork
let api: FixedApi

beforeAll(async () => {
  network = await NodeNetwork.create()
  api = await serveObjects(network.node, nodeName, nodeIp, web().put)
  await network.useFlavour('nft')
})

afterAll(async () => {
  api?.close()
  await network?.close()
})

async function start(prefix: readonly string[]): Promise<string> {
  const proxy = await WholeProxy.start({ network, api, mode: 'iptables', prefix })
  await proxy.waitUntilSynced()
  expect(podIps).toContain(await network.ask())
  await proxy.stop()
  return proxy.log
}

const warning = /legacy iptables.*CAP_NET_RAW is missing.*/g
const withoutNetRaw = ['setpriv', '--bounding-set=-net_raw', '--inh-caps=-net_raw']

it('the log says once that legacy tables cannot be read for lack of CAP_NET_RAW, and which', async () => {
  expect(await start(withoutNetRaw)).not.toMatch(warning)
  await network.run('iptables-legacy -t nat -A OUTPUT -d 10.99.0.1 -j ACCEPT')
  const lines = (await start(withoutNetRaw)).match(warning)
  expect(lines).toHaveLength(1)
  expect(lines?.[0]).toContain('tables="iptables nat"')
  expect(await start([])).not.toMatch(warning)
})
