// Runs the whole program in one mode after another on the same node, and beside rules of others, under real connections.

import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import type { Mode } from '../../src/backend/backend.ts'
import { type FixedApi, serveObjects } from '../lab/fixed-api.ts'
import { nodeName } from '../scenarios/expand.ts'
import { type Bundle, bundleProgram } from '../support/bundle-program.ts'
import { until } from '../support/until.ts'
import { privateLock } from './iptables-holdings.ts'
import { clusterIp, NodeNetwork, nodeIp, podIps } from './node-network.ts'
import { extras, web } from './web-service.ts'

privateLock()

const metrics = '127.0.0.1:10249'

let bundle: Bundle
let network: NodeNetwork
let api: FixedApi
const children = new Set<ChildProcess>()

beforeAll(async () => {
  bundle = await bundleProgram(join(import.meta.dirname, '../commands/sluice.worker.ts'))
  network = await NodeNetwork.create()
  api = await serveObjects(network.node, nodeName, nodeIp, [...web().put, ...extras(10).put])
})

afterAll(async () => {
  for (const child of children) child.kill('SIGKILL')
  api?.close()
  await network?.close()
  bundle?.remove()
})

/** Starts a proxy and waits until its rules are written. */
async function start(mode: Mode): Promise<{ stop(): Promise<void> }> {
  const args = [
    ...[
      'netns',
      'exec',
      network.node.name,
      process.execPath,
      bundle.file,
      'proxy',
      `--master=${api.url}`,
      `--proxy-mode=${mode}`,
    ],
    ...[`--hostname-override=${nodeName}`, '--cluster-cidr=10.0.0.0/8', '--conntrack-max-per-core=0'],
    ...['--healthz-bind-address=', `--metrics-bind-address=${metrics}`, '--nodeport-addresses=0.0.0.0/0'],
  ]
  const env = { ...process.env, SLUICE_ADMIN_SOCKET: 'off' }
  const child = spawn('ip', args, { stdio: ['ignore', 'ignore', 'pipe'], env })
  children.add(child)
  let said = ''
  child.stderr?.on('data', (chunk) => {
    said += chunk
  })
  const exited = once(child, 'exit')
  const synced = async () => {
    if (child.exitCode !== null) throw new Error(`the proxy ended: ${said.slice(-2000)}`)
    const { stdout } = await network.node.exec('curl', ['-s', `http://${metrics}/metrics`])
    return /sync_proxy_rules_last_timestamp_seconds\{ip_family="IPv4"\} [1-9]/.test(stdout)
  }
  await until(`${mode} has synced`, synced, { limitMs: 40_000 })
  return {
    async stop() {
      child.kill('SIGTERM')
      await exited
      children.delete(child)
    },
  }
}

/** Lists what is left of each mode on the node. */
async function traces(): Promise<Partial<Record<Mode, boolean>>> {
  const tables = await network.run('nft list tables')
  const rules = await network.run('iptables-save')
  return {
    nftables: tables.includes('kube-proxy'),
    iptables: rules.includes('KUBE-SVC-') || rules.includes('KUBE-SERVICES'),
    userspace: rules.includes('KUBE-PORTALS-'),
  }
}

const nothing = { nftables: false, iptables: false, userspace: false }

describe('a proxy in another mode', () => {
  it('B23: removes the rules of the previous mode; a connection of the old proxy continues in the new one', async () => {
    let before = await start('iptables')
    expect(await traces()).toEqual({ ...nothing, iptables: true })
    for (const [mode, kept] of [
      ['nftables', true],
      ['userspace', true],
      ['iptables', false],
      ['nftables', true],
    ] as const) {
      const held = await network.dial(clusterIp, 80)
      expect(podIps).toContain(held.answer)
      await before.stop()
      before = await start(mode)
      // The rules of the previous mode go after the first sync.
      await expect.poll(traces, { timeout: 20_000 }).toEqual({ ...nothing, [mode]: true })
      expect(podIps).toContain(await network.ask())
      expect(podIps).toContain(await network.ask(nodeIp, 30080))
      // A relayed connection ends with its relay; a translated connection belongs to the kernel.
      if (kept) {
        const answer = once(held.socket, 'data')
        held.socket.write('still there?\n')
        expect(String(await answer).trim()).toBe(held.answer)
      }
      held.socket.destroy()
    }
    await before.stop()
  })
})

describe('host ports that other programs translate', () => {
  // As the portmap plugin of CNI does it for `hostPort`: the same number as a service's, on an address of its own or in another protocol.
  const rules = `table ip hostports {
    chain prerouting {
      type nat hook prerouting priority -100;
      ip daddr ${nodeIp} tcp dport 80 dnat to ${podIps[0]}:8080
      ip daddr ${nodeIp} udp dport 30080 dnat to ${podIps[0]}:8080
    }
  }`

  it.each(['nftables', 'iptables'] as const)('J22: work beside ours, and ours beside them: %s', async (mode) => {
    await network.run(`nft '${rules}'`)
    const proxy = await start(mode)
    for (let i = 0; i < 5; i++) expect(await network.ask(nodeIp, 80)).toBe(podIps[0])
    const seen = new Set<string>()
    for (let i = 0; i < 60 && seen.size < 2; i++) seen.add(await network.ask())
    for (let i = 0; i < 5; i++) seen.add(await network.ask(nodeIp, 30080))
    expect([...seen].sort()).toEqual([...podIps])
    await proxy.stop()
    expect(await network.ask(nodeIp, 80)).toBe(podIps[0])
    await network.run('nft delete table ip hostports')
  })
})
