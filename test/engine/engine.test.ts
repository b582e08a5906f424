import { describe, expect, it } from 'vitest'
import type { Conflict } from '../../src/engine/journal.ts'
import type { Family } from '../../src/lib/ip.ts'
import { resolve } from '../../src/model/resolve.ts'
import type { MemoryKernel } from '../support/memory-backend.ts'
import { endpoint, service, slice, view, World } from './world.ts'

const base = ['base cidrs', 'base table']
const ids = (kernel: MemoryKernel) => kernel.ids().filter((id) => !id.startsWith('base'))

describe('Engine: starting', () => {
  it('G8: writes nothing before services and slices have both synced; the second signal leads to a full sync at once', async () => {
    const world = new World()
    await world.engine.start()
    world.put(service('ns/a'), slice('ns/a', ['10.0.0.1']))
    await world.clock.advance(10_000)
    world.services.synced()
    await world.clock.advance(10_000_000)
    expect(world.kernel.observed).toBe(0)
    expect(world.kernel.applies).toEqual([])
    expect(world.reports).toEqual([])
    world.slices.synced()
    await world.clock.advance(0)
    expect(ids(world.kernel)).toEqual(['frontend 10.96.0.10:80/tcp', 'hairpin 10.0.0.1'])
    expect(world.last()).toMatchObject({ full: true, ok: true, services: ['ns/a'] })
  })

  it('does the same when everything has synced before the start', async () => {
    const world = await new World().synced(service('ns/a'))
    expect(world.kernel.ids()).toEqual([...base, 'frontend 10.96.0.10:80/tcp'])
  })

  it('retries a first sync that fails, without waiting for an event', async () => {
    const world = new World()
    world.kernel.failObserve = true
    await world.synced(service('ns/a'))
    expect(world.last()).toMatchObject({ ok: false, error: { message: 'observe failed' } })
    expect(world.kernel.held.size).toBe(0)
    await world.clock.advance(29_999)
    expect(world.reports).toHaveLength(1)
    await world.clock.advance(1)
    expect(world.last()).toMatchObject({ ok: true, services: ['ns/a'] })
    expect(ids(world.kernel)).toEqual(['frontend 10.96.0.10:80/tcp'])
  })

  it('programs the API server and DNS first on a cold start, then the rest', async () => {
    const dns = service('kube-system/dns', {
      clusterIps: ['10.96.0.11'],
      ports: [{ name: 'dns', protocol: 'udp', port: 53, nodePort: 0 }],
    })
    const api = service('default/kubernetes', { clusterIps: ['10.96.0.1'] })
    const world = await new World().synced(service('ns/a'), dns, service('ns/b', { clusterIps: ['10.96.0.12'] }), api)
    expect(world.kernel.applies.map((apply) => apply.put)).toEqual([
      ['base table', 'base cidrs', 'frontend 10.96.0.11:53/udp', 'frontend 10.96.0.1:80/tcp'],
      ['frontend 10.96.0.10:80/tcp', 'frontend 10.96.0.12:80/tcp'],
    ])
    expect(world.reports).toHaveLength(1)
    expect(world.last().put).toBe(6)
  })

  it('never removes or rewrites on a restart what is still wanted, nor shows the target less than everything', async () => {
    const records = [
      service('default/kubernetes', { clusterIps: ['10.96.0.1'] }),
      service('ns/a'),
      slice('ns/a', ['10.0.0.1']),
    ]
    const first = await new World().synced(...records, service('ns/gone', { clusterIps: ['10.96.0.99'] }))
    await first.engine.stop()
    expect(first.kernel.held.size).toBe(6)
    const { kernels } = first
    first.kernel.applies.length = 0
    first.kernel.writes.clear()
    const second = await new World({ kernels }).synced(...records)
    expect(second.kernel.applies).toEqual([{ put: [], drop: ['frontend 10.96.0.99:80/tcp'], wanted: 5 }])
    expect([...second.kernel.writes.keys()]).toEqual(['frontend 10.96.0.99:80/tcp'])
  })

  it('stops in the middle of a sync with one abort, and leaves what is there', async () => {
    const world = await new World().synced(service('ns/a'))
    let open = () => {}
    world.kernel.gate = new Promise((resolve) => (open = resolve))
    world.services.drop('ns/a')
    await world.tick()
    const stopping = world.engine.stop()
    open()
    await stopping
    expect(ids(world.kernel)).toEqual(['frontend 10.96.0.10:80/tcp'])
    expect(world.reports).toHaveLength(1)
    world.put(service('ns/b'))
    await world.clock.advance(10_000_000)
    expect(world.reports).toHaveLength(1)
    expect(world.clock.armed).toBe(0)
  })
})

