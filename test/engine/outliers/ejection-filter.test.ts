// Which endpoints a service port loses by an ejection, and which services want it.

import { describe, expect, it } from 'vitest'
import { EjectionFilter } from '../../../src/engine/outliers/ejection-filter.ts'
import { OutlierDetector } from '../../../src/engine/outliers/outlier-detector.ts'
import { resolvePorts } from '../../../src/model/resolve.ts'
import type { ServiceRecord } from '../../../src/model/types.ts'
import { EngineHarness, endpoint, service, slice, view } from '../engine-harness.ts'

const ips = ['10.1.0.1', '10.1.0.2', '10.1.0.3', '10.1.0.4']

function makeFilter(isDefault = false) {
  const detector = new OutlierDetector({ failures: 1, maxShare: 0.5, intervalMs: 10_000, maxIntervalMs: 300_000 })
  let watched = 0
  const filter = new EjectionFilter(detector, { isDefault: () => isDefault, onWatched: () => watched++ })
  const resolve = filter.wrap(resolvePorts)
  const portsOf = (record: ServiceRecord) => [...resolve(record, [slice(record.key, ips)], view(4))]
  /** One endpoint fails while another answers. */
  const fail = (ip: string) => {
    detector.answered('10.1.0.4:8080', 5_000)
    detector.failed(`${ip}:8080`, 'unanswered', 5_000)
    return detector.decide(5_000)
  }
  return { detector, filter, resolve, portsOf, fail, watched: () => watched }
}

const wanting = service('ns/web', { outlierEjection: true })

describe('the filter', () => {
  it('leaves services alone that do not want it: nothing is watched', () => {
    const { portsOf, watched, detector } = makeFilter()
    expect(portsOf(service('ns/web'))).toEqual([...resolvePorts(service('ns/web'), [slice('ns/web', ips)], view(4))])
    expect([watched(), detector.isIdle]).toEqual([0, true])
  })

  it('leaves an ejected endpoint out and says why, for services with the annotation or by configuration', () => {
    for (const [isDefault, record] of [
      [false, wanting],
      [true, service('ns/web')],
    ] as const) {
      const { portsOf, fail } = makeFilter(isDefault)
      expect(portsOf(record)[0]?.cluster).toHaveLength(4)
      expect(fail('10.1.0.2')).toHaveLength(1)
      const [port] = portsOf(record)
      expect(port?.cluster.map(({ ip }) => ip)).toEqual(['10.1.0.1', '10.1.0.3', '10.1.0.4'])
      expect(port?.ejected).toEqual([{ address: '10.1.0.2:8080', why: 'its connection on trial was not answered' }])
      expect(port?.endpoints).toBe(4)
    }
  })

  it('the annotation goes before the configuration', () => {
    const { filter } = makeFilter(true)
    expect(filter.wants(service('ns/web', { outlierEjection: false }))).toBe(false)
    expect(filter.wants(service('ns/web'))).toBe(true)
  })

  it('keeps the endpoints of a Local policy if all of them are ejected', () => {
    const { resolve, fail } = makeFilter()
    const record = service('ns/web', {
      outlierEjection: true,
      internalPolicy: 'Local',
      externalPolicy: 'Local',
      type: 'NodePort',
    })
    const mixed = slice('ns/web', [], {
      endpoints: [endpoint('10.1.0.2'), ...['10.1.0.3', '10.1.0.4'].map((ip) => endpoint(ip, { node: 'there' }))],
    })
    const ports = () => [...resolve(record, [mixed], view(4, { name: 'here' }))]
    ports()
    fail('10.1.0.2')
    expect(ports()[0]?.local.map(({ ip }) => ip)).toEqual(['10.1.0.2'])
  })

  it('forgets services that are gone', () => {
    const { portsOf, filter, detector } = makeFilter()
    portsOf(wanting)
    filter.prune(() => wanting)
    expect(detector.isIdle).toBe(false)
    filter.prune(() => undefined)
    expect(detector.isIdle).toBe(true)
  })
})

it('an engine writes the change when a service is touched, and nothing if nothing changed', async () => {
  const { filter, fail } = makeFilter()
  const harness = new EngineHarness({ resolve: filter.wrap(resolvePorts) })
  await harness.synced(wanting, slice('ns/web', ips))
  const frontend = () => Object.entries(harness.kernel.content()).find(([id]) => id.startsWith('frontend'))?.[1] ?? ''
  expect(frontend()).toContain('10.1.0.2')
  fail('10.1.0.2')
  harness.engine.store.touch('ns/web', 4)
  await harness.tick()
  expect(frontend()).not.toContain('10.1.0.2')
  const writes = harness.kernel.applies.length
  harness.engine.store.touch('ns/unknown', 4)
  await harness.tick()
  expect(harness.kernel.applies.length).toBe(writes)
})
