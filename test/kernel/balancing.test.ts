// Weights, turns and slow starts, with the whole program and real connections; nft shows the slots.

import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import type { Mode } from '../../src/backend/backend.ts'
import { type Item, WatchedApi } from '../lab/watched-api.ts'
import { nodeName } from '../scenarios/expand.ts'
import { until } from '../support/until.ts'
import { clusterIp, NodeNetwork, nodeIp, podIps } from './node-network.ts'
import { expand } from './web-service.ts'
import { WholeProxy } from './whole-proxy.ts'

const otherIp = '172.30.0.42'
const [first, second] = podIps

let network: NodeNetwork
let api: WatchedApi
let proxy: WholeProxy | undefined

beforeEach(async () => {
  network = await NodeNetwork.create()
  api = await WatchedApi.listen(network.node, 8001)
  const addresses = [{ type: 'InternalIP', address: nodeIp }]
  api.put({ apiVersion: 'v1', kind: 'Node', metadata: { name: nodeName }, status: { addresses } } as Item)
})

afterEach(async () => {
  await proxy?.stop('SIGKILL')
  proxy = undefined
  api.close()
  await network.close()
})

const putService = (annotations: Readonly<Record<string, string>>, name = 'ns1/web', ip = clusterIp) =>
  api.put(expand({ service: name, clusterIP: ip, ports: ['http 80/tcp'], annotations }, 0) as Item)

const putSlice = (ips: readonly string[], name = 'ns1/web') =>
  api.put(expand({ slice: name, ports: ['http 8080/tcp'], endpoints: ips.map((ip) => `${ip} local`) }, 1) as Item)

async function start(mode: Mode): Promise<void> {
  proxy = await WholeProxy.start({ network, api, mode })
  await proxy.waitUntilSynced()
}

async function ask(times: number): Promise<readonly string[]> {
  const answers: string[] = []
  for (let i = 0; i < times; i++) answers.push(await network.ask())
  return answers
}

const countOf = (answers: readonly string[], ip: string): number => answers.filter((one) => one === ip).length

describe.each<Mode>(['nftables', 'iptables'])('%s', (mode) => {
  it('spreads connections by weight, and sends none to weight 0, also while it runs', async () => {
    putService({ 'sluice/weights': `${first}=9` })
    putSlice(podIps)
    await start(mode)
    const answers = await ask(200)
    // The mean is 180 and the deviation 4.2: chance alone leaves this range once in a million runs.
    expect(countOf(answers, first)).toBeGreaterThan(158)
    expect(countOf(answers, first)).toBeLessThan(199)
    expect(countOf(answers, first) + countOf(answers, second)).toBe(200)
    putService({ 'sluice/weights': `${first}=0` })
    await until('only the other answers', async () => countOf(await ask(20), second) === 20, { limitMs: 30_000 })
  })

  it('goes by turns, whatever connections another service has meanwhile', async () => {
    for (const [name, ip] of [['ns1/web', clusterIp] as const, ['ns1/other', otherIp] as const]) {
      putService({ 'sluice/algorithm': 'round-robin' }, name, ip)
      putSlice(podIps, name)
    }
    await start(mode)
    const answers: string[] = []
    for (let i = 0; i < 12; i++) {
      answers.push(await network.ask())
      if (i % 2 === 0) await network.ask(otherIp)
    }
    expect(answers.every((answer, i) => i === 0 || answer !== answers[i - 1])).toBe(true)
    expect([countOf(answers, first), countOf(answers, second)]).toEqual([6, 6])
  })
})

describe('a slow start in nftables mode', () => {
  /** How many slots of the service each pod has, as nft shows it. */
  async function countSlots(): Promise<readonly number[]> {
    const text = await network.run('nft list map ip kube-proxy endpoints')
    const own = [...text.matchAll(/172\.30\.0\.41 \. tcp \. 80 \. [^:,]* : (\S+) \. 8080/g)].map((match) => match[1])
    return podIps.map((ip) => own.filter((one) => one === ip).length)
  }

  it('gives a new endpoint a slot more with each step, and none of the first ones', async () => {
    putService({ 'sluice/slow-start': '3s' })
    putSlice([first])
    await start('nftables')
    await until('the first has all slots', async () => (await countSlots())[0] === 10, { limitMs: 30_000 })
    putSlice(podIps)
    const seen: number[] = []
    const olds = new Set<number | undefined>()
    const watch = async () => {
      const [old, young] = await countSlots()
      olds.add(old)
      if (young !== undefined && young > 0 && young !== seen.at(-1)) seen.push(young)
      return young === 10
    }
    await until('the second has all slots, too', watch, { limitMs: 60_000, everyMs: 50 })
    expect(seen[0]).toBeLessThan(10)
    expect(seen).toEqual(seen.toSorted((a, b) => a - b))
    expect([...olds]).toEqual([10])
    expect([...new Set(await ask(30))].sort()).toEqual([...podIps].sort())
  })
})
