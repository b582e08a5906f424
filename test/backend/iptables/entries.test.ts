// One entry per service port: what it is made of, and what of it can be told apart.

import { expect, it } from 'vitest'
import { chainsOf, type IptEntry, partsOf, sameRules } from '../../../src/backend/iptables/entries.ts'
import { WrittenRules } from '../../../src/backend/iptables/written.ts'
import { countUses, SavedServiceChains } from '../../../src/backend/iptables-kit/saved-uses.ts'
import { endpoint, service, slice, tcp } from '../../support/builders.ts'
import { WriterHarness } from './writer-harness.ts'

function portOf(...ips: string[]): IptEntry {
  const harness = new WriterHarness()
  harness.put(
    service({ key: 'ns/s', clusterIps: ['172.30.0.1'], type: 'NodePort', ports: [tcp(80, 'p80', 3001)] }),
    slice(
      ips.map((ip) => endpoint(ip)),
      { key: 'ns/s-a', service: 'ns/s' },
    ),
  )
  return harness.ledger.claims('ns/s')[0] as IptEntry
}

it('is told in parts: rules in shared chains, and every chain with its own', () => {
  const parts = partsOf(portOf('10.0.0.1', '10.0.0.2'))
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
  // Without endpoints there is nothing but refusals.
  expect(partsOf(portOf()).map(({ id }) => id)).toEqual(['filter rules ns/s:p80/tcp'])
})

it('is the same rule for rule, whatever endpoints there are elsewhere', () => {
  const entry = portOf('10.0.0.1')
  const more = { ...entry, digest: `${entry.digest}# and 7 endpoints that are not reached from here\n` }
  expect(more.digest).not.toBe(entry.digest)
  expect(sameRules(entry, more)).toBe(true)
  expect(sameRules(entry, portOf('10.0.0.2'))).toBe(false)
})

it('tells from saved tables whether all chains are known, and else which ones there are', () => {
  const entry = portOf('10.0.0.1', '10.0.0.2')
  const book = new WrittenRules()
  book.put(entry)
  const look = (...chains: string[]) => {
    const serviceChains = new SavedServiceChains()
    const counted = { uses: new Map<string, number>(), jumps: new Set<string>(), serviceChains, table: '' }
    const lines = [
      ':PREROUTING ACCEPT [0:0]',
      ...chains.map((chain) => `:${chain} - [0:0]`),
      '-A KUBE-SVC-X -j Y',
      'COMMIT',
    ]
    countUses('*filter\n:KUBE-SEP-OTHERTABLE - [0:0]\nCOMMIT\n*nat\n', counted)
    // In pieces, as they come.
    for (let at = 0; at < lines.length; at += 2) countUses(`${lines.slice(at, at + 2).join('\n')}\n`, counted)
    return serviceChains
  }
  const chains = chainsOf(entry)
  expect(chains).toHaveLength(4)
  expect(look(...chains, 'CNI-X', 'KUBE-SERVICES').checksum.equals(book.chainChecksum)).toBe(true)
  expect(look(...chains.toReversed()).checksum.equals(book.chainChecksum)).toBe(true)
  for (const other of [chains.slice(1), [...chains, 'KUBE-SEP-MORE'], [...chains.slice(1), 'KUBE-SEP-OTHER']]) {
    const seen = look('CNI-A', ...other, 'KUBE-SERVICES', 'CNI-X')
    expect(seen.checksum.equals(book.chainChecksum)).toBe(false)
    expect(seen.names()).toEqual(other)
  }
  book.drop(entry.id)
  expect(look().checksum.equals(book.chainChecksum)).toBe(true)
})
