// How long external traffic is forwarded after the last local endpoint has gone: over random histories, and through the engine.

import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { followDrain, LocalDrains } from '../../../src/engine/draining/local-drain.ts'
import { resolvePorts } from '../../../src/model/resolve.ts'
import type { Disposition, ServiceRecord, SliceRecord } from '../../../src/model/types.ts'
import { endpoint, service, slice, tcp, view } from '../../support/builders.ts'
import { FakeClock } from '../../support/fake-clock.ts'

const unix = 1_700_000_000_000
const here = endpoint('10.1.0.1', view().name)
const there = endpoint('10.1.0.2', 'remote')

const balanced = (given: Partial<ServiceRecord> = {}) =>
  service({
    type: 'LoadBalancer',
    externalPolicy: 'Local',
    healthCheckNodePort: 31000,
    ports: [tcp(80, 'p80', 30080)],
    ...given,
  })

function makeDrains(drainMs = 30_000, earlier = new Map<string, number>()) {
  const clock = new FakeClock(unix)
  const ended: string[] = []
  const counts: number[] = []
  const written: ReadonlyMap<string, number>[] = []
  const drains = new LocalDrains({
    drainMs: ({ localDrain }) => (localDrain === 'on' ? drainMs : 0),
    onEnd: (name, family) => ended.push(`${name} ${family}`),
    hasService: () => true,
    onCount: (count) => counts.push(count),
    earlier,
    onDrains: (since) => written.push(since),
    clock,
  })
  const resolve = drains.wrap(resolvePorts)
  const portOf = (record: ServiceRecord, slices: readonly SliceRecord[]) => {
    const [port] = resolve(record, slices, view())
    return port
  }
  return { clock, drains, ended, counts, written, portOf }
}

describe('the decision', () => {
  const step = fc.record({
    external: fc.constantFrom<Disposition>('local', 'drop', 'reject', 'cluster'),
    afterMs: fc.integer({ min: 0, max: 400 }),
  })

  it('drains for exactly the time after the last local endpoint has gone, whatever else happens meanwhile', () => {
    fc.assert(
      fc.property(fc.array(step, { maxLength: 60 }), fc.integer({ min: 1, max: 1_000 }), (steps, drainMs) => {
        let state: ReturnType<typeof followDrain>
        let now = 0
        let wasServing = false
        let goneAt: number | undefined
        for (const { external, afterMs } of steps) {
          now += afterMs
          if (external === 'local' || external === 'cluster') goneAt = undefined
          else if (wasServing) goneAt = now
          wasServing = external === 'local'
          state = followDrain(state, external, { now, unix, drainMs })
          const mustDrain = goneAt !== undefined && now < goneAt + drainMs
          expect(typeof state === 'object').toBe(mustDrain)
        }
      }),
    )
  })

  it('never drains without a time', () => {
    fc.assert(
      fc.property(fc.array(step, { maxLength: 60 }), (steps) => {
        let state: ReturnType<typeof followDrain>
        for (const { external } of steps) {
          state = followDrain(state, external, { now: 0, unix, drainMs: 0 })
          expect(state).toBeUndefined()
        }
      }),
    )
  })
})

