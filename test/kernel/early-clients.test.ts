// Clients that dial before the rules are there: their first retransmission after the rules connects. Real SYNs, the whole program.

import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import { FeatureProbe } from '../../src/backend/nftables/features.ts'
import { Nftables } from '../../src/sys/netlink/nft/nftables.ts'
import { enterNamespace } from '../lab/entered-namespace.ts'
import { type FixedApi, serveObjects } from '../lab/fixed-api.ts'
import { sendSctpInit, serveSctp } from '../lab/sctp.ts'
import { nodeName } from '../scenarios/expand.ts'
import { until } from '../support/until.ts'
import { clusterIp, NodeNetwork, nodeIp, podIps } from './node-network.ts'
import { expand, web } from './web-service.ts'
import { WholeProxy, type WholeProxyOptions } from './whole-proxy.ts'

const sctpIp = '172.30.0.42'
const sctp = [
  expand({ service: 'ns1/sctp', clusterIP: sctpIp, ports: ['init 36412/sctp'] }, 10),
  expand({ slice: 'ns1/sctp', ports: ['init 36412/sctp'], endpoints: [`${podIps[0]} local`] }, 11),
]

let network: NodeNetwork
let api: FixedApi
let proxy: WholeProxy | undefined

beforeEach(async () => {
  network = await NodeNetwork.create()
  api = await serveObjects(network.node, nodeName, nodeIp, [...web().put, ...sctp])
  // Packets that are not translated leave for a router that does not answer.
  await network.run('ip neigh add 192.168.0.1 lladdr 02:00:00:00:00:01 dev world nud permanent')
  // Another program tracks connections, as on most nodes.
  await network.run('nft add table ip other; nft add chain ip other c { type filter hook forward priority 0 \\; }')
  await network.run('nft add rule ip other c ct state established accept')
})

afterEach(async () => {
  await proxy?.stop()
  proxy = undefined
  api.close()
  await network.close()
})

const start = async (options: Partial<WholeProxyOptions> = {}) => {
  proxy = await WholeProxy.start({ network, api, mode: 'nftables', ...options })
}
const tracked = async (protocol: string) =>
  (await network.run(`conntrack -L -p ${protocol} 2>&1`)).includes('UNREPLIED')

describe.each(['nftables', 'iptables'] as const)('%s: a client that dials before the proxy starts', (mode) => {
  it('connects to a cluster IP over TCP', async () => {
    const dialled = network.dial(clusterIp, 80, 60_000)
    await until('the SYN is tracked', () => tracked('tcp'))
    await start({ mode })
    expect(podIps).toContain((await dialled).answer)
    expect(await proxy?.metrics()).toMatch(/early_connections_removed_total\{ip_family="IPv4"\} [1-9]/)
  })

  it('gets an answer to its SCTP INIT', async () => {
    const server = serveSctp(network.pod(0), { ip: podIps[0], port: 36412 }, 'pod')
    const flow = { from: '192.168.0.100', sourcePort: 40_001, to: sctpIp, port: 36412, timeoutMs: 60_000 }
    const answered = sendSctpInit(network.client, flow)
    await until('the INIT is tracked', () => tracked('sctp'))
    await start({ mode })
    expect(await answered).toContain(podIps[0])
    await server.close()
  })
})

it('finding the features of the kernel does not switch connection tracking on', async () => {
  const namespace = enterNamespace()
  try {
    const sender = `const s = require('dgram').createSocket('udp4'); s.bind(0, () => {
      setInterval(() => { for (let i = 1; i < 200; i++) s.send('x', i, '127.0.0.1') }, 0) })`
    const { spawn } = await import('node:child_process')
    const child = spawn(process.execPath, ['-e', sender], { stdio: 'ignore' })
    try {
      const sent = () => Number(/^Udp: \d+ \d+ \d+ (\d+)/m.exec(readSnmp())?.[1] ?? 0)
      const readSnmp = () => namespace.exec('cat', ['/proc/self/net/snmp'])
      await until('packets are sent', () => sent() > 1000)
      const nft = new Nftables()
      for (let i = 0; i < 30; i++) for (const family of [4, 6] as const) await new FeatureProbe().find(nft, family)
      nft.close()
      expect(namespace.exec('cat', ['/proc/sys/net/netfilter/nf_conntrack_count']).trim()).toBe('0')
    } finally {
      child.kill('SIGKILL')
    }
  } finally {
    namespace.leave()
  }
})
