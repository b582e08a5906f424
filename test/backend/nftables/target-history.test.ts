// Random histories over a strict kernel: after every history the table is as if it had been planned from scratch.

import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import type { ServiceRecord, SliceRecord } from '../../../src/model/types.ts'
import { EBUSY, ENOBUFS, ENOMEM } from '../../../src/sys/errno.ts'
import { endpoint, service, slice, tcp, view } from '../../support/builders.ts'
import { diffAtOnce, resetAtOnce } from '../../support/ledger-at-once.ts'
import type { DisassembledRule } from '../../sys/netlink/nft/disassemble.ts'
import { FakeKernel, type State, unbind } from './fake-kernel.ts'
import { findGaps } from './packet-gaps.ts'
import { listContents, TargetHarness } from './target-harness.ts'

const EINVAL = 22

type Put = { readonly service: ServiceRecord; readonly slices: readonly SliceRecord[] }

const endpoints = fc.uniqueArray(fc.integer({ min: 1, max: 9 }), { maxLength: 7 })

const put: fc.Arbitrary<Put> = fc
  .record({
    i: fc.integer({ min: 1, max: 4 }),
    locals: endpoints,
    remotes: endpoints,
    affinitySeconds: fc.constantFrom(0, 0, 0, 60, 10_800),
    algorithm: fc.oneof(
      { weight: 12, arbitrary: fc.constantFrom(undefined, undefined, 'random' as const, 'round-robin' as const) },
      { weight: 1, arbitrary: fc.constant('consistent-hash' as const) },
    ),
    weights: fc.constantFrom(undefined, undefined, { '10.180.2.1': 3, here: 2 }, { '10.180.2.2': 0, '*': 5 }),
    externalPolicy: fc.constantFrom('Cluster' as const, 'Local' as const),
    internalPolicy: fc.constantFrom('Cluster' as const, 'Cluster' as const, 'Local' as const),
    nodePort: fc.boolean(),
    loadBalancer: fc.boolean(),
    sourceRanges: fc.subarray(['203.0.113.0/25', '203.0.113.0/24', '192.168.0.0/24', '0.0.0.0/0']),
  })
  .map(({ i, locals, remotes, nodePort, loadBalancer, algorithm, weights, ...rest }) => ({
    service: service({
      ...rest,
      ...(algorithm === undefined ? {} : { algorithm }),
      ...(weights === undefined ? {} : { weights }),
      key: `ns/svc${i}`,
      type: serviceType(nodePort, loadBalancer),
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

function serviceType(nodePort: boolean, loadBalancer: boolean): ServiceRecord['type'] {
  if (loadBalancer) return 'LoadBalancer'
  return nodePort ? 'NodePort' : 'ClusterIP'
}

type Event =
  | { readonly do: 'put'; readonly put: Put }
  | { readonly do: 'drop'; readonly i: number }
  | { readonly do: 'sync' }
  | { readonly do: 'sweep' }
  | { readonly do: 'crash' }
  | { readonly do: 'restart' }
  /** The kernel fails several times in a row for reasons of its own. */
  | { readonly do: 'fail'; readonly errno: number; readonly times: number }
  | { readonly do: 'tamper'; readonly how: number; readonly at: number }

/** What another process may do to a table without an owner. `at` selects the object. */
const tamperings: readonly ((state: State, at: number) => void)[] = [
  function deleteElement(state, at) {
    const sets = [...state.elements].filter(([, members]) => members.size > 0)
    const [name, members] = sets[at % Math.max(1, sets.length)] ?? []
    if (members === undefined || name?.startsWith('__')) return
    members.delete([...members.keys()][at % members.size] as string)
  },
  function deleteRule(state, at) {
    const rules = selectRules(state, at)
    unbind(state, rules.splice(at % Math.max(1, rules.length), 1))
  },
  function addRule(state, at) {
    const rules = selectRules(state, at)
    const [first] = rules
    if (first === undefined) return
    const { tag: _, ...untagged } = first
    rules.push(untagged)
  },
  function addChain(state) {
    if (!state.exists) return
    state.chains.set('foreign', { family: 4, table: 'kube-proxy', name: 'foreign' })
    state.rules.set('foreign', [])
  },
  function deleteTable(state) {
    Object.assign(state, { exists: false, chains: new Map(), rules: new Map(), sets: new Map(), elements: new Map() })
  },
  function addElement(state) {
    const ips = state.elements.get('cluster-ips')
    ips?.set('01020304', { key: Uint8Array.of(1, 2, 3, 4), comment: 'foreign' })
  },
  function flushRules(state) {
    for (const rules of state.rules.values()) unbind(state, rules.splice(0))
  },
]

/** Returns the rules of a chain that has some. */
function selectRules(state: State, at: number): DisassembledRule[] {
  const chains = [...state.rules.values()].filter((rules) => rules.length > 0)
  return chains[at % Math.max(1, chains.length)] ?? []
}

const history = fc.array(
  fc.oneof(
    { weight: 6, arbitrary: put.map((put): Event => ({ do: 'put', put })) },
    { weight: 2, arbitrary: fc.integer({ min: 1, max: 4 }).map((i): Event => ({ do: 'drop', i })) },
    { weight: 6, arbitrary: fc.constant<Event>({ do: 'sync' }) },
    { weight: 3, arbitrary: fc.constant<Event>({ do: 'sweep' }) },
    { weight: 1, arbitrary: fc.constantFrom<Event>({ do: 'crash' }, { do: 'restart' }) },
    {
      weight: 1,
      arbitrary: fc.record({
        do: fc.constant('fail' as const),
        errno: fc.constantFrom(EINVAL, EBUSY, ENOMEM, ENOBUFS),
        times: fc.integer({ min: 1, max: 6 }),
      }),
    },
    {
      weight: 2,
      arbitrary: fc.record({
        do: fc.constant('tamper' as const),
        how: fc.nat({ max: tamperings.length - 1 }),
        at: fc.nat(),
      }),
    },
  ),
  { minLength: 1, maxLength: 30 },
)

class History {
  readonly #node = view()
  readonly #kernel = new FakeKernel()
  readonly #live = new Map<string, Put>()
  readonly #gaps: string[] = []
  #isTampered = true
  #harness = new TargetHarness(this.#node, this.#kernel)

  constructor() {
    this.#kernel.onCommit = (before, after) => {
      // What another process broke need not be whole before the next sync.
      if (!this.#isTampered) this.#gaps.push(...findGaps(before, after))
    }
  }

  async play(event: Event): Promise<void> {
    switch (event.do) {
      case 'put':
        this.#live.set(event.put.service.key, event.put)
        return this.#harness.put(event.put.service, ...event.put.slices)
      case 'drop':
        this.#live.delete(`ns/svc${event.i}`)
        return this.#harness.drop(`ns/svc${event.i}`)
      case 'sync':
        return this.#sync()
      case 'sweep':
        return this.#harness.sweepAll()
      case 'crash':
        this.#kernel.owner = 0
        return this.#startAgain()
      case 'restart':
        await this.#harness.target.close()
        return this.#startAgain()
      case 'tamper':
        this.#isTampered = true
        this.#kernel.tamper((state) => tamperings[event.how]?.(state, event.at))
        return this.#harness.distrust()
      case 'fail':
        return failAndSync(this.#harness, event.errno, event.times)
    }
  }

  /** Checks that the table is as if it had been planned from scratch. */
  async check(): Promise<void> {
    await this.#sync()
    expect(await this.#harness.writes(() => this.#harness.sync())).toEqual([])
    await this.#harness.sweepAll()
    expect(this.#gaps).toEqual([])
    const fresh = new TargetHarness(this.#node)
    this.#putAll(fresh)
    await fresh.sync()
    expect(listContents(this.#harness)).toEqual(listContents(fresh))
    // What is dumped has the digests of what was put.
    resetAtOnce(this.#harness.ledger, await this.#harness.observe())
    expect(diffAtOnce(this.#harness.ledger)).toEqual({ put: [], drop: [] })
  }

  async #sync(): Promise<void> {
    await this.#harness.sync()
    this.#isTampered = false
  }

  #startAgain(): void {
    this.#harness = new TargetHarness(this.#node, this.#kernel)
    this.#putAll(this.#harness)
  }

  #putAll(harness: TargetHarness): void {
    for (const { service, slices } of this.#live.values()) harness.put(service, ...slices)
  }
}

async function play(events: readonly Event[]): Promise<void> {
  const history = new History()
  for (const event of events) await history.play(event)
  await history.check()
}

/** After a passing error the target tries again, so that fewer than five failures in a row go unnoticed. */
async function failAndSync(harness: TargetHarness, errno: number, times: number): Promise<void> {
  harness.kernel.script.push(...Array.from({ length: times }, () => errno))
  const outcome = harness.sync().then(
    () => true,
    () => false,
  )
  await harness.clock.advance(1_000)
  const ok = await outcome
  const used = times - harness.kernel.script.length
  // After any other error the target tries once more, with a message for each element.
  if (used > 0) expect(ok).toBe(used < (errno === EINVAL ? 2 : 5))
  harness.kernel.script.length = 0
}

describe('any history of changes', () => {
  it('sweeps the slots of a frontend that was given up in a transaction without an operation', async () => {
    const makePut = (i: number, more: Partial<ServiceRecord>, ip: string): Event => {
      const key = `ns/svc${i}`
      const record = service({ ...more, key, clusterIps: [`172.30.0.${i}`], ports: [tcp(80, 'p80', 0)] })
      return { do: 'put', put: { service: record, slices: [slice([endpoint(ip)], { key: `${key}-a`, service: key })] } }
    }
    await play([
      makePut(3, {}, '10.180.2.4'),
      { do: 'sync' },
      // The slots of a hash fill a transaction. The frontend that gets affinity is put before and dropped afterwards.
      makePut(1, { algorithm: 'consistent-hash' }, '10.180.2.4'),
      makePut(3, { affinitySeconds: 10_800 }, '10.180.2.1'),
      { do: 'sync' },
    ])
  })

  it('leaves the table as planning from scratch does, and no packet falls into a gap on the way', async () => {
    await fc.assert(fc.asyncProperty(history, play), { numRuns: Number(process.env.RUNS ?? 300) })
  }, 600_000)
})