describe('Engine: syncing', () => {
  it('G9: a change after the first sync writes that change only; totals still count everything', async () => {
    const world = await new World().synced(service('ns/a'), slice('ns/a', ['10.0.0.1']))
    await world.tick()
    world.put(service('ns/b', { clusterIps: ['10.96.0.20'] }), slice('ns/b', ['10.0.0.2']))
    await world.tick()
    expect(world.kernel.applies.at(-1)).toMatchObject({
      put: ['frontend 10.96.0.20:80/tcp', 'hairpin 10.0.0.2'],
      drop: [],
    })
    expect(world.last()).toMatchObject({ full: false, put: 2, dropped: 0, held: 6, services: ['ns/b'] })
    expect(world.kernel.observed).toBe(1)
  })

  it('G10: a sync with nothing new rewrites nothing', async () => {
    const world = await new World({ maxSyncMs: 5000 }).synced(service('ns/a'), slice('ns/a', ['10.0.0.1']))
    await world.clock.advance(5000)
    expect(world.reports).toHaveLength(2)
    expect(world.last()).toMatchObject({ ok: true, full: false, put: 0, dropped: 0, services: [] })
  })

  it('G11: after a failed partial sync the next one is full and repairs', async () => {
    const world = await new World().synced(service('ns/a'))
    await world.tick()
    world.kernel.failApplyAfter = 1
    world.put(slice('ns/a', ['10.0.0.1', '10.0.0.2'], { triggered: world.clock.now() + 1 }))
    await world.tick()
    expect(world.last()).toMatchObject({ ok: false, full: false, services: ['ns/a'] })
    await world.clock.advance(30_000)
    expect(world.last()).toMatchObject({ ok: true, full: true, services: ['ns/a'] })
    expect(world.last().triggers).toHaveLength(1)
    expect(ids(world.kernel)).toHaveLength(3)
    await world.clock.advance(60_000)
    expect(world.reports).toHaveLength(3)
  })

  it('the first change after a quiet time is programmed at once, a stream of changes in steps', async () => {
    const world = await new World().synced()
    await world.clock.advance(60_000)
    world.put(service('ns/a'))
    await world.clock.advance(0)
    expect(ids(world.kernel)).toHaveLength(1)
    for (let i = 0; i < 10; i++) {
      world.put(service(`ns/b${i}`, { clusterIps: [`10.96.1.${i}`] }))
      await world.clock.advance(50)
    }
    expect(world.reports).toHaveLength(2)
    await world.clock.advance(500)
    expect(world.reports).toHaveLength(3)
    expect(ids(world.kernel)).toHaveLength(11)
  })

  it('syncs periodically if the backend asks for it', async () => {
    const world = await new World({ periodic: true }).synced()
    await world.clock.advance(90_000)
    expect(world.reports).toHaveLength(4)
  })

  it('repairs a drift at once, names it, and writes only what differs', async () => {
    const world = await new World().synced(service('ns/a'), service('ns/b', { clusterIps: ['10.96.0.20'] }))
    const drifts: string[] = []
    world.journal.subscribe({ drift: (family, culprit) => drifts.push(`${family} ${culprit}`) })
    await world.clock.advance(60_000)
    world.kernel.writes.clear()
    world.kernel.tamper('frontend 10.96.0.10:80/tcp', undefined)
    world.kernel.tamper('alien x', 'y')
    await world.clock.advance(0)
    expect(drifts).toEqual(['4 test', '4 test'])
    expect(world.last()).toMatchObject({ full: true, put: 1, dropped: 1 })
    expect([...world.kernel.writes.keys()].sort()).toEqual(['alien x', 'frontend 10.96.0.10:80/tcp'])
  })

  it('repairs a drift at once also where every second brings a change', async () => {
    const world = await new World().synced(service('ns/a'))
    await world.clock.advance(60_000)
    world.put(slice('ns/a', ['10.0.0.1']))
    await world.clock.advance(10)
    const { length } = world.reports
    world.kernel.tamper('alien x', 'y')
    await world.clock.advance(0)
    expect(world.reports).toHaveLength(length + 1)
    expect(world.last()).toMatchObject({ full: true, dropped: 1 })
  })

  it('does not forget a drift that comes while a sync is under way', async () => {
    const world = await new World().synced(service('ns/a'))
    await world.clock.advance(60_000)
    let open = () => {}
    world.kernel.gate = new Promise((resolve) => (open = resolve))
    world.put(slice('ns/a', ['10.0.0.1']))
    await world.clock.advance(0)
    world.kernel.held.delete('base table')
    world.kernel.onDrift('test')
    world.kernel.gate = undefined
    open()
    await world.clock.advance(1000)
    expect(world.last()).toMatchObject({ full: true })
    expect(world.kernel.ids()).toContain('base table')
  })

  it('a drift that nobody tells of is found at the next sync', async () => {
    const world = await new World().synced(service('ns/a'))
    await world.tick()
    world.kernel.tamper('base table', undefined, { silent: true })
    world.put(service('ns/b', { clusterIps: ['10.96.0.20'] }))
    await world.tick()
    expect(world.last()).toMatchObject({ full: true, put: 2 })
  })

  it('lanes of the two families fail and recover on their own', async () => {
    const world = new World({ families: [4, 6] })
    const kernel6 = world.kernels.get(6) as MemoryKernel
    kernel6.failObserve = true
    await world.synced(
      service('ns/a'),
      slice('ns/a', ['10.0.0.1']),
      slice('ns/a', ['fd01::1'], { key: 'ns/a-6', family: 6 }),
    )
    expect(ids(world.kernel)).toEqual(['frontend 10.96.0.10:80/tcp', 'hairpin 10.0.0.1'])
    expect(kernel6.held.size).toBe(0)
    expect(world.reports.map((report) => [report.family, report.ok])).toEqual([
      [4, true],
      [6, false],
    ])
    await world.clock.advance(30_000)
    expect(ids(kernel6)).toEqual(['frontend [fd00::10]:80/tcp', 'hairpin fd01::1'])
    expect(world.reports).toHaveLength(3)
  })

  it('a slice event syncs only the family it is of', async () => {
    const world = await new World({ families: [4, 6] }).synced(service('ns/a'))
    await world.tick()
    world.put(slice('ns/a', ['fd01::1'], { key: 'ns/a-6', family: 6 }))
    await world.tick()
    expect(world.reports.slice(2).map((report) => report.family)).toEqual([6])
  })

  it('lets others have a turn while it plans a lot', async () => {
    const world = new World({
      resolve: (...input) => {
        // Every service takes 3 ms of the fake clock.
        elapsed += 3
        return resolve(...input)
      },
      breathe: async () => {
        breaths++
      },
    })
    let [elapsed, breaths] = [0, 0]
    world.clock.monotonic = () => elapsed
    const records = Array.from({ length: 40 }, (_, i) => service(`ns/${i}`, { clusterIps: [`10.96.0.${i}`] }))
    await world.synced(...records)
    // And a few at the start.
    expect(breaths).toBeGreaterThanOrEqual(20)
    expect(breaths).toBeLessThan(25)
    expect(ids(world.kernel)).toHaveLength(40)
  })

  it('an event that comes in any pause of a large sync is not lost', async () => {
    const many = (from: number, count: number) =>
      Array.from({ length: count }, (_, i) => {
        const n = from + i
        return service(`ns/${n}`, { clusterIps: [`10.${96 + (n >> 16)}.${(n >> 8) & 255}.${n & 255}`] })
      })
    let [elapsed, breaths] = [0, 0]
    const world = new World({
      breathe: async () => {
        if (world.reports.length > 0) return
        breaths++
        world.put(...many(20_000 + breaths, 1))
        world.services.drop(`ns/${breaths}`)
      },
    })
    // Every look at the clock takes a quarter of a millisecond.
    world.clock.monotonic = () => (elapsed += 0.25)
    await world.synced(...many(0, 3_500))
    // Taking them up, planning, the reset, the diff and the settling of everything each have some.
    const first = breaths
    expect(first).toBeGreaterThan(150)
    for (let i = 0; i < 3; i++) await world.clock.advance(1000)
    const expected = 3_500
    expect(ids(world.kernel)).toHaveLength(expected)
    expect(ids(world.kernel)).toContain(
      `frontend 10.96.${((20_000 + first) >> 8) & 255}.${(20_000 + first) & 255}:80/tcp`,
    )
    expect(ids(world.kernel)).not.toContain('frontend 10.96.0.1:80/tcp')
  })

  it('an event that comes while it plans is not lost, even if it is taken back', async () => {
    const before = service('ns/b', { clusterIps: ['10.96.0.20'] })
    const during = service('ns/b', { clusterIps: ['10.96.0.21'] })
    let elapsed = 0
    const events = [() => world.put(during), () => world.put(before)]
    const world = new World({
      resolve: (...input) => {
        elapsed += 11
        return resolve(...input)
      },
      breathe: async () => events.shift()?.(),
    })
    world.clock.monotonic = () => elapsed
    await world.synced(service('ns/a'), before)
    expect(events).toEqual([])
    elapsed += 1000
    await world.clock.advance(1000)
    expect(ids(world.kernel)).toEqual(['frontend 10.96.0.10:80/tcp', 'frontend 10.96.0.20:80/tcp'])
  })
})