describe('service ports', () => {
  const wanting = balanced({ localDrain: 'on' })

  it('go to other nodes while the service drains, and are dropped afterwards; the health check reports none at once', async () => {
    const { clock, ended, counts, portOf } = makeDrains()
    expect(portOf(wanting, [slice([here, there])])).toMatchObject({ external: 'local' })
    const gone = portOf(wanting, [slice([there])])
    expect(gone).toMatchObject({
      external: 'cluster',
      drainingUntil: new Date(unix + 30_000).toISOString().replace('.000', ''),
      health: { port: 31000, localEndpoints: 0 },
    })
    await clock.advance(29_999)
    expect(portOf(wanting, [slice([there])])).toEqual(gone)
    expect(ended).toEqual([])
    await clock.advance(1)
    expect(ended).toEqual(['ns1/svc1 4'])
    const [plain] = resolvePorts(wanting, [slice([there])], view())
    expect(portOf(wanting, [slice([there])])).toEqual(plain)
    expect(plain?.external).toBe('drop')
    expect(counts).toEqual([1, 0])
  })

  it('that get a local endpoint again stop draining, and drain again when it goes', async () => {
    const { clock, counts, portOf } = makeDrains()
    portOf(wanting, [slice([here, there])])
    portOf(wanting, [slice([there])])
    await clock.advance(20_000)
    expect(portOf(wanting, [slice([here, there])])).toMatchObject({ external: 'local' })
    expect(clock.armed).toBe(0)
    expect(portOf(wanting, [slice([there])])).toMatchObject({ external: 'cluster' })
    await clock.advance(29_999)
    expect(portOf(wanting, [slice([there])])).toMatchObject({ external: 'cluster' })
    expect(counts).toEqual([1, 0, 1])
  })

  it('go on to drain for the rest of their time after a restart of the proxy', async () => {
    const first = makeDrains()
    first.portOf(wanting, [slice([here, there])])
    first.portOf(wanting, [slice([there])])
    const [since] = first.written.slice(-1)
    expect([...(since?.values() ?? [])]).toEqual([unix])
    const second = makeDrains(30_000, new Map(since))
    await second.clock.advance(20_000)
    expect(second.portOf(wanting, [slice([there])])).toMatchObject({ external: 'cluster' })
    await second.clock.advance(9_999)
    expect(second.ended).toEqual([])
    await second.clock.advance(1)
    expect(second.ended).toEqual(['ns1/svc1 4'])
    expect(second.portOf(wanting, [slice([there])])).toMatchObject({ external: 'drop' })
    expect(second.written.at(-1)).toEqual(new Map())
  })

  it.each([
    ['is over', unix - 30_000],
    ['is in the future', unix + 1],
  ])('do not drain after a restart if their time %s', (_, at) => {
    const first = makeDrains()
    first.portOf(wanting, [slice([here, there])])
    first.portOf(wanting, [slice([there])])
    const keys = [...(first.written.at(-1)?.keys() ?? [])]
    const { portOf } = makeDrains(30_000, new Map(keys.map((key) => [key, at])))
    expect(portOf(wanting, [slice([there])])).toMatchObject({ external: 'drop' })
  })

  it('without the annotation, or that never had an endpoint here, are as the model says', () => {
    for (const record of [balanced(), balanced({ localDrain: 'off' })]) {
      const { portOf } = makeDrains()
      portOf(record, [slice([here, there])])
      expect(portOf(record, [slice([there])])).toMatchObject({ external: 'drop' })
    }
    const { portOf } = makeDrains()
    expect(portOf(wanting, [slice([there])])).toMatchObject({ external: 'drop' })
  })

  it('are refused without any endpoint, also while the service drains', () => {
    const { portOf } = makeDrains()
    portOf(wanting, [slice([here])])
    expect(portOf(wanting, [slice([])])).toMatchObject({ external: 'reject' })
    expect(portOf(wanting, [slice([there])])).toMatchObject({ external: 'cluster' })
  })

  it('keep internal traffic on the node', () => {
    const { portOf } = makeDrains()
    const record = balanced({ localDrain: 'on', internalPolicy: 'Local' })
    portOf(record, [slice([here, there])])
    expect(portOf(record, [slice([there])])).toMatchObject({ external: 'cluster', internal: 'drop' })
  })

  it('of services that are gone are forgotten', () => {
    const clock = new FakeClock()
    const drains = new LocalDrains({
      drainMs: () => 1_000,
      onEnd: () => undefined,
      hasService: () => false,
      onCount: () => undefined,
      clock,
    })
    const resolve = drains.wrap(resolvePorts)
    for (let i = 0; i < 1_000; i++) {
      const [port] = resolve(balanced({ uid: `uid-${i}` }), [slice([here])], view())
      expect(port?.external).toBe('local')
    }
    expect(drains.size).toBeLessThan(200)
    drains.close()
  })
})
