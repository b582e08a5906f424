// Sums of packets and bytes over random histories of flows, lists, reports, losses and restarts: exact, and never less than before.

import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import type { FlowTotals } from '../../../src/engine/flows/flow-totals.ts'
import { type MeasuredFlow, TrafficSums } from '../../../src/engine/flows/traffic-sums.ts'
import type { ServicePort } from '../../../src/model/types.ts'
import { servicePort } from '../../support/builders.ts'

const zero: FlowTotals = { packetsIn: 0, bytesIn: 0, packetsOut: 0, bytesOut: 0 }
const names = ['ns/a:http', 'ns/b'] as const
const service = (name: string): string => name.split(':')[0] as string
const makePort = (name: string, ips: readonly string[] = ['10.1.0.0', '10.1.0.1']): ServicePort =>
  servicePort({ name, service: service(name), cluster: ips.map((ip) => ({ ip, port: 8080, local: false })) })
/** The port number says which service port it is. */
const find = ({ destinationPort }: { readonly destinationPort: number }): ServicePort | undefined => {
  const name = names[destinationPort - 80]
  return name === undefined ? undefined : makePort(name)
}

const flowOf = (id: number, traffic: FlowTotals | undefined, port = 0, endpoint = 0): MeasuredFlow => ({
  family: 4,
  protocol: 'tcp',
  id,
  sourcePort: 40_000,
  destination: '172.30.0.1',
  destinationPort: 80 + port,
  replySource: `10.1.0.${endpoint}`,
  replySourcePort: 8080,
  traffic,
})
const counted = (bytes: number): FlowTotals => ({
  packetsIn: Math.ceil(bytes / 100),
  bytesIn: bytes,
  packetsOut: Math.ceil(bytes / 50),
  bytesOut: 3 * bytes,
})

/**
 * The kernel: flows, and reports of ended ones that are not read yet. A list is read in two parts, and what is in it may be old. Here an id is
 * used again once the end of its flow is known; there it belongs to the addresses of a flow and a place in memory, which are seldom the same again.
 */
class Kernel {
  readonly flows = new Map<number, { bytes: number; readonly port: number; readonly endpoint: number }>()
  readonly reports: MeasuredFlow[] = []
  /** Everything that was ever sent. */
  sent = 0

  describe(id: number): MeasuredFlow {
    const { bytes, port, endpoint } = this.flows.get(id) as { bytes: number; port: number; endpoint: number }
    return flowOf(id, counted(bytes), port, endpoint)
  }
}

class History {
  readonly kernel = new Kernel()
  sums = new TrafficSums({ find })
  #list: MeasuredFlow[] | undefined

  total(): FlowTotals {
    const totals = names.map((name) => this.sums.of(4, name) ?? zero)
    return totals.reduce((sum, one) => ({
      packetsIn: sum.packetsIn + one.packetsIn,
      bytesIn: sum.bytesIn + one.bytesIn,
      packetsOut: sum.packetsOut + one.packetsOut,
      bytesOut: sum.bytesOut + one.bytesOut,
    }))
  }

