// The whole program while the machine does what machines do: signals, a lost log, stops, small limits.

import { existsSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { Socket } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout as delay } from 'node:timers/promises'
import { afterAll, beforeAll, expect, it } from 'vitest'
import { type FixedApi, serveObjects } from '../lab/fixed-api.ts'
import { nodeName } from '../scenarios/expand.ts'
import { folderFirst } from '../support/program-folders.ts'
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

async function start(options: Pick<WholeProxyOptions, 'prefix' | 'flags' | 'env'> = {}): Promise<WholeProxy> {
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

it('starts no program in nftables mode, unless iptables holds chains of a proxy', async () => {
  const folder = mkdtempSync(join(tmpdir(), 'sluice-programs-'))
  const programs = ['', '-nft', '-legacy'].flatMap((suffix) =>
    ['iptables', 'ip6tables'].flatMap((name) => ['', '-save', '-restore'].map((verb) => `${name}${suffix}${verb}`)),
  )
  const real = (name: string) => `if [ -x /usr/sbin/${name} ]; then exec /usr/sbin/${name} "$@"; fi; exit 1`
  for (const name of programs) {
    writeFileSync(join(folder, name), `#!/bin/sh\ntouch ${folder}/started\n${real(name)}\n`, { mode: 0o755 })
  }
  // A chain of kubelet is not one of a proxy.
  await network.run('iptables-nft -t mangle -N KUBE-KUBELET-CANARY')
  const quiet = await start({ env: folderFirst(folder) })
  await delay(2000)
  expect(existsSync(join(folder, 'started'))).toBe(false)
  await quiet.stop()
  await network.run('iptables-nft -t nat -N KUBE-SERVICES')
  const cleaning = await start({ env: folderFirst(folder) })
  await expect.poll(() => network.run('iptables-nft-save'), { timeout: 20_000 }).not.toContain('KUBE-SERVICES')
  expect(existsSync(join(folder, 'started'))).toBe(true)
  await cleaning.stop()
  rmSync(folder, { recursive: true })
})

it('works with few descriptors and a small heap', async () => {
  const proxy = await start({
    prefix: ['prlimit', '--nofile=64:64'],
    env: { NODE_OPTIONS: '--max-old-space-size=48' },
  })
  // Each connection to the metrics port takes a descriptor.
  const crowd = Array.from({ length: 80 }, () => new Socket({ fd: network.node.openSocket('tcp', '127.0.0.1', 0) }))
  for (const socket of crowd) socket.on('error', () => undefined).connect({ host: '127.0.0.1', port: 10249 })
  await delay(2000)
  await expectRepair()
  for (const socket of crowd) socket.destroy()
  await expect.poll(() => proxy.metrics(), { timeout: 20_000 }).toContain('sync_proxy_rules')
  await proxy.stop()
})
