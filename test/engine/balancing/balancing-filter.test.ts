// Ports get the configured algorithm and the steps of new endpoints; the timer exists only while something starts.

import { describe, expect, it } from 'vitest'
import { EndpointBalancing } from '../../../src/daemon/resilience/endpoint-balancing.ts'
import type { ServiceRecord } from '../../../src/model/types.ts'
import { endpoint, service, slice, view } from '../../support/builders.ts'
import { FakeClock } from '../../support/fake-clock.ts'

function open(settings: Partial<{ algorithm: string; slowStart: number }>, record: ServiceRecord) {
  const clock = new FakeClock()
  const touched: string[] = []
  let ips: readonly string[] = []
  const balancing = new EndpointBalancing({
    settings: { algorithm: 'mode', slowStart: 0, ...settings } as never,
    store: () => ({ service: () => record, touch: (key, family) => touched.push(`${family} ${key}`) }),
    weighByCapacity: () => undefined,
    clock,
  })
  const plan = (...given: string[]) => {
    ips = given.length > 0 ? given : ips
    const slices = [slice(ips.map((ip) => endpoint(ip, 'here')))]
    return [...balancing.resolve(record, slices, view({ name: 'here' }))][0]
  }
  return { balancing, clock, touched, plan }
}

describe('balancing', () => {
  it('changes nothing without a setting', () => {
    const { plan, clock } = open({}, service())
    const port = plan('10.0.0.1', '10.0.0.2')
    expect(port).not.toHaveProperty('algorithm')
    expect(port).not.toHaveProperty('slowStart')
    expect(clock.armed).toBe(0)
  })

  it('takes the algorithm of the configuration where the service names none', () => {
    const configured = { algorithm: 'consistent-hash' }
    expect(open(configured, service()).plan('10.0.0.1')?.algorithm).toBe('consistent-hash')
    expect(open(configured, service({ algorithm: 'random' })).plan('10.0.0.1')?.algorithm).toBe('random')
  })

  it('has a service planned again at each step, and no timer when all have started', async () => {
    const { plan, clock, touched } = open({}, service({ slowStartMs: 10_000, internalPolicy: 'Local' }))
    plan('10.0.0.1')
    expect(clock.armed).toBe(0)
    const started = plan('10.0.0.1', '10.0.0.2')
    expect(started?.cluster.length === 0 ? started.local[1] : started?.cluster[1]).toMatchObject({ startStep: 1 })
    let plans = 0
    for (let i = 0; i < 40 && clock.armed > 0; i++) {
      const before = touched.length
      await clock.advance(500)
      if (touched.length > before) {
        plans++
        plan()
      }
    }
    expect(plans).toBe(10)
    expect(clock.armed).toBe(0)
    expect(new Set(touched)).toEqual(new Set(['4 ns1/svc1']))
    expect(JSON.stringify(plan())).not.toContain('startStep')
  })

  it('keeps an endpoint of both lists one object', () => {
    const { plan } = open(
      { slowStart: 10_000 },
      service({
        type: 'NodePort',
        externalPolicy: 'Local',
        ports: [{ name: 'p80', protocol: 'tcp', port: 80, nodePort: 3001 }],
      }),
    )
    plan('10.0.0.1')
    const port = plan('10.0.0.1', '10.0.0.2')
    expect(port?.cluster[1]).toMatchObject({ startStep: 1 })
    expect(port?.local[1]).toBe(port?.cluster[1])
  })

  it('stops its timer when it is closed', () => {
    const { plan, clock, balancing } = open({ slowStart: 10_000 }, service())
    plan('10.0.0.1')
    plan('10.0.0.1', '10.0.0.2')
    expect(clock.armed).toBe(1)
    balancing.close()
    expect(clock.armed).toBe(0)
  })
})
