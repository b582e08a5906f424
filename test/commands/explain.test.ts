import { describe, expect, it } from 'vitest'
import { ownAddresses } from '../../src/commands/sources/own-addresses.ts'
import type { Explanation } from '../../src/http/admin.ts'
import { directory, shop, sluice } from './run-command.ts'

async function ask(...argv: string[]): Promise<readonly Explanation[]> {
  const { status, stdout, stderr } = await sluice('explain', ...argv, '-o', 'json')
  expect(stderr).toBe('')
  expect(status).toBe(0)
  return (JSON.parse(stdout) as { items: Explanation[] }).items
}

const from = (extra: readonly string[] = []) => [
  '--manifests',
  directory({ 'shop.yaml': shop }),
  '--node',
  'a',
  ...extra,
]

describe('explain, from manifests', () => {
  it('says that a service beyond a limit of the proxy is not programmed', async () => {
    const ips = Array.from({ length: 2001 }, (_, i) => `198.18.${i >> 8}.${i & 255}`)
    const big = `apiVersion: v1\nkind: Service\nmetadata: {name: big}\nspec: {ports: [{port: 80}], externalIPs: [${ips.join(', ')}]}\n`
    const folder = directory({ 'shop.yaml': shop, 'big.yaml': big })
    const { status, stdout, stderr } = await sluice('explain', 'default/big', '--manifests', folder, '--node', 'a')
    expect(stderr).toContain(
      'default/big is not programmed: service default/big has 2001 external and load-balancer IPs',
    )
    expect(stderr).toContain('more than limits.addressesPerService allows (2000)')
    expect(stdout).toBe('')
    expect(status).toBe(1)
  })

  it('explains a service by name on each of its addresses, with shares and reasons', async () => {
    const answers = await ask('shop/web', ...from(['--cluster-cidr', '10.1.0.0/16']))
    expect(answers.map(({ frontend, verdict, snat }) => [frontend, verdict, snat])).toEqual([
      ['cluster IP 10.96.0.50:80', 'forward', true],
      ['node port 30080', 'forward', true],
    ])
    expect(answers[0]?.packet).toEqual({
      from: '192.168.5.1',
      to: '10.96.0.50',
      port: 80,
      protocol: 'tcp',
      origin: 'node',
    })
    expect(answers[0]?.endpoints).toEqual([
      { address: '10.1.0.11:8080', node: 'a', probability: 0.5, snat: true, why: 'ready, on this node' },
      { address: '10.1.1.12:8080', node: 'b', probability: 0.5, snat: true, why: 'ready' },
      { address: '10.1.1.13:8080', node: 'b', probability: 0, snat: false, why: 'not ready: gets no new connections' },
    ])
    expect(answers[0]?.entries.map(({ name, kernel }) => [name, kernel])).toEqual([
      ['element cluster-ips { 10.96.0.50 }', 'unchecked'],
      ['element service-ips { 10.96.0.50 . tcp . 80 }', 'unchecked'],
      ['element hairpin-connections { 10.1.0.11 . 10.1.0.11 . tcp . 8080 }', 'unchecked'],
    ])
  })

  it('finds a pod by name, and recognises a hairpin', async () => {
    const [answer] = await ask('shop/web:http', ...from(['--from', 'pod/shop/web-1', '--cluster-cidr', '10.1.0.0/16']))
    expect(answer?.packet).toMatchObject({ from: '10.1.0.11', origin: 'pod' })
    expect(answer).toMatchObject({ snat: false, hairpin: true })
    expect(answer?.endpoints.map(({ snat }) => snat)).toEqual([true, false, false])
  })

  it('says which packets are refused or dropped, and why', async () => {
    const args = from()
    const [refused] = await ask('10.96.0.51:80', ...args)
    expect(refused).toMatchObject({ verdict: 'reject', reason: 'no-endpoints', service: 'shop/empty' })
    const [unused] = await ask('10.96.0.50:81/tcp', ...args)
    expect(unused).toMatchObject({ verdict: 'reject', reason: 'unused-port', endpoints: [] })
    expect(unused?.entries.map(({ name }) => name)).toEqual(['element cluster-ips { 10.96.0.50 }'])
    const [dropped] = await ask('10.96.0.99:80', ...args)
    expect(dropped).toMatchObject({ verdict: 'drop', reason: 'unallocated', service: '' })
  })

  it('explains other modes too', async () => {
    const [unused] = await ask('10.96.0.50:81', ...from(['--mode', 'iptables']))
    expect(unused).toMatchObject({ mode: 'iptables', verdict: 'pass', reason: 'unused-port' })
    const [met] = await ask('10.96.0.50:80', ...from(['--mode', 'iptables']))
    expect(met?.entries.map(({ name }) => name)).toContainEqual(expect.stringMatching(/^chain KUBE-SVC-/))
  })

  it.each([
    ['svc/web', '-n', 'shop'],
    ['web', '-n', 'shop'],
    ['web.shop.svc.cluster.local:http'],
    ['web.shop.svc'],
    ['svc/shop/web'],
  ])('finds a service by other names: %s %s %s', async (...name) => {
    const answers = await ask(...name, ...from())
    expect(answers.map(({ frontend }) => frontend)).toEqual(['cluster IP 10.96.0.50:80', 'node port 30080'])
  })

  it('explains a node port without an address', async () => {
    const [answer, ...more] = await ask(':30080', ...from())
    expect(more).toEqual([])
    expect(answer).toMatchObject({ frontend: 'node port 30080', service: 'shop/web:http', verdict: 'forward' })
    expect((await ask(':30081/udp', ...from()))[0]).toMatchObject({ verdict: 'pass', reason: 'no-service' })
  })

  it('refuses what looks like an address and is none', async () => {
    const error = async (target: string) => (await sluice('explain', target, ...from())).stderr
    expect(await error('999.1.1.1:80')).toContain('999.1.1.1 is not a valid IP address')
    expect(await error('[::zz]:80')).toContain('is not a valid IP address')
    expect(await error(':0')).toContain('a node port is a number from 1 to 65535')
    expect(await error('10.0.0.1')).toContain('has no port')
  })

  it('calls unknown what depends on how the node detects its pods, if nothing says how', async () => {
    const [internal, nodePort] = await ask('shop/web', ...from(['--from', '10.1.0.77']))
    expect(internal).toMatchObject({ verdict: 'forward', snat: null, hairpin: false })
    expect(internal?.endpoints.map(({ snat }) => snat)).toEqual([null, null, false])
    expect(internal?.steps.at(-1)).toMatch(/^It is unknown how this node detects its pods/)
    expect(internal?.steps.join()).not.toContain('the source is kept')
    // Traffic to a node port is masqueraded whatever the detector says.
    expect(nodePort).toMatchObject({ snat: true })
    const { stdout } = await sluice('explain', 'shop/web', ...from(['--from', '10.1.0.77']))
    expect(stdout).toContain('source rewritten: unknown')
    const local = shop.replace('type: NodePort', 'type: NodePort\n  externalTrafficPolicy: Local')
    const folder = directory({ 'shop.yaml': local.replace('nodeName: a', 'nodeName: b') })
    const [dropped] = await ask(':30080', '--manifests', folder, '--node', 'a', '--from', '10.1.0.77')
    expect(dropped).toMatchObject({ verdict: 'drop' })
    expect(dropped?.remarks.join()).toContain('If 10.1.0.77 counts as a pod of this node, the packet is forwarded to')
  })

  it('refuses a node that does not exist, and lists those that do', async () => {
    const path = directory({ 'shop.yaml': shop })
    expect(await sluice('explain', 'shop/web', '--manifests', path, '--node', 'node9')).toMatchObject({
      status: 1,
      stderr: 'sluice explain: there is no node node9: choose one with --node (there is a)\n',
    })
  })

  it('uses this machine as the node that `sluice up` would register if the manifests have no Node', async () => {
    const first = (await ownAddresses()).find((ip) => !ip.includes(':'))
    const path = directory({ 'web.yaml': shop.replace('metadata: {name: a,', 'metadata: {name: b,') })
    const packets = (await ask('shop/web:http', '--manifests', path)).map(({ packet }) => packet.from)
    expect(new Set(packets)).toEqual(new Set([first ?? '127.0.0.1']))
  })

  it('prints text for people, and suggests names for an unknown service', async () => {
    const args = from()
    const { stdout } = await sluice('explain', 'shop/web', ...args)
    expect(stdout).toContain('forwarded by shop/web:http (cluster IP 10.96.0.50:80) to one of 2 endpoints')
    expect(stdout).toContain('- internalTrafficPolicy is Cluster: any of the 2 usable endpoints may answer.')
    expect((await sluice('explain', 'web', ...args)).stderr).toContain(
      'there is no service default/web with a cluster IP (there is shop/web)',
    )
    expect((await sluice('explain', 'shop/web:https', ...args)).stderr).toContain('no such port here; it has http/tcp')
    expect((await sluice('explain', '10.96.0.50', ...args)).stderr).toContain('has no port')
  })

  it('reports a broken manifest with file, line and field', async () => {
    const path = directory({ 'bad.yaml': shop.replace('port: 80, targetPort: 8080', 'port: 99999, targetPort: 8080') })
    const { status, stderr } = await sluice('explain', 'shop/web', '--manifests', path, '--node', 'a')
    expect(status).toBe(1)
    expect(stderr).toMatch(/bad\.yaml:18: spec\.ports\[0\]\.port/)
  })
})
