import { describe, expect, it, vi } from 'vitest'
import { Sampler } from '../../../src/daemon/traffic/sampler.ts'
import { SyncJournal, type SyncReport } from '../../../src/engine/journal.ts'
import { silentLogger } from '../../../src/lib/log.ts'
import { FakeClock } from '../../support/fake-clock.ts'

const report = (startedAt: number, durationMs: number, triggers: readonly number[]): SyncReport => ({
  backend: 'test',
  family: 4,
  startedAt,
  durationMs,
  full: false,
  ok: true,
  causes: ['change'],
  put: 1,
  dropped: 0,
  held: 1,
  services: [],
  refused: [],
  triggers,
  noLocal: { internal: 0, external: 0 },
  noLocalServices: { internal: 0, external: 0 },
  udpChanged: false,
  figures: {},
})

function open(countConnections?: () => Promise<number | undefined>, services = 3) {
  const clock = new FakeClock()
  const journal = new SyncJournal({ log: silentLogger })
  const engine = { store: { size: services, endpointCount: 7 }, conflicts: () => [], quarantined: () => [] } as never
  const sampler = new Sampler({ engine, journal, clock, ...(countConnections && { countConnections }) })
  const pass = async (ms: number) => {
    await clock.advance(ms)
    await new Promise((resolve) => setImmediate(resolve))
  }
  return { clock, journal, sampler, pass }
}

describe('samples of the last hour', () => {
  it('has the longest sync and the longest way from an event to the kernel, per interval', async () => {
    const { clock, journal, sampler, pass } = open()
    const now = clock.now()
    journal.report(report(now, 20, [now - 100]))
    journal.report(report(now, 5, [now - 400, now - 10]))
    journal.drift({ family: 4, culprit: 'nft', reason: 'changed' as never, at: now })
    await pass(10_000)
    await pass(10_000)
    const [first, second] = sampler.samples(0).samples
    expect(first).toMatchObject({ services: 3, endpoints: 7, syncs: 2, syncMs: 20, programmingMs: 405, drifts: 1 })
    expect(second).toMatchObject({ syncs: 0, syncMs: null, programmingMs: null, drifts: 0, connectionsPerSecond: null })
  })

  it('computes new connections per second from a counter, and no negative number after a reset', async () => {
    const totals = [100, 150, 40]
    const { sampler, pass } = open(async () => totals.shift())
    sampler.samples(0)
    for (let i = 0; i < 4; i++) await pass(10_000)
    expect(sampler.samples(0).samples.map((sample) => sample.connectionsPerSecond)).toEqual([null, 5, 0, null])
  })

  it('has no memory in a sample that is taken while no file can be opened', async () => {
    const { sampler, pass } = open()
    const read = vi.spyOn(process.memoryUsage, 'rss').mockImplementation(() => {
      throw Object.assign(new Error('EMFILE: too many open files'), { code: 'EMFILE' })
    })
    await pass(10_000)
    read.mockRestore()
    await pass(10_000)
    const [first, second] = sampler.samples(0).samples
    expect(first?.rssBytes).toBeNull()
    expect(second?.rssBytes).toBeGreaterThan(0)
  })

  it('reads the counters once per minute while nobody asks for samples', async () => {
    let reads = 0
    const { sampler, pass } = open(async () => ++reads)
    for (let i = 0; i < 60; i++) await pass(10_000)
    expect(reads).toBe(10)
    sampler.samples(0)
    for (let i = 0; i < 60; i++) await pass(10_000)
    expect(reads).toBeGreaterThan(60)
  })

  it('reads the counters of very many services only while a client asks for samples', async () => {
    let reads = 0
    const { sampler, pass } = open(async () => ++reads, 10_000)
    for (let i = 0; i < 60; i++) await pass(10_000)
    expect(reads).toBe(0)
    sampler.samples(0)
    for (let i = 0; i < 6; i++) await pass(10_000)
    expect(reads).toBe(6)
  })

  it('keeps an hour and returns those after a time', async () => {
    const { sampler, pass } = open()
    for (let i = 0; i < 400; i++) await pass(10_000)
    const { samples } = sampler.samples(0)
    expect(samples).toHaveLength(360)
    expect(sampler.samples(samples[357]?.at ?? 0).samples).toHaveLength(2)
  })
})
