import { describe, expect, it } from 'vitest'
import { History } from '../../../src/engine/history/history.ts'
import type { HistoryRecord, ObjectOrigin } from '../../../src/engine/history/history-record.ts'
import { type DeliveredObject, HistoryRecorder } from '../../../src/engine/history/history-recorder.ts'
import { ProxyError } from '../../../src/lib/errors.ts'
import { EngineHarness, endpoint, type HarnessOptions, service, slice, view } from '../engine-harness.ts'

const all = { service: '', since: 0, beforeSync: 0, afterSync: 0, limit: 1000 }

/** An engine whose syncs are recorded. */
class RecordedEngine extends EngineHarness {
  readonly history = new History({ maxRecords: 1000, maxBytes: 1 << 20 })
  delivered: DeliveredObject | undefined

  constructor(options: HarnessOptions = {}) {
    super(options)
    this.journal.subscribe(
      new HistoryRecorder({
        delivered: () => this.delivered,
        describeStart: () => 'started for a test',
        onRecord: (record) => this.history.add(JSON.stringify(record)),
      }),
    )
  }

  /** Oldest first. */
  get records(): readonly HistoryRecord[] {
    return this.history.list(all).records.toReversed()
  }

  get newest(): HistoryRecord {
    return this.records.at(-1) as HistoryRecord
  }

  /** Delivers a record as the event of an object. */
  deliver(kind: string, record: ReturnType<typeof service> | ReturnType<typeof slice>, origin: Partial<ObjectOrigin>) {
    const known = { resourceVersion: '', manager: '', operation: '', subresource: '', ...origin }
    this.delivered = { kind, key: record.key, readOrigin: () => known }
    this.put(record)
    this.delivered = undefined
  }
}

const startedEngine = async (options?: HarnessOptions) => {
  const engine = new RecordedEngine(options)
  await engine.synced(service('ns/web'), slice('ns/web', ['10.0.0.1', '10.0.0.2']))
  return engine
}

