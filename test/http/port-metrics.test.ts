// Which service ports have metrics of their own, and that no series ever decreases.

import { describe, expect, it } from 'vitest'
import type { PortCounters } from '../../src/backend/backend.ts'
import { BusiestPorts } from '../../src/http/feeds/port-metrics.ts'

describe('BusiestPorts', () => {
  const one = (port: string, connections: number): PortCounters => ({
    family: 4,
    port,
    protocol: 'tcp',
    connections,
    endpoints: new Map(),
  })
  const shown = (busiest: BusiestPorts, limit: number, ...counters: PortCounters[]) =>
    busiest.report(counters, limit).map(({ port, connections }) => `${port} ${connections}`)

  it('reports the busiest by name and the rest as one, and neither ever decreases', () => {
    const busiest = new BusiestPorts()
    const [a, b, c] = ['ns/a', 'ns/b', 'ns/c'] as const
    expect(shown(busiest, 1, one(a, 3), one(b, 9), one(c, 1))).toEqual(['ns/b 9', 'others 4'])
    // ns/a is the busiest now, and what it counts from here on is reported under its name.
    expect(shown(busiest, 1, one(a, 13), one(b, 9), one(c, 2))).toEqual(['ns/a 10', 'others 5'])
    expect(shown(busiest, 1, one(a, 14))).toEqual(['ns/a 11', 'others 5'])
  })

  it('leaves packets and bytes out where nothing counts them', () => {
    expect(new BusiestPorts().report([one('ns/a', 3)], 5)[0]?.bytesIn).toBeUndefined()
    const counted = { ...one('ns/a', 3), bytesIn: 7, bytesOut: 8, packetsIn: 1, packetsOut: 2 }
    expect(new BusiestPorts().report([counted], 5)[0]).toMatchObject({ bytesIn: 7, bytesOut: 8, packetsIn: 1 })
  })
})
