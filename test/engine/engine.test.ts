// Checks the engine with a kernel in memory: starting, syncing, bad objects, conflicts, changes of the node, and its answers.

import { describe, expect, it } from 'vitest'
import type { Conflict } from '../../src/engine/journal.ts'
import type { Family } from '../../src/lib/ip.ts'
import { sleep } from '../../src/lib/time.ts'
import type { MemoryKernel } from '../support/memory-backend.ts'
import { resolve } from '../support/resolve.ts'
import { EngineHarness, endpoint, service, slice, view } from './engine-harness.ts'

const base = ['base cidrs', 'base table']
const ids = (kernel: MemoryKernel) => kernel.ids().filter((id) => !id.startsWith('base'))

describe('Engine: starting', () => {
  it('G8: writes nothing before services and slices have both synced; the second signal leads to a full sync at once', async () => {
    const harness = new EngineHarness()
    await harness.engine.start()
    harness.put(service('ns/a'), slice('ns/a', ['10.0.0.1']))
    await harness.clock.advance(10_000)
    harness.services.synced()
    await harness.clock.advance(10_000_000)
    expect(harness.kernel.observed).toBe(0)
    expect(harness.kernel.applies).toEqual([])
    expect(harness.reports).toEqual([])
    harness.slices.synced()
    await harness.clock.advance(0)
    expect(ids(harness.kernel)).toEqual(['frontend 10.96.0.10:80/tcp', 'hairpin 10.0.0.1'])
    expect(harness.last()).toMatchObject({ full: true, ok: true, services: ['ns/a'] })
  })

  it('does the same if everything is complete before the start', async () => {
    const harness = await new EngineHarness().synced(service('ns/a'))
    expect(harness.kernel.ids()).toEqual([...base, 'frontend 10.96.0.10:80/tcp'])
  })

  it('retries a first sync that fails, without waiting for an event', async () => {
    const harness = new EngineHarness()
    harness.kernel.failObserve = true
    await harness.synced(service('ns/a'))
    expect(harness.last()).toMatchObject({ ok: false, error: { message: 'observe failed' } })
    expect(harness.kernel.held.size).toBe(0)
    await harness.clock.advance(29_999)
    expect(harness.reports).toHaveLength(1)
    await harness.clock.advance(1)
    expect(harness.last()).toMatchObject({ ok: true, services: ['ns/a'] })
    expect(ids(harness.kernel)).toEqual(['frontend 10.96.0.10:80/tcp'])
  })

  it('programs the API server and DNS first on a cold start, then the rest', async () => {
    const dns = service('kube-system/dns', {
      clusterIps: ['10.96.0.11'],
      ports: [{ name: 'dns', protocol: 'udp', port: 53, nodePort: 0 }],
    })
    const api = service('default/kubernetes', { clusterIps: ['10.96.0.1'] })
    const harness = await new EngineHarness().synced(
      service('ns/a'),
      dns,
      service('ns/b', { clusterIps: ['10.96.0.12'] }),
      api,
    )
    expect(harness.kernel.applies.map((apply) => apply.put)).toEqual([
      ['base table', 'base cidrs', 'frontend 10.96.0.11:53/udp', 'frontend 10.96.0.1:80/tcp'],
      ['frontend 10.96.0.10:80/tcp', 'frontend 10.96.0.12:80/tcp'],
    ])
    expect(harness.reports).toHaveLength(1)
    expect(harness.last().put).toBe(6)
  })

  it('on a restart neither removes nor rewrites wanted entries, and always offers the target everything', async () => {
    const records = [
      service('default/kubernetes', { clusterIps: ['10.96.0.1'] }),
      service('ns/a'),
      slice('ns/a', ['10.0.0.1']),
    ]
    const first = await new EngineHarness().synced(...records, service('ns/gone', { clusterIps: ['10.96.0.99'] }))
    await first.engine.stop()
    expect(first.kernel.held.size).toBe(6)
    const { kernels } = first
    first.kernel.applies.length = 0
    first.kernel.writes.clear()
    const second = await new EngineHarness({ kernels }).synced(...records)
    expect(second.kernel.applies).toEqual([{ put: [], drop: ['frontend 10.96.0.99:80/tcp'], wanted: 5 }])
    expect([...second.kernel.writes.keys()]).toEqual(['frontend 10.96.0.99:80/tcp'])
  })

  it('stops in the middle of a sync with one abort, and leaves what is programmed', async () => {
    const harness = await new EngineHarness().synced(service('ns/a'))
    let open = () => {}
    harness.kernel.gate = new Promise((resolve) => (open = resolve))
    harness.services.drop('ns/a')
    await harness.tick()
    const stopping = harness.engine.stop()
    open()
    await stopping
    expect(ids(harness.kernel)).toEqual(['frontend 10.96.0.10:80/tcp'])
    expect(harness.reports).toHaveLength(1)
    harness.put(service('ns/b'))
    await harness.clock.advance(10_000_000)
    expect(harness.reports).toHaveLength(1)
    expect(harness.clock.armed).toBe(0)
  })
})

