// What the iptables mode reads from the kernel by itself, compared with what the programs print; and cleanup.

import { afterAll, beforeAll, expect, it } from 'vitest'
import { cleanupIptables } from '../../src/backend/iptables/cleanup.ts'
import { countUses } from '../../src/backend/iptables-kit/saved-uses.ts'
import { silentLogger } from '../../src/lib/log.ts'
import { readTableSize } from '../../src/sys/legacy-table-size.ts'
import { PacketCounters } from '../../src/sys/netlink/nfacct.ts'
import { ChainTable } from '../../src/sys/netlink/nft/chain-uses.ts'
import { type EnteredNamespace, enterNamespace } from '../lab/entered-namespace.ts'
import { privateLock } from './iptables-holdings.ts'

privateLock()

let space: EnteredNamespace
beforeAll(() => {
  space = enterNamespace()
})
afterAll(() => space.leave())

const text = (table: string, lines: readonly string[]) => `${[`*${table}`, ...lines, 'COMMIT'].join('\n')}\n`

const proxyRules = [
  text('filter', [
    ...['KUBE-SERVICES', 'KUBE-FORWARD', 'KUBE-FIREWALL', 'KUBE-PROXY-CANARY'].map((chain) => `:${chain} - [0:0]`),
    '-I INPUT -j KUBE-FIREWALL',
    '-A KUBE-FIREWALL -d 127.0.0.0/8 -j DROP',
    '-I FORWARD -m comment --comment "kubernetes forwarding rules" -j KUBE-FORWARD',
    '-I FORWARD -m conntrack --ctstate NEW -m comment --comment "kubernetes service portals" -j KUBE-SERVICES',
    '-A FORWARD -s 10.8.0.0/16 -j ACCEPT',
  ]),
  text('nat', [
    ...['KUBE-SERVICES', 'KUBE-MARK-MASQ', 'KUBE-SVC-A', 'KUBE-SEP-A', 'CNI-X'].map((chain) => `:${chain} - [0:0]`),
    '-I PREROUTING -m comment --comment "kubernetes service portals" -j KUBE-SERVICES',
    '-A KUBE-SERVICES -d 10.0.0.1 -j KUBE-SVC-A',
    '-A KUBE-SVC-A -m statistic --mode random --probability 0.5 -j KUBE-SEP-A',
    '-A KUBE-SVC-A -j KUBE-SEP-A',
    '-A KUBE-SEP-A -s 10.1.0.1 -j KUBE-MARK-MASQ',
    '-A KUBE-SEP-A -p tcp -j DNAT --to-destination 10.1.0.1:80',
    '-A CNI-X -s 10.8.0.0/16 -j RETURN',
  ]),
  text('mangle', [':KUBE-PROXY-CANARY - [0:0]', ':KUBE-KUBELET-CANARY - [0:0]', ':KUBE-IPTABLES-HINT - [0:0]']),
].join('')

const restore = (flavour: string) => space.exec(`iptables-${flavour}-restore`, ['--noflush', '--counters'], proxyRules)

it('nf_tables counts uses as we do, and adds one generation per changed table', async () => {
  const chains = new ChainTable()
  restore('nft')
  const before = await chains.generation()
  restore('nft')
  // The chains of mangle exist and are empty already.
  expect((await chains.generation()) - before).toBe(2)
  const saved = new Map<string, number>()
  countUses(space.exec('iptables-nft-save', []), { uses: saved, jumps: new Set(), serviceChains: undefined, table: '' })
  const listed = await chains.list(4)
  // iptables-save prints built-in chains even if they do not exist.
  const made = [...saved].filter(([chain]) => /-/.test(chain))
  expect(made.length).toBeGreaterThan(8)
  for (const [chain, use] of made) expect([chain, listed.get(chain)]).toEqual([chain, use])
  expect(saved.get('nat KUBE-SEP-A')).toBe(4)
  chains.close()
})

it('the size of a legacy table can be read', () => {
  restore('legacy')
  const before = readTableSize(4, 'nat')
  expect(before.entries).toBeGreaterThan(10)
  space.exec('iptables-legacy', ['-w', '-t', 'nat', '-A', 'CNI-X', '-j', 'RETURN'])
  const after = readTableSize(4, 'nat')
  expect(after.entries).toBe(before.entries + 1)
  expect(after.bytes).toBeGreaterThan(before.bytes)
  // This creates the table: the kernel has no table before it is first used.
  space.exec('ip6tables-legacy', ['-w', '-S'])
  expect(readTableSize(6, 'filter').entries).toBeGreaterThan(0)
  expect(() => readTableSize(4, 'nonsense')).toThrow('size of table nonsense')
})

it('packet counters are made once, count, and stay', async () => {
  const packets = new PacketCounters()
  expect(await packets.supported()).toBe(true)
  expect(await packets.read('sluice_test')).toBeUndefined()
  await packets.ensure('sluice_test')
  await packets.ensure('sluice_test')
  expect(await packets.read('sluice_test')).toBe(0)
  space.exec('iptables-nft', [
    '-A',
    'OUTPUT',
    '-p',
    'udp',
    '-m',
    'nfacct',
    '--nfacct-name',
    'sluice_test',
    '-j',
    'ACCEPT',
  ])
  space.exec('bash', ['-c', 'for i in 1 2 3; do echo x > /dev/udp/127.0.0.1/9; done'])
  expect(await packets.read('sluice_test')).toBe(3)
  await packets.ensure('sluice_test')
  expect(await packets.read('sluice_test')).toBe(3)
  packets.close()
})

it('cleanup removes what a proxy left in both flavours, and nothing else; a second cleanup changes nothing', async () => {
  restore('nft')
  await cleanupIptables(silentLogger)
  await cleanupIptables(silentLogger)
  for (const flavour of ['nft', 'legacy']) {
    const left = space.exec(`iptables-${flavour}-save`, [])
    const names = [...left.matchAll(/^:(\S+)/gm)]
      .map((match) => match[1] as string)
      .filter((name) => !/^[A-Z]+$/.test(name))
    expect(names.sort()).toEqual(['CNI-X', 'KUBE-FIREWALL', 'KUBE-IPTABLES-HINT', 'KUBE-KUBELET-CANARY'])
    expect(left).toContain('-A INPUT -j KUBE-FIREWALL')
    expect(left).toContain('-A FORWARD -s 10.8.0.0/16 -j ACCEPT')
    expect(left).not.toContain('kubernetes')
  }
})

it('cleanup keeps a chain that another program still uses, reports it, and removes the rest', async () => {
  restore('nft')
  space.exec('iptables-nft', ['-t', 'nat', '-A', 'CNI-X', '-j', 'KUBE-MARK-MASQ'])
  await expect(cleanupIptables(silentLogger)).rejects.toMatchObject({ code: 'iptables-cleanup' })
  const left = space.exec('iptables-nft-save', [])
  expect(left).toContain(':KUBE-MARK-MASQ ')
  expect(left).not.toContain(':KUBE-SERVICES ')
  space.exec('iptables-nft', ['-t', 'nat', '-F', 'CNI-X'])
  await cleanupIptables(silentLogger)
  expect(space.exec('iptables-nft-save', [])).not.toContain('KUBE-MARK-MASQ')
})
