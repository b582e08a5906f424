// What keeps traffic working beyond kube-proxy, in ipvs mode: weights, consistent hashing, ejection, draining and the canary. Real connections.

import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, expect, it } from 'vitest'
import type { Json } from '../scenarios/twins.ts'
import { until } from '../support/until.ts'
import { IpvsNetwork, nodeIp, vip } from './ipvs-network.ts'
import { metricsPort, Proxies, type RunningProxy } from './whole-proxies.ts'

const pods = ['10.180.0.1', '10.180.0.2'] as const
const limits = { limitMs: 240_000, everyMs: 500 }

const service = (annotations: Record<string, string>, more: Record<string, Json> = {}): Json => ({
  service: 'ns1/svc1',
  type: 'NodePort',
  clusterIP: vip,
  ports: ['p80 80/tcp 30001'],
  annotations,
  ...more,
})
const slice = (...endpoints: string[]): Json => ({ slice: 'ns1/svc1', ports: ['p80 80/tcp'], endpoints })

let network: IpvsNetwork
let proxies: Proxies
let proxy: RunningProxy
let folder = ''
beforeAll(async () => {
  folder = mkdtempSync(join(tmpdir(), 'sluice-health-'))
  const file = join(folder, 'sluice.yaml')
  const canary = 'canary:\n  addresses: ["172.30.255.254"]\n  interval: 5s\n  failures: 1\n'
  const settings = `outliers:\n  interval: 5s\n${canary}`
  writeFileSync(file, `apiVersion: sluice/v1alpha1\nkind: SluiceConfiguration\n${settings}`)
  network = new IpvsNetwork()
  await network.serve(...pods)
  // Weights without an effect for the first test to change.
  proxies = await Proxies.open(network, service({}), slice(...pods.map((ip) => `${ip} local`)))
  proxy = proxies.ours('ipvs', `--sluice-config=${file}`, '--ipvs-min-sync-period=0s')
  await until('ipvs mode serves', async () => (await weights()).length === 2, limits).catch((error) => {
    throw new Error(`${error.message}; its output:\n${proxy.output()}`)
  })
})
afterAll(() => {
  proxies?.close()
  network?.close()
  rmSync(folder, { recursive: true, force: true })
})

const weights = async () => (await network.destinations()).map((line) => line.split(' ').slice(0, 2).join(' '))
const scheduler = async () => /TCP +\S+ (\S+)/.exec(await network.tool('ipvsadm', '-Ln', '-t', `${vip}:80`))?.[1]
const metrics = () => network.tool('curl', '-s', '--max-time', '30', `http://127.0.0.1:${metricsPort}/metrics`)

/** Opens connections one after the other. Returns who answered, or that nobody did. */
async function dial(count: number, to = vip, port = 80): Promise<readonly string[]> {
  const answers: string[] = []
  for (let i = 0; i < count; i++) {
    const connection = await network.connect({ to, port }).catch(() => undefined)
    answers.push(connection?.server ?? 'nobody')
    connection?.close()
  }
  return answers
}

it('weights are those of the destinations, and wrr gives each its share', async () => {
  proxies.put(service({ 'sluice/weights': `${pods[0]}=3, *=1` }))
  await until('the weights are written', async () => (await weights()).includes(`${pods[0]}:80 3`), limits)
  expect(await scheduler()).toBe('wrr')
  const answers = await dial(8)
  expect(pods.map((ip) => answers.filter((one) => one === ip).length)).toEqual([6, 2])
})

it('consistent hashing is mh: all connections of a client go to one endpoint', async () => {
  proxies.put(service({ 'sluice/algorithm': 'consistent-hash' }))
  await until('the scheduler is mh', async () => (await scheduler()) === 'mh', limits)
  expect(new Set(await dial(6)).size).toBe(1)
})

it('an endpoint that refuses connections is ejected, and comes back when it answers', async () => {
  proxies.put(service({ 'sluice/outlier-ejection': 'on' }))
  await until('the scheduler is rr', async () => (await scheduler()) === 'rr', limits)
  expect(new Set(await dial(4))).toEqual(new Set(pods))
  network.unserve(pods[1])
  const ejects = async (count: number) => {
    await dial(4)
    return (await metrics()).includes(`sluice_ejected_endpoints ${count}\n`)
  }
  await until('the endpoint is ejected', () => ejects(1), limits).catch(async (error) => {
    throw new Error(`${error.message}; ${await network.tool('ipvsadm', '-Ln')} its output:\n${proxy.output()}`)
  })
  expect(new Set(await dial(4))).toEqual(new Set([pods[0]]))
  await network.serve(pods[1])
  await until('the endpoint is back', () => ejects(0), limits)
  expect(new Set(await dial(4))).toEqual(new Set(pods))
})

it('policy Local: external traffic is forwarded for a while after the last local endpoint has gone', async () => {
  const local = { externalTrafficPolicy: 'Local' }
  const external = async (expected: string) => (await dial(1, nodeIp, 30_001))[0] === expected
  proxies.put(slice(`${pods[0]} local`, `${pods[1]} remote`))
  proxies.put(service({ 'sluice/local-drain': '10m' }, local))
  await until('the local endpoint answers', () => external(pods[0]), limits)
  proxies.put(slice(`${pods[1]} remote`))
  await until('the other endpoint answers', () => external(pods[1]), limits)
  expect(await metrics()).toMatch(/sluice_draining_ports 1\n/)
})

it('the canary measures the data path, and finds that a foreign rule breaks it', async () => {
  const count = async (name: string) =>
    Number(new RegExp(`^sluice_canary_${name}\\{ip_family="IPv4"\\} (\\S+)`, 'm').exec(await metrics())?.[1] ?? 0)
  await until('the canary answers', async () => (await count('programming_duration_seconds_count')) > 0, limits).catch(
    async (error) => {
      throw new Error(`${error.message}; ${await network.tool('ipvsadm', '-Ln')} its output:\n${proxy.output()}`)
    },
  )
  expect(await count('broken')).toBe(0)
  await network.tool('iptables', '-t', 'raw', '-I', 'OUTPUT', '-d', '172.30.255.254', '-j', 'DROP')
  await until('the canary is broken', async () => (await count('broken')) === 1, limits)
})