describe('Engine: syncing', () => {
  it('G9: a change after the first sync writes that change only; totals still count everything', async () => {
    const harness = await new EngineHarness().synced(service('ns/a'), slice('ns/a', ['10.0.0.1']))
    await harness.tick()
    harness.put(service('ns/b', { clusterIps: ['10.96.0.20'] }), slice('ns/b', ['10.0.0.2']))
    await harness.tick()
    expect(harness.kernel.applies.at(-1)).toMatchObject({
      put: ['frontend 10.96.0.20:80/tcp', 'hairpin 10.0.0.2'],
      drop: [],
    })
    expect(harness.last()).toMatchObject({ full: false, put: 2, dropped: 0, held: 6, services: ['ns/b'] })
    expect(harness.kernel.observed).toBe(1)
  })

  it('G10: a sync without changes rewrites nothing', async () => {
    const harness = await new EngineHarness({ maxSyncMs: 5000 }).synced(service('ns/a'), slice('ns/a', ['10.0.0.1']))
    await harness.clock.advance(5000)
    expect(harness.reports).toHaveLength(2)
    expect(harness.last()).toMatchObject({ ok: true, full: false, put: 0, dropped: 0, services: [] })
  })

  it('G11: after a failed partial sync the next sync is full and repairs', async () => {
    const harness = await new EngineHarness().synced(service('ns/a'))
    await harness.tick()
    harness.kernel.failApplyAfter = 1
    harness.put(slice('ns/a', ['10.0.0.1', '10.0.0.2'], { triggered: harness.clock.now() + 1 }))
    await harness.tick()
    expect(harness.last()).toMatchObject({ ok: false, full: false, services: ['ns/a'] })
    await harness.clock.advance(30_000)
    expect(harness.last()).toMatchObject({ ok: true, full: true, services: ['ns/a'] })
    expect(harness.last().triggers).toHaveLength(1)
    expect(ids(harness.kernel)).toHaveLength(3)
    await harness.clock.advance(60_000)
    expect(harness.reports).toHaveLength(3)
  })

  it('a stream of changes is programmed at once while syncs take little time', async () => {
    const harness = await new EngineHarness().synced()
    for (let i = 0; i < 40; i++) {
      harness.put(service(`ns/b${i}`, { clusterIps: [`10.96.1.${i}`] }))
      await harness.clock.advance(50)
      expect(ids(harness.kernel)).toHaveLength(i + 1)
    }
  })

  it('the first change after a quiet time is programmed at once, a stream at the minimum distance if syncs take long', async () => {
    const harness = await new EngineHarness().synced()
    await harness.clock.advance(60_000)
    harness.put(service('ns/a'))
    await harness.clock.advance(0)
    expect(ids(harness.kernel)).toHaveLength(1)
    await harness.clock.advance(60_000)
    harness.kernel.wait = () => sleep(harness.clock, 60)
    for (let i = 0; i < 10; i++) {
      harness.put(service(`ns/b${i}`, { clusterIps: [`10.96.1.${i}`] }))
      await harness.clock.advance(50)
    }
    await harness.clock.advance(60)
    // The start, the first change, and three syncs that may follow each other at once.
    expect(harness.reports).toHaveLength(5)
    await harness.clock.advance(1_000)
    expect(harness.reports).toHaveLength(6)
    expect(ids(harness.kernel)).toHaveLength(11)
  })

  it('a change without an effect writes nothing and does not count as a sync, but its work is done', async () => {
    const harness = await new EngineHarness().synced(service('ns/a'), slice('ns/a', ['10.0.0.1']))
    await harness.tick()
    const before = { ...harness.journal.counters() }
    const applies = harness.kernel.applies.length
    // A pod that does not answer yet gets no traffic.
    const starting = endpoint('10.0.0.2', { ready: false, serving: false })
    harness.put(slice('ns/a', [], { endpoints: [endpoint('10.0.0.1'), starting] }))
    await harness.tick()
    expect(harness.last()).toMatchObject({ ok: true, idle: true, put: 0, dropped: 0, services: ['ns/a'] })
    expect(harness.kernel.applies).toHaveLength(applies)
    expect(harness.journal.counters().syncs).toBe(before.syncs)
    expect(harness.journal.recent()).toHaveLength(before.syncs)
    expect(harness.engine.status('ns/a').families[0]?.pending).toBe(false)
    harness.put(slice('ns/a', ['10.0.0.1', '10.0.0.2']))
    await harness.tick()
    expect(harness.last()).not.toHaveProperty('idle')
    expect(harness.journal.counters().syncs).toBe(before.syncs + 1)
  })

  it('a family in which nothing changed is not synced', async () => {
    const harness = await new EngineHarness({ families: [4, 6] }).synced(service('ns/a'))
    await harness.tick()
    harness.reports.length = 0
    const only4 = { clusterIps: ['10.96.0.20'] }
    harness.put(service('ns/b', only4))
    harness.put(slice('ns/b', ['10.0.0.1']))
    await harness.tick()
    harness.put(service('ns/b', { ...only4, affinitySeconds: 5 }))
    await harness.tick()
    harness.services.drop('ns/b')
    await harness.tick()
    expect(harness.reports.length).toBeGreaterThanOrEqual(3)
    expect(harness.reports.filter(({ family }) => family === 6)).toEqual([])
    harness.put(service('ns/b', { clusterIps: ['10.96.0.20', 'fd00::20'] }))
    await harness.tick()
    harness.put(service('ns/b', only4))
    await harness.tick()
    expect(harness.reports.filter(({ family }) => family === 6)).toHaveLength(2)
    expect(harness.kernels.get(6)?.ids()).not.toContain('frontend [fd00::20]:80/tcp')
  })

  it('syncs periodically if the backend asks for it', async () => {
    const harness = await new EngineHarness({ periodic: true }).synced()
    await harness.clock.advance(90_000)
    expect(harness.reports).toHaveLength(4)
  })

  it('repairs a drift at once, reports it, and writes only what differs', async () => {
    const harness = await new EngineHarness().synced(service('ns/a'), service('ns/b', { clusterIps: ['10.96.0.20'] }))
    const drifts: string[] = []
    harness.journal.subscribe({ drift: ({ family, culprit, reason }) => drifts.push(`${family} ${culprit} ${reason}`) })
    await harness.clock.advance(60_000)
    harness.kernel.writes.clear()
    harness.kernel.tamper('frontend 10.96.0.10:80/tcp', undefined)
    harness.kernel.tamper('alien x', 'y')
    await harness.clock.advance(0)
    expect(drifts).toEqual(['4 test changed', '4 test changed'])
    expect(harness.last()).toMatchObject({ full: true, put: 1, dropped: 1, causes: ['drift'] })
    expect([...harness.kernel.writes.keys()].sort()).toEqual(['alien x', 'frontend 10.96.0.10:80/tcp'])
  })

  it('reports why each sync happened', async () => {
    const harness = await new EngineHarness({ maxSyncMs: 60_000 }).synced(service('ns/a'))
    const causes = () => harness.reports.at(-1)?.causes
    expect(causes()).toEqual(['start'])
    harness.put(slice('ns/a', ['10.0.0.1']))
    await harness.tick()
    expect(causes()).toEqual(['change'])
    harness.engine.setView(4, view(4, { zone: 'east' }))
    harness.put(slice('ns/a', ['10.0.0.2']))
    await harness.tick()
    expect(causes()).toEqual(['node', 'change'])
    await harness.clock.advance(60_000)
    expect(causes()).toEqual(['period'])
    harness.kernel.failApplyAfter = 0
    harness.put(slice('ns/a', ['10.0.0.3']))
    await harness.tick()
    expect(harness.last()).toMatchObject({ ok: false, causes: ['change'] })
    await harness.clock.advance(30_000)
    expect(harness.last()).toMatchObject({ ok: true, causes: ['retry'] })
  })

  it('repairs a drift at once even if there is a change every second', async () => {
    const harness = await new EngineHarness().synced(service('ns/a'))
    await harness.clock.advance(60_000)
    harness.put(slice('ns/a', ['10.0.0.1']))
    await harness.clock.advance(10)
    const { length } = harness.reports
    harness.kernel.tamper('alien x', 'y')
    await harness.clock.advance(0)
    expect(harness.reports).toHaveLength(length + 1)
    expect(harness.last()).toMatchObject({ full: true, dropped: 1 })
  })

  it('does not forget a drift that is reported while a sync runs', async () => {
    const harness = await new EngineHarness().synced(service('ns/a'))
    await harness.clock.advance(60_000)
    let open = () => {}
    harness.kernel.gate = new Promise((resolve) => (open = resolve))
    harness.put(slice('ns/a', ['10.0.0.1']))
    await harness.clock.advance(0)
    harness.kernel.held.delete('base table')
    harness.kernel.onDrift('test', 'changed')
    harness.kernel.gate = undefined
    open()
    await harness.clock.advance(1000)
    expect(harness.last()).toMatchObject({ full: true })
    expect(harness.kernel.ids()).toContain('base table')
  })

  it('finds a drift that was not reported at the next sync', async () => {
    const harness = await new EngineHarness().synced(service('ns/a'))
    await harness.tick()
    harness.kernel.tamper('base table', undefined, { silent: true })
    harness.put(service('ns/b', { clusterIps: ['10.96.0.20'] }))
    await harness.tick()
    expect(harness.last()).toMatchObject({ full: true, put: 2 })
  })

  it('the lanes of the two families fail and recover independently', async () => {
    const harness = new EngineHarness({ families: [4, 6] })
    const kernel6 = harness.kernels.get(6) as MemoryKernel
    kernel6.failObserve = true
    await harness.synced(
      service('ns/a'),
      slice('ns/a', ['10.0.0.1']),
      slice('ns/a', ['fd01::1'], { key: 'ns/a-6', family: 6 }),
    )
    expect(ids(harness.kernel)).toEqual(['frontend 10.96.0.10:80/tcp', 'hairpin 10.0.0.1'])
    expect(kernel6.held.size).toBe(0)
    expect(harness.reports.map((report) => [report.family, report.ok])).toEqual([
      [4, true],
      [6, false],
    ])
    await harness.clock.advance(30_000)
    expect(ids(kernel6)).toEqual(['frontend [fd00::10]:80/tcp', 'hairpin fd01::1'])
    expect(harness.reports).toHaveLength(3)
  })

  it('a slice event syncs only the family of the slice', async () => {
    const harness = await new EngineHarness({ families: [4, 6] }).synced(service('ns/a'))
    await harness.tick()
    harness.put(slice('ns/a', ['fd01::1'], { key: 'ns/a-6', family: 6 }))
    await harness.tick()
    expect(harness.reports.slice(2).map((report) => report.family)).toEqual([6])
  })

  it('yields to the event loop while it plans many services', async () => {
    const harness = new EngineHarness({
      resolve: (...input) => {
        // Planning a service takes 3 ms of the fake clock.
        elapsed += 3
        return resolve(...input)
      },
      waitForTurn: async () => {
        breaths++
      },
    })
    let [elapsed, breaths] = [0, 0]
    harness.clock.monotonic = () => elapsed
    const records = Array.from({ length: 40 }, (_, i) => service(`ns/${i}`, { clusterIps: [`10.96.0.${i}`] }))
    await harness.synced(...records)
    // The start of the engine yields a few times, too.
    expect(breaths).toBeGreaterThanOrEqual(20)
    expect(breaths).toBeLessThan(25)
    expect(ids(harness.kernel)).toHaveLength(40)
  })

  it('an event that arrives in any pause of a large sync is not lost', async () => {
    const many = (from: number, count: number) =>
      Array.from({ length: count }, (_, i) => {
        const n = from + i
        return service(`ns/${n}`, { clusterIps: [`10.${96 + (n >> 16)}.${(n >> 8) & 255}.${n & 255}`] })
      })
    let [elapsed, breaths] = [0, 0]
    const harness = new EngineHarness({
      waitForTurn: async () => {
        if (harness.reports.length > 0) return
        breaths++
        harness.put(...many(20_000 + breaths, 1))
        harness.services.drop(`ns/${breaths}`)
      },
    })
    // Every reading of the clock takes a quarter of a millisecond.
    harness.clock.monotonic = () => (elapsed += 0.25)
    await harness.synced(...many(0, 3_500))
    // Draining, planning, reset, diff and settle of everything each pause.
    const first = breaths
    expect(first).toBeGreaterThan(150)
    for (let i = 0; i < 3; i++) await harness.clock.advance(1000)
    const expected = 3_500
    expect(ids(harness.kernel)).toHaveLength(expected)
    expect(ids(harness.kernel)).toContain(
      `frontend 10.96.${((20_000 + first) >> 8) & 255}.${(20_000 + first) & 255}:80/tcp`,
    )
    expect(ids(harness.kernel)).not.toContain('frontend 10.96.0.1:80/tcp')
  })

  it('an event that arrives during planning is not lost, even if a later event reverts it', async () => {
    const before = service('ns/b', { clusterIps: ['10.96.0.20'] })
    const during = service('ns/b', { clusterIps: ['10.96.0.21'] })
    let elapsed = 0
    const events = [() => harness.put(during), () => harness.put(before)]
    const harness = new EngineHarness({
      resolve: (...input) => {
        elapsed += 11
        return resolve(...input)
      },
      waitForTurn: async () => events.shift()?.(),
    })
    harness.clock.monotonic = () => elapsed
    await harness.synced(service('ns/a'), before)
    expect(events).toEqual([])
    elapsed += 1000
    await harness.clock.advance(1000)
    expect(ids(harness.kernel)).toEqual(['frontend 10.96.0.10:80/tcp', 'frontend 10.96.0.20:80/tcp'])
  })
})

