import { describe, expect, it } from 'vitest'
import { Collection } from '../../src/engine/collection.ts'
import { SyncJournal } from '../../src/engine/journal.ts'
import { Store } from '../../src/engine/store.ts'
import type { Family } from '../../src/lib/ip.ts'
import { silentLogger } from '../../src/lib/log.ts'
import type { Problem, ServiceCidrRecord } from '../../src/model/types.ts'
import { FakeClock } from '../support/fake-clock.ts'
import { endpoint, service, slice } from './engine-harness.ts'

function setUp(families: readonly Family[] = [4]) {
  const clock = new FakeClock()
  const journal = new SyncJournal({ log: silentLogger })
  const changes: string[] = []
  const dirty: Family[] = []
  journal.subscribe({
    change: (kind, pending) => changes.push(`${kind} ${pending}`),
    pending: (kind, pending) => changes.push(`taken ${kind} ${pending}`),
  })
  const store = new Store({ families, clock, journal })
  let ready = 0
  store.watch({ dirty: (family) => dirty.push(family), ready: () => ready++ })
  const put = (...records: ReturnType<typeof slice>[]) => {
    for (const record of records) store.slices.put(record.key, record)
  }
  const take = (family: Family = 4) => {
    dirty.length = 0
    const { services, has: _, ...rest } = store.drainPending(family)
    return { services: [...new Set(services())].sort(), ...rest }
  }
  return { store, clock, changes, dirty, put, take, ready: () => ready, journal }
}

const none = { services: [], triggers: [], udpChanged: false }
const udp = [{ name: 'dns', protocol: 'udp' as const, port: 53 }]

describe('Store: services', () => {
  it('E1: a service that comes and goes before any sync leaves no pending change', () => {
    const { store, take, changes } = setUp()
    store.services.put('ns/a', service('ns/a'))
    store.services.drop('ns/a')
    expect(changes).toEqual(['service 1', 'service 0'])
    expect(store.dirty('ns/a', 4)).toBe(false)
    expect(take()).toEqual(none)
    expect([...store.records()]).toEqual([])
  })

  it('E1: nor does one that is changed and changed back', () => {
    const { store, take } = setUp()
    store.services.put('ns/a', service('ns/a'))
    take()
    store.services.put('ns/a', service('ns/a', { affinitySeconds: 5 }))
    expect(store.dirty('ns/a', 4)).toBe(true)
    store.services.put('ns/a', service('ns/a'))
    expect(take()).toEqual(none)
    store.services.drop('ns/a')
    store.services.put('ns/a', service('ns/a'))
    expect(take()).toEqual(none)
  })

  it('a change back counts once somebody has acted on what was in between', () => {
    const { store, take } = setUp()
    store.services.put('ns/a', service('ns/a'))
    take()
    store.services.put('ns/a', service('ns/a', { affinitySeconds: 5 }))
    expect(store.read('ns/a', 4)?.affinitySeconds).toBe(5)
    store.services.put('ns/a', service('ns/a'))
    expect(take().services).toEqual(['ns/a'])
  })

  it('E2: an equal record is no change; labels, selectors and annotations are not in records', () => {
    const { store, take, dirty } = setUp()
    store.services.put('ns/a', service('ns/a'))
    take()
    store.services.put('ns/a', service('ns/a'))
    expect(dirty).toEqual([])
    expect(take()).toEqual(none)
  })

  it('E3: a no-op update of one service while another is pending asks for a sync', () => {
    const { store, take, dirty } = setUp()
    store.services.put('ns/b', service('ns/b'))
    take()
    store.services.put('ns/a', service('ns/a'))
    dirty.length = 0
    store.services.put('ns/b', service('ns/b'))
    expect(dirty).toEqual([4])
  })

  it('E12: a renamed or renumbered port is a change of the service', () => {
    const { store, take } = setUp()
    store.services.put('ns/a', service('ns/a'))
    take()
    for (const port of [
      { name: 'web', protocol: 'tcp' as const, port: 80, nodePort: 0 },
      { name: 'web', protocol: 'tcp' as const, port: 81, nodePort: 0 },
    ]) {
      store.services.put('ns/a', service('ns/a', { ports: [port] }))
      expect(take().services).toEqual(['ns/a'])
    }
  })

  it('a service event counts for each family, and each takes it on its own', () => {
    const { store, take, changes, dirty } = setUp([4, 6])
    store.services.put('ns/a', service('ns/a'))
    expect(changes).toEqual(['service 1', 'service 1'])
    expect(dirty).toEqual([4, 6])
    expect(take(4).services).toEqual(['ns/a'])
    expect(take(4).services).toEqual([])
    expect(take(6).services).toEqual(['ns/a'])
  })

  it('dropping a service that is not there changes nothing', () => {
    const { store, take, dirty } = setUp()
    store.services.drop('ns/a')
    expect(dirty).toEqual([])
    expect(take()).toEqual(none)
  })
})

