import { describe, expect, it, vi } from 'vitest'
import { NodeReporter } from '../../src/daemon/fleet/node-reporter.ts'
import { serviceKeyHash } from '../../src/engine/service-digests.ts'
import { SetSketch } from '../../src/lib/set-sketch.ts'
import type { ServiceRecord, SliceRecord } from '../../src/model/types.ts'
import { EngineHarness, service, slice } from '../engine/engine-harness.ts'

const web = [service('shop/web'), slice('shop/web', ['10.1.0.1'])]
const api = [service('shop/api', { clusterIps: ['10.96.0.11'] }), slice('shop/api', ['10.1.0.2'])]

function reporterOf(harness: EngineHarness): NodeReporter {
  return new NodeReporter({
    engine: harness.engine,
    journal: harness.journal,
    families: [4],
    identity: { node: 'a', mode: 'nftables', pid: 1, version: '0.1.0', startedAt: '2026-01-01T00:00:00Z' },
    intervalMs: 60_000,
    clock: harness.clock,
    invalidManifests: () => 2,
    apiServerSilentMs: () => 1_400,
  })
}

/** A reporter that has heard of the first sync of an engine with these records. */
async function startReporter(...records: (ServiceRecord | SliceRecord)[]) {
  const harness = new EngineHarness()
  const reporter = reporterOf(harness)
  await harness.synced(...records)
  const snapshot = async () => (await take(harness, reporter)) ?? expect.fail('there is no snapshot')
  return { harness, reporter, snapshot }
}

/** The clock moves as long as the reporter may wait for a sync, and no further than that. */
async function take({ clock }: EngineHarness, reporter: NodeReporter) {
  const taken = reporter.takeSnapshot()
  await clock.advance(1_000)
  return taken
}

/** Returns the services in which two snapshots differ, as hashes of their names. */
function differences(first: { readonly sketch: string }, second: { readonly sketch: string }): ReadonlySet<number> {
  const [a, b] = [SetSketch.parse(first.sketch), SetSketch.parse(second.sketch)]
  if (a === undefined || b === undefined) return expect.fail('a sketch cannot be parsed')
  const { onlyFirst, onlySecond } = a.compare(b)
  return new Set([...onlyFirst, ...onlySecond].map(({ key }) => key))
}

describe('the snapshot of a node', () => {
  it('does not exist before the first sync', async () => {
    const harness = new EngineHarness()
    expect(await take(harness, reporterOf(harness))).toBeUndefined()
  })

  it('is equal on two nodes with the same objects, in whichever order they came', async () => {
    const one = await startReporter(...web, ...api)
    const other = await startReporter(...api, ...web)
    expect(await one.snapshot()).toEqual(await other.snapshot())
  })

  it('names the service whose endpoints changed, after the sync that programs the change', async () => {
    const { harness, snapshot } = await startReporter(...web, ...api)
    const before = await snapshot()
    harness.put(slice('shop/web', ['10.1.0.9']))
    expect(differences(before, await snapshot())).toEqual(new Set([serviceKeyHash('shop/web')]))
    // The snapshot waited for the sync: a node that had the change all along has the same.
    const fresh = await startReporter(service('shop/web'), slice('shop/web', ['10.1.0.9']), ...api)
    expect(await snapshot()).toEqual(await fresh.snapshot())
  })

  it('differs in a service that the kernel refuses, and in no other', async () => {
    const well = await startReporter(...web, ...api)
    const harness = new EngineHarness()
    const reporter = reporterOf(harness)
    harness.kernel.refuses = (id) => id.includes('10.96.0.11')
    await harness.synced(...web, ...api)
    const refused = (await take(harness, reporter)) ?? expect.fail('there is no snapshot')
    expect(differences(await well.snapshot(), refused)).toEqual(new Set([serviceKeyHash('shop/api')]))
    expect(await reporter.describe([])).toMatchObject({ quarantined: 1 })
  })
})

describe('the report of a node', () => {
  it('says what the proxy is, and how it does', async () => {
    const { harness, reporter } = await startReporter(...web)
    const snapshots = [{ at: '2026-01-01T00:00:00Z', hash: 'h', sketch: 's' }]
    const first = await reporter.describe(snapshots)
    expect(first).toMatchObject({
      node: 'a',
      mode: 'nftables',
      intervalSeconds: 60,
      services: 1,
      failedSyncs: 0,
      quarantined: 0,
      invalidManifests: 2,
      apiServerSilentSeconds: 1,
      snapshots,
      families: [{ family: 4, lastSync: '2023-11-14T22:13:20Z', error: '' }],
    })
    harness.kernel.failApplyAfter = 0
    harness.put(slice('shop/web', ['10.1.0.9']))
    await harness.tick()
    const failed = await reporter.describe(snapshots)
    expect(failed.failedSyncs).toBe(1)
    expect(failed.families[0]?.error).not.toBe('')
    expect(failed.families[0]?.stateHash).not.toBe(first.families[0]?.stateHash)
  })

  it('visits the services again only after a change: an idle proxy computes nothing for its reports', async () => {
    const { harness, reporter, snapshot } = await startReporter(...web, ...api)
    const records = vi.spyOn(harness.engine.store, 'records')
    const hashed = vi.spyOn(harness.engine, 'hashState')
    const publish = async () => JSON.stringify([await snapshot(), (await reporter.describe([])).families])
    const first = await publish()
    expect([records.mock.calls.length, hashed.mock.calls.length]).toEqual([1, 1])
    for (let minute = 0; minute < 5; minute++) expect(await publish()).toBe(first)
    expect([records.mock.calls.length, hashed.mock.calls.length]).toEqual([1, 1])
    harness.put(slice('shop/web', ['10.1.0.9']))
    await harness.tick()
    expect(await publish()).not.toBe(first)
    expect([records.mock.calls.length, hashed.mock.calls.length]).toEqual([2, 2])
  })
})
