// The table that answers packets of connections to endpoints that are gone, as nft lists it: both families and both protocols.

import { expect, it } from 'vitest'
import { ResetTable } from '../../src/backend/resets/reset-table.ts'
import { enterNamespace } from '../lab/entered-namespace.ts'
import { FakeClock } from '../support/fake-clock.ts'
import { until } from '../support/until.ts'

const hourMs = 3_600_000
const connection4 = { source: '10.0.0.9', sourcePort: 40_000, destination: '172.30.0.41', destinationPort: 80 }
const connection6 = { source: 'fd00::9', sourcePort: 40_000, destination: 'fd00:1::41', destinationPort: 80 }

it('exists while there are connections, with rules that nft reads, and goes an hour after the last one', async () => {
  const namespace = enterNamespace()
  const clock = new FakeClock()
  const table = new ResetTable(clock)
  const tables = () => namespace.exec('nft', ['list', 'tables'])
  try {
    await table.add(4, 'tcp', [])
    expect(tables()).toBe('')
    await table.add(4, 'tcp', [connection4])
    await table.add(4, 'udp', [connection4])
    await table.add(6, 'tcp', [connection6])
    const ipv4 = namespace.exec('nft', ['list', 'table', 'ip', 'sluice-resets'])
    expect(ipv4.match(/10\.0\.0\.9 \. 40000 \. 172\.30\.0\.41 \. 80/g)).toHaveLength(2)
    expect(ipv4.match(/tcp sport .* @tcp-connections reject with tcp reset/g)).toHaveLength(2)
    expect(ipv4.match(/delete @udp-connections .* reject/g)).toHaveLength(2)
    const ipv6 = namespace.exec('nft', ['list', 'table', 'ip6', 'sluice-resets'])
    expect(ipv6).toContain('fd00::9 . 40000 . fd00:1::41 . 80')
    expect(ipv6.match(/@tcp-connections reject with tcp reset/g)).toHaveLength(2)
    await clock.advance(hourMs - 1)
    await table.add(6, 'tcp', [connection6])
    await clock.advance(1)
    await until('the table of IPv4 is gone', () => tables() === 'table ip6 sluice-resets\n')
    table.close()
    expect(tables()).toBe('')
  } finally {
    table.close()
    namespace.leave()
  }
})
