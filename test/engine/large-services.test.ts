// Checks that a service which is too large is refused alone, and that a large one does not make others wait.

import { describe, expect, it } from 'vitest'
import { defaultSluiceConfig } from '../../src/config/sluice-config.ts'
import { type Logger, silentLogger } from '../../src/lib/log.ts'
import { FakeClock } from '../support/fake-clock.ts'
import { EngineHarness, service, slice } from './engine-harness.ts'

const { limits } = defaultSluiceConfig()
const ips = (length: number) => Array.from({ length }, (_, i) => `20.0.${i >> 8}.${i & 255}`)
const small = (n: number, given = {}) => service(`ns/small${n}`, { clusterIps: [`10.96.1.${n}`], ...given })
const large = (addresses: number) => service('ns/large', { clusterIps: ['10.96.2.1'], externalIps: ips(addresses) })
const wide = { ...limits, addressesPerService: 4_000 }
const harness = () => new EngineHarness({ limits: wide })

describe('a service over a limit', () => {
  it('is quarantined with an error that names the limit; all others are programmed', async () => {
    const { engine, kernel } = await harness().synced(small(1), large(5_000))
    expect(kernel.ids()).toEqual(['base cidrs', 'base table', 'frontend 10.96.1.1:80/tcp'])
    expect(engine.quarantined()).toMatchObject([{ service: 'ns/large', error: { code: 'limit' } }])
    expect(engine.quarantined()[0]?.error.message).toContain('5000 external and load-balancer IPs')
    expect(engine.quarantined()[0]?.error.message).toContain('limits.addressesPerService allows (4000)')
    expect(engine.portsOf('ns/large', 4)).toEqual([])
  })

  it('is logged once for each limit, however often it changes', async () => {
    const lines: string[] = []
    const log: Logger = { ...silentLogger, error: (line) => void lines.push(line), named: () => log }
    const test = await new EngineHarness({ limits: { ...limits, slicesPerService: 2 }, log }).synced(small(1))
    for (let i = 0; i < 6; i++) {
      test.put(slice('ns/small1', [`20.0.0.${i}`], { key: `ns/small1-${i}` }))
      await test.tick()
    }
    expect(lines.filter((line) => line.includes('cannot be programmed'))).toHaveLength(1)
    expect(test.engine.quarantined()[0]?.error.message).toContain('6 EndpointSlices')
  })

  it('keeps what it had until it fits again or is deleted', async () => {
    const test = await harness().synced(large(1))
    const before = test.kernel.content()
    test.put(large(5_000))
    await test.tick()
    expect(test.kernel.content()).toEqual(before)
    expect(test.last().refused).toMatchObject([{ service: 'ns/large', id: '' }])
    test.put(large(2))
    await test.tick()
    expect(test.engine.quarantined()).toEqual([])
    expect(test.kernel.ids()).toContain('frontend 20.0.0.1:80/tcp')
    test.put(large(5_000))
    await test.tick()
    test.services.drop('ns/large')
    await test.tick()
    expect(test.kernel.ids()).toEqual(['base cidrs', 'base table'])
    expect(test.engine.quarantined()).toEqual([])
  })

  it('keeps an address that it held', async () => {
    const test = await harness().synced(large(1))
    const rival = small(2, { created: 5_000, externalIps: ips(1) })
    test.put(large(5_000), rival)
    await test.tick()
    expect(test.engine.conflicts()).toMatchObject([{ winner: 'ns/large', loser: 'ns/small2' }])
  })

  it('counts endpoints and slices of each service', async () => {
    const test = await new EngineHarness({ limits: { ...limits, endpointsPerService: 3 } }).synced(
      small(1),
      slice('ns/small1', ips(4)),
      small(2),
      slice('ns/small2', ips(3)),
    )
    expect(test.engine.quarantined().map((one) => one.service)).toEqual(['ns/small1'])
    expect(test.engine.quarantined()[0]?.error.message).toContain('4 endpoints')
  })
})

/** A clock on which every look at the time takes a while: no work fits into its time slice. */
class SlowClock extends FakeClock {
  #looks = 0

  override monotonic(): number {
    return super.monotonic() + ++this.#looks * 10
  }
}

describe('many changed services', () => {
  const many = (namespace: string, count: number, created = 0) =>
    Array.from({ length: count }, (_, i) =>
      service(`${namespace}/s${i}`, { clusterIps: [`10.97.${i >> 8}.${i & 255}`], created }),
    )

  it('of one namespace do not keep a service of another waiting', async () => {
    const test = await harness().synced()
    test.kernel.applies.length = 0
    test.put(...many('busy', 350), small(1))
    await test.tick()
    const { applies } = test.kernel
    expect(applies.map(({ put }) => put.length)).toEqual([100, 100, 100, 51])
    expect(applies[0]?.put).toContain('frontend 10.96.1.1:80/tcp')
    expect(test.reports.map(({ services }) => services.length)).toEqual([0, 100, 100, 100, 51])
    const scratch = await harness().synced(...test.engine.store.records())
    expect(test.kernel.content()).toEqual(scratch.kernel.content())
  })

  it('leave no gap for a service that gets an address of one of them', async () => {
    const rival = small(1, { clusterIps: ['10.97.0.0'], created: 5_000 })
    const test = await harness().synced(...many('busy', 250), rival)
    const id = 'frontend 10.97.0.0:80/tcp'
    const seen: boolean[] = []
    test.journal.subscribe({ report: () => seen.push(test.kernel.held.has(id)) })
    for (let i = 0; i < 250; i++) test.services.drop(`busy/s${i}`)
    await test.tick()
    expect(seen.length).toBeGreaterThan(2)
    expect(seen).not.toContain(false)
    expect(test.kernel.held.get(id)?.digest).toContain('ns/small1')
  })
})

