// Random histories over a strict kernel: whatever happened, the table ends as if it had been planned from scratch.

import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import type { ServiceRecord, SliceRecord } from '../../../src/model/types.ts'
import { EBUSY, ENOMEM } from '../../../src/sys/errno.ts'
import { endpoint, service, slice, tcp, view } from '../../support/builders.ts'
import { diffAtOnce, resetAtOnce } from '../../support/ledger-at-once.ts'
import { FakeKernel, type State, unbind } from './fake-kernel.ts'
import { gaps } from './packets.ts'
import { contents, TargetHarness } from './target-harness.ts'

type Put = { readonly service: ServiceRecord; readonly slices: readonly SliceRecord[] }

const endpoints = fc.uniqueArray(fc.integer({ min: 1, max: 9 }), { maxLength: 7 })

const put: fc.Arbitrary<Put> = fc
  .record({
    i: fc.integer({ min: 1, max: 4 }),
    locals: endpoints,
    remotes: endpoints,
    affinitySeconds: fc.constantFrom(0, 0, 0, 60, 10_800),
    externalPolicy: fc.constantFrom('Cluster' as const, 'Local' as const),
    internalPolicy: fc.constantFrom('Cluster' as const, 'Cluster' as const, 'Local' as const),
    nodePort: fc.boolean(),
    loadBalancer: fc.boolean(),
    sourceRanges: fc.subarray(['203.0.113.0/25', '203.0.113.0/24', '192.168.0.0/24', '0.0.0.0/0']),
  })
  .map(({ i, locals, remotes, nodePort, loadBalancer, ...rest }) => ({
    service: service({
      ...rest,
      key: `ns/svc${i}`,
      type: loadBalancer ? 'LoadBalancer' : nodePort ? 'NodePort' : 'ClusterIP',
      clusterIps: [`172.30.0.${i}`],
      ports: [tcp(80, 'p80', nodePort ? 3000 + i : 0)],
      loadBalancerIps: loadBalancer ? [`1.2.3.${i}`] : [],
    }),
    slices: [
      slice(
        [...locals.map((n) => endpoint(`10.180.0.${n}`, 'here')), ...remotes.map((n) => endpoint(`10.180.2.${n}`))],
        { key: `ns/svc${i}-a`, service: `ns/svc${i}` },
      ),
    ],
  }))

type Event =
  | { readonly do: 'put'; readonly put: Put }
  | { readonly do: 'drop'; readonly i: number }
  | { readonly do: 'sync' }
  | { readonly do: 'rest' }
  | { readonly do: 'crash' }
  | { readonly do: 'restart' }
  | { readonly do: 'stumble'; readonly errno: number; readonly times: number }
  | { readonly do: 'tamper'; readonly how: number; readonly at: number }

const history = fc.array(
  fc.oneof(
    { weight: 6, arbitrary: put.map((put): Event => ({ do: 'put', put })) },
    { weight: 2, arbitrary: fc.integer({ min: 1, max: 4 }).map((i): Event => ({ do: 'drop', i })) },
    { weight: 6, arbitrary: fc.constant<Event>({ do: 'sync' }) },
    { weight: 3, arbitrary: fc.constant<Event>({ do: 'rest' }) },
    { weight: 1, arbitrary: fc.constantFrom<Event>({ do: 'crash' }, { do: 'restart' }) },
    {
      weight: 1,
      arbitrary: fc.record({
        do: fc.constant('stumble' as const),
        errno: fc.constantFrom(22, EBUSY, ENOMEM),
        times: fc.integer({ min: 1, max: 6 }),
      }),
    },
    { weight: 2, arbitrary: fc.record({ do: fc.constant('tamper' as const), how: fc.nat({ max: 6 }), at: fc.nat() }) },
  ),
  { minLength: 1, maxLength: 30 },
)

