// What the mode expects in the tables, and whether a saved table matches it.

import { describe, expect, it } from 'vitest'
import { ExpectedUses } from '../../../src/backend/iptables/drift.ts'
import { createPortEntry } from '../../../src/backend/iptables/entries.ts'
import { WrittenRules } from '../../../src/backend/iptables/write/written.ts'
import { formatJump, jumps } from '../../../src/backend/iptables-kit/chains.ts'
import type { IptablesPrograms } from '../../../src/backend/iptables-kit/programs.ts'
import { openTableReader } from '../../../src/backend/iptables-kit/table-reader.ts'
import { endpoint, service, slice, tcp } from '../../support/builders.ts'
import { WriterHarness } from './writer-harness.ts'

it('expects a use for every rule in a chain and every jump to it', () => {
  const written = new WrittenRules()
  const rules = {
    chains: ['KUBE-SVC-A', 'KUBE-SEP-A'],
    shared: ['-A KUBE-SERVICES -d 10.0.0.1 -j KUBE-SVC-A'],
    counted: 0,
    own: [
      '-A KUBE-SVC-A -j KUBE-SEP-A',
      '-A KUBE-SEP-A -s 10.1.0.1 -j KUBE-MARK-MASQ',
      '-A KUBE-SEP-A -m tcp -p tcp -j DNAT --to-destination 10.1.0.1:80',
    ],
    filter: [],
    unreached: 0,
  }
  written.put(createPortEntry({ id: 'ns/a:p/tcp', service: 'ns/a' }, rules, 1))
  const uses = new ExpectedUses(written).uses()
  expect(uses.get('nat KUBE-SVC-A')).toBe(2)
  expect(uses.get('nat KUBE-SEP-A')).toBe(3)
  // Two built-in chains jump to it.
  expect(uses.get('nat KUBE-SERVICES')).toBe(3)
})

describe('a saved legacy table', () => {
  /** What was written as iptables-save would print it, with hooks and canaries. */
  async function saveWritten() {
    const harness = new WriterHarness()
    for (const n of [1, 2]) {
      harness.put(
        service({
          key: `ns/s${n}`,
          clusterIps: [`172.30.0.${n}`],
          type: 'NodePort',
          ports: [tcp(80, 'p80', 3000 + n)],
        }),
        slice([endpoint(`10.0.${n}.1`), endpoint(`10.0.${n}.2`)], { key: `ns/s${n}-a`, service: `ns/s${n}` }),
      )
    }
    harness.put(service({ key: 'ns/none', clusterIps: ['172.30.0.9'] }))
    await harness.sync()
    const hooks = (table: string) => jumps.filter((jump) => jump.table === table).map(formatJump)
    const saved = ['filter', 'nat'].map((table) => {
      const text = harness.text.slice(harness.text.indexOf(`*${table}`))
      const lines = text.slice(0, text.indexOf('COMMIT')).trim().split('\n')
      return [lines[0], ':KUBE-PROXY-CANARY - [0:0]', ...lines.slice(1), ...hooks(table), 'COMMIT'].join('\n')
    })
    const expected = new ExpectedUses(harness.written)
    return {
      written: harness.written,
      expected,
      saved: `${saved.join('\n')}\n*mangle\n:KUBE-PROXY-CANARY - [0:0]\nCOMMIT\n`,
    }
  }

  const matches = async (expected: ExpectedUses, saved: string) => {
    const programs = { set: { flavour: 'legacy' }, saveAll: async (visit: (lines: string) => void) => visit(saved) }
    const reader = openTableReader(programs as unknown as IptablesPrograms, 4)
    return await reader.matches?.({ rules: expected.serviceRules(), uses: expected.sharedUses() })
  }

  it('matches what was written, whatever rules others have', async () => {
    const { expected, saved } = await saveWritten()
    expect(await matches(expected, saved)).toBe(true)
    const more = saved
      .replace('*nat\n', '*nat\n:CNI-X - [0:0]\n')
      .replace(/COMMIT\n\*mangle/, '-A CNI-X -j ACCEPT\nCOMMIT\n*mangle')
    expect(await matches(expected, more)).toBe(true)
  })

  it('does not match if any rule or canary of ours is missing, doubled or leads elsewhere', async () => {
    const { expected, saved } = await saveWritten()
    const lines = saved.split('\n')
    for (const [i, line] of lines.entries()) {
      if (!line.startsWith('-A') && !line.includes('CANARY')) continue
      const without = lines.toSpliced(i, 1).join('\n')
      expect([line, await matches(expected, without)]).toEqual([line, false])
      if (!line.startsWith('-A KUBE-') || line.startsWith('-A KUBE-FIREWALL')) continue
      expect([line, await matches(expected, lines.toSpliced(i, 0, line).join('\n'))]).toEqual([line, false])
      if (!/-j KUBE-S/.test(line)) continue
      const elsewhere = line.replace(/-j KUBE-S\S+/, '-j KUBE-MARK-MASQ')
      expect([line, await matches(expected, lines.toSpliced(i, 1, elsewhere).join('\n'))]).toEqual([line, false])
    }
  })

  it('does not match if two rules exchange their targets', async () => {
    const { expected, saved } = await saveWritten()
    const targets = [...saved.matchAll(/ -j (KUBE-SEP-\S+)$/gm)].map((match) => match[1] as string)
    // They are endpoints of different services.
    const [first, second] = [targets[0], targets.at(-1)]
    const exchanged = saved.replace(/ -j (KUBE-SEP-\S+)$/gm, (jump, target) => {
      if (target === first) return ` -j ${second}`
      return target === second ? ` -j ${first}` : jump
    })
    expect(exchanged).not.toBe(saved)
    expect(await matches(expected, exchanged)).toBe(false)
  })

  it('does not match if others jump to a chain of ours', async () => {
    const { expected, saved } = await saveWritten()
    const sep = /^:(KUBE-SEP-\S+)/m.exec(saved)?.[1]
    for (const chain of [sep, 'KUBE-MARK-MASQ']) {
      expect(await matches(expected, saved.replace(/COMMIT\n\*mangle/, `-A OUTPUT -j ${chain}\nCOMMIT\n*mangle`))).toBe(
        false,
      )
    }
  })

  it('is followed through any history', async () => {
    const { written, expected, saved } = await saveWritten()
    // Rules are counted by now, and kept up to date from then on.
    expect(await matches(expected, saved)).toBe(true)
    const [entry] = written.ports()
    written.drop(entry?.id ?? '')
    expect(await matches(expected, saved)).toBe(false)
    if (entry !== undefined) written.put(entry)
    expect(await matches(expected, saved)).toBe(true)
  })
})