describe('a large service', () => {
  it('lets others go first while it is planned, also if it changes, shrinks or goes meanwhile', async () => {
    for (const [what, change] of [
      ['stays', () => {}],
      ['changes', (test: EngineHarness) => test.put(large(2_500))],
      ['shrinks', (test: EngineHarness) => test.put(large(3))],
      ['goes', (test: EngineHarness) => test.services.drop('ns/large')],
    ] as const) {
      let turns = 0
      const clock = new SlowClock()
      const test: EngineHarness = new EngineHarness({
        limits: wide,
        clock,
        waitForTurn: async () => {
          // The first changes arrive while the large service is planned.
          if (turns++ % 20 === 10 && turns < 100) test.put(small(turns, { created: turns }))
          if (turns === 75) change(test)
        },
      })
      await test.synced(small(1))
      turns = 0
      test.kernel.applies.length = 0
      test.put(large(3_000))
      await test.clock.advance(100_000)
      const sizes = test.kernel.applies.map(({ put }) => put.length)
      const giant = sizes.findIndex((size) => size > 1_000)
      expect([what, giant === -1 || sizes.slice(0, giant).filter((size) => size === 1).length > 2]).toEqual([
        what,
        true,
      ])
      const scratch = await harness().synced(...test.engine.store.records())
      expect([what, test.kernel.content()]).toEqual([what, scratch.kernel.content()])
      expect(test.engine.status('ns/large').families[0]?.pending).toBe(false)
    }
  })

  it('is written after all others', async () => {
    const test = await harness().synced(small(1))
    test.kernel.applies.length = 0
    test.put(large(3_000), small(2))
    await test.tick()
    const { applies } = test.kernel
    expect(applies.map(({ put }) => put.length)).toEqual([1, 3_001])
    expect(applies[0]?.put).toEqual(['frontend 10.96.1.2:80/tcp'])
    applies.length = 0
    test.services.drop('ns/large')
    test.services.drop('ns/small2')
    await test.tick()
    expect(applies.map(({ drop }) => drop.length)).toEqual([1, 3_001])
  })

  it('is one with many source ranges, too', async () => {
    const test = await harness().synced(small(1))
    test.kernel.applies.length = 0
    const sourceRanges = ips(1_000).map((ip) => `${ip}/32`)
    test.put(small(3, { type: 'LoadBalancer', loadBalancerIps: ['30.0.0.1'], sourceRanges }), small(4))
    await test.tick()
    expect(test.kernel.applies[0]?.put).toEqual(['frontend 10.96.1.4:80/tcp'])
  })

  it('pauses while others have changes, and goes on at once, without the minimum distance between syncs', async () => {
    const test = await harness().synced(small(1))
    const { kernel, reports } = test
    await test.tick()
    kernel.pausesAfter = 1_000
    const arrivals = [small(2), small(3)]
    const before = reports.length
    kernel.onApplied = () => {
      const next = arrivals.shift()
      if (next !== undefined) test.put(next)
    }
    test.put(large(3_000))
    await test.clock.advance(0)
    expect(reports.slice(before).map(({ put, unfinished, services }) => [put, unfinished, services])).toEqual([
      [1_000, true, []],
      [1_001, true, ['ns/small2']],
      [1_002, undefined, ['ns/large', 'ns/small3']],
    ])
    expect(kernel.held.size).toBe(3_001 + 3 + 2)
    kernel.onApplied = () => test.put(small(4))
    test.services.drop('ns/large')
    await test.tick()
    expect(kernel.ids().filter((id) => id.includes('20.0.'))).toEqual([])
    expect(kernel.ids()).toContain('frontend 10.96.1.4:80/tcp')
  })

  it('does not hold back an entry that a small service wins from it', async () => {
    const test = await harness().synced(large(3_000))
    test.kernel.applies.length = 0
    test.put(large(2_999), small(1, { externalIps: ['20.0.11.183'] }))
    await test.tick()
    expect(test.kernel.held.get('frontend 20.0.11.183:80/tcp')?.digest).toContain('ns/small1')
  })

  it('is planned again at once if another large one takes an address from it', async () => {
    const test = await harness().synced(small(1))
    const loser = service('ns/loser', { clusterIps: ['10.96.2.2'], externalIps: ips(3_000), created: 5_000 })
    test.put(loser, large(2_400))
    await test.tick()
    const { held } = test.kernel
    expect(held.get('frontend 20.0.0.0:80/tcp')?.digest).toContain('ns/large')
    expect(held.get('frontend 20.0.11.183:80/tcp')?.digest).toContain('ns/loser')
  })

  it('ends as planning everything from scratch', async () => {
    const test = await harness().synced(small(1), large(3_000))
    test.kernel.pausesAfter = 100
    let turn = 0
    test.kernel.onApplied = () => void (turn++ < 30 && test.put(small(turn % 9, { created: turn })))
    for (const addresses of [2_500, 3_500, 10, 2_400]) {
      test.put(large(addresses))
      await test.tick()
    }
    const scratch = await harness().synced(...test.engine.store.records())
    expect(test.kernel.content()).toEqual(scratch.kernel.content())
  })
})