describe('what is recorded of a sync', () => {
  it('the start, without the objects of the first state', async () => {
    const { newest } = await startedEngine()
    expect(newest).toMatchObject({ sync: 1, family: 4, ok: true, full: true, causes: ['start'], objects: [] })
    expect(newest.notes).toEqual([{ kind: 'start', service: '', text: 'started for a test' }])
    expect(newest.entries.map(({ id }) => id)).toContain('frontend 10.96.0.10:80/tcp')
    expect(newest.put).toBe(newest.entries.length)
  })

  it('the endpoints that a slice gains and loses, its version and its manager, and the entries that were written', async () => {
    const engine = await startedEngine()
    engine.deliver('EndpointSlice', slice('ns/web', ['10.0.0.2', '10.0.0.3']), {
      resourceVersion: '8812',
      manager: 'kube-controller-manager',
      operation: 'Update',
    })
    await engine.tick()
    const { objects, services, entries, sync } = engine.newest
    expect(sync).toBe(2)
    expect(services).toEqual(['ns/web'])
    expect(objects).toEqual([
      {
        kind: 'EndpointSlice',
        name: 'ns/web-1',
        service: 'ns/web',
        action: 'changed',
        resourceVersion: '8812',
        manager: 'kube-controller-manager',
        operation: 'Update',
        subresource: '',
        parts: [
          { part: 'endpoint 10.0.0.1:8080/tcp', before: 'port http, ready, on here', after: '' },
          { part: 'endpoint 10.0.0.3:8080/tcp', before: '', after: 'port http, ready, on here' },
        ],
        moreParts: 0,
      },
    ])
    expect(entries.map(({ id, before, after }) => [id, before !== '', after !== ''])).toEqual([
      ['frontend 10.96.0.10:80/tcp', true, true],
      ['hairpin 10.0.0.3', false, true],
      ['hairpin 10.0.0.1', true, false],
    ])
  })

  it('the origin of another object is not attributed to a change that comes with it', async () => {
    const engine = await startedEngine()
    engine.delivered = {
      kind: 'Service',
      key: 'ns/other',
      readOrigin: () => ({ resourceVersion: '1', manager: 'm', operation: 'Update', subresource: '' }),
    }
    engine.put(slice('ns/web', ['10.0.0.1']))
    await engine.tick()
    expect(engine.newest.objects).toMatchObject([{ name: 'ns/web-1', resourceVersion: '', manager: '' }])
  })

  it('a change of a setting, and a deletion', async () => {
    const engine = await startedEngine()
    engine.put(service('ns/web', { internalPolicy: 'Local' }))
    await engine.tick()
    expect(engine.newest.objects).toMatchObject([
      { action: 'changed', parts: [{ part: 'internalTrafficPolicy', before: 'Cluster', after: 'Local' }] },
    ])
    engine.services.drop('ns/web')
    await engine.tick()
    expect(engine.newest.objects).toMatchObject([{ kind: 'Service', name: 'ns/web', action: 'deleted' }])
    expect(engine.newest.dropped).toBeGreaterThan(0)
  })

  it('a drift with its culprit, and what was repaired', async () => {
    const engine = await startedEngine()
    engine.kernel.tamper('frontend 10.96.0.10:80/tcp', undefined)
    await engine.tick()
    expect(engine.newest).toMatchObject({ causes: ['drift'], full: true, put: 1, dropped: 0 })
    expect(engine.newest.notes).toEqual([{ kind: 'drift', service: '', text: 'test' }])
    const [entry] = engine.newest.entries
    expect(entry?.id).toBe('frontend 10.96.0.10:80/tcp')
    expect(entry?.before).toBe(entry?.after)
    engine.kernel.tamper('frontend 192.0.2.99:80/tcp', 'foreign')
    await engine.tick()
    expect(engine.newest.entries).toEqual([{ id: 'frontend 192.0.2.99:80/tcp', before: '', after: '' }])
    expect(engine.history.compare({ sync: 1 }, { sync: 3 }, '')).toMatchObject({ repairs: 2, entries: [] })
  })

  it('a change of the node: with its object if one is delivered, as a note otherwise', async () => {
    const engine = await startedEngine()
    engine.engine.setView(4, view(4, { zone: 'z1' }))
    await engine.tick()
    expect(engine.newest.notes).toEqual([{ kind: 'node', service: '', text: 'zone: none before, z1 now' }])
    const origin = { resourceVersion: '9', manager: 'kubelet', operation: 'Update', subresource: 'status' }
    engine.delivered = { kind: 'Node', key: 'here', readOrigin: () => origin }
    engine.engine.setView(4, view(4, { zone: 'z2' }))
    engine.delivered = undefined
    await engine.tick()
    expect(engine.newest.objects).toMatchObject([
      { kind: 'Node', name: 'here', ...origin, parts: [{ part: 'zone', before: 'z1', after: 'z2' }] },
    ])
  })

  it('a failed sync, and its causes again with the sync that succeeds', async () => {
    const engine = await startedEngine()
    engine.kernel.failApplyAfter = 0
    engine.put(slice('ns/web', ['10.0.0.1']))
    await engine.tick()
    expect(engine.newest).toMatchObject({ ok: false, objects: [{ name: 'ns/web-1' }] })
    expect(engine.newest.error).not.toBe('')
    await engine.clock.advance(30_000)
    expect(engine.newest).toMatchObject({ ok: true, causes: ['retry'], objects: [{ name: 'ns/web-1' }] })
  })

  it('a refused entry, and its retries', async () => {
    const engine = await startedEngine()
    engine.kernel.refuses = (id) => id.includes('10.96.0.99')
    engine.put(service('ns/bad', { clusterIps: ['10.96.0.99'] }))
    await engine.tick()
    expect(engine.newest.refused).toMatchObject([{ service: 'ns/bad', id: 'frontend 10.96.0.99:80/tcp' }])
    expect(engine.newest.entries.map(({ id }) => id)).not.toContain('frontend 10.96.0.99:80/tcp')
    engine.kernel.refuses = () => false
    await engine.clock.advance(3_600_000)
    const retried = engine.records.find(({ notes }) => notes.some(({ kind }) => kind === 'retry'))
    expect(retried?.notes).toMatchObject([{ kind: 'retry', service: 'ns/bad' }])
    expect(retried?.entries.map(({ id }) => id)).toContain('frontend 10.96.0.99:80/tcp')
  })

  it('an ejection', async () => {
    const engine = await startedEngine()
    engine.journal.cause(4, 'ejection', 'ns/web', '10.0.0.1:8080 (refused)')
    engine.engine.store.touch('ns/web', 4)
    await engine.tick()
    expect(engine.newest.notes).toEqual([{ kind: 'ejection', service: 'ns/web', text: '10.0.0.1:8080 (refused)' }])
  })

  it('settings that changed, although no service changes by them', async () => {
    const engine = await startedEngine()
    engine.journal.cause(4, 'settings', '', 'outliers.failures')
    engine.engine.store.touch('ns/web', 4)
    await engine.tick()
    expect(engine.newest).toMatchObject({ put: 0, notes: [{ kind: 'settings', text: 'outliers.failures' }] })
  })

  it('nothing of syncs that found nothing to do, although they count', async () => {
    const engine = await startedEngine()
    await engine.clock.advance(3 * 3_600_000)
    expect(engine.records).toHaveLength(1)
    engine.put(slice('ns/web', ['10.0.0.1']))
    await engine.tick()
    expect(engine.newest.sync).toBeGreaterThan(2)
  })

  it('a slice that moves to another service leaves one and joins the other', async () => {
    const engine = await startedEngine()
    engine.put(service('ns/new', { clusterIps: ['10.96.0.11'] }))
    await engine.tick()
    engine.put({ ...slice('ns/web', ['10.0.0.1', '10.0.0.2']), service: 'ns/new' })
    await engine.tick()
    expect(engine.newest.objects.map(({ service: of, parts }) => [of, parts.length, parts[0]?.after])).toEqual([
      ['ns/web', 2, ''],
      ['ns/new', 2, 'port http, ready, on here'],
    ])
  })
})

