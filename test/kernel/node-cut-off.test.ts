// A node with several endpoints is cut off: under load all its endpoints are ejected as one, and no client fails. Real connections.

import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout as delay } from 'node:timers/promises'
import { afterEach, expect, it } from 'vitest'
import { serveObjects } from '../lab/fixed-api.ts'
import { nodeName } from '../scenarios/expand.ts'
import { until } from '../support/until.ts'
import { allPods, nodeIp, podIpsOf, RemoteNodes } from './remote-nodes.ts'
import { WholeProxy } from './whole-proxy.ts'

const closers: (() => unknown)[] = []

afterEach(async () => {
  for (const close of closers.splice(0).reverse()) await close()
})

async function start(): Promise<{ network: RemoteNodes; proxy: WholeProxy }> {
  const folder = mkdtempSync(join(tmpdir(), 'sluice-cut-'))
  closers.push(() => rmSync(folder, { recursive: true, force: true }))
  const file = join(folder, 'sluice.yaml')
  const settings = 'outliers:\n  interval: 2s\n'
  writeFileSync(file, `apiVersion: sluice/v1alpha1\nkind: SluiceConfiguration\n${settings}`)
  const network = await RemoteNodes.create()
  closers.push(() => network.close())
  const objects = RemoteNodes.objects({ 'sluice/outlier-ejection': 'on' })
  const api = await serveObjects(network.node, nodeName, nodeIp, objects)
  closers.push(() => api.close())
  const proxy = await WholeProxy.start({ network, api, mode: 'nftables', flags: [`--sluice-config=${file}`] })
  closers.push(() => proxy.stop('SIGKILL'))
  await proxy.waitUntilSynced()
  return { network, proxy }
}

/** Dials without waiting for answers until it is stopped. A client has a minute, in which its kernel sends its SYN again. */
function load(network: RemoteNodes) {
  const answers: Promise<string>[] = []
  const timer = setInterval(() => answers.push(network.ask(60_000)), 40)
  closers.push(() => clearInterval(timer))
  return {
    async stop() {
      clearInterval(timer)
      return [...new Set(await Promise.all(answers))].sort()
    },
  }
}

/** Opens connections at once. Returns who answers. */
async function askMany(network: RemoteNodes): Promise<readonly string[]> {
  const answers = await Promise.all(Array.from({ length: 50 }, () => network.ask(10_000)))
  return [...new Set(answers)].sort()
}

it('the endpoints of a node that is cut off are ejected as one, clients that waited get another, and all come back', async () => {
  const { network, proxy } = await start()
  const ejects = async (count: number) => (await proxy.metrics()).includes(`sluice_ejected_endpoints ${count}\n`)
  await expect.poll(() => askMany(network), { timeout: 60_000 }).toEqual(allPods)
  await network.cutNode(0, 'down')
  // Connections that were answered before would hang, whatever the proxy does.
  const clients = load(network)
  await until('the endpoints of the node are ejected', () => ejects(3), { limitMs: 60_000 })
  // The first of them may be ejected for its own failures, before the node is.
  for (const ip of podIpsOf(0)) expect(proxy.log).toContain(`${ip}:8080 (`)
  expect(proxy.log).toContain('(no endpoint on node node-b answers)')
  // Longer than an interval: the proxy dials the endpoints itself, and no client is sent there.
  await delay(3_000)
  expect(await clients.stop()).toEqual(podIpsOf(1))
  await network.cutNode(0, 'up')
  await until('the endpoints are back', () => ejects(0), { limitMs: 60_000 })
  await expect.poll(() => askMany(network), { timeout: 60_000 }).toEqual(allPods)
})
