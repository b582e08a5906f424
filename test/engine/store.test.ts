// Checks what the store records as pending: services, slices, trigger times and UDP changes, per family.

import { describe, expect, it } from 'vitest'
import { SyncJournal } from '../../src/engine/journal.ts'
import { Store } from '../../src/engine/store.ts'
import type { Family } from '../../src/lib/ip.ts'
import { silentLogger } from '../../src/lib/log.ts'
import type { Problem } from '../../src/model/types.ts'
import { FakeClock } from '../support/fake-clock.ts'
import { endpoint, service, slice } from './engine-harness.ts'

/** The slices of a service with their endpoints as lists. */
const listSlices = (store: Store, service: string) =>
  store.slicesOf(service, 4).map((one) => ({ ...one, endpoints: [...one.endpoints] }))

function setUp(families: readonly Family[] = [4]) {
  const clock = new FakeClock()
  const journal = new SyncJournal({ log: silentLogger })
  const changes: string[] = []
  const pending: Family[] = []
  journal.subscribe({
    change: (kind, waiting) => changes.push(`${kind} ${waiting}`),
    pending: (kind, waiting) => changes.push(`drained ${kind} ${waiting}`),
  })
  const store = new Store({ families, clock, journal })
  let ready = 0
  store.watch({ onPending: (family) => pending.push(family), onReady: () => ready++ })
  const put = (...records: ReturnType<typeof slice>[]) => {
    for (const record of records) store.slices.put(record.key, record)
  }
  const drain = (family: Family = 4) => {
    pending.length = 0
    const changes = store.drainPending(family)
    const { triggers, udpChanged } = changes
    return { services: [...new Set(changes.services())].sort(), triggers, udpChanged }
  }
  return { store, clock, changes, pending, put, drain, readyCalls: () => ready, journal }
}

const none = { services: [], triggers: [], udpChanged: false }
const udp = [{ name: 'dns', protocol: 'udp' as const, port: 53 }]

describe('Store: services', () => {
  it('E1: a service that comes and goes before any sync leaves no pending change', () => {
    const { store, drain, changes } = setUp()
    store.services.put('ns/a', service('ns/a'))
    store.services.drop('ns/a')
    expect(changes).toEqual(['service 1', 'service 0'])
    expect(store.isPending('ns/a', 4)).toBe(false)
    expect(drain()).toEqual(none)
    expect([...store.records()]).toEqual([])
  })

  it('E1: a service that is changed and changed back leaves no pending change', () => {
    const { store, drain } = setUp()
    store.services.put('ns/a', service('ns/a'))
    drain()
    store.services.put('ns/a', service('ns/a', { affinitySeconds: 5 }))
    expect(store.isPending('ns/a', 4)).toBe(true)
    store.services.put('ns/a', service('ns/a'))
    expect(drain()).toEqual(none)
    store.services.drop('ns/a')
    store.services.put('ns/a', service('ns/a'))
    expect(drain()).toEqual(none)
  })

  it('a change back is a change if a planner has read the service in between', () => {
    const { store, drain } = setUp()
    store.services.put('ns/a', service('ns/a'))
    drain()
    store.services.put('ns/a', service('ns/a', { affinitySeconds: 5 }))
    expect(store.readForPlan('ns/a', 4)?.affinitySeconds).toBe(5)
    store.services.put('ns/a', service('ns/a'))
    expect(drain().services).toEqual(['ns/a'])
  })

  it('E2: an equal record is not a change; labels, selectors and annotations are not in records', () => {
    const { store, drain, pending } = setUp()
    store.services.put('ns/a', service('ns/a'))
    drain()
    store.services.put('ns/a', service('ns/a'))
    expect(pending).toEqual([])
    expect(drain()).toEqual(none)
  })

  it('E3: a no-op update of one service while another is pending asks for a sync', () => {
    const { store, drain, pending } = setUp()
    store.services.put('ns/b', service('ns/b'))
    drain()
    store.services.put('ns/a', service('ns/a'))
    pending.length = 0
    store.services.put('ns/b', service('ns/b'))
    expect(pending).toEqual([4])
  })

  it('E12: a renamed or renumbered port is a change of the service', () => {
    const { store, drain } = setUp()
    store.services.put('ns/a', service('ns/a'))
    drain()
    for (const port of [
      { name: 'web', protocol: 'tcp' as const, port: 80, nodePort: 0 },
      { name: 'web', protocol: 'tcp' as const, port: 81, nodePort: 0 },
    ]) {
      store.services.put('ns/a', service('ns/a', { ports: [port] }))
      expect(drain().services).toEqual(['ns/a'])
    }
  })

  it('a service event counts for each family, and each family drains it separately', () => {
    const { store, drain, changes, pending } = setUp([4, 6])
    store.services.put('ns/a', service('ns/a'))
    expect(changes).toEqual(['service 1', 'service 1'])
    expect(pending).toEqual([4, 6])
    expect(drain(4).services).toEqual(['ns/a'])
    expect(drain(4).services).toEqual([])
    expect(drain(6).services).toEqual(['ns/a'])
  })

  it('dropping an unknown service changes nothing', () => {
    const { store, drain, pending } = setUp()
    store.services.drop('ns/a')
    expect(pending).toEqual([])
    expect(drain()).toEqual(none)
  })
})

