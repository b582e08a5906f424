// Checks what the journal keeps, counts and passes on.

import { describe, expect, it } from 'vitest'
import { SyncJournal, type SyncReport } from '../../src/engine/journal.ts'
import { ProxyError } from '../../src/lib/errors.ts'
import { silentLogger } from '../../src/lib/log.ts'

const report = (patch: Partial<SyncReport> = {}): SyncReport => ({
  backend: 'nftables',
  family: 4,
  startedAt: 0,
  causes: [],
  durationMs: 1,
  full: false,
  ok: true,
  put: 0,
  dropped: 0,
  held: 0,
  services: [],
  refused: [],
  triggers: [],
  noLocal: { internal: 0, external: 0 },
  noLocalServices: { internal: 0, external: 0 },
  udpChanged: false,
  figures: {},
  ...patch,
})

describe('Journal', () => {
  it('keeps the last 100 reports, oldest first', () => {
    const journal = new SyncJournal({ log: silentLogger })
    for (let i = 0; i < 130; i++) journal.report(report({ startedAt: i }))
    expect(journal.recent().map((one) => one.startedAt)).toEqual(Array.from({ length: 100 }, (_, i) => i + 30))
  })

  it('keeps at most 1000 names of a report, but passes all on', () => {
    const journal = new SyncJournal({ log: silentLogger })
    let reported = 0
    journal.subscribe({ report: (one) => (reported = one.services.length) })
    journal.report(report({ services: Array.from({ length: 5000 }, (_, i) => `ns/${i}`) }))
    expect([reported, journal.recent()[0]?.services.length]).toEqual([5000, 1000])
  })

  it('counts', () => {
    const journal = new SyncJournal({ log: silentLogger })
    const error = new ProxyError('netlink', 'no')
    journal.report(report({ put: 2, dropped: 1 }))
    journal.report(report({ ok: false, error, refused: [{ service: 'ns/a', id: 'x', error }] }))
    journal.change('service', 1)
    journal.change('slice', 1)
    journal.drift({ family: 4, culprit: 'another program', reason: 'changed', at: 0 })
    expect(journal.drifts()).toEqual([{ family: 4, culprit: 'another program', reason: 'changed', at: 0 }])
    for (let at = 1; at <= 30; at++) journal.drift({ family: 6, culprit: 'nft', reason: 'changed', at })
    expect(journal.drifts().map(({ at }) => at)).toEqual(Array.from({ length: 20 }, (_, i) => i + 11))
    expect(journal.counters()).toMatchObject({ syncs: 2, failures: 1, puts: 2, drops: 1, refusals: 1, drifts: 31 })
    expect(journal.counters()).toMatchObject({ serviceChanges: 1, sliceChanges: 1 })
  })

  it('a listener that throws is logged, and the other listeners are called', () => {
    const errors: unknown[] = []
    const log = { ...silentLogger, error: (_: string, fields?: object) => errors.push(fields) }
    const journal = new SyncJournal({ log: { ...log, named: () => log } })
    let heard = 0
    journal.subscribe({
      queued: () => {
        throw new Error('mine')
      },
    })
    const leave = journal.subscribe({ queued: () => heard++ })
    journal.queued(4, 1)
    expect(heard).toBe(1)
    expect(errors).toEqual([{ error: new Error('mine') }])
    leave()
    journal.queued(4, 2)
    expect(heard).toBe(1)
  })
})
