// The proxy is killed during syncs, restarted, locked out and hindered by other programs; connections go on.

import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { setTimeout as delay } from 'node:timers/promises'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { counters } from '../../src/backend/iptables-kit/chains.ts'
import type { Manifest } from '../scenarios/format.ts'
import { until } from '../support/until.ts'
import { type Flavour, privateLock } from './iptables-holdings.ts'
import { NodeNetwork, nodeIp, podIps } from './node-network.ts'
import { ProxyProcess } from './proxy-process.ts'
import { expand, extras, single, web } from './web-service.ts'
import { refuseRestores } from './wrapped-restore.ts'

const lockFile = privateLock()
const initial = [...web().put, ...extras(40).put]

describe.each<Flavour>(['nft', 'legacy'])('life, %s', (flavour) => {
  let network: NodeNetwork
  let reference = ''
  const ipt = `iptables-${flavour}`

  /** The tables without counters and times, the rules of each chain in their order. */
  const save = async () => {
    const lines = (await network.run(`${ipt}-save`)).split('\n').filter((line) => !line.startsWith('#'))
    const chain = (line: string) => /^-A (\S+)/.exec(line)?.[1] ?? ''
    const plain = lines.map((line) => line.replace(/\[\d+:\d+\]/, ''))
    return plain
      .map((line, i) => [chain(line), i, line] as const)
      .sort(byChain)
      .map(([, , line]) => line)
  }

  beforeAll(async () => {
    network = await NodeNetwork.create()
    await network.useFlavour(flavour)
    const proxy = await ProxyProcess.start(network, initial)
    await proxy.settle()
    reference = (await save()).join('\n')
    await proxy.kill()
  })

  afterAll(async () => {
    await network?.close()
  })

  it('takes over what an earlier process left: the rules stay the same, and nothing is interrupted', async () => {
    const load = await network.load()
    // Another program uses the other flavour.
    const other = `iptables-${flavour === 'nft' ? 'legacy' : 'nft'}`
    await network.run(`${other} -A OUTPUT -d 10.99.0.1 -j ACCEPT`)
    const proxy = await ProxyProcess.start(network, initial)
    await proxy.settle()
    await delay(300)
    const { problems } = await load.stop()
    await proxy.kill()
    await network.run(`${other} -D OUTPUT -d 10.99.0.1 -j ACCEPT`)
    expect(problems).toEqual([])
    expect(proxy.log).toMatch(`Both flavours of iptables hold rules and packets pass both" used="${flavour}"`)
    expect((await save()).join('\n')).toBe(reference)
  })

  it('recovers from kill -9 at random points of syncs', async () => {
    const load = await network.load()
    for (let round = 0; round < 25; round++) {
      const proxy = await ProxyProcess.start(network, [...web().put, ...extras(40, round % 2).put])
      if (round % 3 > 0) await proxy.apply(extras(20 + round, 1 - (round % 2)))
      await delay(Math.random() * (round % 2 === 0 ? 60 : 250))
      await proxy.kill()
    }
    const proxy = await ProxyProcess.start(network, initial)
    await proxy.settle()
    await delay(200)
    const { problems, rounds, made } = await load.stop()
    await proxy.kill()
    expect(problems).toEqual([])
    expect(Math.min(rounds, made)).toBeGreaterThan(50)
    expect((await save()).join('\n')).toBe(reference)
  })

  it('keeps a chain that another program still uses, and updates the service', async () => {
    const proxy = await ProxyProcess.start(network, initial)
    await proxy.settle()
    const sep = /-j DNAT --to-destination 10.180.0.2:8080/
    const stale = /-A (KUBE-SEP-\S+)/.exec((await save()).find((line) => sep.test(line)) ?? '')?.[1] as string
    await network.run(`${ipt} -t nat -N CNI-USES && ${ipt} -t nat -A CNI-USES -j ${stale}`)
    await proxy.apply({ drop: [], put: web([podIps[0]]).put.slice(1) })
    await proxy.settle()
    expect(await network.ask()).toBe(podIps[0])
    // The chain is deleted after its count has been read.
    await until('the deletion is refused', () => /cannot be (?:deleted|programmed)/.test(proxy.log))
    expect((await save()).join('\n')).toContain(`-A CNI-USES -j ${stale}`)
    await network.run(`${ipt} -t nat -F CNI-USES && ${ipt} -t nat -X CNI-USES`)
    await until('the chain is gone at a later try', async () => !(await save()).some((line) => line.includes(stale)))
    await proxy.kill()
  })

  it('names and isolates a service whose rules are refused, and writes all others', async () => {
    const { env, end } = await refuseRestores(network, flavour, 'bad/one')
    const proxy = await ProxyProcess.start(network, initial, env)
    await proxy.settle()
    await proxy.apply({ drop: [], put: [...single('bad/one', '172.30.9.9'), ...single('good/one', '172.30.9.10')] })
    await proxy.settle()
    expect(await network.ask('172.30.9.10')).toBe(podIps[0])
    expect(proxy.log).toMatch(/A service cannot be programmed; other services are not affected.*bad\/one/)
    expect(proxy.log).not.toMatch(/cannot be programmed.*good\/one/)
    expect(await network.ask('172.30.9.9', 80, 600)).toBe('timeout')
    end()
    await until('the service is tried again', async () => (await network.ask('172.30.9.9', 80, 600)) === podIps[0])
    await proxy.kill()
  })

  it('names and isolates a service that the kernel itself refuses, and writes all others', async (context) => {
    if (!(await network.counter('make', 'probe'))) return context.skip('this kernel has no nfacct')
    const proxy = await ProxyProcess.start(network, extras(40).put)
    await proxy.settle()
    // A node port's rule for localhost uses this counter. No rule uses it now, so it can be deleted.
    await until('the counter is gone', () => network.counter('drop', counters.localhost))
    const exposed = expand(
      { service: 'bad/one', type: 'NodePort', clusterIP: '172.30.9.9', ports: ['http 80/tcp 30099'] },
      902,
    )
    const [, endpoints] = single('bad/one', '172.30.9.9') as [Manifest, Manifest]
    const others = [1, 2, 3].flatMap((n) => single(`good/s${n}`, `172.30.8.${n}`))
    await proxy.apply({ drop: [], put: [exposed, endpoints, ...others] })
    await proxy.settle()
    const words = flavour === 'nft' ? 'RULE_APPEND failed' : String.raw`iptables-restore: line \d+ failed`
    expect(proxy.log).toMatch(
      new RegExp(`A service cannot be programmed; other services are not affected.*bad/one.*${words}`),
    )
    expect(proxy.log).not.toMatch(/cannot be programmed.*(?:good|extra)\//)
    for (const n of [1, 2, 3]) expect(await network.ask(`172.30.8.${n}`)).toBe(podIps[0])
    // No host has this address. How soon the network answers so does not matter.
    expect(podIps).not.toContain(await network.ask('172.30.9.9', 80, 600))
    expect(await network.counter('make', counters.localhost)).toBe(true)
    await until('the service is tried again', async () => (await network.ask(nodeIp, 30_099, 600)) === podIps[0])
    await proxy.kill()
  })

  it.runIf(flavour === 'legacy')('waits for a lock that another process holds, and names the process', async () => {
    const proxy = await ProxyProcess.start(network, initial)
    await proxy.settle()
    const load = await network.load()
    const holder = spawn('flock', [lockFile, 'sleep', '10'], { stdio: 'ignore' })
    const released = once(holder, 'exit')
    await delay(100)
    const begun = performance.now()
    await proxy.apply(web([podIps[1]]))
    await proxy.settle()
    const ms = performance.now() - begun
    await released
    expect(ms).toBeGreaterThan(9000)
    expect(proxy.log).toMatch(
      /(?:Waiting for the xtables lock|sync failed).*(?:flock|sleep) \(pid \d+\) has held the lock/i,
    )
    expect(await network.ask()).toBe(podIps[1])
    const { problems } = await load.stop()
    expect(problems).toEqual([])
    await proxy.kill()
  })
})

function byChain(a: readonly [string, number, string], b: readonly [string, number, string]): number {
  if (a[0] !== b[0]) return a[0] < b[0] ? -1 : 1
  if (a[0] === '') return a[2] < b[2] ? -1 : 1
  return a[1] - b[1]
}