describe('Engine: a bad object never affects other objects', () => {
  const bad = service('ns/bad', { clusterIps: ['10.96.0.66'] })

  it('a service that cannot be planned is reported and quarantined until it is corrected; others are not affected', async () => {
    let broken = true
    const harness = new EngineHarness({ breaks: (port) => port.service === 'ns/bad' && broken })
    await harness.synced(bad, service('ns/a'))
    expect(ids(harness.kernel)).toEqual(['frontend 10.96.0.10:80/tcp'])
    expect(harness.last()).toMatchObject({ ok: true, refused: [{ service: 'ns/bad', id: '' }] })
    expect(harness.engine.quarantined()).toMatchObject([{ service: 'ns/bad', family: 4, attempts: 1 }])
    expect(harness.engine.quarantined()[0]?.error.message).toMatch(/ns\/bad.*breaks the planner/)
    broken = false
    await harness.clock.advance(1000)
    expect(ids(harness.kernel)).toHaveLength(2)
    expect(harness.engine.quarantined()).toEqual([])
  })

  it('a service that cannot be resolved is quarantined, too', async () => {
    const harness = new EngineHarness({
      resolve: (record, ...rest) => {
        if (record.key === 'ns/bad') throw new TypeError('no such field')
        return resolve(record, ...rest)
      },
    })
    await harness.synced(bad, service('ns/a'))
    expect(ids(harness.kernel)).toEqual(['frontend 10.96.0.10:80/tcp'])
    expect(harness.engine.portsOf('ns/bad', 4)).toEqual([])
    expect(harness.engine.quarantined().map((one) => one.service)).toEqual(['ns/bad'])
    harness.services.drop('ns/bad')
    await harness.tick()
    expect(harness.engine.quarantined()).toEqual([])
  })

  it('a refused entry is retried after 1 s, then at growing intervals up to 5 min, while other services sync', async () => {
    const harness = new EngineHarness({ minSyncMs: 0 })
    harness.kernel.refuses = (id) => id.includes('10.96.0.66')
    await harness.synced(bad, service('ns/a'))
    expect(harness.last()).toMatchObject({
      ok: true,
      refused: [{ service: 'ns/bad', id: 'frontend 10.96.0.66:80/tcp' }],
    })
    expect(ids(harness.kernel)).toEqual(['frontend 10.96.0.10:80/tcp'])
    const started = harness.clock.monotonic()
    const tries: number[] = []
    harness.journal.subscribe({
      report: (report) => report.refused.length > 0 && tries.push(harness.clock.monotonic() - started),
    })
    await harness.clock.advance(20 * 60_000)
    expect(tries.slice(0, 5)).toEqual([1000, 3000, 7000, 15_000, 31_000])
    expect((tries.at(-1) as number) - (tries.at(-2) as number)).toBe(300_000)
    harness.put(service('ns/c', { clusterIps: ['10.96.0.30'] }))
    await harness.clock.advance(0)
    expect(ids(harness.kernel)).toHaveLength(2)
    expect(harness.last().refused).toEqual([])
    harness.kernel.refuses = () => false
    await harness.clock.advance(300_000)
    expect(ids(harness.kernel)).toHaveLength(3)
    expect(harness.engine.quarantined()).toEqual([])
    expect(harness.clock.armed).toBe(1)
  })

  it('a refused service that changes is retried at once, even if the refused entry is the same', async () => {
    const harness = new EngineHarness({ minSyncMs: 0 })
    harness.kernel.refuses = (id) => id.includes('10.96.0.66')
    await harness.synced(bad)
    await harness.clock.advance(40_000)
    harness.kernel.refuses = () => false
    harness.put({ ...bad, affinitySeconds: 0, uid: 'another' })
    await harness.clock.advance(0)
    expect(ids(harness.kernel)).toEqual(['frontend 10.96.0.66:80/tcp'])
    expect(harness.engine.quarantined()).toEqual([])
  })

  it('keeps retrying a leftover that cannot be removed', async () => {
    const harness = await new EngineHarness({ minSyncMs: 0 }).synced(service('ns/a'))
    harness.kernel.refuses = (id) => id.includes('10.96.0.10')
    harness.services.drop('ns/a')
    await harness.clock.advance(0)
    expect(harness.engine.quarantined()).toMatchObject([{ service: '', ids: ['frontend 10.96.0.10:80/tcp'] }])
    harness.kernel.refuses = () => false
    await harness.clock.advance(1000)
    expect(harness.kernel.ids()).toEqual(base)
    expect(harness.engine.quarantined()).toEqual([])
  })

  it('a refused base entry fails the sync', async () => {
    const harness = new EngineHarness()
    harness.kernel.refuses = (id) => id === 'base table'
    await harness.synced(service('ns/a'))
    expect(harness.last()).toMatchObject({ ok: false, error: { code: 'base-refused' } })
    harness.kernel.refuses = () => false
    await harness.clock.advance(30_000)
    expect(harness.last().ok).toBe(true)
    expect(harness.kernel.held.size).toBe(3)
  })

  it('an error that is not a ProxyError fails the sync, and the sync is retried', async () => {
    const harness = await new EngineHarness().synced()
    await harness.tick()
    const bug = Promise.reject(new TypeError('a bug'))
    bug.catch(() => {})
    harness.kernel.gate = bug
    harness.put(service('ns/a'))
    await harness.tick()
    expect(harness.last()).toMatchObject({ ok: false, error: { code: 'sync', message: 'a bug' } })
    harness.kernel.gate = undefined
    await harness.clock.advance(30_000)
    expect(ids(harness.kernel)).toHaveLength(1)
  })
})

