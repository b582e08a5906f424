// The check of the node's own data path: it measures while the path works, and /healthz fails while a foreign rule breaks it.

import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, expect, it } from 'vitest'
import type { Mode } from '../../src/backend/backend.ts'
import { serveObjects } from '../lab/fixed-api.ts'
import { nodeName } from '../scenarios/expand.ts'
import { NodeNetwork, nodeIp } from './node-network.ts'
import { web } from './web-service.ts'
import { WholeProxy } from './whole-proxy.ts'

const address = '172.30.255.254'
const address6 = 'fd00:30::fffe'
const closers: (() => Promise<unknown>)[] = []

afterEach(async () => {
  for (const close of closers.splice(0).reverse()) await close()
})

/** A node with a network of its own, so that the modes are tried at the same time. */
async function start(mode: Mode, settings: string) {
  const network = await NodeNetwork.create()
  closers.push(() => network.close())
  const folder = mkdtempSync(join(tmpdir(), 'sluice-canary-'))
  closers.push(async () => rmSync(folder, { recursive: true, force: true }))
  const file = join(folder, 'sluice.yaml')
  writeFileSync(file, `apiVersion: sluice/v1alpha1\nkind: SluiceConfiguration\n${settings}`)
  const api = await serveObjects(network.node, nodeName, nodeIp, web().put)
  closers.push(async () => api.close())
  const flags = [`--sluice-config=${file}`, '--healthz-bind-address=127.0.0.1:10256']
  const proxy = await WholeProxy.start({ network, api, mode, flags })
  closers.push(() => proxy.stop('SIGKILL'))
  await proxy.waitUntilSynced()
  /** The body and the code of a page of the health server. */
  const ask = async (page: string) => {
    const url = `http://127.0.0.1:10256/${page}`
    return (await network.node.exec('curl', ['-s', '-m', '5', '-w', ' %{http_code}', url])).stdout
  }
  const count = async (name: string, family = 'IPv4') =>
    Number(new RegExp(`^sluice_${name}\\{ip_family="${family}"\\} (\\S+)`, 'm').exec(await proxy.metrics())?.[1] ?? 0)
  return { network, proxy, ask, count }
}

const settings = `canary:\n  addresses: ["${address}"]\n  interval: 1s\n  failures: 1\n  healthz: fail\n`
const drop = `nft 'add table ip foreign; add chain ip foreign out { type filter hook output priority -250; }; add rule ip foreign out ip daddr ${address} drop'`

it('measures from the event to the first packet, and /healthz fails while the path is broken, in three modes', async () => {
  const play = async (mode: Mode) => {
    const { network, proxy, ask, count } = await start(mode, settings)
    await expect.poll(() => count('canary_programming_duration_seconds_count'), { timeout: 60_000 }).toBeGreaterThan(2)
    expect(await count('canary_connect_duration_seconds_count')).toBeGreaterThan(2)
    await expect.poll(() => ask('healthz'), { timeout: 60_000 }).toMatch(/"healthy":true,"broken":\{\}\}\} 200$/)
    await network.run(drop)
    await expect.poll(() => ask('healthz'), { timeout: 60_000 }).toMatch(/"broken":\{"IPv4":".+"\}\}\} 503$/)
    expect(await ask('livez')).toMatch(/ 200$/)
    expect(await count('canary_broken')).toBe(1)
    expect(proxy.log).toContain('The data path of this node is broken')
    await network.run('nft delete table ip foreign')
    await expect.poll(() => ask('healthz'), { timeout: 60_000 }).toMatch(/"healthy":true,"broken":\{\}\}\} 200$/)
  }
  await Promise.all(['nftables', 'iptables', 'userspace'].map(play))
})

it('checks IPv6 for itself', async () => {
  const both = settings.replace(`["${address}"]`, `["${address}", "${address6}"]`)
  const { network, ask, count } = await start('nftables', both)
  const checks = () => count('canary_programming_duration_seconds_count', 'IPv6')
  await expect.poll(checks, { timeout: 60_000 }).toBeGreaterThan(2)
  await network.run(
    drop.replaceAll(' ip foreign', ' ip6 foreign').replace(`ip daddr ${address}`, `ip6 daddr ${address6}`),
  )
  await expect.poll(() => ask('healthz'), { timeout: 60_000 }).toMatch(/"broken":\{"IPv6":".+"\}\}\} 503$/)
  expect(await count('canary_broken', 'IPv4')).toBe(0)
  expect(await count('canary_broken', 'IPv6')).toBe(1)
  await network.run('nft delete table ip6 foreign')
  await expect.poll(() => ask('healthz'), { timeout: 60_000 }).toMatch(/"healthy":true,"broken":\{\}\}\} 200$/)
})

it('without addresses there is no trace of it', async () => {
  const { network, ask } = await start('nftables', '')
  expect(await ask('healthz')).not.toContain('dataPath')
  expect(await network.run('nft list ruleset')).not.toContain('canary')
  expect(await network.run('ss -Hltn')).not.toMatch(/127\.0\.0\.1:(?!10249|10256|8001)\d+/)
})
