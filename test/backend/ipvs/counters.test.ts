// How IPVS's statistics of virtual servers become counters of service ports.

import { describe, expect, it } from 'vitest'
import { type CounterReading, PortTotals } from '../../../src/backend/ipvs/counters.ts'

describe('PortTotals', () => {
  const statisticsOf = (connections: number) => ({ connections, packetsIn: 2, packetsOut: 3, bytesIn: 4, bytesOut: 5 })
  const one = (
    port: string,
    server: string,
    connections: number,
    endpoints: readonly string[] = [],
  ): CounterReading => ({
    family: 4,
    server,
    key: { family: 4, protocol: 'tcp', ip: server.slice(4), port: 80 },
    port,
    statistics: statisticsOf(connections),
    endpoints,
  })
  const none = async () => []
  const shown = async (totals: PortTotals, ...readings: CounterReading[]) =>
    (await totals.report(readings, none)).map(({ port, connections }) => `${port} ${connections}`)

  it('sums the servers of a service port', async () => {
    const readings = [one('ns/a', 'tcp x', 1), one('ns/a', 'tcp y', 2), one('ns/b', 'tcp z', 9)]
    const [a, b] = await new PortTotals().report(readings, none)
    expect(a).toEqual({
      family: 4,
      port: 'ns/a',
      protocol: 'tcp',
      endpoints: new Map(),
      connections: 3,
      packetsIn: 4,
      packetsOut: 6,
      bytesIn: 8,
      bytesOut: 10,
    })
    expect(b?.connections).toBe(9)
  })

  it('continues to count when a server is created again', async () => {
    const totals = new PortTotals()
    expect(await shown(totals, one('ns/a', 'tcp x', 7), one('ns/a', 'tcp y', 100))).toEqual(['ns/a 107'])
    expect(await shown(totals, one('ns/a', 'tcp x', 2), one('ns/a', 'tcp y', 101))).toEqual(['ns/a 110'])
  })

  it('sums destinations by endpoint, asks only servers that have counted, and leaves out endpoints that are gone', async () => {
    const totals = new PortTotals()
    const endpoints = ['10.0.0.1:80', '10.0.0.2:80']
    let counts: Record<string, number> = { '10.0.0.1': 3, '10.0.0.2': 4, '10.0.0.3': 9 }
    const asked: string[] = []
    const read = async (key: { readonly ip: string }) => {
      asked.push(key.ip)
      return Object.entries(counts).map(([ip, count]) => ({
        ...{ ip, port: 80, weight: 1, method: 0, active: 0, inactive: 0 },
        statistics: statisticsOf(count),
      }))
    }
    const report = async (x: number, y: number, now = endpoints) => {
      asked.length = 0
      const [found] = await totals.report([one('ns/a', 'tcp x', x, now), one('ns/a', 'tcp y', y, now)], read)
      return [...(found?.endpoints ?? [])].map(([endpoint, { connections }]) => `${endpoint} ${connections}`)
    }
    expect(await report(7, 7)).toEqual(['10.0.0.1:80 6', '10.0.0.2:80 8'])
    expect(asked).toEqual(['x', 'y'])
    // The kernel may not have added up everything at the first reading.
    counts = { '10.0.0.1': 3, '10.0.0.2': 5 }
    expect(await report(7, 7)).toEqual(['10.0.0.1:80 6', '10.0.0.2:80 10'])
    expect(asked).toEqual(['x', 'y'])
    expect(await report(7, 7)).toEqual(['10.0.0.1:80 6', '10.0.0.2:80 10'])
    expect(asked).toEqual([])
    // The second destination was created again.
    counts = { '10.0.0.1': 3, '10.0.0.2': 1 }
    expect(await report(8, 7, ['10.0.0.2:80', '10.0.0.4:80'])).toEqual(['10.0.0.2:80 11', '10.0.0.4:80 0'])
    expect(asked).toEqual(['x'])
  })
})
