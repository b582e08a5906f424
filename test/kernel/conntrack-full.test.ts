// The table of tracked connections is full: the kernel drops new connections. The proxy follows objects all the same, and serves again
// when there is room.

import { once } from 'node:events'
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout as delay } from 'node:timers/promises'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { type Item, WatchedApi } from '../lab/watched-api.ts'
import { nodeName } from '../scenarios/expand.ts'
import { until } from '../support/until.ts'
import { FaultyProxy } from './faulty-proxy.ts'
import { privateLock } from './iptables-holdings.ts'
import { NodeNetwork, nodeIp, podIps } from './node-network.ts'
import { single, web } from './web-service.ts'

privateLock()

/** One limit for all namespaces, which a namespace cannot change; each namespace has its own count. */
const limit = Number(readFileSync('/proc/sys/net/netfilter/nf_conntrack_max', 'utf8'))
const isBounded = limit <= 600_000
if (!isBounded) console.log(`SKIPPED a full conntrack table: nf_conntrack_max is ${limit}, too many to fill`)

const isPod = (answer: string): boolean => (podIps as readonly string[]).includes(answer)
const items = (objects: readonly unknown[]): readonly Item[] => objects as readonly Item[]

/** Adds entries that the kernel does not evict (ASSURED) until there is no room. */
async function fill(network: NodeNetwork, file: string): Promise<void> {
  const lines: string[] = []
  for (let i = 0; i < limit; i++) {
    const ip = `198.18.${Math.floor(i / 60_000)}`
    lines.push(`-I -p udp -s ${ip}.1 -d ${ip}.2 --sport ${1000 + (i % 60_000)} --dport 9 -t 600 -u SEEN_REPLY,ASSURED`)
  }
  writeFileSync(file, `${lines.join('\n')}\n`)
  // The last lines fail, since some connections exist already.
  await network.node.exec('conntrack', ['-R', file])
  const count = Number(await network.run('cat /proc/sys/net/netfilter/nf_conntrack_count'))
  expect(count).toBeGreaterThan(limit - 100)
}

describe.runIf(isBounded).each(['nftables', 'iptables'] as const)('a full conntrack table, mode %s', (mode) => {
  let network: NodeNetwork
  let api: WatchedApi
  let proxy: FaultyProxy
  let folder: string

  beforeAll(async () => {
    folder = mkdtempSync(join(tmpdir(), 'sluice-conntrack-'))
    network = await NodeNetwork.create()
    if (mode === 'iptables') await network.useFlavour('nft')
    api = await WatchedApi.listen(network.node, 8001)
    const status = { addresses: [{ type: 'InternalIP', address: nodeIp }] }
    api.put({ apiVersion: 'v1', kind: 'Node', metadata: { name: nodeName }, spec: {}, status } as Item)
    api.put(...items(web().put))
    proxy = await FaultyProxy.start({ network, url: api.url, mode, logFile: join(folder, 'log') })
  })

  afterAll(async () => {
    await proxy?.end('SIGKILL')
    api?.close()
    await network?.close()
    rmSync(folder, { recursive: true, force: true })
  })

  const rules = () => network.run(mode === 'nftables' ? 'nft list table ip kube-proxy' : 'iptables-nft-save -t nat')
  const untilRulesHave = (ip: string) =>
    until(`the rules have ${ip}`, async () => (await rules()).includes(ip), { limitMs: 60_000, everyMs: 100 })

  it('keeps established connections, follows objects, and serves new connections when there is room', async () => {
    // The first connections to the API server are older than the proxy's rules, with which this namespace began to track connections.
    api.cut()
    api.put(...items(single('full/zero', '172.30.70.3')))
    await untilRulesHave('172.30.70.3')
    const held = await network.dial('172.30.0.41', 80)
    expect(podIps).toContain(held.answer)
    await fill(network, join(folder, 'entries'))
    // It is full: nobody can open a connection through the node.
    expect(await network.ask('172.30.0.41', 80, 1500)).toBe('timeout')
    // The watch is established.
    api.put(...items(single('full/one', '172.30.70.1')))
    await untilRulesHave('172.30.70.1')
    const answered = once(held.socket, 'data')
    held.socket.write('again\n')
    expect(String(await answered).trim()).toBe(held.answer)
    held.socket.destroy()
    // The watch ends, and the proxy may not be able to connect before there is room: the closed connections make some, sooner or later.
    api.cut()
    api.put(...items(single('full/two', '172.30.70.2')))
    await delay(1500)
    expect(proxy.isRunning).toBe(true)
    await network.run('conntrack -F')
    expect(podIps).toContain(await network.ask('172.30.0.41'))
    await until('the proxy has caught up', async () => isPod(await network.ask('172.30.70.2')), { limitMs: 90_000 })
    expect(await network.ask('172.30.70.1')).toBe(podIps[0])
  })
})