describe('limits of one record', () => {
  it('names at most a hundred objects and entries, and counts the rest', async () => {
    const engine = await startedEngine()
    for (let i = 0; i < 150; i++) {
      engine.put(service(`ns/s${i}`, { clusterIps: [`10.97.0.${i}`] }), slice(`ns/s${i}`, ['10.0.0.1']))
    }
    await engine.tick()
    const changed = engine.records.filter(({ causes }) => !causes.includes('start'))
    expect(changed[0]?.objects).toHaveLength(100)
    expect(changed[0]?.moreObjects).toBe(200)
    expect(changed[0]?.entries.length).toBeLessThanOrEqual(100)
    expect(changed[0]?.services.length).toBeLessThanOrEqual(50)
    expect(engine.history.compare({ sync: 1 }, { sync: 99 }, '').gaps.join('\n')).toMatch(/200 more changed objects/)
  })

  it('names at most twenty objects of one service, so that others have room', async () => {
    const engine = await startedEngine()
    for (let i = 0; i < 30; i++) engine.put({ ...slice('ns/web', [`10.2.0.${i}`]), key: `ns/web-${i}` })
    engine.put(service('ns/other', { clusterIps: ['10.97.0.1'] }))
    await engine.tick()
    const { objects, moreObjects } = engine.records.find(({ causes }) => !causes.includes('start')) as HistoryRecord
    expect(objects.map(({ service: of }) => of)).toEqual([...Array(20).fill('ns/web'), 'ns/other'])
    expect(moreObjects).toBe(10)
  })

  it('names the first endpoints of a large slice that comes or goes, and counts the rest', async () => {
    const engine = await startedEngine()
    const many = Array.from({ length: 1000 }, (_, i) => endpoint(`10.1.${i >> 8}.${i & 255}`))
    const large = { ...slice('ns/web', [], { endpoints: many }), key: 'ns/web-large' }
    engine.put(large)
    await engine.tick()
    const [object] = engine.records.at(-1)?.objects ?? []
    expect([object?.parts.length, object?.parts[0]?.part, object?.moreParts]).toEqual([
      50,
      'endpoint 10.1.0.0:8080/tcp',
      950,
    ])
    expect(object?.parts[0]?.before).toBe('')
  })

  it('cuts the parts of a large object', async () => {
    const engine = await startedEngine()
    const many = Array.from({ length: 1000 }, (_, i) => endpoint(`10.1.${i >> 8}.${i & 255}`))
    engine.put(slice('ns/web', [], { endpoints: many }))
    await engine.tick()
    const [object] = engine.records.find(({ objects }) => objects.length > 0)?.objects ?? []
    expect(object?.parts).toHaveLength(50)
    expect(object?.moreParts).toBe(952)
  })
})