describe('Engine: one bad object never breaks the rest', () => {
  const bad = service('ns/bad', { clusterIps: ['10.96.0.66'] })

  it('a service that cannot be planned is named and set aside; others go on; it is back when mended', async () => {
    let broken = true
    const world = new World({ breaks: (port) => port.service === 'ns/bad' && broken })
    await world.synced(bad, service('ns/a'))
    expect(ids(world.kernel)).toEqual(['frontend 10.96.0.10:80/tcp'])
    expect(world.last()).toMatchObject({ ok: true, refused: [{ service: 'ns/bad', id: '' }] })
    expect(world.engine.quarantined()).toMatchObject([{ service: 'ns/bad', family: 4, attempts: 1 }])
    expect(world.engine.quarantined()[0]?.error.message).toMatch(/ns\/bad.*breaks the planner/)
    broken = false
    await world.clock.advance(1000)
    expect(ids(world.kernel)).toHaveLength(2)
    expect(world.engine.quarantined()).toEqual([])
  })

  it('so is one that cannot be resolved', async () => {
    const world = new World({
      resolve: (record, ...rest) => {
        if (record.key === 'ns/bad') throw new TypeError('no such field')
        return resolve(record, ...rest)
      },
    })
    await world.synced(bad, service('ns/a'))
    expect(ids(world.kernel)).toEqual(['frontend 10.96.0.10:80/tcp'])
    expect(world.engine.portsOf('ns/bad', 4)).toEqual([])
    expect(world.engine.quarantined().map((one) => one.service)).toEqual(['ns/bad'])
    world.services.drop('ns/bad')
    await world.tick()
    expect(world.engine.quarantined()).toEqual([])
  })

  it('a refused entry is retried after 1 s, then ever later up to 5 min, while the rest goes on', async () => {
    const world = new World({ minSyncMs: 0 })
    world.kernel.refuses = (id) => id.includes('10.96.0.66')
    await world.synced(bad, service('ns/a'))
    expect(world.last()).toMatchObject({ ok: true, refused: [{ service: 'ns/bad', id: 'frontend 10.96.0.66:80/tcp' }] })
    expect(ids(world.kernel)).toEqual(['frontend 10.96.0.10:80/tcp'])
    const started = world.clock.monotonic()
    const tries: number[] = []
    world.journal.subscribe({
      report: (report) => report.refused.length > 0 && tries.push(world.clock.monotonic() - started),
    })
    await world.clock.advance(20 * 60_000)
    expect(tries.slice(0, 5)).toEqual([1000, 3000, 7000, 15_000, 31_000])
    expect((tries.at(-1) as number) - (tries.at(-2) as number)).toBe(300_000)
    world.put(service('ns/c', { clusterIps: ['10.96.0.30'] }))
    await world.clock.advance(0)
    expect(ids(world.kernel)).toHaveLength(2)
    expect(world.last().refused).toEqual([])
    world.kernel.refuses = () => false
    await world.clock.advance(300_000)
    expect(ids(world.kernel)).toHaveLength(3)
    expect(world.engine.quarantined()).toEqual([])
    expect(world.clock.armed).toBe(1)
  })

  it('a refused service that changes is retried at once, even if the refused entry is the same', async () => {
    const world = new World({ minSyncMs: 0 })
    world.kernel.refuses = (id) => id.includes('10.96.0.66')
    await world.synced(bad)
    await world.clock.advance(40_000)
    world.kernel.refuses = () => false
    world.put({ ...bad, affinitySeconds: 0, uid: 'another' })
    await world.clock.advance(0)
    expect(ids(world.kernel)).toEqual(['frontend 10.96.0.66:80/tcp'])
    expect(world.engine.quarantined()).toEqual([])
  })

  it('keeps retrying a leftover that cannot be removed', async () => {
    const world = await new World({ minSyncMs: 0 }).synced(service('ns/a'))
    world.kernel.refuses = (id) => id.includes('10.96.0.10')
    world.services.drop('ns/a')
    await world.clock.advance(0)
    expect(world.engine.quarantined()).toMatchObject([{ service: '', ids: ['frontend 10.96.0.10:80/tcp'] }])
    world.kernel.refuses = () => false
    await world.clock.advance(1000)
    expect(world.kernel.ids()).toEqual(base)
    expect(world.engine.quarantined()).toEqual([])
  })

  it('a refused base entry fails the sync', async () => {
    const world = new World()
    world.kernel.refuses = (id) => id === 'base table'
    await world.synced(service('ns/a'))
    expect(world.last()).toMatchObject({ ok: false, error: { code: 'base-refused' } })
    world.kernel.refuses = () => false
    await world.clock.advance(30_000)
    expect(world.last().ok).toBe(true)
    expect(world.kernel.held.size).toBe(3)
  })

  it('an error that is no ProxyError fails the sync and is retried', async () => {
    const world = await new World().synced()
    await world.tick()
    const bug = Promise.reject(new TypeError('a bug'))
    bug.catch(() => {})
    world.kernel.gate = bug
    world.put(service('ns/a'))
    await world.tick()
    expect(world.last()).toMatchObject({ ok: false, error: { code: 'sync', message: 'a bug' } })
    world.kernel.gate = undefined
    await world.clock.advance(30_000)
    expect(ids(world.kernel)).toHaveLength(1)
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
  ])('the oldest service holds it, %s; the loser is told of once and takes over', async (_, order) => {
    const world = new World()
    const told: Conflict[] = []
    const over: Conflict[] = []
    world.journal.subscribe({ conflict: (c) => told.push(c), resolved: (c) => over.push(c) })
    await world.synced()
    for (const record of order) {
      world.put(record)
      await world.tick()
    }
    const conflict = { family: 4, frontend: '10.96.0.10:80/tcp', winner: 'ns/old', loser: 'ns/a-young' }
    expect(world.kernel.content()['frontend 10.96.0.10:80/tcp']).toContain('ns/old')
    expect(world.kernel.content()['frontend :30080/tcp']).toContain('ns/a-young')
    expect(world.engine.conflicts()).toEqual([conflict])
    expect(told).toEqual([conflict])
    expect(world.engine.status('ns/a-young').families[0]).toMatchObject({ lost: [conflict] })
    expect(world.engine.portsOf('ns/a-young', 4)[0]?.frontends.map((f) => f.kind)).toEqual(['node-port'])
    world.put(slice('ns/a-young', ['10.0.0.1']), slice('ns/old', ['10.0.0.2']))
    await world.tick()
    expect(told).toHaveLength(1)
    world.services.drop('ns/old')
    await world.tick()
    expect(world.kernel.content()['frontend 10.96.0.10:80/tcp']).toContain('ns/a-young')
    expect(world.engine.conflicts()).toEqual([])
    expect(over).toEqual([conflict])
  })

  it('equal age: the smaller key holds it; three claimants in any order tell of the final state only', async () => {
    const world = new World()
    const told: string[] = []
    world.journal.subscribe({ conflict: (c) => told.push(`${c.winner}>${c.loser}`) })
    await world.synced(service('ns/c'), service('ns/b'), service('ns/a'))
    expect(told.sort()).toEqual(['ns/a>ns/b', 'ns/a>ns/c'])
    world.put(service('ns/a', { clusterIps: ['10.96.0.11'] }))
    await world.tick()
    expect(world.engine.conflicts().map((c) => `${c.winner}>${c.loser}`)).toEqual(['ns/b>ns/c'])
    expect(told).toContain('ns/b>ns/c')
  })

  it('one protocol does not contest another; health check node ports are contested', async () => {
    const checked = (key: string, created: number, ip: string) =>
      service(key, {
        created,
        type: 'LoadBalancer',
        externalPolicy: 'Local',
        healthCheckNodePort: 30100,
        clusterIps: [ip],
        loadBalancerIps: [ip.replace('10.96', '10.97')],
      })
    const world = await new World().synced(
      service('ns/tcp'),
      service('ns/udp', { ports: [{ name: 'dns', protocol: 'udp', port: 80, nodePort: 0 }] }),
      checked('ns/x', 2, '10.96.0.31'),
      checked('ns/y', 1, '10.96.0.32'),
    )
    expect(world.engine.conflicts()).toEqual([{ family: 4, frontend: 'health:30100', winner: 'ns/y', loser: 'ns/x' }])
    expect([...world.engine.health(4)]).toEqual([['ns/y', { port: 30100, localEndpoints: 0 }]])
    world.services.drop('ns/y')
    await world.tick()
    expect([...world.engine.health(4).keys()]).toEqual(['ns/x'])
  })

  it('a holder that breaks the planner does not keep its address', async () => {
    const world = new World({ breaks: (port) => port.service === 'ns/old' })
    await world.synced(old, young)
    expect(world.kernel.content()['frontend 10.96.0.10:80/tcp']).toContain('ns/a-young')
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
  const change = async (world: World, patch: Parameters<typeof view>[1]) => {
    await world.tick()
    resolved.length = 0
    world.engine.setView(4, view(4, patch))
    await world.tick()
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

  it('a service CIDR change takes effect at once and resolves nothing', async () => {
    const world = await new World(counting).synced(...records())
    expect(await change(world, { serviceCidrs: ['10.96.0.0/12'] })).toEqual([])
    expect(world.kernel.content()['base cidrs']).toBe('["10.96.0.0/12"]')
    expect(world.last()).toMatchObject({ put: 1, dropped: 0, full: false })
  })

  it('G15: a zone change is in force at once, for the services it matters to', async () => {
    const world = await new World(counting).synced(...records())
    expect(world.engine.portsOf('ns/zoned', 4)[0]?.cluster).toHaveLength(2)
    expect(await change(world, { zone: 'z2' })).toEqual(['ns/zoned'])
    expect(world.kernel.content()['frontend 10.96.0.20:80/tcp']).not.toContain('10.0.0.1')
  })

  it('other node ports matter to services with node ports, another name to all, the same view to none', async () => {
    const world = await new World(counting).synced(...records())
    const nodePorts = { all: false, addresses: ['192.0.2.1'], loopback: false, loopbackNamed: false }
    expect(await change(world, { nodePorts })).toEqual(['ns/ported'])
    expect(await change(world, { nodePorts, name: 'there' })).toEqual(['ns/plain', 'ns/ported', 'ns/zoned'])
    const before = world.reports.length
    expect(await change(world, { nodePorts, name: 'there' })).toEqual([])
    expect(world.reports).toHaveLength(before)
  })

  it('a view that comes before the first sync is the one that counts', async () => {
    const world = new World()
    world.engine.setView(4, view(4, { serviceCidrs: ['10.96.0.0/12'] }))
    await world.clock.advance(5000)
    expect(world.reports).toEqual([])
    await world.synced(service('ns/a'))
    expect(world.kernel.content()['base cidrs']).toBe('["10.96.0.0/12"]')
  })
})

describe('Engine: questions', () => {
  it('tells what a service has, and what it does not know', async () => {
    const world = await new World({ families: [4, 6] }).synced(service('ns/a'), slice('ns/a', ['10.0.0.1']))
    const status = world.engine.status('ns/a')
    expect(status.known).toBe(true)
    expect(status.families.map((one) => [one.family, one.pending, one.ports.length, one.entries.length])).toEqual([
      [4, false, 1, 2],
      [6, false, 1, 1],
    ])
    world.put(slice('ns/a', ['10.0.0.2']))
    expect(world.engine.status('ns/a').families.map((one) => one.pending)).toEqual([true, false])
    expect(world.engine.status('ns/none')).toMatchObject({ known: false })
    expect([...world.engine.ports(6)].map((port) => port.id)).toEqual(['ns/a:http/tcp'])
    expect(() => new World({ families: [4] }).engine.ports(6 as Family)).toThrow(/IPv6/)
  })

  it('calls a service pending until the sync that takes up its change has ended', async () => {
    const world = await new World().synced(service('ns/a'), slice('ns/a', ['10.0.0.1']))
    let open = () => {}
    world.kernel.gate = new Promise((resolve) => {
      open = resolve
    })
    world.put(slice('ns/a', ['10.0.0.2']))
    await world.clock.advance(2000)
    const one = () => world.engine.status('ns/a').families[0]
    expect(one()?.ports[0]?.cluster.map(({ ip }) => ip)).toEqual(['10.0.0.2'])
    expect(one()?.pending).toBe(true)
    open()
    await world.clock.advance(0)
    expect(one()?.pending).toBe(false)
  })

  it('keeps UDP ports and the counts of services without local endpoints at hand', async () => {
    const world = await new World().synced(
      service('ns/dns', { ports: [{ name: 'dns', protocol: 'udp', port: 53, nodePort: 0 }] }),
      service('ns/local', { clusterIps: ['10.96.0.20'], internalPolicy: 'Local' }),
      slice('ns/local', [], { endpoints: [endpoint('10.0.0.9', { node: 'there' })] }),
    )
    expect([...world.engine.udpPorts(4)].map((port) => port.id)).toEqual(['ns/dns:dns/udp'])
    expect(world.last()).toMatchObject({
      noLocal: { internal: 1, external: 0 },
      noLocalServices: { internal: 1, external: 0 },
    })
    world.put(slice('ns/local', ['10.0.0.1']))
    world.services.drop('ns/dns')
    await world.tick()
    expect(world.last()).toMatchObject({ noLocal: { internal: 0, external: 0 } })
    expect([...world.engine.udpPorts(4)]).toEqual([])
  })

  it('hashes equal states equally, whatever the order, and other states otherwise', async () => {
    const records = [service('ns/a'), service('ns/b', { clusterIps: ['10.96.0.20'] }), slice('ns/a', ['10.0.0.1'])]
    const one = await new World().synced(...records)
    const two = await new World().synced(...records.toReversed())
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

  it('tells health when work is queued and done', async () => {
    const world = new World()
    const told: string[] = []
    world.journal.subscribe({
      started: (family) => told.push(`started ${family}`),
      queued: (family) => told.push(`queued ${family}`),
      report: ({ family, ok }) => told.push(`${ok ? 'done' : 'failed'} ${family}`),
    })
    await world.engine.start()
    world.put(service('ns/a'))
    expect(told).toEqual(['started 4'])
    await world.synced()
    await world.tick()
    world.kernel.failApplyAfter = 0
    world.put(service('ns/b'))
    await world.tick()
    expect(told).toContain('queued 4')
    expect(told.at(-2)).toBe('queued 4')
    expect(told.at(-1)).toBe('failed 4')
  })
})
