// The whole program in ipvs mode: what it reports about itself, and what happens to connections when the mode of a node is switched.

import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { AdminClient, socketPath } from '../../src/http/admin-client.ts'
import type { EndpointTraffic } from '../../src/http/admin-traffic.ts'
import { full } from '../lab/vm.ts'
import { nodeName } from '../scenarios/expand.ts'
import { until } from '../support/until.ts'
import { type HeldConnection, IpvsNetwork, keepAsking, vip } from './ipvs-network.ts'
import { metricsPort, Proxies, type RunningProxy } from './whole-proxies.ts'

const service = {
  service: 'ns1/svc1',
  type: 'NodePort',
  clusterIP: vip,
  ports: ['p80 80/tcp 30001', 'dns 53/udp 30053'],
}
const slice = {
  slice: 'ns1/svc1',
  ports: ['p80 80/tcp', 'dns 53/udp'],
  endpoints: ['10.180.0.1 local', '10.180.0.2 local'],
}
const pods = ['10.180.0.1', '10.180.0.2']
const exclude = '--ipvs-exclude-cidrs=198.51.100.0/24'
/** A chain that iptables mode could have left. */
const leftover = 'KUBE-SVC-ABCDEFGHIJKLMNOP'

let network: IpvsNetwork
let proxies: Proxies
let proxy: RunningProxy
let folder = ''
beforeAll(async () => {
  folder = mkdtempSync(join(tmpdir(), 'sluice-modes-'))
  network = new IpvsNetwork()
  await network.serve(...pods)
  network.serveUdp(...pods)
  proxies = await Proxies.open(network, service, slice)
  await network.tool('iptables', '-t', 'nat', '-N', leftover)
  // A server of someone else with the number of a node port: only the excluded range shows that it is not ours.
  await network.tool('ipvsadm', '-A', '-t', '198.51.100.9:30001', '-s', 'rr')
  proxy = proxies.ours('ipvs', exclude, '--ipvs-min-sync-period=0s')
  await serves()
})
afterAll(() => {
  proxies?.close()
  network?.close()
  rmSync(folder, { recursive: true, force: true })
})

/** Resolves when the proxy has bound the service address. */
async function serves(): Promise<void> {
  const bound = async () => (await network.tool('ip', '-br', 'addr').catch(() => '')).includes(vip)
  await until('ipvs mode serves', bound, { limitMs: 120_000 }).catch((error) => {
    throw new Error(`${error.message}; its output:\n${proxy.output()}`)
  })
}

const both = async (): Promise<HeldConnection[]> => [
  await network.connect(),
  await network.connect(),
  await network.connect({ to: '192.168.0.2', port: 30_001 }),
]
const ipvs = () => network.tool('ipvsadm', '-Ln')
const chains = () => network.tool('iptables-save')
const tables = () => network.tool('nft', 'list', 'tables')
const metrics = () => network.tool('curl', '-s', '--max-time', '30', `http://127.0.0.1:${metricsPort}/metrics`)