describe('questions', () => {
  it('about one service get its syncs and those of all services', async () => {
    const engine = await startedEngine()
    engine.put(service('ns/other', { clusterIps: ['10.96.0.11'] }))
    await engine.tick()
    engine.put(slice('ns/web', ['10.0.0.1']))
    await engine.tick()
    const { records, oldest } = engine.history.list({ ...all, service: 'ns/web' })
    expect(records.map(({ sync }) => sync)).toEqual([3, 1])
    expect(oldest?.sync).toBe(1)
  })

  it('can be limited by number, by time and by sync', async () => {
    const engine = await startedEngine()
    for (const ip of ['10.0.0.3', '10.0.0.4', '10.0.0.5']) {
      engine.put(slice('ns/web', [ip]))
      await engine.tick()
    }
    const syncs = (question: Partial<typeof all>) =>
      engine.history.list({ ...all, ...question }).records.map(({ sync }) => sync)
    expect(syncs({})).toEqual([4, 3, 2, 1])
    expect(syncs({ limit: 2 })).toEqual([4, 3])
    expect(engine.history.list({ ...all, limit: 2 }).truncated).toBe(true)
    expect(engine.history.list({ ...all, limit: 4 }).truncated).toBe(false)
    expect(syncs({ beforeSync: 3 })).toEqual([2, 1])
    expect(syncs({ afterSync: 3 })).toEqual([4])
    expect(syncs({ since: Date.parse(engine.records[2]?.at ?? '') })).toEqual([4, 3])
  })

  it('a difference names what it cannot know', async () => {
    const engine = await startedEngine()
    engine.put(slice('ns/web', ['10.0.0.3']))
    await engine.tick()
    expect(engine.history.compare({ sync: 1 }, { sync: 2 }, '')).toMatchObject({ from: 1, to: 2, gaps: [] })
    const { from, gaps } = engine.history.compare({ sync: 0 }, { sync: 2 }, '')
    expect(from).toBe(0)
    expect(gaps.join('\n')).toMatch(/reaches back to sync 1/)
    expect(gaps.join('\n')).toMatch(/the proxy started with sync 1/)
    expect(() => engine.history.compare({ sync: 2 }, { sync: 1 }, '')).toThrow(ProxyError)
    expect(new History({ maxRecords: 1, maxBytes: 1 }).compare({ sync: 1 }, { sync: 2 }, '').gaps).toEqual([
      'no sync is recorded',
    ])
  })

  it('an endpoint that moves from one slice to another is not a difference', async () => {
    const engine = await startedEngine()
    engine.put(slice('ns/web', ['10.0.0.1']), slice('ns/web', ['10.0.0.2'], { key: 'ns/web-2' }))
    await engine.tick()
    expect(engine.history.compare({ sync: 1 }, { sync: 9 }, '').services).toEqual([])
  })
})
