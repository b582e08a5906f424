import { describe, expect, it } from 'vitest'
import { ownAddresses } from '../../src/commands/sources/own-addresses.ts'
import type { Explanation } from '../../src/http/admin.ts'
import { directory, shop, sluice } from './run-command.ts'

async function ask(...argv: string[]): Promise<readonly Explanation[]> {
  const { status, stdout, stderr } = await sluice('explain', ...argv, '-o', 'json')
  expect(stderr).toBe('')
  expect(status).toBe(0)
  return JSON.parse(stdout) as Explanation[]
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
      ['cluster IP 10.96.0.50:80', 'forward', 'yes'],
      ['node port 30080', 'forward', 'yes'],
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
    expect(answers[0]?.entries.map(({ id, kernel }) => [id, kernel])).toEqual([
      ['cluster-ips 10.96.0.50', 'unchecked'],
      ['frontend 10.96.0.50 tcp 80', 'unchecked'],
      ['hairpin-connections 10.1.0.11 10.1.0.11 tcp 8080', 'unchecked'],
    ])
  })

  it('finds a pod by name, and recognises a hairpin', async () => {
    const [answer] = await ask('shop/web:http', ...from(['--from', 'pod/shop/web-1', '--cluster-cidr', '10.1.0.0/16']))
    expect(answer?.packet).toMatchObject({ from: '10.1.0.11', origin: 'pod' })
    expect(answer?.snat).toBe('hairpin')
    expect(answer?.endpoints.map(({ snat }) => snat)).toEqual([true, false, false])
  })

  it('says which packets are refused or dropped, and why', async () => {
    const args = from()
    const [refused] = await ask('10.96.0.51:80', ...args)
    expect(refused).toMatchObject({ verdict: 'reject', reason: 'no-endpoints', service: 'shop/empty' })
    const [unused] = await ask('10.96.0.50:81/tcp', ...args)
    expect(unused).toMatchObject({ verdict: 'reject', reason: 'unused-port', endpoints: [] })
    expect(unused?.entries.map(({ id }) => id)).toEqual(['cluster-ips 10.96.0.50'])
    const [dropped] = await ask('10.96.0.99:80', ...args)
    expect(dropped).toMatchObject({ verdict: 'drop', reason: 'unallocated', service: '' })
  })

  it('explains other modes too', async () => {
    const [unused] = await ask('10.96.0.50:81', ...from(['--mode', 'iptables']))
    expect(unused).toMatchObject({ mode: 'iptables', verdict: 'pass', reason: 'unused-port' })
    const [met] = await ask('10.96.0.50:80', ...from(['--mode', 'iptables']))
    expect(met?.entries.map(({ id }) => id)).toContainEqual(expect.stringContaining('KUBE-SVC-'))
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