describe('a proxy in ipvs mode', () => {
  it('reports the traffic of service ports on /metrics', async () => {
    const connections = await both()
    const labels = '{namespace="ns1",service="svc1",port="p80",ip_family="IPv4"'
    let text = ''
    const bytes = (direction: string) =>
      Number(
        text.match(new RegExp(`^sluice_service_bytes_total\\{.*"p80".*direction="${direction}"\\} (\\d+)$`, 'm'))?.[1],
      )
    // The sum of the cluster IP and the node port. The kernel adds up the counters of its processors every two seconds.
    const counted = async () => {
      text = await metrics()
      const all = text.includes(`sluice_service_connections_total${labels}} 3\n`)
      return all && bytes('in') > 3 * 100 && bytes('out') > 3 * 100
    }
    await until('counted', counted, { limitMs: 60_000 }).catch((error) => {
      throw new Error(`${error.message}:\n${text.match(/^sluice_service_.*$/gm)?.join('\n')}`)
    })
    expect(text).toContain('service="svc1",port="dns"')
    const client = new AdminClient(socketPath(nodeName, process.env))
    let endpoints: readonly EndpointTraffic[] = []
    const countedByEndpoint = async () => {
      const { ports } = await client.traffic('ns1/svc1')
      endpoints = ports.find(({ port }) => port === 'p80')?.endpoints ?? []
      return endpoints.reduce((sum, one) => sum + one.connections, 0) === 3
    }
    await until('counted by endpoint', countedByEndpoint, { limitMs: 60_000 }).catch((error) => {
      throw new Error(`${error.message}: ${JSON.stringify(endpoints)}`)
    })
    expect(endpoints.map(({ address }) => address).sort()).toEqual(pods.map((ip) => `${ip}:80`))
    expect(endpoints.every(({ connections: made, bytesIn }) => made > 0 && (bytesIn ?? 0) > 100)).toBe(true)
    for (const connection of connections) connection.reset()
  })

  it('answers status and explain, with what the kernel holds', async () => {
    const client = new AdminClient(socketPath(nodeName, process.env))
    expect((await client.summary()).families.map(({ lastSync }) => lastSync?.ok)).toContain(true)
    const [one] = await client.services('ns1/svc1', true)
    expect(one?.wrong).toEqual([])
    for (const [target, from, frontend] of [
      [`${vip}:80`, '', `cluster IP ${vip}:80`],
      ['192.168.0.2:30001', '203.0.113.2', 'node port 30001'],
    ] as const) {
      const [answer] = await client.explain({ target, from })
      expect(answer).toMatchObject({ mode: 'ipvs', verdict: 'forward', service: 'ns1/svc1:p80', frontend })
      expect(answer?.endpoints.map(({ probability }) => probability)).toEqual([0.5, 0.5])
      expect(new Set(answer?.entries.map(({ kind }) => kind))).toContain('server')
      expect(new Set(answer?.entries.map(({ kernel }) => kernel))).toEqual(new Set(['present']))
    }
    await network.tool('ipvsadm', '-D', '-t', '192.168.0.2:30001')
    const [missing] = await client.explain({ target: '192.168.0.2:30001', from: '203.0.113.2' })
    expect(missing?.entries.map(({ kernel }) => kernel)).toContain('missing')
    await until('repaired', async () => (await ipvs()).includes('192.168.0.2:30001'), { limitMs: 60_000 })
  })

  it.skipIf(!full)('plans a change, and lets the kernel try it', async () => {
    const file = join(folder, 'change.json')
    const [manifest] = network.manifests([{ ...service, annotations: { 'sluice/scheduler': 'sh' } }])
    writeFileSync(file, JSON.stringify(manifest))
    const { code, text } = await proxies.command('plan', '-f', file, '-o', 'json')
    expect(code, text).toBe(2)
    const plan = JSON.parse(text)
    expect(plan.mode).toBe('ipvs')
    expect(
      plan.changes.map(({ action, name }: { action: string; name: string }) => `${action} ${name}`).sort(),
    ).toEqual(
      [
        'change virtual server tcp 192.168.0.2:30001',
        'change virtual server udp 192.168.0.2:30053',
        `change virtual server tcp ${vip}:80`,
        `change virtual server udp ${vip}:53`,
      ].sort(),
    )
    expect(plan.kernel).toEqual({ verdict: 'accepted', why: '', refusals: [] })
    expect(await ipvs()).not.toContain(' sh')
  })

  it('follows annotations at run time, and leaves a service unchanged whose scheduler the kernel lacks', async () => {
    proxies.put({ ...service, annotations: { 'sluice/scheduler': 'wlc' } })
    await until('wlc', async () => (await ipvs()).includes(`${vip}:80 wlc`), { limitMs: 60_000 })
    proxies.put({ ...slice, annotations: { 'sluice/weight': '7' } })
    await until('weights', async () => (await network.destinations()).every((line) => line.includes(' 7 ')), {
      limitMs: 60_000,
    })
    proxies.put({ ...service, annotations: { 'sluice/scheduler': 'nosuch' } })
    await until(
      'the missing scheduler is reported',
      async () => /no IPVS scheduler .{1,2}nosuch.{1,2} \(module ip_vs_nosuch\)/.test(proxy.output()),
      {
        limitMs: 60_000,
      },
    )
    expect(await ipvs()).toContain(`${vip}:80 wlc`)
    proxies.put(service, slice)
    await until('rr', async () => (await ipvs()).includes(`${vip}:80 rr`), { limitMs: 60_000 })
  })
})

