// What holds for packets and bytes per service port and endpoint in every mode whose rules count connections only, against what the pods
// themselves counted. Each mode has a test file of its own.

import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, expect, it } from 'vitest'
import { AdminClient } from '../../src/http/admin-client.ts'
import type { PortTraffic, Traffic, TrafficFigures } from '../../src/http/admin-traffic.ts'
import { type FixedApi, serveObjects } from '../lab/fixed-api.ts'
import { nodeName } from '../scenarios/expand.ts'
import { until } from '../support/until.ts'
import { Flood, floodedService } from './flood.ts'
import { clusterIp, ipv6, NodeNetwork, nodeIp, podIps } from './node-network.ts'
import { Transfers, tcpPort, udpPort, type Witnessed } from './transfers.ts'
import { expand } from './web-service.ts'
import { WholeProxy } from './whole-proxy.ts'

type CountingMode = 'nftables' | 'iptables'
const udpIp = '172.30.0.46'
const balancerIp = '203.0.113.7'
const nodePort = 30_080

const manifests = [
  expand(
    {
      service: 'ns1/web',
      type: 'LoadBalancer',
      clusterIP: clusterIp,
      lb: [balancerIp],
      ports: [`http 80/tcp ${nodePort}`],
    },
    0,
  ),
  expand({ slice: 'ns1/web', ports: [`http ${tcpPort}/tcp`], endpoints: podIps.map((ip) => `${ip} local`) }, 1),
  expand({ service: 'ns1/dns', clusterIP: udpIp, ports: ['dns 53/udp'] }, 2),
  expand({ slice: 'ns1/dns', ports: [`dns ${udpPort}/udp`], endpoints: podIps.map((ip) => `${ip} local`) }, 3),
  expand({ service: 'ns1/six', clusterIP: ipv6.clusterIp, ports: ['http 80/tcp'] }, 4),
  expand({ slice: 'ns1/six', ports: [`http ${tcpPort}/tcp`], endpoints: ipv6.podIps.map((ip) => `${ip} local`) }, 5),
  ...floodedService(),
]

/** Flows end soon after their connections; not at once, since a packet that a busy machine delivers later would begin a new flow. */
const shortTimeouts = ['time_wait', 'close', 'fin_wait', 'last_ack', 'close_wait']
  .map((state) => `net.netfilter.nf_conntrack_tcp_timeout_${state}=5`)
  .join(' ')

class Scene {
  readonly network: NodeNetwork
  readonly transfers: Transfers
  readonly flood: Flood
  readonly #api: FixedApi
  readonly #folder: string
  readonly #mode: CountingMode
  #proxy: WholeProxy | undefined
  readonly #client: AdminClient

  private constructor(parts: Pick<Scene, 'network' | 'transfers' | 'flood'>, mode: CountingMode, api: FixedApi) {
    ;({ network: this.network, transfers: this.transfers, flood: this.flood } = parts)
    this.#api = api
    this.#mode = mode
    this.#folder = mkdtempSync(join(tmpdir(), 'sluice-accounting-'))
    this.#client = new AdminClient(join(this.#folder, 'admin.sock'))
  }

  static async open(mode: CountingMode): Promise<Scene> {
    const network = await NodeNetwork.create()
    await network.run(`sysctl -qw net.netfilter.nf_conntrack_acct=0 ${shortTimeouts}`)
    await network.client.exec('ip', ['route', 'add', `${balancerIp}/32`, 'via', nodeIp])
    if (mode === 'iptables') await network.useFlavour('nft')
    const api = await serveObjects(network.node, nodeName, nodeIp, manifests)
    const parts = { network, transfers: await Transfers.prepare(network), flood: await Flood.prepare(network) }
    return new Scene(parts, mode, api)
  }

  get proxy(): WholeProxy {
    return this.#proxy as WholeProxy
  }

