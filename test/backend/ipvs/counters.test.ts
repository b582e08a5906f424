// How IPVS's statistics of virtual servers become counters of service ports.

import { describe, expect, it } from 'vitest'
import { type CounterReading, PortTotals } from '../../../src/backend/ipvs/counters.ts'

describe('PortTotals', () => {
  const one = (port: string, server: string, connections: number): CounterReading => ({
    family: 4,
    server,
    port,
    statistics: { connections, packetsIn: 2, packetsOut: 3, bytesIn: 4, bytesOut: 5 },
  })
  const shown = (totals: PortTotals, limit: number, ...readings: CounterReading[]) =>
    totals.report(readings, limit).map(({ port, connections }) => `${port} ${connections}`)

  it('sums the servers of a service port', () => {
    const [a, b] = new PortTotals().report([one('ns/a', 'x', 1), one('ns/a', 'y', 2), one('ns/b', 'z', 9)], 5)
    expect(a).toEqual({
      family: 4,
      port: 'ns/a',
      connections: 3,
      packetsIn: 4,
      packetsOut: 6,
      bytesIn: 8,
      bytesOut: 10,
    })
    expect(b?.connections).toBe(9)
  })

  it('continues to count when a server is created again', () => {
    const totals = new PortTotals()
    expect(shown(totals, 5, one('ns/a', 'x', 7), one('ns/a', 'y', 100))).toEqual(['ns/a 107'])
    expect(shown(totals, 5, one('ns/a', 'x', 2), one('ns/a', 'y', 101))).toEqual(['ns/a 110'])
  })

  it('reports the busiest by name and the rest as one, and neither ever decreases', () => {
    const totals = new PortTotals()
    const [a, b, c] = ['ns/a', 'ns/b', 'ns/c'] as const
    expect(shown(totals, 1, one(a, 'x', 3), one(b, 'y', 9), one(c, 'z', 1))).toEqual(['ns/b 9', 'others 4'])
    // ns/a is the busiest now, and what it counts from here on is reported under its name.
    expect(shown(totals, 1, one(a, 'x', 13), one(b, 'y', 9), one(c, 'z', 2))).toEqual(['ns/a 10', 'others 5'])
    expect(shown(totals, 1, one(a, 'x', 14))).toEqual(['ns/a 11', 'others 5'])
  })
})