describe('invalid objects', () => {
  it('are not programmed, and all other objects are', async () => {
    const [good] = network.manifests([service]) as readonly unknown[] as readonly { metadata: object; spec: object }[]
    const bad = (name: string, spec: object, annotations: object = {}) => ({
      ...good,
      metadata: { ...good?.metadata, name, uid: name, annotations },
      spec: { ...good?.spec, ...spec },
    })
    proxies.putRaw(
      bad('no-address', { clusterIP: 'nonsense', clusterIPs: ['nonsense'] }),
      bad('no-port', { clusterIP: '172.30.0.50', clusterIPs: ['172.30.0.50'], ports: [{ name: 'x', port: 70_000 }] }),
      bad('numbers', { clusterIP: 17, clusterIPs: 42, ports: 'many' }, { 'sluice/scheduler': '../etc' }),
    )
    proxies.put({ ...service, annotations: { 'sluice/scheduler': 'sed' } })
    await until('others are programmed', async () => (await ipvs()).includes(`${vip}:80 sed`), { limitMs: 60_000 })
    proxies.put(service)
    await until('rr', async () => (await ipvs()).includes(`${vip}:80 rr`), { limitMs: 60_000 })
    expect(await ipvs()).not.toContain('172.30.0.50:')
    expect(await ipvs()).toContain('198.51.100.9:30001')
    expect(pods).toContain(await network.once())
  })
})

