// The whole program while the machine does what machines do: signals, a lost log, stops, small limits.

import { setTimeout as delay } from 'node:timers/promises'
import { afterAll, beforeAll, expect, it } from 'vitest'
import { type FixedApi, serveObjects } from '../lab/fixed-api.ts'
import { nodeName } from '../scenarios/expand.ts'
import { NodeNetwork, nodeIp, podIps } from './node-network.ts'
import { extras, web } from './web-service.ts'
import { WholeProxy, type WholeProxyOptions } from './whole-proxy.ts'

let network: NodeNetwork
let api: FixedApi

beforeAll(async () => {
  network = await NodeNetwork.create()
  api = await serveObjects(network.node, nodeName, nodeIp, [...web().put, ...extras(10).put])
})

afterAll(async () => {
  api?.close()
  await network?.close()
})

async function start(options: Pick<WholeProxyOptions, 'prefix' | 'flags'> = {}): Promise<WholeProxy> {
  const proxy = await WholeProxy.start({ network, api, mode: 'nftables', ...options })
  await proxy.waitUntilSynced()
  return proxy
}

/** The table was deleted by someone: the proxy writes it again. */
async function expectRepair(): Promise<void> {
  await network.run('nft delete table ip kube-proxy').catch(() => undefined)
  await expect.poll(() => network.ask(), { timeout: 20_000 }).toMatch(/^10\.180\./)
}

it('SIGUSR1 does not open the debugger', async () => {
  const proxy = await start()
  for (let i = 0; i < 3; i++) {
    proxy.child.kill('SIGUSR1')
    await delay(200)
    expect(await network.run('ss -Hltn')).not.toContain(':9229 ')
  }
  expect(podIps).toContain(await network.ask())
  await proxy.stop()
})

it('goes on when the reader of the log has gone', async () => {
  // At this level each sync writes lines.
  const proxy = await start({ flags: ['--v=4'] })
  proxy.child.stderr?.destroy()
  await network.run('nft delete table ip kube-proxy').catch(() => undefined)
  await network.run('ip addr add 192.168.0.77/32 dev world')
  await delay(1500)
  await network.run('ip addr del 192.168.0.77/32 dev world')
  await expectRepair()
  expect(await proxy.metrics()).toContain('sync_proxy_rules')
  await proxy.stop()
})

it('goes on after it was stopped for a while', async () => {
  const proxy = await start()
  proxy.child.kill('SIGSTOP')
  await delay(8000)
  expect(podIps).toContain(await network.ask())
  proxy.child.kill('SIGCONT')
  await expectRepair()
  expect(await proxy.metrics()).toContain('sync_proxy_rules')
  await proxy.stop()
})