describe('Store: slices', () => {
  it('E4: an equal slice again is no change', () => {
    const { put, take, dirty, changes } = setUp()
    put(slice('ns/a', ['10.0.0.1']))
    take()
    changes.length = 0
    put(slice('ns/a', ['10.0.0.1']))
    expect(dirty).toEqual([])
    expect(changes).toEqual(['slice 0'])
    expect(take()).toEqual(none)
  })

  it('E4: nor is a new resourceVersion alone, which is not in records (kube-proxy takes it for a change)', () => {
    const { put, take } = setUp()
    put(slice('ns/a', ['10.0.0.1']))
    take()
    put(structuredClone(slice('ns/a', ['10.0.0.1'])))
    expect(take()).toEqual(none)
  })

  it('E5: another order of ports or endpoints is a change', () => {
    const { put, take } = setUp()
    const ports = [
      { name: 'a', protocol: 'tcp' as const, port: 1 },
      { name: 'b', protocol: 'tcp' as const, port: 2 },
    ]
    put(slice('ns/a', ['10.0.0.1', '10.0.0.2'], { ports }))
    take()
    put(slice('ns/a', ['10.0.0.2', '10.0.0.1'], { ports }))
    expect(take().services).toEqual(['ns/a'])
    put(slice('ns/a', ['10.0.0.2', '10.0.0.1'], { ports: ports.toReversed() }))
    expect(take().services).toEqual(['ns/a'])
  })

  it('E6: removing an unknown slice is no change', () => {
    const { store, take, dirty, changes } = setUp()
    store.slices.drop('ns/a-1')
    expect([dirty, changes]).toEqual([[], []])
    expect(take()).toEqual(none)
  })

  it('E7: the last slice that goes leaves nothing behind; E8: one of two leaves the other', () => {
    const { store, put, take } = setUp()
    const [one, two] = [slice('ns/a', ['10.0.0.1']), slice('ns/a', ['10.0.0.2'], { key: 'ns/a-2' })]
    put(two, one)
    expect(store.slicesOf('ns/a', 4)).toEqual([one, two])
    take()
    store.slices.drop('ns/a-1')
    expect(take().services).toEqual(['ns/a'])
    expect(store.slicesOf('ns/a', 4)).toEqual([two])
    store.slices.drop('ns/a-2')
    expect(take().services).toEqual(['ns/a'])
    expect(store.slicesOf('ns/a', 4)).toEqual([])
  })

  it('E9: of a slice added, removed and added again before a sync only the last trigger time counts', () => {
    const { store, put, take, clock } = setUp()
    const [first, second] = [clock.now() + 10, clock.now() + 20]
    put(slice('ns/a', ['10.0.0.1'], { triggered: first }))
    store.slices.drop('ns/a-1')
    put(slice('ns/a', ['10.0.0.2'], { triggered: second }))
    expect(take().triggers).toEqual([second])
    expect(take().triggers).toEqual([])
  })

  it('E10: a trigger time before our start, or none, is not recorded; two changes are both recorded', () => {
    const { put, take, clock } = setUp()
    put(slice('ns/a', ['10.0.0.1'], { triggered: clock.now() }))
    put(slice('ns/b', ['10.0.0.1']))
    expect(take().triggers).toEqual([])
    const [first, second] = [clock.now() + 1, clock.now() + 2]
    put(slice('ns/a', ['10.0.0.2'], { triggered: first }))
    put(slice('ns/a', ['10.0.0.3'], { triggered: second }))
    put(slice('ns/a', ['10.0.0.3'], { triggered: second }))
    expect(take().triggers).toEqual([first, second])
  })

  it('E11: never changes a record', () => {
    const { store, put, take } = setUp()
    const freeze = <T>(value: T): T => {
      if (typeof value === 'object' && value !== null) for (const part of Object.values(value)) freeze(part)
      return Object.freeze(value)
    }
    for (const ips of [['10.0.0.1'], ['10.0.0.2', '10.0.0.1'], []]) {
      put(freeze(slice('ns/a', ips)), freeze(slice('ns/a', ips, { key: 'ns/a-0' })))
      store.services.put('ns/a', freeze(service('ns/a', { externalIps: ips })))
      expect(take().services).toEqual(['ns/a'])
    }
  })

  it('E13: UDP endpoints that come, begin to end, and go ask for stale flows to be looked for; no change does not', () => {
    const { store, put, take } = setUp()
    put(slice('ns/a', [], { ports: udp }))
    expect(take().udpChanged).toBe(false)
    put(slice('ns/a', ['10.0.0.1'], { ports: udp }))
    expect(take().udpChanged).toBe(true)
    const ending = slice('ns/a', [], {
      ports: udp,
      endpoints: [endpoint('10.0.0.1', { ready: false, terminating: true })],
    })
    put(ending)
    expect(take().udpChanged).toBe(true)
    put(structuredClone(ending))
    expect(take().udpChanged).toBe(false)
    put(slice('ns/a', [], { ports: udp }))
    expect(take().udpChanged).toBe(true)
    put(ending)
    take()
    store.slices.drop('ns/a-1')
    expect(take().udpChanged).toBe(true)
  })

  it('E13: a TCP change of a service that has UDP endpoints in another slice counts; of another service it does not', () => {
    const { put, take } = setUp()
    put(slice('ns/a', ['10.0.0.1'], { key: 'ns/a-udp', ports: udp }), slice('ns/a', ['10.0.0.1']))
    take()
    put(slice('ns/b', ['10.0.0.1']))
    expect(take().udpChanged).toBe(false)
    put(slice('ns/a', ['10.0.0.2']))
    expect(take().udpChanged).toBe(true)
  })

  it('a UDP service that comes, changes or goes asks for stale flows to be looked for; a TCP one does not', () => {
    const { store, take } = setUp()
    const record = (protocol: 'tcp' | 'udp', externalIps: readonly string[] = []) =>
      service('ns/a', { ports: [{ name: 'p', protocol, port: 53, nodePort: 0 }], externalIps })
    const dirties = (change: () => void) => {
      change()
      return take().udpChanged
    }
    expect(dirties(() => store.services.put('ns/a', record('tcp')))).toBe(false)
    expect(dirties(() => store.services.put('ns/a', record('udp')))).toBe(true)
    expect(dirties(() => store.services.put('ns/a', record('udp')))).toBe(false)
    expect(dirties(() => store.services.put('ns/a', record('udp', ['192.0.2.1'])))).toBe(true)
    expect(dirties(() => store.services.drop('ns/a'))).toBe(true)
    expect(dirties(() => store.services.put('ns/a', record('tcp')))).toBe(false)
  })

  it('a slice whose service label changes dirties both services, and the old one loses it', () => {
    const { store, put, take } = setUp()
    put(slice('ns/a', ['10.0.0.1']))
    take()
    const moved = slice('ns/b', ['10.0.0.1'], { key: 'ns/a-1' })
    put(moved)
    expect(take().services).toEqual(['ns/a', 'ns/b'])
    expect([store.slicesOf('ns/a', 4), store.slicesOf('ns/b', 4)]).toEqual([[], [moved]])
  })

  it('a slice counts for its own family only, and not at all if that is not served', () => {
    const both = setUp([4, 6])
    both.put(slice('ns/a', ['fd00::1'], { family: 6 }))
    expect([both.dirty, both.changes]).toEqual([[6], ['slice 1']])
    expect(both.take(4).services).toEqual([])
    expect(both.take(6).services).toEqual(['ns/a'])
    const one = setUp([4])
    one.put(slice('ns/a', ['fd00::1'], { family: 6 }))
    expect([one.dirty, one.changes]).toEqual([[], []])
    one.put(slice('ns/a', ['10.0.0.1']))
    one.put(slice('ns/a', ['fd00::1'], { family: 6 }))
    expect(one.store.slicesOf('ns/a', 4)).toEqual([])
  })

  it('counts pending slices over both families until either takes its changes', () => {
    const { put, take, changes } = setUp([4, 6])
    put(slice('ns/a', ['10.0.0.1']), slice('ns/a', ['fd00::1'], { key: 'ns/a-6', family: 6 }))
    take(4)
    expect(changes).toEqual(['slice 1', 'slice 2', 'taken service 0', 'taken slice 0'])
  })
})

