// Flows to services, by real packets: how each of them ends, what is refused and by which rule, and nothing while nobody looks.

import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { AdminClient } from '../../src/http/admin-client.ts'
import type { FlowQuery, FlowSummary } from '../../src/http/admin-flows.ts'
import type { TraceReport } from '../../src/http/admin-trace.ts'
import { type FixedApi, serveObjects } from '../lab/fixed-api.ts'
import { nodeName } from '../scenarios/expand.ts'
import { until } from '../support/until.ts'
import { allFlows, closeGently, followFlows } from './followed-flows.ts'
import { clusterIp, NodeNetwork, nodeIp, podIps } from './node-network.ts'
import { expand } from './web-service.ts'
import { WholeProxy } from './whole-proxy.ts'

/** Nothing listens there in the pods. */
const refusing = '172.30.0.42'
const udpIp = '172.30.0.46'
/** Has no endpoints. */
const empty = '172.30.0.44'
/** A load balancer address that the client may not use. */
const guarded = '203.0.113.7'
/** No packet to its endpoint is answered. */
const silent = '172.30.0.43'

let network: NodeNetwork
let api: FixedApi
let folder: string
let proxy: WholeProxy
let client: AdminClient

beforeAll(async () => {
  network = await NodeNetwork.create()
  folder = mkdtempSync(join(tmpdir(), 'sluice-flows-'))
  // A refused connection and one without an answer differ by this time alone.
  await network.run('sysctl -qw net.netfilter.nf_conntrack_tcp_timeout_syn_sent=3 net.netfilter.nf_conntrack_acct=1')
  api = await serveObjects(network.node, nodeName, nodeIp, [
    expand({ service: 'ns1/web', clusterIP: clusterIp, ports: ['http 80/tcp'] }, 0),
    expand({ slice: 'ns1/web', ports: ['http 8080/tcp'], endpoints: podIps.map((ip) => `${ip} local`) }, 1),
    expand({ service: 'ns1/refusing', clusterIP: refusing, ports: ['http 80/tcp'] }, 2),
    expand({ slice: 'ns1/refusing', ports: ['http 9/tcp'], endpoints: [`${podIps[0]} local`] }, 3),
    expand({ service: 'ns1/silent', clusterIP: silent, ports: ['main 80/tcp'] }, 4),
    expand({ slice: 'ns1/silent', ports: ['main 8080/tcp'], endpoints: ['10.180.0.99 local'] }, 5),
    expand({ service: 'ns1/empty', clusterIP: empty, ports: ['http 80/tcp'] }, 6),
    expand(
      {
        service: 'ns1/guarded',
        type: 'LoadBalancer',
        clusterIP: '172.30.0.45',
        lb: [guarded],
        loadBalancerSourceRanges: ['198.51.100.0/24'],
        ports: ['http 80/tcp'],
      },
      7,
    ),
    expand({ slice: 'ns1/guarded', ports: ['http 8080/tcp'], endpoints: [`${podIps[0]} local`] }, 8),
    expand({ service: 'ns1/dns', clusterIP: udpIp, ports: ['dns 53/udp'] }, 9),
    expand({ slice: 'ns1/dns', ports: ['dns 5353/udp'], endpoints: [`${podIps[0]} local`] }, 10),
  ])
  await network.client.exec('ip', ['route', 'add', `${guarded}/32`, 'via', nodeIp])
  const env = { SLUICE_ADMIN_SOCKET: join(folder, 'admin.sock') }
  proxy = await WholeProxy.start({ network, api, mode: 'nftables', env })
  await proxy.waitUntilSynced()
  client = new AdminClient(env.SLUICE_ADMIN_SOCKET)
})

afterAll(async () => {
  await proxy.stop('SIGKILL')
  api.close()
  await network.close()
  rmSync(folder, { recursive: true, force: true })
})

const follow = (query: Partial<FlowQuery> = {}) => followFlows(client, query)

/** The conntrack groups (bits 0 to 2) and the trace group (bit 8) that sockets of the node listen to. */
async function listeners(): Promise<number> {
  const lines = (await network.run('cat /proc/net/netlink')).split('\n').slice(1)
  const joined = lines.map((line) => line.trim().split(/\s+/)).filter(([, protocol]) => protocol === '12')
  return joined.filter(([, , , groups]) => (Number.parseInt(groups ?? '0', 16) & 0x107) !== 0).length
}