  send(id: number, bytes: number): void {
    const flow = this.kernel.flows.get(id)
    if (flow === undefined && (this.#list !== undefined || this.kernel.reports.some((one) => one.id === id))) return
    if (flow === undefined) this.kernel.flows.set(id, { bytes, port: id % names.length, endpoint: id % 2 })
    else flow.bytes += bytes
    this.kernel.sent += bytes
  }

  end(id: number, isReported: boolean): void {
    if (!this.kernel.flows.has(id)) return
    if (isReported) this.kernel.reports.push(this.kernel.describe(id))
    this.kernel.flows.delete(id)
  }

  deliver(count: number): void {
    for (const flow of this.kernel.reports.splice(0, count)) this.sums.end(flow)
  }

  beginList(): void {
    if (this.#list !== undefined) return
    this.sums.beginList()
    this.#list = [...this.kernel.flows.keys()].map((id) => this.kernel.describe(id))
  }

  /** Reports that came before the end of a list are read before the list counts as complete. */
  endList(isCaughtUp: boolean): void {
    for (const flow of this.#list ?? []) this.sums.list(flow)
    if (isCaughtUp) this.deliver(Number.POSITIVE_INFINITY)
    if (this.#list !== undefined) this.sums.endList(isCaughtUp)
    this.#list = undefined
  }

  restart(): void {
    this.endList(true)
    const saved = JSON.parse(JSON.stringify(this.sums.save()))
    this.sums = new TrafficSums({ find })
    this.sums.load(saved, 0)
    for (const name of names) this.sums.setPorts(service(name), 4, [makePort(name)], 0)
  }
}

type Step = (history: History) => void

const id = fc.integer({ min: 0, max: 5 })
const common: fc.Arbitrary<Step>[] = [
  fc.tuple(id, fc.integer({ min: 1, max: 5_000 })).map(
    ([one, bytes]) =>
      (h: History) =>
        h.send(one, bytes),
  ),
  id.map((one) => (h: History) => h.end(one, true)),
  fc.integer({ min: 1, max: 4 }).map((count) => (h: History) => h.deliver(count)),
  fc.constant((h: History) => h.beginList()),
  fc.boolean().map((isCaughtUp) => (h: History) => h.endList(isCaughtUp)),
  fc.constant((h: History) => h.restart()),
]
const losing: fc.Arbitrary<Step>[] = [
  ...common,
  id.map((one) => (h: History) => h.end(one, false)),
  // Another program sets the counters of a flow back.
  id.map((one) => (h: History) => {
    const flow = h.kernel.flows.get(one)
    if (flow !== undefined) flow.bytes = 0
  }),
]

function expectNotLess(now: FlowTotals, before: FlowTotals): void {
  for (const key of Object.keys(zero) as (keyof FlowTotals)[]) expect(now[key]).toBeGreaterThanOrEqual(before[key])
}

function expectEndpointsAddUp(sums: TrafficSums): void {
  for (const name of names) {
    const port = sums.of(4, name)
    const bytes = [...(port?.endpoints.values() ?? [])].reduce((sum, { bytesIn }) => sum + bytesIn, 0)
    expect(bytes).toBe(port?.bytesIn ?? 0)
  }
}

describe('TrafficSums', () => {
  it('is exact once all reports are read and the open flows are listed', () => {
    fc.assert(
      fc.property(fc.array(fc.oneof(...common), { maxLength: 60 }), (steps) => {
        const history = new History()
        for (const step of steps) {
          const before = history.total()
          step(history)
          expectNotLess(history.total(), before)
          expect(history.total().bytesIn).toBeLessThanOrEqual(history.kernel.sent)
          expectEndpointsAddUp(history.sums)
        }
        history.endList(true)
        history.beginList()
        history.endList(true)
        expect(history.total().bytesIn).toBe(history.kernel.sent)
        expect(history.total().bytesOut).toBe(3 * history.kernel.sent)
      }),
      { numRuns: 500 },
    )
  })

  it('never decreases and never has too much, although reports are lost and counters are set back', () => {
    fc.assert(
      fc.property(fc.array(fc.oneof(...losing), { maxLength: 60 }), (steps) => {
        const history = new History()
        for (const step of steps) {
          const before = history.total()
          step(history)
          expectNotLess(history.total(), before)
          expect(history.total().bytesIn).toBeLessThanOrEqual(history.kernel.sent)
        }
      }),
      { numRuns: 500 },
    )
  })

  it('adds flows that it cannot remember when they end, and not before', () => {
    const sums = new TrafficSums({ find, maxOpen: 1 })
    sums.beginList()
    for (const one of [0, 2]) sums.list(flowOf(one, counted(100)))
    sums.endList(true)
    expect(sums.open).toBe(1)
    expect(sums.of(4, 'ns/a:http')?.bytesIn).toBe(100)
    for (const one of [0, 2]) sums.end(flowOf(one, counted(150)))
    expect(sums.of(4, 'ns/a:http')?.bytesIn).toBe(300)
    expect(sums.open).toBe(0)
  })

  it('counts endpoints beyond the limit in the service port alone', () => {
    const sums = new TrafficSums({ find, maxEndpoints: 1 })
    for (const endpoint of [0, 1]) sums.end(flowOf(endpoint, counted(100), 0, endpoint))
    const port = sums.of(4, 'ns/a:http')
    expect(port?.bytesIn).toBe(200)
    expect([...(port?.endpoints.keys() ?? [])]).toEqual(['10.1.0.0:8080'])
  })

  it('leaves out flows to other addresses, flows that nobody translates, and flows that nothing counts', () => {
    const sums = new TrafficSums({ find })
    sums.end(flowOf(1, counted(100), 7))
    sums.end({ ...flowOf(2, counted(100)), replySource: '172.30.0.1', replySourcePort: 80 })
    sums.end(flowOf(3, undefined))
    expect(names.map((name) => sums.of(4, name))).toEqual([undefined, undefined])
  })

  it('forgets service ports and endpoints that have been gone for long, and keeps those that come back', () => {
    const sums = new TrafficSums({ find, goneMs: 1_000 })
    const add = (endpoint: number) => sums.end(flowOf(1, counted(100), 0, endpoint))
    const forget = (now: number, ports: readonly ServicePort[]) => sums.forget(() => ports, now)
    add(0)
    add(1)
    sums.setPorts('ns/a', 4, [makePort('ns/a:http', ['10.1.0.0'])], 0)
    forget(999, [])
    expect([...(sums.of(4, 'ns/a:http')?.endpoints.keys() ?? [])]).toHaveLength(2)
    sums.setPorts('ns/a', 4, [makePort('ns/a:http', ['10.1.0.0'])], 999)
    forget(1_999, [])
    expect([...(sums.of(4, 'ns/a:http')?.endpoints.keys() ?? [])]).toEqual(['10.1.0.0:8080'])
    expect(sums.of(4, 'ns/a:http')?.bytesIn).toBe(200)
    sums.setPorts('ns/a', 4, [], 2_000)
    forget(2_500, [])
    expect(sums.of(4, 'ns/a:http')).toBeDefined()
    forget(3_000, [])
    expect(sums.of(4, 'ns/a:http')).toBeUndefined()
  })

  it('forgets an endpoint whose last flow ends after it has gone', () => {
    const sums = new TrafficSums({ find, goneMs: 1_000 })
    sums.end(flowOf(1, counted(100), 0, 1))
    const there = [makePort('ns/a:http', ['10.1.0.0'])]
    sums.forget(() => there, 0)
    sums.forget(() => there, 1_000)
    expect([...(sums.of(4, 'ns/a:http')?.endpoints.keys() ?? [])]).toEqual([])
    expect(sums.of(4, 'ns/a:http')?.bytesIn).toBe(100)
  })
})
