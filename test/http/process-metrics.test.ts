import { connect } from 'node:net'
import { describe, expect, it } from 'vitest'
import { findMode } from '../../src/backend/modes.ts'
import { readProcessMetrics } from '../../src/http/feeds/process-metrics.ts'
import { declarationsFor } from '../../src/http/metric-table.ts'
import { MetricsRegistry } from '../../src/http/registry/metrics-registry.ts'

const names = [
  'process_network_receive_bytes_total',
  'process_network_transmit_bytes_total',
  'process_virtual_memory_max_bytes',
]

async function read(files?: Readonly<Record<string, string>>): Promise<readonly number[]> {
  const declarations = declarationsFor(findMode('nftables'), false)
  const registry = new MetricsRegistry(declarations)
  readProcessMetrics(registry, files === undefined ? undefined : (file) => files[file] ?? '')
  const text = await registry.text()
  return names.map((name) => Number(new RegExp(`^${name} (\\S+)$`, 'm').exec(text)?.[1]))
}

describe('the metrics of the process', () => {
  it('are those of /proc', async () => {
    const netstat = 'TcpExt: A B\nTcpExt: 1 2\nIpExt: InNoRoutes InOctets OutOctets\nIpExt: 0 1234 567\n'
    const limits =
      'Limit                     Soft Limit           Hard Limit           Units\nMax address space         4096                 unlimited            bytes\n'
    expect(await read({ 'net/netstat': netstat, limits })).toEqual([1234, 567, 4096])
  })

  it('are zero and unlimited where nothing can be read', async () => {
    expect(await read({})).toEqual([0, 0, 2 ** 64])
  })

  it('grow with the traffic of this machine', async () => {
    const [before = 0] = await read()
    await new Promise((resolve) => connect(1, '127.0.0.1').once('error', resolve).once('connect', resolve))
    const [after = 0] = await read()
    expect(after).toBeGreaterThan(before)
  })
})
