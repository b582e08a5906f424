// Two proxies of different modes on one node: the new one starts while the old one runs, then the old one ends. No connection fails.

import { setTimeout as delay } from 'node:timers/promises'
import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import type { Mode } from '../../src/backend/backend.ts'
import { type FixedApi, serveObjects } from '../lab/fixed-api.ts'
import { nodeName } from '../scenarios/expand.ts'
import { shortWaits } from '../support/short-waits.ts'
import { until } from '../support/until.ts'
import { privateLock } from './iptables-holdings.ts'
import { type Load, NodeNetwork, nodeIp, podIps } from './node-network.ts'
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

const marks: Readonly<Partial<Record<Mode, { readonly list: string; readonly word: string }>>> = {
  nftables: { list: 'nft list tables', word: 'kube-proxy' },
  iptables: { list: 'iptables-save', word: 'KUBE-SERVICES' },
  userspace: { list: 'iptables-save', word: 'KUBE-PORTALS-' },
}

async function hasRules(mode: Mode): Promise<boolean> {
  const { list = 'true', word = '' } = marks[mode] ?? {}
  return (await network.run(list)).includes(word)
}

interface Course {
  readonly load: Load
  readonly oldLog: string
  readonly newLog: string
  /** Whether the old proxy's rules were there while both ran. */
  readonly wereKept: boolean
}

/** Starts one proxy, then the other, and ends the first, while connections are made all the time. */
async function replace(before: Party, after: Party): Promise<Course> {
  const old = await WholeProxy.start({ network, api, metricsPort: 10249, env: shortWaits, ...before })
  await old.waitUntilSynced()
  await until('the service answers', async () => (podIps as readonly string[]).includes(await network.ask()))
  const load = await network.load()
  const next = await WholeProxy.start({ network, api, metricsPort: 10349, env: shortWaits, ...after })
  await next.waitUntilSynced()
  // Ours looks every second, with short waits, whether it may remove the rules of the other; kube-proxy has waits of its own.
  await delay(after.program === 'ours' ? 1500 : 3000)
  // kube-proxy removes rules when it likes, and ours repairs them: on a busy machine that takes a while.
  const wereKept = await until('the rules of the old proxy are there', () => hasRules(before.mode)).catch(() => false)
  await old.stop()
  if (after.program === 'ours') {
    await until('the rules of the old proxy are gone', async () => !(await hasRules(before.mode)))
  }
  await delay(after.program === 'ours' ? 1000 : 2000)
  const result = await load.stop()
  expect(podIps).toContain(await network.ask(nodeIp, 30080))
  await next.stop()
  return { load: result, oldLog: old.log, newLog: next.log, wereKept }
}

/** A relayed connection ends with its relay, so only new connections count there. */
const problems = ({ load }: Course, before: Party): readonly string[] =>
  load.problems.filter((problem) => before.mode !== 'userspace' || !problem.startsWith('held connection'))

const pairs: readonly (readonly [Mode, Mode])[] = [
  ['iptables', 'nftables'],
  ['nftables', 'iptables'],
  ['userspace', 'nftables'],
  ['nftables', 'userspace'],
  ['userspace', 'iptables'],
  ['iptables', 'userspace'],
]

describe('two proxies of ours', () => {
  it.each(pairs)('no connection fails when %s runs and %s takes over; both say it', async (first, second) => {
    const before: Party = { mode: first, program: 'ours' }
    const course = await replace(before, { mode: second, program: 'ours' })
    expect(problems(course, before)).toEqual([])
    expect(course.load.made).toBeGreaterThan(100)
    expect(course.wereKept).toBe(true)
    expect(course.oldLog).toContain(
      `Another proxy has started on this node; both serve until one ends" mode="${second}"`,
    )
    expect(course.newLog).toContain(`Another proxy runs on this node; both serve until it ends" mode="${first}"`)
    expect(course.newLog).toContain('The other proxy on this node has ended')
  })
})

describe.runIf(hasKubeProxy)('kube-proxy and ours', () => {
  it.each([
    ['iptables', 'nftables'],
    ['nftables', 'iptables'],
    ['nftables', 'userspace'],
  ] as const)(
    'no connection fails when kube-proxy runs in mode %s and ours takes over in mode %s',
    async (first, second) => {
      const before: Party = { mode: first, program: 'kube-proxy' }
      const course = await replace(before, { mode: second, program: 'ours' })
      expect(problems(course, before)).toEqual([])
      expect(course.wereKept).toBe(true)
      expect(course.newLog).toContain('The rules of a running proxy stay until it ends')
    },
  )

  it('no connection fails when ours runs in mode nftables and kube-proxy starts in mode iptables', async () => {
    const before: Party = { mode: 'nftables', program: 'ours' }
    const course = await replace(before, { mode: 'iptables', program: 'kube-proxy' })
    expect(problems(course, before)).toEqual([])
    expect(course.load.made).toBeGreaterThan(100)
    expect(course.wereKept).toBe(true)
  })

  // kube-proxy removes the rules of iptables mode before it serves, so that a connection may fail; docs/security.md says so.
  it('ours in mode iptables says that a kube-proxy that starts in mode nftables has removed rules, and repairs them', async () => {
    const course = await replace({ mode: 'iptables', program: 'ours' }, { mode: 'nftables', program: 'kube-proxy' })
    expect(course.oldLog).toContain('Another program changed our rules')
    expect(course.wereKept).toBe(true)
    expect(course.load.problems.filter((problem) => problem.startsWith('held connection'))).toEqual([])
  })
})