describe('flows', () => {
  it('listens to the kernel while someone follows, and to nothing before and after', async () => {
    expect(await listeners()).toBe(0)
    const watch = await follow()
    expect(await listeners()).toBeGreaterThan(0)
    expect(await proxy.metrics()).toContain('sluice_flow_watchers 1')
    await watch.end()
    await until('the proxy listens to nothing', async () => (await listeners()) === 0)
    expect(await proxy.metrics()).toContain('sluice_flow_watchers 0')
  })

  it('lists an open connection with its service, endpoint and traffic', async () => {
    const { socket, answer } = await network.dial(clusterIp, 80)
    const { flows } = await client.flows(allFlows)
    const { port } = socket.address() as { port: number }
    const flow = flows.find(({ from }) => from === `192.168.0.100:${port}`)
    expect(flow).toMatchObject({
      verdict: 'open',
      service: 'ns1/web:http',
      endpoint: `${answer}:8080`,
      protocol: 'tcp',
    })
    expect(flow?.traffic?.bytesIn).toBeGreaterThan(0)
    expect((await client.flows({ ...allFlows, service: 'ns1/silent' })).flows).toEqual([])
    expect((await client.flows({ ...allFlows, from: '10.0.0.0/8' })).flows).toEqual([])
    socket.destroy()
    expect(await listeners()).toBe(0)
  })

  it('reports a connection that both sides close', async () => {
    const watch = await follow({ service: 'ns1/web' })
    const { socket, answer } = await network.dial(clusterIp, 80)
    await closeGently(socket)
    const flow = await watch.find('closed', `${clusterIp}:80`)
    expect(flow).toMatchObject({ endpoint: `${answer}:8080`, service: 'ns1/web:http' })
    expect(Date.parse(flow.endedAt ?? '')).toBeGreaterThanOrEqual(Date.parse(flow.startedAt ?? ''))
    const begun = watch.flows.find(({ id, verdict }) => id === flow.id && verdict === 'open')
    expect(begun).toBeDefined()
    await watch.end()
  })

  it('reports a connection that the client resets', async () => {
    const watch = await follow({ verdicts: ['reset'] })
    const { socket } = await network.dial(clusterIp, 80)
    socket.resetAndDestroy()
    await watch.find('reset', `${clusterIp}:80`)
    expect(watch.flows.every(({ verdict }) => verdict === 'reset')).toBe(true)
    await watch.end()
  })

  it('reports a connection that the pod refuses, and one that nobody answers', async () => {
    const watch = await follow()
    expect(await network.ask(refusing)).toBe('ECONNREFUSED')
    const asked = network.ask(silent, 80, 500)
    expect(await watch.find('refused', `${refusing}:80`)).toMatchObject({ endpoint: `${podIps[0]}:9` })
    expect(await watch.find('timed-out', `${silent}:80`)).toMatchObject({ endpoint: '10.180.0.99:8080' })
    await asked
    await watch.end()
  })

  it('reports a packet that a rule rejects, and one that a rule drops, with the rule', async () => {
    const watch = await follow({ verdicts: ['rejected', 'dropped'] })
    await until('packets are marked', async () => (await network.run('nft list tables')).includes('sluice-flows'))
    expect(await network.ask(empty)).toBe('ECONNREFUSED')
    expect(await network.ask(guarded, 80, 500)).toBe('timeout')
    const rejected = await watch.find('rejected', `${empty}:80`)
    expect(rejected).toMatchObject({ service: 'ns1/empty:http', endpoint: '', rule: 'ip kube-proxy reject-chain' })
    const dropped = await watch.find('dropped', `${guarded}:80`)
    expect(dropped).toMatchObject({
      service: 'ns1/guarded:http',
      rule: 'ip kube-proxy firewall-check (loadBalancerSourceRanges)',
    })
    await watch.end()
    await until('no table is left', async () => !(await network.run('nft list tables')).includes('sluice-flows'))
  })

  it('reports what a client sends over UDP', async () => {
    const watch = await follow({ service: 'ns1/dns' })
    await network.client.exec('bash', ['-c', `echo hello > /dev/udp/${udpIp}/53`])
    const flow = await watch.find('open', `${udpIp}:53`)
    expect(flow).toMatchObject({ protocol: 'udp', endpoint: `${podIps[0]}:5353` })
    await watch.end()
  })

  it('notices the end of a connection that began before', async () => {
    const { socket } = await network.dial(clusterIp, 80)
    const { port } = socket.address() as { port: number }
    const watch = await follow()
    const isOld = ({ from }: FlowSummary) => from.endsWith(`:${port}`)
    await until('the old connection is listed', () => watch.flows.some(isOld))
    await closeGently(socket)
    const hasEnded = () => watch.flows.some((flow) => isOld(flow) && flow.verdict === 'closed')
    await until('its end is noticed', hasEnded, { limitMs: 30_000 })
    await watch.end()
  })
})

