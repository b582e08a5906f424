// One entry per service port: what it is split into for people, and whether its chains are found in saved tables.

import { expect, it } from 'vitest'
import { type PortEntry, splitEntry } from '../../../src/backend/iptables/entries.ts'
import { WrittenRules } from '../../../src/backend/iptables/write/written.ts'
import { countUses, SavedServiceChains } from '../../../src/backend/iptables-kit/saved-uses.ts'
import { endpoint, service, slice, tcp } from '../../support/builders.ts'
import { WriterHarness } from './writer-harness.ts'

function portOf(...ips: string[]): PortEntry {
  const harness = new WriterHarness()
  harness.put(
    service({ key: 'ns/s', clusterIps: ['172.30.0.1'], type: 'NodePort', ports: [tcp(80, 'p80', 3001)] }),
    slice(
      ips.map((ip) => endpoint(ip)),
      { key: 'ns/s-a', service: 'ns/s' },
    ),
  )
  return harness.ledger.claims('ns/s')[0] as PortEntry
}

it('is split into rules in shared chains, and every chain with its own rules', () => {
  const parts = splitEntry(portOf('10.0.0.1', '10.0.0.2'))
  expect(parts.map(({ kind, id }) => `${kind} ${id.replace(/-[A-Z0-9]{16}$/, '')}`)).toEqual([
    'rules nat rules ns/s:p80/tcp',
    'chain nat KUBE-EXT',
    'chain nat KUBE-SVC',
    'chain nat KUBE-SEP',
    'chain nat KUBE-SEP',
  ])
  for (const { kind, id, digest } of parts) {
    for (const line of digest.trim().split('\n')) if (kind === 'chain') expect(line).toContain(`-A ${id.slice(4)} `)
  }
  expect(parts[2]?.digest).toContain('"ns/s:p80 -> 10.0.0.2:80"')
  // Without endpoints there are only rules that refuse traffic.
  expect(splitEntry(portOf()).map(({ id }) => id)).toEqual(['filter rules ns/s:p80/tcp'])
})

it('finds out from saved tables whether all chains are known, and if not, which chains there are', () => {
  const entry = portOf('10.0.0.1', '10.0.0.2')
  const written = new WrittenRules()
  written.put(entry)
  const find = (...chains: string[]) => {
    const serviceChains = new SavedServiceChains()
    const counts = { uses: new Map<string, number>(), jumps: new Set<string>(), serviceChains, table: '' }
    const lines = [
      ':PREROUTING ACCEPT [0:0]',
      ...chains.map((chain) => `:${chain} - [0:0]`),
      '-A KUBE-SVC-X -j Y',
      'COMMIT',
    ]
    countUses('*filter\n:KUBE-SEP-OTHERTABLE - [0:0]\nCOMMIT\n*nat\n', counts)
    // iptables-save prints in pieces.
    for (let at = 0; at < lines.length; at += 2) countUses(`${lines.slice(at, at + 2).join('\n')}\n`, counts)
    return serviceChains
  }
  const chains = entry.rules.chains()
  expect(chains).toHaveLength(4)
  expect(find(...chains, 'CNI-X', 'KUBE-SERVICES').checksum.equals(written.chainChecksum)).toBe(true)
  expect(find(...chains.toReversed()).checksum.equals(written.chainChecksum)).toBe(true)
  for (const other of [chains.slice(1), [...chains, 'KUBE-SEP-MORE'], [...chains.slice(1), 'KUBE-SEP-OTHER']]) {
    const found = find('CNI-A', ...other, 'KUBE-SERVICES', 'CNI-X')
    expect(found.checksum.equals(written.chainChecksum)).toBe(false)
    expect(found.names()).toEqual(other)
  }
  written.drop(entry.id)
  expect(find().checksum.equals(written.chainChecksum)).toBe(true)
})
