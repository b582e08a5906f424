// A proxy ends, and then the next one starts, in the same or another mode, as a DaemonSet replaces its pods: no connection fails, because the
// rules of the old mode serve until those of the new one are there.

import { setTimeout as delay } from 'node:timers/promises'
import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import type { Mode } from '../../src/backend/backend.ts'
import { type FixedApi, serveObjects } from '../lab/fixed-api.ts'
import { nodeName } from '../scenarios/expand.ts'
import { until } from '../support/until.ts'
import { privateLock } from './iptables-holdings.ts'
import { NodeNetwork, nodeIp, podIps } from './node-network.ts'
import { extras, web } from './web-service.ts'
import { hasKubeProxy, WholeProxy, type WholeProxyOptions } from './whole-proxy.ts'

privateLock()

let network: NodeNetwork
let api: FixedApi

beforeEach(async () => {
  network = await NodeNetwork.create()
  api = await serveObjects(network.node, nodeName, nodeIp, [...web().put, ...extras(10).put])
})

afterEach(async () => {
  api?.close()
  await network?.close()
})

interface Party {
  readonly mode: Mode
  readonly program: NonNullable<WholeProxyOptions['program']>
}

const ours = (mode: Mode): Party => ({ mode, program: 'ours' })
const theirs = (mode: Mode): Party => ({ mode, program: 'kube-proxy' })

/** Returns what went wrong with connections to the cluster IP and to the node port meanwhile. */
async function replace(before: Party, after: Party): Promise<readonly string[]> {
  const old = await WholeProxy.start({ network, api, ...before })
  await old.waitUntilSynced()
  await until('the service answers', async () => (podIps as readonly string[]).includes(await network.ask()))
  const loads = [await network.load(), await network.load(nodeIp, 30080)]
  await delay(300)
  await old.stop()
  const next = await WholeProxy.start({ network, api, ...after })
  await next.waitUntilSynced()
  if (after.program === 'ours') await until('no rules of other modes', () => hasOnlyRulesOf(after.mode))
  await delay(1000)
  const results = await Promise.all(loads.map((load) => load.stop()))
  await next.stop()
  for (const { made } of results) expect(made).toBeGreaterThan(100)
  // A relayed connection ends with its relay, so only new connections count there.
  return results
    .flatMap(({ problems }) => problems)
    .filter((problem) => before.mode !== 'userspace' || !problem.startsWith('held connection'))
}

async function hasOnlyRulesOf(mode: Mode): Promise<boolean> {
  const rules = await network.run('iptables-save')
  const found: Partial<Record<Mode, boolean>> = {
    nftables: (await network.run('nft list tables')).includes('kube-proxy'),
    iptables: rules.includes('KUBE-SERVICES'),
    userspace: rules.includes('KUBE-PORTALS-'),
  }
  return Object.entries(found).every(([name, isThere]) => isThere === (name === mode))
}

const modes: readonly Mode[] = ['nftables', 'iptables', 'userspace']
const pairs = modes.flatMap((before) => modes.map((after) => [before, after] as const))

describe('a proxy of ours ends and the next one starts', () => {
  it.each(pairs)('no connection fails from %s to %s', async (before, after) => {
    expect(await replace(ours(before), ours(after))).toEqual([])
  })
})

describe.runIf(hasKubeProxy)('kube-proxy ends and ours starts', () => {
  it.each(pairs.filter(([before]) => before !== 'userspace'))(
    'no connection fails from %s to %s',
    async (before, after) => {
      expect(await replace(theirs(before), ours(after))).toEqual([])
    },
  )
})

// kube-proxy removes the rules of other modes before it writes its own, so only its own mode can be taken over without a loss.
describe.runIf(hasKubeProxy)('ours ends and kube-proxy starts', () => {
  it.each(['nftables', 'iptables'] as const)('no connection fails in mode %s', async (mode) => {
    expect(await replace(ours(mode), theirs(mode))).toEqual([])
  })
})