describe('Store: readiness and problems', () => {
  it('is ready once, when both kinds have synced', () => {
    const { store, ready } = setUp()
    store.slices.synced()
    store.slices.synced()
    expect([store.ready, ready()]).toEqual([false, 0])
    store.services.synced()
    store.services.synced()
    expect([store.ready, ready()]).toEqual([true, 1])
  })

  it('passes on what is wrong with an object', () => {
    const { store, journal } = setUp()
    const heard: Problem[] = []
    journal.subscribe({ problem: (problem) => heard.push(problem) })
    const problem = { kind: 'Service', object: 'ns/a', uid: 'u', field: 'spec.externalIPs[0]', message: 'no address' }
    store.services.problem(problem)
    expect(heard).toEqual([problem])
  })
})

describe('Collection', () => {
  it('E14: hands out the full current set whenever a member comes, changes or goes, from the first complete one on', () => {
    const sets: string[] = []
    const cidrs = new Collection<ServiceCidrRecord>({
      onChange: (records) => sets.push(records.flatMap((record) => record.cidrs).join(' ')),
      onProblem: () => {},
    })
    const put = (name: string, ...list: string[]) => cidrs.put(name, { name, cidrs: list })
    put('b', '10.2.0.0/16')
    expect(sets).toEqual([])
    cidrs.synced()
    put('a', '10.1.0.0/16')
    put('a', '10.1.0.0/16')
    put('b', '10.3.0.0/16', 'fd00::/108')
    cidrs.drop('a')
    cidrs.drop('a')
    cidrs.drop('b')
    expect(sets).toEqual([
      '10.2.0.0/16',
      '10.1.0.0/16 10.2.0.0/16',
      '10.1.0.0/16 10.3.0.0/16 fd00::/108',
      '10.3.0.0/16 fd00::/108',
      '',
    ])
  })
})