describe('Store: slices', () => {
  it('E4: an equal slice is not a change', () => {
    const { put, drain, pending, changes } = setUp()
    put(slice('ns/a', ['10.0.0.1']))
    drain()
    changes.length = 0
    put(slice('ns/a', ['10.0.0.1']))
    expect(pending).toEqual([])
    expect(changes).toEqual(['slice 0'])
    expect(drain()).toEqual(none)
  })

  it('E4: a new resourceVersion alone is not a change, since it is not in records (for kube-proxy it is a change)', () => {
    const { put, drain } = setUp()
    put(slice('ns/a', ['10.0.0.1']))
    drain()
    put(structuredClone(slice('ns/a', ['10.0.0.1'])))
    expect(drain()).toEqual(none)
  })

  it('E5: another order of ports or endpoints is a change', () => {
    const { put, drain } = setUp()
    const ports = [
      { name: 'a', protocol: 'tcp' as const, port: 1 },
      { name: 'b', protocol: 'tcp' as const, port: 2 },
    ]
    put(slice('ns/a', ['10.0.0.1', '10.0.0.2'], { ports }))
    drain()
    put(slice('ns/a', ['10.0.0.2', '10.0.0.1'], { ports }))
    expect(drain().services).toEqual(['ns/a'])
    put(slice('ns/a', ['10.0.0.2', '10.0.0.1'], { ports: ports.toReversed() }))
    expect(drain().services).toEqual(['ns/a'])
  })

  it('E6: removing an unknown slice is not a change', () => {
    const { store, drain, pending, changes } = setUp()
    store.slices.drop('ns/a-1')
    expect([pending, changes]).toEqual([[], []])
    expect(drain()).toEqual(none)
  })

  it('E7: removing the last slice leaves nothing; E8: removing one of two slices leaves the other', () => {
    const { store, put, drain } = setUp()
    const [one, two] = [slice('ns/a', ['10.0.0.1']), slice('ns/a', ['10.0.0.2'], { key: 'ns/a-2' })]
    put(two, one)
    expect(listSlices(store, 'ns/a')).toEqual([one, two])
    drain()
    store.slices.drop('ns/a-1')
    expect(drain().services).toEqual(['ns/a'])
    expect(listSlices(store, 'ns/a')).toEqual([two])
    store.slices.drop('ns/a-2')
    expect(drain().services).toEqual(['ns/a'])
    expect(store.slicesOf('ns/a', 4)).toEqual([])
  })

  it('E9: if a slice is added, removed and added again before a sync, only the last trigger time counts', () => {
    const { store, put, drain, clock } = setUp()
    const [first, second] = [clock.now() + 10, clock.now() + 20]
    put(slice('ns/a', ['10.0.0.1'], { triggered: first }))
    store.slices.drop('ns/a-1')
    put(slice('ns/a', ['10.0.0.2'], { triggered: second }))
    expect(drain().triggers).toEqual([second])
    expect(drain().triggers).toEqual([])
  })

  it('E10: a trigger time before the process started is not recorded; the times of two changes are both recorded', () => {
    const { put, drain, clock } = setUp()
    put(slice('ns/a', ['10.0.0.1'], { triggered: clock.now() }))
    put(slice('ns/b', ['10.0.0.1']))
    expect(drain().triggers).toEqual([])
    const [first, second] = [clock.now() + 1, clock.now() + 2]
    put(slice('ns/a', ['10.0.0.2'], { triggered: first }))
    put(slice('ns/a', ['10.0.0.3'], { triggered: second }))
    put(slice('ns/a', ['10.0.0.3'], { triggered: second }))
    expect(drain().triggers).toEqual([first, second])
  })

  it('E11: never changes a record', () => {
    const { store, put, drain } = setUp()
    const freeze = <T>(value: T): T => {
      if (typeof value === 'object' && value !== null) for (const part of Object.values(value)) freeze(part)
      return Object.freeze(value)
    }
    for (const ips of [['10.0.0.1'], ['10.0.0.2', '10.0.0.1'], []]) {
      put(freeze(slice('ns/a', ips)), freeze(slice('ns/a', ips, { key: 'ns/a-0' })))
      store.services.put('ns/a', freeze(service('ns/a', { externalIps: ips })))
      expect(drain().services).toEqual(['ns/a'])
    }
  })

  it('E13: UDP endpoints that appear, terminate and disappear set udpChanged; an event without a change does not', () => {
    const { store, put, drain } = setUp()
    put(slice('ns/a', [], { ports: udp }))
    expect(drain().udpChanged).toBe(false)
    put(slice('ns/a', ['10.0.0.1'], { ports: udp }))
    expect(drain().udpChanged).toBe(true)
    const ending = slice('ns/a', [], {
      ports: udp,
      endpoints: [endpoint('10.0.0.1', { ready: false, terminating: true })],
    })
    put(ending)
    expect(drain().udpChanged).toBe(true)
    put(structuredClone(ending))
    expect(drain().udpChanged).toBe(false)
    put(slice('ns/a', [], { ports: udp }))
    expect(drain().udpChanged).toBe(true)
    put(ending)
    drain()
    store.slices.drop('ns/a-1')
    expect(drain().udpChanged).toBe(true)
  })

  it('E13: a TCP change of a service with UDP endpoints in another slice sets udpChanged; a change of another service does not', () => {
    const { put, drain } = setUp()
    put(slice('ns/a', ['10.0.0.1'], { key: 'ns/a-udp', ports: udp }), slice('ns/a', ['10.0.0.1']))
    drain()
    put(slice('ns/b', ['10.0.0.1']))
    expect(drain().udpChanged).toBe(false)
    put(slice('ns/a', ['10.0.0.2']))
    expect(drain().udpChanged).toBe(true)
  })

  it('a UDP service that is added, changed or removed sets udpChanged; a TCP service does not', () => {
    const { store, drain } = setUp()
    const record = (protocol: 'tcp' | 'udp', externalIps: readonly string[] = []) =>
      service('ns/a', { ports: [{ name: 'p', protocol, port: 53, nodePort: 0 }], externalIps })
    const dirties = (change: () => void) => {
      change()
      return drain().udpChanged
    }
    expect(dirties(() => store.services.put('ns/a', record('tcp')))).toBe(false)
    expect(dirties(() => store.services.put('ns/a', record('udp')))).toBe(true)
    expect(dirties(() => store.services.put('ns/a', record('udp')))).toBe(false)
    expect(dirties(() => store.services.put('ns/a', record('udp', ['192.0.2.1'])))).toBe(true)
    expect(dirties(() => store.services.drop('ns/a'))).toBe(true)
    expect(dirties(() => store.services.put('ns/a', record('tcp')))).toBe(false)
  })

  it('a slice whose service label changes is a change of both services, and the old service loses the slice', () => {
    const { store, put, drain } = setUp()
    put(slice('ns/a', ['10.0.0.1']))
    drain()
    const moved = slice('ns/b', ['10.0.0.1'], { key: 'ns/a-1' })
    put(moved)
    expect(drain().services).toEqual(['ns/a', 'ns/b'])
    expect([listSlices(store, 'ns/a'), listSlices(store, 'ns/b')]).toEqual([[], [moved]])
  })

  it('a slice counts for its own family only, and is ignored if the family is not served', () => {
    const both = setUp([4, 6])
    both.put(slice('ns/a', ['fd00::1'], { family: 6 }))
    expect([both.pending, both.changes]).toEqual([[6], ['slice 1']])
    expect(both.drain(4).services).toEqual([])
    expect(both.drain(6).services).toEqual(['ns/a'])
    const one = setUp([4])
    one.put(slice('ns/a', ['fd00::1'], { family: 6 }))
    expect([one.pending, one.changes]).toEqual([[], []])
    one.put(slice('ns/a', ['10.0.0.1']))
    one.put(slice('ns/a', ['fd00::1'], { family: 6 }))
    expect(one.store.slicesOf('ns/a', 4)).toEqual([])
  })

  it('counts pending slices of both families together until one family drains its changes', () => {
    const { put, drain, changes } = setUp([4, 6])
    put(slice('ns/a', ['10.0.0.1']), slice('ns/a', ['fd00::1'], { key: 'ns/a-6', family: 6 }))
    drain(4)
    expect(changes).toEqual(['slice 1', 'slice 2', 'drained service 0', 'drained slice 0'])
  })
})

describe('Store: readiness and problems', () => {
  it('becomes ready once, when both kinds are complete', () => {
    const { store, readyCalls } = setUp()
    store.slices.synced()
    store.slices.synced()
    expect([store.ready, readyCalls()]).toEqual([false, 0])
    store.services.synced()
    store.services.synced()
    expect([store.ready, readyCalls()]).toEqual([true, 1])
  })

  it('passes problems of objects on to the journal', () => {
    const { store, journal } = setUp()
    const heard: Problem[] = []
    journal.subscribe({ problem: (problem) => heard.push(problem) })
    const problem = { kind: 'Service', object: 'ns/a', uid: 'u', field: 'spec.externalIPs[0]', message: 'no address' }
    store.services.problem(problem)
    expect(heard).toEqual([problem])
  })
})