describe('a trace', () => {
  /** Traces the next connection of the client that `dial` opens. */
  async function trace(target: string, dial: () => Promise<unknown>) {
    const reports: TraceReport[] = []
    const stop = new AbortController()
    const done = client.trace(
      { target, from: '', seconds: 20, packets: 1 },
      (report) => reports.push(report),
      stop.signal,
    )
    const find = <K extends TraceReport['kind']>(kind: K) =>
      until(`the trace reports ${kind}`, () => reports.find((report) => report.kind === kind)) as Promise<
        Extract<TraceReport, { kind: K }>
      >
    await find('waiting')
    await dial()
    const { packet } = await find('packet')
    await find('ended')
    stop.abort()
    await done
    return packet
  }

  it('agrees with explain about a packet that is forwarded', async () => {
    let answer = ''
    const packet = await trace('ns1/web', async () => {
      answer = await network.ask()
    })
    expect(packet).toMatchObject({ verdict: 'forward', endpoint: `${answer}:8080`, differences: [], snat: true })
    expect(packet.foretold).toMatchObject({ verdict: 'forward', service: 'ns1/web:http' })
    expect(packet.steps.join('\n')).toContain('ip kube-proxy services')
    expect(await network.run('nft list tables')).not.toContain('sluice-trace')
  })

  it('tells only of its own packets while others trace and follow, and names none of the tables that mark', async () => {
    const watch = await follow()
    await until('packets are marked', async () => (await network.run('nft list tables')).includes('sluice-flows'))
    let other: Awaited<ReturnType<typeof trace>> | undefined
    const packet = await trace('ns1/empty', async () => {
      other = await trace('ns1/web', () => network.ask())
      await network.ask(empty)
    })
    await watch.end()
    expect(packet).toMatchObject({ to: `${empty}:80`, verdict: 'reject' })
    expect(other).toMatchObject({ to: `${clusterIp}:80`, verdict: 'forward' })
    expect([...packet.steps, ...(other?.steps ?? [])].join('\n')).not.toMatch(/sluice-(trace|flows)/)
  })

  it('agrees with explain about a packet that is rejected', async () => {
    const packet = await trace('ns1/empty', () => network.ask(empty))
    expect(packet).toMatchObject({ verdict: 'reject', rule: 'ip kube-proxy reject-chain', differences: [] })
  })

  it('marks a difference: the firewall of the node drops what explain forwards', async () => {
    await network.run(
      'nft add table inet fw; nft add chain inet fw forward "{ type filter hook forward priority 10; }"; nft add rule inet fw forward tcp dport 8080 drop comment \\"no web\\"',
    )
    const packet = await trace('ns1/web', () => network.ask(clusterIp, 80, 500))
    await network.run('nft delete table inet fw')
    expect(packet).toMatchObject({ verdict: 'drop', rule: 'inet fw forward (no web)' })
    expect(packet.differences).toEqual([
      'explain foretold that the packet is forwarded; it was dropped by inet fw forward (no web).',
    ])
  })
})

describe('the end of the proxy', () => {
  it('leaves no table behind, even if the proxy is killed', async () => {
    const watch = await follow()
    const tables = () => network.run('nft list tables')
    await until('packets are marked', async () => (await tables()).includes('sluice-flows'))
    proxy.child.kill('SIGKILL')
    await until('the table is gone', async () => !(await tables()).includes('sluice-flows'))
    await watch.end().catch(() => {})
    expect(await tables()).toContain('kube-proxy')
  })
})