describe('Engine: contested addresses', () => {
  const old = service('ns/old', { created: 1 })
  const young = service('ns/a-young', {
    created: 2,
    ports: [{ name: 'http', protocol: 'tcp', port: 80, nodePort: 30080 }],
  })

  it.each([
    ['old first', [old, young]],
    ['young first', [young, old]],
  ])(
    'the oldest service holds the address, %s; the conflict is reported once, and the other service takes over',
    async (_, order) => {
      const harness = new EngineHarness()
      const reported: Conflict[] = []
      const over: Conflict[] = []
      harness.journal.subscribe({ conflict: (c) => reported.push(c), resolved: (c) => over.push(c) })
      await harness.synced()
      for (const record of order) {
        harness.put(record)
        await harness.tick()
      }
      const conflict = {
        family: 4,
        frontend: '10.96.0.10:80/tcp',
        winner: 'ns/old',
        loser: 'ns/a-young',
        reason: 'age',
      }
      expect(harness.kernel.content()['frontend 10.96.0.10:80/tcp']).toContain('ns/old')
      expect(harness.kernel.content()['frontend :30080/tcp']).toContain('ns/a-young')
      expect(harness.engine.conflicts()).toEqual([conflict])
      expect(reported).toEqual([conflict])
      expect(harness.engine.status('ns/a-young').families[0]).toMatchObject({ lost: [conflict] })
      expect(harness.engine.portsOf('ns/a-young', 4)[0]?.frontends.map((f) => f.kind)).toEqual(['node-port'])
      harness.put(slice('ns/a-young', ['10.0.0.1']), slice('ns/old', ['10.0.0.2']))
      await harness.tick()
      expect(reported).toHaveLength(1)
      harness.services.drop('ns/old')
      await harness.tick()
      expect(harness.kernel.content()['frontend 10.96.0.10:80/tcp']).toContain('ns/a-young')
      expect(harness.engine.conflicts()).toEqual([])
      expect(over).toEqual([conflict])
    },
  )

  it('at equal age the smaller key holds the address; three claimants in any order report only the final state', async () => {
    const harness = new EngineHarness()
    const reported: string[] = []
    harness.journal.subscribe({ conflict: (c) => reported.push(`${c.winner}>${c.loser}`) })
    await harness.synced(service('ns/c'), service('ns/b'), service('ns/a'))
    expect(reported.sort()).toEqual(['ns/a>ns/b', 'ns/a>ns/c'])
    harness.put(service('ns/a', { clusterIps: ['10.96.0.11'] }))
    await harness.tick()
    expect(harness.engine.conflicts().map((c) => `${c.winner}>${c.loser}`)).toEqual(['ns/b>ns/c'])
    expect(reported).toContain('ns/b>ns/c')
  })

  it.each(['externalIps', 'loadBalancerIps'] as const)(
    'a service that lists cluster IPs of others in %s takes none of them, however old it is',
    async (field) => {
      const ips = Array.from({ length: 20 }, (_, i) => `10.96.1.${i + 1}`)
      const thief = service('a/thief', { created: 1, clusterIps: ['10.96.0.99'], [field]: ips })
      const owners = ips.map((ip, i) => service(`ns/owner${i}`, { created: 1000, clusterIps: [ip] }))
      const harness = await new EngineHarness().synced(thief, ...owners)
      for (const [i, ip] of ips.entries()) {
        expect(harness.kernel.content()[`frontend ${ip}:80/tcp`]).toContain(`ns/owner${i}`)
      }
      expect(harness.engine.conflicts().map(({ loser, reason }) => `${loser} ${reason}`)).toEqual(
        ips.map(() => 'a/thief kind'),
      )
      // An owner that comes later gets its address back at once, and the thief gets it when the owner goes.
      harness.services.drop('ns/owner3')
      await harness.tick()
      expect(harness.kernel.content()['frontend 10.96.1.4:80/tcp']).toContain('a/thief')
      harness.put(service('ns/owner3', { created: 2000, clusterIps: ['10.96.1.4'] }))
      await harness.tick()
      expect(harness.kernel.content()['frontend 10.96.1.4:80/tcp']).toContain('ns/owner3')
    },
  )

  it('a load-balancer IP goes before an external IP, and age decides among external IPs', async () => {
    const harness = await new EngineHarness().synced(
      service('ns/a', { created: 1, clusterIps: ['10.96.0.1'], externalIps: ['192.0.2.1', '192.0.2.2'] }),
      service('ns/b', { created: 2, clusterIps: ['10.96.0.2'], externalIps: ['192.0.2.2'] }),
      service('ns/c', { created: 3, clusterIps: ['10.96.0.3'], loadBalancerIps: ['192.0.2.1'] }),
    )
    expect(
      harness.engine
        .conflicts()
        .map((c) => `${c.frontend} ${c.winner} ${c.reason}`)
        .sort(),
    ).toEqual(['192.0.2.1:80/tcp ns/c kind', '192.0.2.2:80/tcp ns/a age'])
  })

  it('protocols do not conflict with each other; health check node ports do', async () => {
    const checked = (key: string, created: number, ip: string) =>
      service(key, {
        created,
        type: 'LoadBalancer',
        externalPolicy: 'Local',
        healthCheckNodePort: 30100,
        clusterIps: [ip],
        loadBalancerIps: [ip.replace('10.96', '10.97')],
      })
    const harness = await new EngineHarness().synced(
      service('ns/tcp'),
      service('ns/udp', { ports: [{ name: 'dns', protocol: 'udp', port: 80, nodePort: 0 }] }),
      checked('ns/x', 2, '10.96.0.31'),
      checked('ns/y', 1, '10.96.0.32'),
    )
    expect(harness.engine.conflicts()).toEqual([
      { family: 4, frontend: ':30100/tcp', winner: 'ns/y', loser: 'ns/x', reason: 'age' },
    ])
    expect([...harness.engine.health(4)]).toEqual([['ns/y', { port: 30100, localEndpoints: 0 }]])
    harness.services.drop('ns/y')
    await harness.tick()
    expect([...harness.engine.health(4).keys()]).toEqual(['ns/x'])
  })

  it('a service that cannot be planned does not keep its address', async () => {
    const harness = new EngineHarness({ breaks: (port) => port.service === 'ns/old' })
    await harness.synced(old, young)
    expect(harness.kernel.content()['frontend 10.96.0.10:80/tcp']).toContain('ns/a-young')
  })
})

