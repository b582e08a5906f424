import { describe, expect, it } from 'vitest'
import { MemoryRelease } from '../../src/daemon/memory-release.ts'
import { SyncJournal, type SyncReport } from '../../src/engine/journal.ts'
import type { Family } from '../../src/lib/ip.ts'
import { silentLogger as log } from '../../src/lib/log.ts'
import { FakeClock } from '../support/fake-clock.ts'

const MB = 1 << 20

function open({ release = () => {}, kept = [] }: { readonly release?: () => void; readonly kept?: number[] } = {}) {
  const clock = new FakeClock()
  const journal = new SyncJournal({ log })
  const memory = { resident: 80 * MB, released: [] as number[], collections: [] as string[], scattered: 0 }
  const releasing = new MemoryRelease({
    journal,
    families: [4, 6],
    clock,
    log,
    release({ collection }) {
      release()
      memory.released.push(clock.monotonic())
      memory.collections.push(collection)
      memory.resident = (kept.shift() ?? 50) * MB
    },
    readResidentBytes: () => memory.resident,
    readScatteredBytes: () => memory.scattered,
  })
  const sync = (family: Family, more: Partial<SyncReport> = {}) =>
    journal.report({
      backend: 'test',
      family,
      ok: true,
      causes: ['change'],
      services: [],
      refused: [],
      ...more,
    } as never)
  return { clock, memory, releasing, sync }
}

describe('returning memory', () => {
  it('follows the first syncs of all families, with a collection and after it', async () => {
    const { clock, memory, sync } = open()
    sync(4)
    await clock.advance(60_000)
    expect(memory.released).toEqual([])
    sync(6)
    await clock.advance(500)
    expect(memory.collections).toEqual(['none'])
    await clock.advance(5_000)
    expect(memory.collections).toEqual(['none', 'ordinary'])
    memory.resident = 60 * MB
    await clock.advance(10_000)
    expect(memory.collections).toEqual(['none', 'ordinary', 'none'])
  })

  it('collects soon after first syncs that left much behind, and again only if memory has grown', async () => {
    const { clock, memory, sync } = open()
    memory.resident = 170 * MB
    sync(4)
    sync(6)
    await clock.advance(500)
    expect(memory.collections).toEqual(['ordinary'])
    await clock.advance(5_000)
    expect(memory.collections).toEqual(['ordinary'])
    memory.resident = 60 * MB
    await clock.advance(10_000)
    expect(memory.collections).toEqual(['ordinary', 'none'])
  })

  it('follows syncs that have let memory grow, when they pause, and never a period', async () => {
    const { clock, memory, sync } = open()
    sync(4)
    sync(6)
    await clock.advance(16_000)
    for (let i = 0; i < 1000; i++) {
      sync(4)
      memory.resident = 70 * MB
      await clock.advance(100)
    }
    expect(memory.collections).toEqual(['none', 'ordinary'])
    await clock.advance(15_000)
    expect(memory.collections).toEqual(['none', 'ordinary', 'ordinary'])
    memory.resident = 60 * MB
    await clock.advance(10_000)
    expect(memory.collections).toEqual(['none', 'ordinary', 'ordinary', 'none'])
    memory.resident = 90 * MB
    await clock.advance(3_600_000)
    expect(memory.released).toHaveLength(4)
  })

  it('compacts the heap after a collection that leaves much of it scattered', async () => {
    const { clock, memory, sync } = open()
    memory.scattered = 20 * MB
    sync(4)
    sync(6)
    await clock.advance(16_000)
    expect(memory.collections).toEqual(['none', 'ordinary', 'compacting'])
  })

  it.each([6_000, 15_400])('follows syncs between the looks after a start, too: after %d ms', async (ms) => {
    const { clock, memory, sync } = open()
    sync(4)
    sync(6)
    await clock.advance(ms)
    sync(4)
    await clock.advance(15_600 - ms)
    expect(memory.released).toHaveLength(2)
    memory.resident = 70 * MB
    await clock.advance(600_000)
    expect(memory.released).toHaveLength(3)
  })

  it('does not follow each of a few syncs', async () => {
    const { clock, memory, sync } = open()
    sync(4)
    sync(6)
    await clock.advance(20_000)
    memory.resident = 70 * MB
    for (let i = 0; i < 50; i++) {
      sync(4)
      await clock.advance(11_000)
    }
    expect(memory.released).toHaveLength(2)
    await clock.advance(60_000)
    expect(memory.released).toHaveLength(3)
  })

  it('does not wait for a pause for more than ten minutes', async () => {
    const { clock, memory, sync } = open()
    sync(4)
    sync(6)
    await clock.advance(16_000)
    memory.resident = 70 * MB
    for (let i = 0; i < 61; i++) {
      sync(4)
      await clock.advance(10_000)
    }
    expect(memory.released).toHaveLength(3)
  })

  it('does nothing if memory has hardly grown, after failed syncs and after those that wrote nothing', async () => {
    const { clock, memory, sync } = open()
    sync(4)
    sync(6)
    await clock.advance(60_000)
    memory.resident = 55 * MB
    sync(4)
    await clock.advance(660_000)
    memory.resident = 90 * MB
    sync(4, { ok: false })
    sync(4, { idle: true })
    await clock.advance(660_000)
    expect(memory.released).toHaveLength(2)
  })

  it('compares with the least that a release left, until releases are of no use', async () => {
    const kept = [50, 50, 75, 50, 89, 89]
    const { clock, memory, sync } = open({ kept })
    sync(4)
    sync(6)
    await clock.advance(16_000)
    for (const resident of [95, 80, 90, 92]) {
      memory.resident = resident * MB
      sync(4)
      await clock.advance(616_000)
    }
    expect(memory.released).toHaveLength(5)
  })

  it('survives a release that fails, and ends when it is closed', async () => {
    let failures = 0
    const { clock, memory, releasing, sync } = open({
      release() {
        if (failures++ === 0) throw new Error('EMFILE: too many open files')
      },
    })
    sync(4)
    sync(6)
    await clock.advance(500)
    expect({ failures, released: memory.released }).toEqual({ failures: 1, released: [] })
    releasing.close()
    sync(4)
    await clock.advance(60_000)
    expect(failures).toBe(1)
  })
})
