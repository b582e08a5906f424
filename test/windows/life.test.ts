// The real bundle under Wine: starts, serves, changes, is asked, is stopped and killed, and cleans up. The tests build on each other.

import { existsSync, mkdirSync, readdirSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import type { Protocol } from '../../src/model/types.ts'
import { expandObject } from '../scenarios/expand.ts'
import type { Manifest, Place } from '../scenarios/format.ts'
import { ipv6Twin, type Json } from '../scenarios/twins.ts'
import { until } from '../support/until.ts'
import {
  createWindowsNode,
  makeKubeconfig,
  nodeIp,
  serviceInterface,
  type WindowsNode,
  type WindowsProcess,
} from './windows-node.ts'
import { whyNotWine } from './wine.ts'

const missing = whyNotWine()
if (missing !== undefined) process.stdout.write(`SKIPPED tier windows: ${missing}\n`)

const pods = ['10.180.0.1', '10.180.0.2'] as const
const clusterIps = ['172.30.0.41', ipv6Twin('172.30.0.41')] as const
const sources: Readonly<Record<string, string>> = { outside: '203.0.113.2', pod: pods[0], node: nodeIp }

const expand = (value: Json, serial: number, family: 4 | 6 = 4): Manifest => expandObject(value, serial, family)

const inFamily = (family: 4 | 6, ip: string): string => (family === 4 ? ip : ipv6Twin(ip))

/** A service with the two pods, TCP and UDP, in both families, with every kind of address. */
const web = (endpoints: readonly string[] = pods): readonly Manifest[] => [
  expand(
    {
      service: 'ns1/web',
      type: 'LoadBalancer',
      clusterIP: [...clusterIps],
      ports: ['http 80/tcp 30080', 'dns 53/udp 30053'],
      lb: ['1.2.3.4', ipv6Twin('1.2.3.4')],
      externalIPs: ['192.168.99.22', ipv6Twin('192.168.99.22')],
      allocateLoadBalancerNodePorts: true,
    },
    1,
  ),
  ...([4, 6] as const).map((family) => {
    const list = endpoints.map((ip) => `${inFamily(family, ip)} local`)
    return expand(
      { slice: `ns1/web#${family}`, ports: ['http 8080/tcp', 'dns 5353/udp'], endpoints: list },
      1 + family,
      family,
    )
  }),
]

const single = (service: string, clusterIP: string, more: Readonly<Record<string, Json>> = {}): readonly Manifest[] => [
  expand({ service, clusterIP, ports: ['http 80/tcp'], ...more }, 900),
  expand({ slice: service, ports: ['http 8080/tcp'], endpoints: pods.map((ip) => `${ip} local`) }, 901),
]

describe.skipIf(missing !== undefined)('the bundle on Windows', () => {
  let node: WindowsNode
  let proxy: WindowsProcess

  /** Returns the endpoint that answers, or what happened instead. */
  const ask = async (to: string, port = 80, { protocol = 'tcp' as Protocol, at = 'outside' as Place } = {}) => {
    const from = inFamily(to.includes(':') ? 6 : 4, sources[at] as string)
    const reply = await node.lab.probe({ at, from, sourcePort: 0, to, port, protocol }, 5000)
    if (reply.kind === 'reached') return reply.endpoint
    return reply.kind === 'rejected' ? reply.code : reply.kind
  }
  const serveIn = (ips: readonly string[]) =>
    node.lab.serve(
      ips.flatMap((ip) =>
        ([4, 6] as const).flatMap((family) => [
          { ip: inFamily(family, ip), port: 8080, protocol: 'tcp' as const, at: 'pod' as const, sink: '' },
          { ip: inFamily(family, ip), port: 5353, protocol: 'udp' as const, at: 'pod' as const, sink: '' },
        ]),
      ),
    )
  const change = async (work: () => void) => {
    work()
    await node.settle()
  }
  const timeoutOf = (name: string) => node.lab.node.exec('sysctl', ['-n', `net.netfilter.nf_conntrack_${name}`])

  beforeAll(async () => {
    node = await createWindowsNode(pods)
    await serveIn(pods)
    proxy = node.startProxy('-v=2', '--cluster-cidr=10.0.0.0/8', '--conntrack-tcp-timeout-established=1234s')
    await node.settle()
    await change(() => node.api.put(...web()))
  })
  afterAll(async () => {
    await node?.close()
    await node?.lab.close()
  })

  it('does nothing that only Linux has, and uses the only mode of Windows by itself', async () => {
    expect(proxy.log).toContain('mode="userspace" families="4,6"')
    const lines = proxy.log.split('\n').filter((line) => !line.includes('"FLAG"'))
    expect(lines.join('\n')).not.toMatch(
      /koffi|netlink|nft|iptables|ipvs|oom|conntrack|connection tracking|proc|cannot/i,
    )
    expect((await timeoutOf('tcp_timeout_established')).stdout.trim()).not.toBe('1234')
    expect(existsSync(join(node.prefix.path, 'drive_c', 'run'))).toBe(false)
  })

  it.each(['nftables', 'kernelspace'])('refuses mode %s in one line that says what it can', async (mode) => {
    const { code, stderr } = await node.run('kube-proxy', `--proxy-mode=${mode}`)
    expect(stderr).toBe(`Error: --proxy-mode: given "${mode}", must be userspace: Windows has no other mode\n`)
    expect(code).toBe(1)
  })

  it.each([4, 6] as const)('serves all kinds of addresses over IPv%i, TCP and UDP, from everywhere', async (family) => {
    const expected = pods.map((ip) => (family === 4 ? ip : `[${ipv6Twin(ip)}]`))
    const wrong: string[] = []
    for (const at of ['outside', 'pod', 'node'] as const) {
      for (const [ip, tcp, udp] of [
        ['172.30.0.41', 80, 53],
        ['1.2.3.4', 80, 53],
        ['192.168.99.22', 80, 53],
        [nodeIp, 30_080, 30_053],
        ['192.168.1.2', 30_080, 30_053],
      ] as const) {
        const to = inFamily(family, ip)
        const http = await ask(to, tcp, { at })
        const dns = await ask(to, udp, { protocol: 'udp', at })
        if (!expected.some((pod) => http === `${pod}:8080`)) wrong.push(`${at} ${to}:${tcp}/tcp ${http}`)
        if (!expected.some((pod) => dns === `${pod}:5353`)) wrong.push(`${at} ${to}:${udp}/udp ${dns}`)
      }
    }
    expect(wrong).toEqual([])
  })

  it('has added every address once, as host addresses that are not used as sources', async () => {
    const wanted = ['1.2.3.4', '172.30.0.41', '192.168.99.22'].flatMap((ip) => [ip, ipv6Twin(ip)])
    expect([...(await node.serviceAddresses())].sort()).toEqual(wanted.sort())
    expect(node.netsh.calls.filter((call) => call.includes('172.30.0.41 '))).toEqual([
      `interface ipv4 add address name=${serviceInterface} address=172.30.0.41 mask=255.255.255.255 store=active skipassource=true`,
    ])
  })

  it('answers status, explain and plan through the named pipe', async () => {
    const status = await node.run('sluice', 'status')
    expect(status.stderr).toBe('')
    expect(status.stdout).toMatch(/ns1\/web/)
    expect(status.code).toBe(0)
    const explain = await node.run('sluice', 'explain', '172.30.0.41:80', '--from', '203.0.113.2')
    expect(explain.stdout).toMatch(/cluster IP 172\.30\.0\.41 of ns1\/web/)
    expect(explain.code).toBe(0)
    const file = join(node.prefix.path, 'drive_c', 'change.yaml')
    writeFileSync(file, JSON.stringify(web([pods[0]])[1]))
    const plan = await node.run('sluice', 'plan', '-f', 'C:\\change.yaml')
    expect(`${plan.stdout}${plan.stderr}`).toMatch(/socket/)
    expect(readdirSync(join(node.prefix.path, 'drive_c', 'ProgramData', 'sluice')).sort()).toEqual([
      'node-a.pipe',
      'service-addresses',
    ])
  })

  it('keeps a client at its endpoint with session affinity, and takes turns without', async () => {
    await change(() => node.api.put(...single('ns1/sticky', '172.30.0.42', { affinity: 10_800 })))
    const sticky = new Set<string>()
    const plain = new Set<string>()
    for (let i = 0; i < 8; i++) {
      sticky.add(await ask('172.30.0.42'))
      plain.add(await ask(clusterIps[0]))
    }
    expect([...sticky].join()).toMatch(/^10\.180\.0\.[12]:8080$/)
    expect(plain.size).toBe(2)
    await change(() => node.api.drop(...single('ns1/sticky', '172.30.0.42')))
    expect(await node.serviceAddresses()).not.toContain('172.30.0.42')
  })

  it('follows endpoints, and refuses clients while there are none', async () => {
    await change(() => node.api.put(...web([pods[1]])))
    for (const to of clusterIps) expect(await ask(to)).toContain(`${inFamily(to.includes(':') ? 6 : 4, pods[1])}`)
    expect(await ask(clusterIps[0], 53, { protocol: 'udp' })).toBe(`${pods[1]}:5353`)
    await change(() => node.api.put(...web([])))
    expect(await ask(clusterIps[0])).toBe('ECONNREFUSED')
    expect(await ask(clusterIps[1])).toBe('ECONNREFUSED')
    expect(await ask(nodeIp, 30_080)).toBe('ECONNREFUSED')
    await change(() => node.api.put(...web()))
    expect(await ask(clusterIps[0])).toMatch(/^10\.180\.0/)
  })

  it('hides a pod that has died', async () => {
    await node.lab.unserve()
    await serveIn([pods[1]])
    const answers = new Set<string>()
    for (let i = 0; i < 6; i++) answers.add(await ask(clusterIps[0]))
    expect([...answers]).toEqual([`${pods[1]}:8080`])
    await node.lab.unserve()
    await serveIn(pods)
  })

  it('waits for an address that the system still checks for duplicates', async () => {
    const check = async (on: string) => {
      const { node: space } = node.lab
      await space.exec('sh', ['-c', `echo ${on} > '/proc/sys/net/ipv6/conf/${serviceInterface}/accept_dad'`])
      await space.exec('sh', ['-c', `echo ${on} > /proc/sys/net/ipv6/conf/all/accept_dad`])
    }
    await check('1')
    const ip = ipv6Twin('172.30.0.43')
    const objects = [
      expand({ service: 'ns1/slow', clusterIP: [ip], ports: ['http 80/tcp'] }, 950, 6),
      expand({ slice: 'ns1/slow', ports: ['http 8080/tcp'], endpoints: [`${ipv6Twin(pods[0])} local`] }, 951, 6),
    ]
    node.api.put(...objects)
    const show = ['-6', '-o', 'address', 'show', 'dev', serviceInterface, 'tentative']
    await until('the address is tentative', async () => (await node.lab.node.exec('ip', show)).stdout.includes(ip))
    await node.settle()
    expect((await node.lab.node.exec('ip', show)).stdout).not.toContain(ip)
    expect(await ask(ip)).toBe(`[${ipv6Twin(pods[0])}]:8080`)
    expect(proxy.log).not.toMatch(/ns1\/slow.*cannot be programmed/)
    await check('0')
    await change(() => node.api.drop(...objects))
  })

  it('names the service whose address netsh refuses, serves all others, and tries again', async () => {
    node.netsh.refuse = ({ ip }) => (ip === '172.30.0.44' ? 'The object is not valid.' : undefined)
    await change(() => node.api.put(...single('ns1/refused', '172.30.0.44'), ...single('ns1/good', '172.30.0.45')))
    expect(await ask('172.30.0.45')).toMatch(/:8080$/)
    expect(proxy.log).toMatch(
      /cannot be programmed.*ns1\/refused.*netsh cannot add 172\.30\.0\.44.*The object is not valid/,
    )
    node.netsh.refuse = () => undefined
    await until('the refused service is tried again', async () => (await ask('172.30.0.44')).endsWith(':8080'))
    await change(() => node.api.drop(...single('ns1/refused', '172.30.0.44'), ...single('ns1/good', '172.30.0.45')))
  })

  it('stops at Ctrl-C with exit code 0, leaves the addresses, and the next process takes them over', async () => {
    const before = await node.serviceAddresses()
    proxy.pressCtrlC()
    expect((await proxy.ended()).code).toBe(0)
    expect(await node.serviceAddresses()).toEqual(before)
    expect(await ask(clusterIps[0])).toBe('ECONNREFUSED')
    expect(existsSync(join(node.prefix.path, 'drive_c', 'ProgramData', 'sluice', 'node-a.pipe'))).toBe(false)
    const { code, stderr } = await node.run('sluice', 'status')
    expect([code, stderr]).toEqual([1, expect.stringMatching(/no proxy runs here/)])
    const calls = node.netsh.calls.length
    // The files of the configuration have paths of Windows; that of the token is relative to the kubeconfig.
    const folder = join(node.prefix.path, 'drive_c', 'etc', 'kube proxy')
    mkdirSync(folder, { recursive: true })
    writeFileSync(join(folder, 'kubeconfig'), JSON.stringify(makeKubeconfig(node.api.url, 'token')))
    writeFileSync(join(folder, 'token'), 'secret-of-the-node')
    writeFileSync(join(folder, 'config.yaml'), makeConfig('C:\\etc\\kube proxy\\kubeconfig'))
    proxy = node.start('kube-proxy', [
      '--config=C:\\etc\\kube proxy\\config.yaml',
      '--hostname-override=node-a',
      '--v=2',
    ])
    await node.settle()
    expect(await ask(clusterIps[0])).toMatch(/:8080$/)
    expect(await ask(clusterIps[1])).toMatch(/:8080$/)
    expect(node.netsh.calls.slice(calls)).toEqual([])
    expect(node.api.authorization).toBe('Bearer secret-of-the-node')
  })

  it('removes the addresses of a killed process that no service wants any more', async () => {
    await change(() => node.api.put(...single('ns1/gone', '172.30.0.46'), ...single('ns1/kept', '172.30.0.47')))
    await node.lab.node.exec('ip', ['address', 'add', '172.30.0.99/32', 'dev', serviceInterface])
    proxy.kill()
    await proxy.ended()
    node.api.drop(...single('ns1/gone', '172.30.0.46'))
    expect(await node.serviceAddresses()).toContain('172.30.0.46')
    proxy = node.startProxy('-v=2')
    await node.settle()
    expect(await ask('172.30.0.47')).toMatch(/:8080$/)
    const left = await node.serviceAddresses()
    expect(left).not.toContain('172.30.0.46')
    // Someone else has added this one.
    expect(left).toContain('172.30.0.99')
  })

  it('cleans up its addresses, and nothing else', async () => {
    proxy.kill()
    await proxy.ended()
    const listed = await node.run('sluice', 'cleanup', '--dry-run')
    expect(listed.stdout).toMatch(/service address 172\.30\.0\.41 .*interface "vEthernet\(HNS\)"/)
    expect(listed.code).toBe(2)
    const { code, stderr } = await node.run('kube-proxy', '--cleanup')
    expect(stderr).not.toMatch(/koffi|iptables|Cleanup failed/i)
    expect(code).toBe(0)
    expect(await node.serviceAddresses()).toEqual(['172.30.0.99'])
    expect((await node.run('sluice', 'cleanup', '--dry-run')).code).toBe(0)
  })

  it('has said nothing to netsh that Windows would not understand', () => {
    expect(node.netsh.mistakes).toEqual([])
    expect(node.netsh.calls.length).toBeGreaterThan(20)
  })
})

const makeConfig = (kubeconfig: string): string =>
  JSON.stringify({
    apiVersion: 'kubeproxy.config.k8s.io/v1alpha1',
    kind: 'KubeProxyConfiguration',
    mode: 'userspace',
    clientConnection: { kubeconfig },
    iptables: { minSyncPeriod: '10ms' },
  })