describe('Engine: the node changes', () => {
  const resolved: string[] = []
  const counting = {
    resolve: ((record, ...rest) => {
      resolved.push(record.key)
      return resolve(record, ...rest)
    }) as typeof resolve,
  }
  const change = async (harness: EngineHarness, patch: Parameters<typeof view>[1]) => {
    await harness.tick()
    resolved.length = 0
    harness.engine.setView(4, view(4, patch))
    await harness.tick()
    return resolved.toSorted()
  }
  const hinted = slice('ns/zoned', ['10.0.0.1'], {
    endpoints: [endpoint('10.0.0.1', { zoneHints: ['z1'] }), endpoint('10.0.0.2', { zoneHints: ['z2'] })],
  })
  const records = () => [
    service('ns/plain'),
    service('ns/zoned', { clusterIps: ['10.96.0.20'] }),
    hinted,
    service('ns/ported', {
      clusterIps: ['10.96.0.30'],
      ports: [{ name: 'http', protocol: 'tcp', port: 80, nodePort: 30080 }],
    }),
  ]

  it('a change of the service CIDRs is programmed at once and resolves no service', async () => {
    const harness = await new EngineHarness(counting).synced(...records())
    expect(await change(harness, { serviceCidrs: ['10.96.0.0/12'] })).toEqual([])
    expect(harness.kernel.content()['base cidrs']).toBe('["10.96.0.0/12"]')
    expect(harness.last()).toMatchObject({ put: 1, dropped: 0, full: false })
  })

  it('G15: a change of the zone is programmed at once, for the services that it affects', async () => {
    const harness = await new EngineHarness(counting).synced(...records())
    expect(harness.engine.portsOf('ns/zoned', 4)[0]?.cluster).toHaveLength(2)
    expect(await change(harness, { zone: 'z2' })).toEqual(['ns/zoned'])
    expect(harness.kernel.content()['frontend 10.96.0.20:80/tcp']).not.toContain('10.0.0.1')
  })

  it('other node port addresses affect services with node ports, another node name affects all, an equal view none', async () => {
    const harness = await new EngineHarness(counting).synced(...records())
    const nodePorts = { all: false, addresses: ['192.0.2.1'], loopback: false, loopbackNamed: false }
    expect(await change(harness, { nodePorts })).toEqual(['ns/ported'])
    expect(await change(harness, { nodePorts, name: 'there' })).toEqual(['ns/plain', 'ns/ported', 'ns/zoned'])
    const before = harness.reports.length
    expect(await change(harness, { nodePorts, name: 'there' })).toEqual([])
    expect(harness.reports).toHaveLength(before)
  })

  it('a view that is set before the first sync counts', async () => {
    const harness = new EngineHarness()
    harness.engine.setView(4, view(4, { serviceCidrs: ['10.96.0.0/12'] }))
    await harness.clock.advance(5000)
    expect(harness.reports).toEqual([])
    await harness.synced(service('ns/a'))
    expect(harness.kernel.content()['base cidrs']).toBe('["10.96.0.0/12"]')
  })
})

