// What a change of weights, of a slow start and of a hash table costs, and that another process recognises what it finds.

import { describe, expect, it } from 'vitest'
import { plan } from '../../../src/backend/nftables/plan.ts'
import { balanceName, parseBalanceName } from '../../../src/backend/nftables/rules.ts'
import type { ServiceRecord } from '../../../src/model/types.ts'
import { endpoint, service, slice, tcp } from '../../support/builders.ts'
import { resolve } from '../../support/resolve.ts'
import { TargetHarness } from './target-harness.ts'

const ips = (count: number) => Array.from({ length: count }, (_, i) => `10.8.${i >> 8}.${i & 255}`)
const sliceOf = (count: number) => slice(ips(count).map((ip) => endpoint(ip)))

/** The elements that a change adds to or deletes from the map of slots, and the chains and rules that it writes. */
async function costOf(harness: TargetHarness, work: () => void): Promise<{ slots: number; rules: number }> {
  const before = harness.kernel.sizes.length
  const batches = await harness.writes(async () => {
    work()
    await harness.sync()
  })
  const elements = harness.kernel.sizes.slice(before).reduce((sum, size) => sum + size, 0)
  const rules = batches.flat().filter((text) => /^add (chain|rule)/.test(text)).length
  return { slots: elements, rules }
}

async function open(record: ServiceRecord, count: number): Promise<TargetHarness> {
  const harness = new TargetHarness()
  harness.put(record, sliceOf(count))
  await harness.sync()
  await harness.sweepAll()
  return harness
}

describe('a change costs', () => {
  it('as many slots as a weight grows by', async () => {
    const harness = await open(service({ weights: { '10.8.0.0': 2 } }), 20)
    const { slots } = await costOf(harness, () => harness.put(service({ weights: { '10.8.0.0': 4 } }), sliceOf(20)))
    // Two slots are added, and the verdict is exchanged, which is two elements.
    expect(slots).toBe(2 + 2)
  })

  it('one slot and one verdict for each step of a start, however many endpoints there are', async () => {
    const harness = new TargetHarness()
    const want = (startStep: number | undefined) => {
      const [port] = resolve(service(), [sliceOf(100)], harness.node)
      if (port === undefined) throw new Error('there is no port')
      const last = { ...port.cluster.at(-1), startStep } as (typeof port.cluster)[number]
      const started = {
        ...port,
        slowStart: true,
        cluster: [...port.cluster.slice(0, -1), startStep === undefined ? (port.cluster.at(-1) as typeof last) : last],
      }
      harness.ledger.want(port.service, plan(started, harness.node))
    }
    want(1)
    await harness.sync()
    expect(harness.kernel.state.elements.get('endpoints')?.size).toBe(99 * 10 + 1)
    for (const step of [2, 3, 4, 5, 6, 7, 8, 9, undefined]) {
      const { slots, rules } = await costOf(harness, () => want(step))
      expect(slots).toBe(1 + 2)
      // The chain for one slot more, with its two rules.
      expect(rules).toBe(3)
    }
    await harness.sweepAll()
    expect(harness.kernel.state.elements.get('endpoints')?.size).toBe(1000)
    expect([...harness.kernel.state.chains.keys()].filter((name) => name.startsWith('lb-'))).toEqual(['lb-1000'])
  })

  it('the slots of the endpoint that goes, with a hash, and no chain', async () => {
    const record = service({ algorithm: 'consistent-hash' })
    const harness = await open(record, 10)
    expect(harness.kernel.state.elements.get('endpoints')?.size).toBe(1024)
    const { slots, rules } = await costOf(harness, () => harness.put(record, sliceOf(9)))
    // Each slot is deleted and added. The tenth endpoint has about 102 of 1024 slots.
    expect(slots / 2).toBeGreaterThan(60)
    expect(slots / 2).toBeLessThan(150)
    expect(rules).toBe(0)
    await harness.sweepAll()
    expect(harness.kernel.state.elements.get('endpoints')?.size).toBe(1024)
  })
})

const records: readonly (readonly [string, Partial<ServiceRecord>])[] = [
  ['weights', { weights: { '10.8.0.0': 3, '10.8.0.1': 0 } }],
  ['turns', { algorithm: 'round-robin' }],
  ['a hash', { algorithm: 'consistent-hash', weights: { '10.8.0.1': 2 } }],
]

describe.each(records)('with %s', (_, settings) => {
  const record = service({
    type: 'NodePort',
    externalPolicy: 'Local',
    ports: [tcp(80, 'p80', 3001)],
    ...settings,
  })
  const slices = [slice([endpoint('10.8.0.0', 'here'), endpoint('10.8.0.1', 'here'), endpoint('10.8.0.2')])]

  it('the next process recognises the table and writes nothing', async () => {
    const harness = new TargetHarness()
    harness.put(record, ...slices)
    await harness.sync()
    harness.kernel.owner = 0
    const next = new TargetHarness(harness.node, harness.kernel)
    next.put(record, ...slices)
    harness.kernel.sizes.length = 0
    await next.sync()
    expect(harness.kernel.sizes.reduce((sum, size) => sum + size, 0)).toBe(0)
    expect(next.kernel.state.elements.get('service-ips')?.size).toBe(1)
  })

  it('going back to no setting leaves nothing behind', async () => {
    const plain = new TargetHarness(undefined, undefined)
    const { algorithm: _a, weights: _w, ...bare } = record
    plain.put(bare, ...slices)
    await plain.sync()
    const harness = new TargetHarness()
    harness.put(record, ...slices)
    await harness.sync()
    await harness.sweepAll()
    harness.put(bare, ...slices)
    await harness.sync()
    await harness.sweepAll()
    expect([...harness.kernel.state.chains.keys()].sort()).toEqual([...plain.kernel.state.chains.keys()].sort())
    for (const [set, members] of plain.kernel.state.elements) {
      expect(harness.kernel.state.elements.get(set)?.size, set).toBe(members.size)
    }
  })
})

describe('names of chains', () => {
  it.each([
    'lb-5',
    'np-masquerade-3',
    'lb-local-2-of-5',
    'lb-hash-1024',
    'np-hash-local-1024-of-1024',
    'lb-turn-3-ABCDEFG2',
  ])('can be read back: %s', (name) => {
    const balance = parseBalanceName(name)
    expect(balance === undefined ? undefined : balanceName(balance)).toBe(name)
  })

  it.each(['lb-turn-3', 'lb-3-ABCDEFG2', 'lb-hash-3-ABCDEFG2', 'lb-other-3', 'lb-'])('are not ours: %s', (name) => {
    expect(parseBalanceName(name)).toBeUndefined()
  })
})