  async start(accounting: boolean): Promise<void> {
    const file = join(this.#folder, 'sluice.yaml')
    const settings = [`traffic: { accounting: ${accounting} }`, `state: { directory: ${join(this.#folder, 'state')} }`]
    writeFileSync(file, ['apiVersion: sluice/v1alpha1', 'kind: SluiceConfiguration', ...settings, ''].join('\n'))
    const { network } = this
    this.#proxy = await WholeProxy.start({
      ...{ network, api: this.#api, mode: this.#mode },
      flags: [`--sluice-config=${file}`],
      env: { SLUICE_ADMIN_SOCKET: join(this.#folder, 'admin.sock') },
    })
    await this.#proxy.waitUntilSynced()
    const synced6 = async () => /last_timestamp_seconds\{ip_family="IPv6"\} [1-9]/.test(await this.proxy.metrics())
    await until('IPv6 has synced', synced6)
    // A reading from before the first sync is shown for two seconds.
    await until('the services are counted', async () => (await this.traffic('')).ports.length === 4)
  }

  async traffic(service: string): Promise<Traffic> {
    return this.#client.traffic(service)
  }

  async port(service: string): Promise<PortTraffic> {
    const [port] = (await this.traffic(service)).ports
    if (port === undefined) throw new Error(`${service} is not counted`)
    return port
  }

  /** The sockets of the node that hear of flows that end. */
  async listeners(): Promise<number> {
    const lines = (await this.network.run('cat /proc/net/netlink')).split('\n').slice(1)
    const joined = lines.map((line) => line.trim().split(/\s+/)).filter(([, protocol]) => protocol === '12')
    return joined.filter(([, , , groups]) => (Number.parseInt(groups ?? '0', 16) & 7) !== 0).length
  }

  accountingSysctl(): Promise<string> {
    return this.network.run('cat /proc/sys/net/netfilter/nf_conntrack_acct').then((text) => text.trim())
  }

  async close(): Promise<void> {
    this.flood.close()
    this.transfers.close()
    await this.#proxy?.stop('SIGKILL')
    this.#api.close()
    await this.network.close()
    rmSync(this.#folder, { recursive: true, force: true })
  }
}

const pick = ({ packetsIn, bytesIn, packetsOut, bytesOut }: TrafficFigures) => ({
  packetsIn,
  bytesIn,
  packetsOut,
  bytesOut,
})
const nothing: Witnessed = { packetsIn: 0, bytesIn: 0, packetsOut: 0, bytesOut: 0 }
const combine = (a: Witnessed, b: Witnessed, sign: 1 | -1): Witnessed => ({
  packetsIn: a.packetsIn + sign * b.packetsIn,
  bytesIn: a.bytesIn + sign * b.bytesIn,
  packetsOut: a.packetsOut + sign * b.packetsOut,
  bytesOut: a.bytesOut + sign * b.bytesOut,
})

/** Fails with the difference if a figure is less than before. */
function expectNotLess(now: TrafficFigures, before: TrafficFigures): void {
  for (const key of ['packetsIn', 'bytesIn', 'packetsOut', 'bytesOut', 'connections'] as const)
    expect(now[key]).toBeGreaterThanOrEqual(before[key] ?? 0)
}

export function checkAccounting(mode: CountingMode): void {
  let scene: Scene

  beforeAll(async () => {
    scene = await Scene.open(mode)
  })

  afterAll(() => scene.close())

  /** Waits until the service has exactly what each pod counted. `before` is what the pods had counted for others. */
  async function expectWitnessed(
    service: string,
    [protocol, family]: readonly ['tcp' | 'udp', 'ip' | 'ip6'],
    before: readonly [Witnessed, Witnessed] = [nothing, nothing],
  ): Promise<PortTraffic> {
    let seen = ''
    const isEqual = async () => {
      const port = await scene.port(service)
      const pods = await Promise.all(
        ([0, 1] as const).map(async (pod) =>
          combine(await scene.transfers.witness(pod, protocol, family), before[pod], -1),
        ),
      )
      const wanted = { port: combine(pods[0] as Witnessed, pods[1] as Witnessed, 1), pods }
      const counted = new Map(
        port.endpoints?.map((one) => [one.address.replace(/:\d+$/, '').replace(/[[\]]/g, ''), one]),
      )
      const ips = family === 'ip' ? podIps : ipv6.podIps
      const found = { port: pick(port), pods: ips.map((ip) => pick(counted.get(ip) as TrafficFigures)) }
      seen = `wanted ${JSON.stringify(wanted)}, found ${JSON.stringify(found)}`
      return JSON.stringify(found) === JSON.stringify(wanted) ? port : undefined
    }
    return until(`${service} has what its pods counted`, isEqual, { limitMs: 30_000, everyMs: 500 }).catch((error) => {
      throw new Error(`${error.message}: ${seen}`)
    })
  }

  it('counts none, listens to nothing and changes no sysctl while the setting is off', async () => {
    await scene.start(false)
    await scene.transfers.transfer(clusterIp, 80, 1_000, 1_000)
    expect(await scene.listeners()).toBe(0)
    expect(await scene.accountingSysctl()).toBe('0')
    const traffic = await until('the connection is counted', async () => {
      const now = await scene.traffic('ns1/web')
      return now.ports[0]?.connections === 1 ? now : undefined
    })
    expect(traffic).toMatchObject({
      accounting: false,
      unaccounted: 'Packets and bytes are not counted: traffic.accounting is off.',
    })
    expect(traffic.ports).toMatchObject([{ connections: 1, bytesIn: null, packetsOut: null }])
    expect(await proxyMetric('sluice_service_bytes_total')).toEqual([])
    await scene.proxy.stop()
  })

  const proxyMetric = async (name: string) =>
    (await scene.proxy.metrics()).split('\n').filter((line) => line.startsWith(`${name}{`))

  it('counts a transfer of known size per direction and endpoint, by every address of the service', async () => {
    await scene.start(true)
    expect(await scene.accountingSysctl()).toBe('1')
    expect(await scene.listeners()).toBe(1)
    const before = [await scene.transfers.witness(0, 'tcp'), await scene.transfers.witness(1, 'tcp')] as const
    const addresses = [
      [clusterIp, 80],
      [nodeIp, nodePort],
      [balancerIp, 80],
    ] as const
    for (let round = 0; round < 4; round++) {
      for (const [ip, port] of addresses) await scene.transfers.transfer(ip, port, 20_000, 50_000)
    }
    const port = await expectWitnessed('ns1/web', ['tcp', 'ip'], before)
    // The payload, and the headers of each packet: 52 bytes, and more for those with options.
    const [received, sent] = [port.bytesIn ?? 0, port.bytesOut ?? 0]
    expect(received - 12 * 20_000).toBeGreaterThanOrEqual(52 * (port.packetsIn ?? 0))
    expect(received - 12 * 20_000).toBeLessThanOrEqual(80 * (port.packetsIn ?? 0))
    expect(sent - 12 * 50_000).toBeGreaterThanOrEqual(52 * (port.packetsOut ?? 0))
    expect(sent - 12 * 50_000).toBeLessThanOrEqual(80 * (port.packetsOut ?? 0))
    expect(port.endpoints?.every(({ bytesIn }) => (bytesIn ?? 0) > 20_000)).toBe(true)
    expect((await scene.traffic('ns1/web')).unaccounted).toBe('')
    const bytes = (await proxyMetric('sluice_service_bytes_total')).filter((line) => line.includes('service="web"'))
    expect(bytes.map((line) => [/direction="(\w+)"/.exec(line)?.[1], Number(line.split(' ').at(-1))])).toEqual([
      ['in', received],
      ['out', sent],
    ])
  })

  it('counts an open connection when someone asks, and once when it has ended', async () => {
    const before = await scene.port('ns1/web')
    const held = await scene.transfers.hold(clusterIp, 80)
    await held.exchange(30_000, 10)
    const open = await until('the open connection is counted', async () => {
      const port = await scene.port('ns1/web')
      return (port.bytesIn ?? 0) >= (before.bytesIn ?? 0) + 30_000 ? port : undefined
    })
    await held.exchange(5_000, 10)
    await held.close()
    const isGone = async () =>
      !(await scene.network.run('conntrack -L -p tcp 2>/dev/null')).includes(`dport=${tcpPort}`)
    let last = open
    await until('the connection is gone', async () => {
      const port = await scene.port('ns1/web')
      expectNotLess(port, last)
      last = port
      return isGone()
    })
    const ended = await until('its rest is counted', async () => {
      const port = await scene.port('ns1/web')
      return (port.bytesIn ?? 0) >= (before.bytesIn ?? 0) + 35_000 ? port : undefined
    })
    expect(ended.bytesIn).toBeLessThan((before.bytesIn ?? 0) + 35_000 + 52 * 40)
  })

  it('counts datagrams exactly', async () => {
    await scene.transfers.ask(udpIp, 53, 20, 100)
    const port = await expectWitnessed('ns1/dns', ['udp', 'ip'])
    expect(pick(port)).toEqual({ packetsIn: 20, bytesIn: 20 * 128, packetsOut: 20, bytesOut: 20 * 228 })
  })

  it('counts IPv6', async () => {
    for (let i = 0; i < 6; i++) await scene.transfers.transfer(ipv6.clusterIp, 80, 10_000, 30_000)
    const port = await expectWitnessed('ns1/six', ['tcp', 'ip6'])
    expect(port.family).toBe(6)
    expect(port.bytesOut).toBeGreaterThan(6 * 30_000)
  })

  it('is exact after a storm of short connections, all of which have ended', async () => {
    const before = [await scene.transfers.witness(0, 'tcp'), await scene.transfers.witness(1, 'tcp')] as const
    const earlier = await scene.port('ns1/flooded')
    const { made, failed } = await scene.flood.run(3_000)
    expect({ made, failed }).toEqual({ made: 3_000, failed: 0 })
    const isGone = async () => !(await scene.network.run('conntrack -L -p tcp 2>/dev/null')).includes('dport=8081')
    await until('all flows are gone', isGone, { limitMs: 60_000, everyMs: 500 })
    const sum = combine(
      combine(await scene.transfers.witness(0, 'tcp'), await scene.transfers.witness(1, 'tcp'), 1),
      combine(before[0], before[1], 1),
      -1,
    )
    const port = await until('all connections are counted', async () => {
      const now = await scene.port('ns1/flooded')
      return (now.bytesIn ?? 0) - (earlier.bytesIn ?? 0) >= sum.bytesIn ? now : undefined
    })
    expect(port.connections - earlier.connections).toBe(3_000)
    expect(combine(pick(port) as Witnessed, pick(earlier) as Witnessed, -1)).toEqual(sum)
    expect(await scene.proxy.metrics()).toContain('sluice_accounting_events_lost_total 0')
  })

  it('goes on where it was after a restart, exactly, with the rest of a connection that stayed open', async () => {
    const services = ['ns1/web', 'ns1/dns', 'ns1/six', 'ns1/flooded']
    const ports = () => Promise.all(services.map((service) => scene.port(service)))
    const witness = async () =>
      combine(await scene.transfers.witness(0, 'tcp'), await scene.transfers.witness(1, 'tcp'), 1)
    const [earlier, witnessed] = [await scene.port('ns1/web'), await witness()]
    const held = await scene.transfers.hold(clusterIp, 80)
    await held.exchange(40_000, 40_000)
    const isCounted = async () => ((await scene.port('ns1/web')).bytesIn ?? 0) >= (earlier.bytesIn ?? 0) + 40_000
    await until('the open connection is counted', isCounted)
    const before = await ports()
    await scene.proxy.stop()
    await held.exchange(7_000, 10)
    await scene.start(true)
    const after = await ports()
    for (const [i, port] of after.entries()) expectNotLess(port, before[i] as PortTraffic)
    expect(pick(after[1] as PortTraffic)).toEqual(pick(before[1] as PortTraffic))
    await held.close()
    let last = ''
    await until('the connection is counted once', async () => {
      const more = combine(pick(await scene.port('ns1/web')) as Witnessed, pick(earlier) as Witnessed, -1)
      const wanted = JSON.stringify(combine(await witness(), witnessed, -1))
      last = `${JSON.stringify(more)} instead of ${wanted}`
      return JSON.stringify(more) === wanted
    }).catch((error) => {
      throw new Error(`${error.message}: ${last}`)
    })
  })

  it('says that notifications were lost, and never shows less than before', async () => {
    const before = await scene.port('ns1/flooded')
    scene.proxy.child.kill('SIGSTOP')
    await scene.network.run('sysctl -qw net.netfilter.nf_conntrack_tcp_timeout_close=100')
    const { failed } = await scene.flood.run(25_000)
    await scene.network.run('conntrack -F 2>/dev/null')
    scene.proxy.child.kill('SIGCONT')
    expect(failed).toBe(0)
    const lost = async () => /^sluice_accounting_events_lost_total [1-9]/m.test(await scene.proxy.metrics())
    await until('the loss is counted', lost)
    const traffic = await scene.traffic('ns1/flooded')
    expect(traffic.unaccounted).toMatch(
      /^Packets and bytes of some ended connections are missing: the kernel dropped notifications \d+ times\.$/,
    )
    expectNotLess(traffic.ports[0] as PortTraffic, before)
  })
}