describe('Engine: questions', () => {
  it('reports what a service has, and that a service is unknown', async () => {
    const harness = await new EngineHarness({ families: [4, 6] }).synced(service('ns/a'), slice('ns/a', ['10.0.0.1']))
    const status = harness.engine.status('ns/a')
    expect(status.known).toBe(true)
    expect(status.families.map((one) => [one.family, one.pending, one.ports.length, one.entries.length])).toEqual([
      [4, false, 1, 2],
      [6, false, 1, 1],
    ])
    harness.put(slice('ns/a', ['10.0.0.2']))
    expect(harness.engine.status('ns/a').families.map((one) => one.pending)).toEqual([true, false])
    expect(harness.engine.status('ns/none')).toMatchObject({ known: false })
    expect([...harness.engine.ports(6)].map((port) => port.id)).toEqual(['ns/a:http/tcp'])
    expect(() => new EngineHarness({ families: [4] }).engine.ports(6 as Family)).toThrow(/IPv6/)
  })

  it('reports a service as pending until the sync of its change has ended', async () => {
    const harness = await new EngineHarness().synced(service('ns/a'), slice('ns/a', ['10.0.0.1']))
    let open = () => {}
    harness.kernel.gate = new Promise((resolve) => {
      open = resolve
    })
    harness.put(slice('ns/a', ['10.0.0.2']))
    await harness.clock.advance(2000)
    const one = () => harness.engine.status('ns/a').families[0]
    expect(one()?.ports[0]?.cluster.map(({ ip }) => ip)).toEqual(['10.0.0.2'])
    expect(one()?.pending).toBe(true)
    open()
    await harness.clock.advance(0)
    expect(one()?.pending).toBe(false)
  })

  it('keeps the UDP ports and the counts of services without local endpoints', async () => {
    const harness = await new EngineHarness().synced(
      service('ns/dns', { ports: [{ name: 'dns', protocol: 'udp', port: 53, nodePort: 0 }] }),
      service('ns/local', { clusterIps: ['10.96.0.20'], internalPolicy: 'Local' }),
      slice('ns/local', [], { endpoints: [endpoint('10.0.0.9', { node: 'there' })] }),
    )
    expect([...harness.engine.udpPorts(4)].map((port) => port.id)).toEqual(['ns/dns:dns/udp'])
    expect(harness.last()).toMatchObject({
      noLocal: { internal: 1, external: 0 },
      noLocalServices: { internal: 1, external: 0 },
    })
    harness.put(slice('ns/local', ['10.0.0.1']))
    harness.services.drop('ns/dns')
    await harness.tick()
    expect(harness.last()).toMatchObject({ noLocal: { internal: 0, external: 0 } })
    expect([...harness.engine.udpPorts(4)]).toEqual([])
  })

  it('gives equal states equal hashes in any order, and different states different ones', async () => {
    const records = [service('ns/a'), service('ns/b', { clusterIps: ['10.96.0.20'] }), slice('ns/a', ['10.0.0.1'])]
    const one = await new EngineHarness().synced(...records)
    const two = await new EngineHarness().synced(...records.toReversed())
    expect(one.engine.stateHash(4)).toBe(two.engine.stateHash(4))
    two.engine.setView(4, view(4, { serviceCidrs: ['10.96.0.0/12'] }))
    two.put(service('ns/c', { clusterIps: ['10.96.0.30'] }))
    await two.tick()
    expect(one.engine.stateHash(4)).not.toBe(two.engine.stateHash(4))
    two.services.drop('ns/c')
    await two.tick()
    expect(one.engine.stateHash(4)).toBe(two.engine.stateHash(4))
    expect(one.engine.stateHash(4)).toMatch(/^[0-9a-f]{24}$/)
  })

  it('reports to health when work is queued and done', async () => {
    const harness = new EngineHarness()
    const reported: string[] = []
    harness.journal.subscribe({
      started: (family) => reported.push(`started ${family}`),
      queued: (family) => reported.push(`queued ${family}`),
      report: ({ family, ok }) => reported.push(`${ok ? 'done' : 'failed'} ${family}`),
    })
    await harness.engine.start()
    harness.put(service('ns/a'))
    expect(reported).toEqual(['started 4'])
    await harness.synced()
    await harness.tick()
    harness.kernel.failApplyAfter = 0
    harness.put(service('ns/b', { clusterIps: ['10.96.0.20'] }))
    await harness.tick()
    expect(reported).toContain('queued 4')
    expect(reported.at(-2)).toBe('queued 4')
    expect(reported.at(-1)).toBe('failed 4')
  })
})