/** What somebody else may do to a table that is not owned. */
function tamper(state: State, how: number, at: number): void {
  const containers = [...state.elements].filter(([, members]) => members.size > 0)
  const [name, members] = containers[at % Math.max(1, containers.length)] ?? []
  const chains = [...state.rules].filter(([, rules]) => rules.length > 0)
  const [chain, rules] = chains[at % Math.max(1, chains.length)] ?? []
  if (how === 0 && members !== undefined && !name?.startsWith('__'))
    members.delete([...members.keys()][at % members.size] as string)
  else if (how === 1) unbind(state, rules?.splice(at % rules.length, 1) ?? [])
  else if (how === 2) rules?.push({ ...(rules[0] as NonNullable<typeof rules>[number]), tag: undefined } as never)
  else if (how === 3 && chain !== undefined) {
    state.chains.set('foreign', { kind: 'chain', family: 4, table: 'kube-proxy', name: 'foreign' })
    state.rules.set('foreign', [])
  } else if (how === 4)
    Object.assign(state, { exists: false, chains: new Map(), rules: new Map(), sets: new Map(), elements: new Map() })
  else if (how === 5) {
    const ips = state.elements.get('cluster-ips')
    ips?.set('01020304', { key: Uint8Array.of(1, 2, 3, 4), comment: 'foreign' })
  } else if (how === 6) {
    for (const list of state.rules.values()) list.splice(0)
    for (const set of [...state.sets.keys()])
      if (set.startsWith('__')) for (const map of [state.sets, state.elements]) map.delete(set)
  }
}

async function play(events: readonly Event[]): Promise<void> {
  const node = view()
  const kernel = new FakeKernel()
  const complaints: string[] = []
  let tampered = true
  kernel.onCommit = (before, after) => {
    // What others broke we need not have kept whole.
    if (!tampered) complaints.push(...gaps(before, after))
  }
  const live = new Map<string, Put>()
  let harness = new TargetHarness(node, kernel)
  const again = () => {
    harness = new TargetHarness(node, kernel)
    for (const { service, slices } of live.values()) harness.put(service, ...slices)
  }
  const sync = async () => {
    await harness.sync()
    tampered = false
  }
  for (const event of events) {
    if (event.do === 'put') {
      live.set(event.put.service.key, event.put)
      harness.put(event.put.service, ...event.put.slices)
    } else if (event.do === 'drop') {
      live.delete(`ns/svc${event.i}`)
      harness.drop(`ns/svc${event.i}`)
    } else if (event.do === 'sync') await sync()
    else if (event.do === 'rest') await harness.rest()
    else if (event.do === 'crash') {
      kernel.owner = 0
      harness.due.length = 0
      again()
    } else if (event.do === 'restart') {
      await harness.target.close()
      again()
    } else if (event.do === 'tamper') {
      tampered = true
      kernel.tamper((state) => tamper(state, event.how, event.at))
      harness.distrust()
    } else if (event.do === 'stumble') await stumble(harness, event.errno, event.times)
  }
  await sync()
  const settled = await harness.writes(() => harness.sync())
  expect(settled).toEqual([])
  await harness.rest()
  expect(complaints).toEqual([])
  const fresh = new TargetHarness(node)
  for (const { service, slices } of live.values()) fresh.put(service, ...slices)
  await fresh.sync()
  expect(contents(harness)).toEqual(contents(fresh))
  // What is dumped has the digests of what was put.
  resetAtOnce(harness.ledger, await harness.observe())
  expect(diffAtOnce(harness.ledger)).toEqual({ put: [], drop: [] })
}

/** The kernel fails for reasons of its own; fewer than five times in a row goes by unnoticed, if the errno says so. */
async function stumble(harness: TargetHarness, errno: number, times: number): Promise<void> {
  harness.kernel.script.push(...Array.from({ length: times }, () => errno))
  const outcome = harness.sync().then(
    () => true,
    () => false,
  )
  await harness.clock.advance(1_000)
  const ok = await outcome
  const used = times - harness.kernel.script.length
  // What is no passing trouble is tried once more, one message for each element.
  if (used > 0) expect(ok).toBe(used < (errno === 22 ? 2 : 5))
  harness.kernel.script.length = 0
}

describe('any history of changes', () => {
  it('ends as planning from scratch does, and no packet falls into a gap on the way', async () => {
    await fc.assert(fc.asyncProperty(history, play), { numRuns: Number(process.env.RUNS ?? 300) })
  }, 600_000)
})