describe.skipIf(!full)('switching the mode of a node', () => {
  it('B23: ipvs to nftables: connections go on until they end, then nothing of ipvs is left', async () => {
    // B23: iptables leftovers stay in ipvs mode.
    expect(await chains()).toContain(leftover)
    const connections = await both()
    const flow = network.datagrams(40_053)
    expect(pods).toContain(await flow.ask())
    const asking = keepAsking(connections)
    await proxy.kill('SIGTERM')
    proxy = proxies.ours('nftables', exclude)
    const gone = async () => !/KUBE-(SVC|SERVICES|IPVS)/.test(await chains())
    await until('nftables mode serves, and rules of other modes are gone', gone, { limitMs: 120_000 }).catch(
      (error) => {
        throw new Error(`${error.message}; its output:\n${proxy.output()}`)
      },
    )
    expect(await tables()).toContain('table ip kube-proxy')
    // IPVS has only connections that were there before: its counters do not grow with new ones, and it has no UDP any more.
    const left = await ipvs()
    expect(left).not.toContain('UDP')
    expect(left.match(/-> .* Masq +0 /g)?.length).toBe(4)
    const before = await network.destinations().then(countConnections)
    for (let i = 0; i < 4; i++) expect(pods).toContain(await network.once())
    expect(await network.destinations().then(countConnections)).toBeLessThanOrEqual(before)
    // The new mode also serves a client that keeps its port; one datagram may be lost.
    await until('UDP goes on', async () => (await flow.ask()) !== '', { limitMs: 10_000 })
    expect(await asking.failures()).toEqual([])
    for (const connection of connections) connection.reset()
    await until('the device is gone', async () => !(await network.tool('ip', '-br', 'link')).includes('kube-ipvs0'), {
      limitMs: 120_000,
    })
    await until('the sets are gone', async () => (await network.tool('ipset', 'list', '-n')) === '', {
      limitMs: 60_000,
    })
    expect((await ipvs()).match(/^(TCP|UDP) .*/gm)).toEqual(['TCP  198.51.100.9:30001 rr'])
    expect(pods).toContain(await network.once())
  })

  it('B23: nftables to ipvs: connections go on because conntrack has them; nothing of nftables is left', async () => {
    const connections = await both()
    const flow = network.datagrams(40_054)
    const who = await flow.ask()
    expect(pods).toContain(who)
    // With UDP a datagram may be lost.
    const asking = keepAsking([...connections, { server: who, ask: async () => (await flow.ask()) || who }])
    await proxy.kill('SIGTERM')
    proxy = proxies.ours('ipvs', exclude)
    await serves()
    await until('the table is gone', async () => !(await tables()).includes('table ip kube-proxy'), { limitMs: 60_000 })
    expect(pods).toContain(await network.once())
    expect(await network.destinations().then(countConnections)).toBeGreaterThan(0)
    expect(await asking.failures()).toEqual([])
    await until('UDP goes on', async () => (await flow.ask()) === who, { limitMs: 10_000 })
    for (const connection of connections) expect(pods).toContain(await connection.ask())
    for (const connection of connections) connection.close()
  })

  it('ipvs to iptables: connections go on because what ipvs left stays; new ones are translated before IPVS sees them', async () => {
    const { connections, asking, flow } = await startClients(40_055)
    await switchMode('iptables', async () =>
      /-A KUBE-SERVICES -d 172\.30\.0\.41\/32 .*-j KUBE-SVC-/.test(await chains()),
    )
    expect(await chains()).not.toMatch(/-A KUBE-SERVICES .*--match-set/)
    const before = await network.destinations().then(countConnections)
    for (let i = 0; i < 4; i++) expect(pods).toContain(await network.once())
    const again = await network.connect({ to: '192.168.0.2', port: 30_001 })
    expect(await network.destinations().then(countConnections)).toBeLessThanOrEqual(before)
    await until('UDP goes on', async () => pods.includes(await flow.ask()), { limitMs: 10_000 })
    expect(await asking.failures()).toEqual([])
    expect(await ipvs()).toContain(`${vip}:80`)
    for (const connection of [...connections, again]) connection.reset()
  })

  it('iptables to ipvs: connections go on because conntrack has them; new ones go to IPVS', async () => {
    const { connections, asking, flow } = await startClients(40_056)
    await switchMode('ipvs', async () => /-A KUBE-SERVICES .*--match-set KUBE-CLUSTER-IP/.test(await chains()))
    expect(await chains()).not.toMatch(/-A KUBE-SERVICES .*-j KUBE-SVC-/)
    const before = await network.destinations().then(countConnections)
    const fresh = await Promise.all([network.connect(), network.connect()])
    expect(await network.destinations().then(countConnections)).toBeGreaterThan(before)
    await until('UDP goes on', async () => pods.includes(await flow.ask()), { limitMs: 10_000 })
    expect(await asking.failures()).toEqual([])
    for (const connection of [...connections, ...fresh]) connection.close()
  })

  it('ipvs to userspace: connections go on until they end, then nothing of ipvs and iptables is left', async () => {
    const { connections, asking, flow } = await startClients(40_057)
    await switchMode('userspace', async () => !/KUBE-(SVC|SERVICES|IPVS)/.test(await chains()))
    expect(await chains()).toContain('KUBE-PORTALS-CONTAINER')
    const left = await ipvs()
    expect(left).not.toContain('UDP')
    const before = await network.destinations().then(countConnections)
    for (let i = 0; i < 4; i++) expect(pods).toContain(await network.once())
    expect(await network.destinations().then(countConnections)).toBeLessThanOrEqual(before)
    await until('UDP goes on', async () => pods.includes(await flow.ask()), { limitMs: 10_000 })
    expect(await asking.failures()).toEqual([])
    for (const connection of connections) connection.reset()
    const device = async () => (await network.tool('ip', '-br', 'link')).includes('kube-ipvs0')
    await until('the device is gone', async () => !(await device()), { limitMs: 120_000 })
    expect((await ipvs()).match(/^(TCP|UDP) .*/gm)).toEqual(['TCP  198.51.100.9:30001 rr'])
    expect(pods).toContain(await network.once())
  })
})

/** Opens connections to both kinds of addresses and asks them all the time, and a UDP client that keeps its port. */
async function startClients(sourcePort: number) {
  const connections = await both()
  const flow = network.datagrams(sourcePort)
  expect(pods).toContain(await flow.ask())
  return { connections, flow, asking: keepAsking(connections) }
}

/** Starts another mode in place of the current one, and waits until it serves. */
async function switchMode(mode: string, serves: () => Promise<boolean>): Promise<void> {
  await proxy.kill('SIGTERM')
  proxy = proxies.ours(mode, exclude)
  await until(`${mode} mode serves`, serves, { limitMs: 120_000 }).catch((error) => {
    throw new Error(`${error.message}; its output:\n${proxy.output()}`)
  })
}

/** The number of connections of all destinations, active or not. */
const countConnections = (lines: readonly string[]): number =>
  lines.reduce((sum, line) => {
    const [, , active, inactive] = line.split(' ')
    return sum + Number(active) + Number(inactive)
  }, 0)
