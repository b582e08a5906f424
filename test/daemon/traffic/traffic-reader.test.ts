// How readings of counters become the answer of /v1/traffic: how often the data plane is read, rates, and sums that never decrease.

import { describe, expect, it } from 'vitest'
import type { PortCounters } from '../../../src/backend/backend.ts'
import { TrafficReader } from '../../../src/daemon/traffic/traffic-reader.ts'
import { FakeClock } from '../../support/fake-clock.ts'

describe('TrafficReader', () => {
  const port = (name: string, connections: number, endpoints: Record<string, number> = {}): PortCounters => ({
    family: 4,
    port: name,
    protocol: 'tcp',
    connections,
    endpoints: new Map(Object.entries(endpoints).map(([address, count]) => [address, { connections: count }])),
  })

  function make(counters: () => readonly PortCounters[] | Promise<readonly PortCounters[]>) {
    const clock = new FakeClock(Date.UTC(2026, 0, 2))
    let reads = 0
    const backend = {
      name: 'memory',
      counters: async () => {
        reads++
        return counters()
      },
    }
    return {
      clock,
      reads: () => reads,
      reader: new TrafficReader({ backend, enabled: true, countsBytes: false, clock }),
    }
  }

  it('reads nothing until a client asks, once for those who ask together, and again after two seconds', async () => {
    const { clock, reads, reader } = make(() => [port('ns/a:http', 1)])
    expect(reads()).toBe(0)
    await Promise.all([reader.traffic(''), reader.counters(), reader.traffic('ns/a')])
    await clock.advance(1_900)
    await reader.traffic('')
    expect(reads()).toBe(1)
    await clock.advance(200)
    await reader.traffic('')
    expect(reads()).toBe(2)
  })

  it('reads for a twentieth of the time at most', async () => {
    const { clock, reads, reader } = make(async () => {
      await clock.advance(500)
      return [port('ns/a:http', 1)]
    })
    await reader.traffic('')
    await clock.advance(9_900)
    await reader.traffic('')
    expect(reads()).toBe(1)
    await clock.advance(200)
    await reader.traffic('')
    expect(reads()).toBe(2)
  })

  it('sums connections from a reading that is fresh, and otherwise from one that it does not keep', async () => {
    let list = [port('ns/a:http', 10), port('ns/b', 30)]
    const { clock, reads, reader } = make(() => list)
    expect(await reader.sumConnections()).toBe(40)
    await reader.traffic('')
    expect(reads()).toBe(2)
    list = [port('ns/b', 35)]
    expect(await reader.sumConnections()).toBe(40)
    expect(reads()).toBe(2)
    await clock.advance(3_000)
    expect(await reader.sumConnections()).toBe(35)
    const { ports } = await reader.traffic('')
    expect(ports[0]).toMatchObject({ connections: 35, connectionsPerSecond: 1.7 })
  })

  it('lists all ports without endpoints, and the ports of one service with them, with rates from two readings', async () => {
    let list = [port('ns/a:http', 10, { '10.0.0.1:80': 4, '10.0.0.2:80': 6 }), port('ns/b', 30)]
    const { clock, reader } = make(() => list)
    const first = await reader.traffic('')
    expect(first).toMatchObject({ uncounted: '', accounting: false, readAt: '2026-01-02T00:00:00Z' })
    expect(first.ports.map(({ service, port: name, connections }) => [service, name, connections])).toEqual([
      ['ns/b', '', 30],
      ['ns/a', 'http', 10],
    ])
    expect(first.ports[0]?.connectionsPerSecond).toBeNull()
    list = [port('ns/a:http', 60, { '10.0.0.1:80': 29, '10.0.0.2:80': 31 }), port('ns/b', 30)]
    await clock.advance(5_000)
    const { ports } = await reader.traffic('ns/a')
    expect(ports).toMatchObject([{ service: 'ns/a', port: 'http', connections: 60, connectionsPerSecond: 10 }])
    expect(ports[0]?.endpoints).toMatchObject([
      { address: '10.0.0.2:80', connections: 31, connectionsPerSecond: 5 },
      { address: '10.0.0.1:80', connections: 29, connectionsPerSecond: 5 },
    ])
  })

  it('never reports less than before, although another program removed counters', async () => {
    let connections = 50
    const { clock, reader } = make(() => [port('ns/a', connections)])
    const read = async () => {
      await clock.advance(3_000)
      return (await reader.counters())[0]?.connections
    }
    expect(await read()).toBe(50)
    connections = 2
    expect(await read()).toBe(50)
    connections = 5
    expect(await read()).toBe(53)
    connections = 0
    expect(await read()).toBe(53)
  })

  it('says why nothing is counted', async () => {
    const clock = new FakeClock(0)
    const off = new TrafficReader({ backend: { name: 'nftables' }, enabled: false, countsBytes: false, clock })
    expect(await off.traffic('')).toMatchObject({
      uncounted: expect.stringContaining('traffic.counters is false'),
      ports: [],
      readAt: '',
    })
  })

  it('adds packets and bytes that are counted elsewhere, and says why some are missing', async () => {
    const { reader } = make(() => [port('ns/a:http', 3, { '10.0.0.1:80': 3, '10.0.0.2:80': 0 }), port('ns/b', 0)])
    const totals = { packetsIn: 10, bytesIn: 1_000, packetsOut: 20, bytesOut: 2_000 }
    const zero = { packetsIn: 0, bytesIn: 0, packetsOut: 0, bytesOut: 0 }
    let reads = 0
    reader.setAccounting({
      isCounting: true,
      remark: 'Some are missing.',
      read: async () => void reads++,
      of: (_, name) =>
        name === 'ns/a:http' ? { ...totals, endpoints: new Map([['10.0.0.1:80', totals]]) } : undefined,
    })
    const { accounting, unaccounted, ports } = await reader.traffic('ns/a')
    expect({ accounting, unaccounted, reads }).toEqual({ accounting: true, unaccounted: 'Some are missing.', reads: 1 })
    expect(ports).toMatchObject([{ connections: 3, ...totals }])
    expect(ports[0]?.endpoints).toMatchObject([
      { address: '10.0.0.1:80', ...totals },
      { address: '10.0.0.2:80', ...zero },
    ])
    expect((await reader.traffic('')).ports[1]).toMatchObject({ service: 'ns/b', ...zero })
  })

  it('says that packets and bytes are not counted where only connections are', async () => {
    const { reader } = make(() => [port('ns/a', 1)])
    expect(await reader.traffic('')).toMatchObject({
      accounting: false,
      unaccounted: 'Packets and bytes are not counted: traffic.accounting is off.',
      ports: [{ bytesIn: null }],
    })
  })
})
