// Replaces a running kube-proxy by our proxy and back: the rules are the same except for counters, and no connection breaks.

import { execFileSync, spawn } from 'node:child_process'
import { once } from 'node:events'
import { existsSync } from 'node:fs'
import { join } from 'node:path'
import { setTimeout as delay } from 'node:timers/promises'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { type FixedApi, serveObjects } from '../lab/fixed-api.ts'
import { nodeName } from '../scenarios/expand.ts'
import { until } from '../support/until.ts'
import { privateLock } from './iptables-holdings.ts'
import { NodeNetwork, nodeIp } from './node-network.ts'
import { ProxyProcess } from './proxy-process.ts'
import { expand, extras, web } from './web-service.ts'

privateLock()

const where = execFileSync(join(import.meta.dirname, '../e2e/build-cluster'), ['--where'], { encoding: 'utf8' }).trim()
const kubeProxy = join(where, 'kube-proxy')
const absent = !existsSync(kubeProxy)
if (absent) console.warn(`SKIPPED: no ${kubeProxy}; test/e2e/build-cluster kube-proxy builds it`)

/** Services that need every kind of rule. */
const kinds = [
  {
    service: 'ns2/lb',
    type: 'LoadBalancer',
    clusterIP: '172.30.0.42',
    ports: ['http 80/tcp 30081', 'dns 53/udp 30082', '_ 99/sctp 30083'],
    externalIPs: ['192.168.99.22'],
    lb: ['1.2.3.4', '5.6.7.8'],
    externalTrafficPolicy: 'Local',
    healthCheckNodePort: 30000,
    loadBalancerSourceRanges: ['203.0.113.0/25', '192.168.0.0/24'],
    affinity: 10800,
  },
  {
    slice: 'ns2/lb',
    ports: ['http 8080/tcp', 'dns 53/udp', '_ 99/sctp'],
    endpoints: ['10.180.0.1 local', '10.180.0.2 local', '10.200.0.9 remote'],
  },
  {
    service: 'ns3/remote',
    type: 'NodePort',
    clusterIP: '172.30.0.43',
    ports: ['http 80/tcp 30084'],
    externalTrafficPolicy: 'Local',
  },
  { slice: 'ns3/remote', ports: ['http 80/tcp'], endpoints: ['10.200.0.9 remote'] },
  {
    service: 'ns4/none',
    type: 'NodePort',
    clusterIP: '172.30.0.44',
    ports: ['http 80/tcp 30085'],
    externalIPs: ['192.168.99.23'],
  },
  { service: 'ns5/internal', clusterIP: '172.30.0.45', ports: ['http 80/tcp'], internalTrafficPolicy: 'Local' },
  { slice: 'ns5/internal', ports: ['http 80/tcp'], endpoints: ['10.180.0.1 local', '10.200.0.9 remote'] },
  { service: 'ns6/draining', clusterIP: '172.30.0.46', ports: ['_ 80/tcp'] },
  {
    slice: 'ns6/draining',
    ports: ['_ 80/tcp'],
    endpoints: ['10.200.0.7 remote terminating', '10.200.0.8 remote unready'],
  },
]

describe.skipIf(absent)('take-over', () => {
  const objects = [...web().put, ...extras(10).put, ...kinds.map((kind, i) => expand(kind, 1000 + i))]
  let network: NodeNetwork
  let api: FixedApi

  beforeAll(async () => {
    network = await NodeNetwork.create()
    api = await serveObjects(network.node, nodeName, nodeIp, objects)
  })

  afterAll(async () => {
    api?.close()
    await network?.close()
  })

  const save = async () => {
    const text = await network.run('iptables-save')
    return text
      .split('\n')
      .filter((line) => !line.startsWith('#'))
      .map((line) => line.replace(/\[\d+:\d+\]/, ''))
  }

  /** Returns when kube-proxy has written its rules. */
  async function startKubeProxy() {
    const args = [
      ...['netns', 'exec', network.node.name, kubeProxy, `--master=${api.url}`, '--proxy-mode=iptables'],
      ...[`--hostname-override=${nodeName}`, '--cluster-cidr=10.0.0.0/8', '--kube-api-content-type=application/json'],
      ...['--conntrack-max-per-core=0', '--conntrack-tcp-timeout-established=0'],
      ...['--conntrack-tcp-timeout-close-wait=0', '--healthz-bind-address=', '--metrics-bind-address=127.0.0.1:10249'],
    ]
    const child = spawn('ip', args, { stdio: ['ignore', 'ignore', 'pipe'] })
    process.once('exit', () => child.kill('SIGKILL'))
    let said = ''
    child.stderr.on('data', (chunk) => {
      said += chunk
    })
    const exited = once(child, 'exit')
    const stop = async () => {
      child.kill('SIGKILL')
      await exited
    }
    const synced = async () => {
      if (child.exitCode !== null) throw new Error(`kube-proxy ended: ${said.slice(-2000)}`)
      const { stdout } = await network.node.exec('curl', ['-s', 'http://127.0.0.1:10249/metrics'])
      const figure = /sync_proxy_rules_last_timestamp_seconds\{ip_family="IPv4"\} (\S+)/.exec(stdout)?.[1]
      return Number(figure ?? 0) > 0
    }
    await until('kube-proxy has synced', synced, { limitMs: 40_000 })
    return { stop }
  }

  it('leaves the same rules as kube-proxy, interrupts nothing, and can be replaced by kube-proxy again', async () => {
    const first = await startKubeProxy()
    const theirs = await save()
    expect(theirs.filter((line) => line.startsWith('-A KUBE-')).length).toBeGreaterThan(150)
    const load = await network.load()
    await first.stop()

    const ours = await ProxyProcess.start(network, objects)
    await ours.settle()
    await delay(300)
    const mine = await save()
    expect(mine.toSorted()).toEqual(theirs.toSorted())
    expect(orderOf(mine)).toEqual(orderOf(theirs))
    expect(mine.filter((line) => line.startsWith('-A KUBE-SERVICES ')).at(-1)).toContain('must be the last rule')
    await ours.kill()

    const second = await startKubeProxy()
    expect((await save()).toSorted()).toEqual(theirs.toSorted())
    await second.stop()
    const { problems, rounds, made } = await load.stop()
    expect(problems).toEqual([])
    expect(Math.min(rounds, made)).toBeGreaterThan(50)
  })
})

/** The rules of each chain in their order, without the shared chains, in which kube-proxy orders services at random. */
function orderOf(lines: readonly string[]): Record<string, string[]> {
  const chains: Record<string, string[]> = {}
  for (const line of lines) {
    const chain = /^-A (\S+)/.exec(line)?.[1]
    if (chain === undefined || /^KUBE-(?:SERVICES|NODEPORTS|EXTERNAL-SERVICES|PROXY-FIREWALL)$/.test(chain)) continue
    chains[chain] ??= []
    chains[chain].push(line)
  }
  return chains
}
