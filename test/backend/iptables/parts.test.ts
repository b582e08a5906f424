// Checks that a port with very many chains is written in small parts, that no packet meets half of it, and that the end is the same.

import { describe, expect, it } from 'vitest'
import type { Changes } from '../../../src/backend/backend.ts'
import type { IptablesEntry } from '../../../src/backend/iptables/entries.ts'
import { splitChanges } from '../../../src/backend/iptables/write/parts.ts'
import { groupChanges } from '../../../src/backend/iptables/write/units.ts'
import { endpoint, service, slice, tcp } from '../../support/builders.ts'
import { diffAtOnce, settleAtOnce } from '../../support/ledger-at-once.ts'
import { WriterHarness } from './writer-harness.ts'

const limits = { chains: 20, rules: 30 }
const { signal } = new AbortController()

/** The nat table, as the kernel keeps it. */
class NatTable {
  chains = new Map<string, string[]>()

  restore(text: string): void {
    const chains = new Map([...this.chains].map(([name, rules]) => [name, [...rules]]))
    for (const line of text.slice(text.indexOf('*nat')).split('\n')) {
      const [word = '', name = ''] = line.split(' ')
      if (word.startsWith(':')) chains.set(word.slice(1), [])
      else if (word === '-A') (chains.get(name) as string[]).push(line)
      else if (word === '-X') {
        expect([name, chains.get(name)]).toEqual([name, []])
        chains.delete(name)
      }
    }
    const targets = [...chains.values()].flat().map((rule) => / -j (KUBE-\S+)/.exec(rule)?.[1] ?? 'KUBE-SERVICES')
    expect(targets.filter((target) => !chains.has(target))).toEqual([])
    this.chains = chains
  }

  /** The rules of the chain that a cluster IP leads to; undefined if it leads nowhere. */
  rulesAt(ip: string): readonly string[] | undefined {
    return this.#follow(this.chains.get('KUBE-SERVICES')?.find((rule) => rule.includes(`-d ${ip} `)))
  }

  /** The same for a node port, over the chain that masquerades. */
  rulesAtNodePort(port: number): readonly string[] | undefined {
    const jump = this.chains.get('KUBE-NODEPORTS')?.find((rule) => rule.includes(`--dport ${port} `))
    const external = /-j (KUBE-EXT-\S+)/.exec(jump ?? '')?.[1] ?? ''
    return this.#follow(this.chains.get(external)?.find((rule) => rule.includes('-j KUBE-SVC-')))
  }

  #follow(jump: string | undefined): readonly string[] | undefined {
    const chain = /-j (KUBE-SVC-\S+)/.exec(jump ?? '')?.[1]
    return chain === undefined ? undefined : this.chains.get(chain)
  }
}

function setUp() {
  const harness = new WriterHarness()
  const table = new NatTable()
  harness.check = (text) => table.restore(text)
  return { harness, table }
}

const putGiant = (harness: WriterHarness, from: number, to: number) =>
  harness.put(
    service({ key: 'ns/giant', clusterIps: ['172.30.0.1'], type: 'NodePort', ports: [tcp(80, 'p80', 30_001)] }),
    slice(
      Array.from({ length: to - from }, (_, i) => endpoint(`10.0.${(from + i) >> 8}.${(from + i) & 255}`)),
      { key: 'ns/giant-a', service: 'ns/giant' },
    ),
  )

const putSmall = (harness: WriterHarness, n: number) =>
  harness.put(
    service({ key: `ns/s${n}`, clusterIps: [`172.30.1.${n}`] }),
    slice([endpoint(`10.1.0.${n}`)], { key: `ns/s${n}-a`, service: `ns/s${n}` }),
  )

async function writeParts(harness: WriterHarness, after: () => Promise<void> = async () => {}): Promise<number> {
  const changes = diffAtOnce(harness.ledger)
  const parts = splitChanges(changes, (id) => harness.written.port(id), limits)
  const complete: Changes<IptablesEntry>[] = []
  for (const part of parts) {
    await harness.writer.write(groupChanges(part.changes()), { everything: false, signal })
    complete.push(part.complete)
    await after()
  }
  settleAtOnce(harness.ledger, {
    put: complete.flatMap(({ put }) => put),
    drop: complete.flatMap(({ drop }) => drop),
  })
  const left = diffAtOnce(harness.ledger)
  expect([left.put, left.drop]).toEqual([[], []])
  return parts.length
}

describe('a port with very many chains', () => {
  it('comes, changes and goes in parts; its chain in use is always whole, and others are written in between', async () => {
    const { harness, table } = setUp()
    await writeParts(harness)
    const sizes = new Set<number | undefined>()
    let n = 0
    const between = async () => {
      sizes.add(table.rulesAt('172.30.0.1')?.length)
      const { text } = harness
      expect((text.match(/^:KUBE-SEP-|^-X KUBE-SEP-/gm) ?? []).length).toBeLessThanOrEqual(2 * limits.chains)
      putSmall(harness, ++n % 50)
      const small = diffAtOnce(harness.ledger)
      const own = small.put.filter((entry) => entry.id.startsWith('ns/s'))
      await harness.writer.write(groupChanges({ put: own, drop: [] }), { everything: false, signal })
      settleAtOnce(harness.ledger, { put: own, drop: [] })
    }
    for (const [from, to] of [
      [0, 150],
      [0, 210],
      [100, 180],
      [0, 0],
      [0, 90],
    ] as const) {
      putGiant(harness, from, to)
      expect(await writeParts(harness, between)).toBeGreaterThan(2)
      const direct = setUp()
      putGiant(direct.harness, from, to)
      for (let i = 1; i <= n; i++) putSmall(direct.harness, i % 50)
      await direct.harness.sync()
      expect(normalise(table)).toEqual(normalise(direct.table))
    }
    // One rule per endpoint and one that masquerades; never a part of them.
    expect([...sizes].sort()).toEqual([151, 211, 81, 91, undefined].sort())
    harness.drop('ns/giant')
    await writeParts(harness, between)
    expect(harness.written.chains().size).toBe(2 * Math.min(n, 50))
  })

  it('gets the rules of a new chain appended, some at a time', async () => {
    const { harness } = setUp()
    await writeParts(harness)
    harness.texts.length = 0
    putGiant(harness, 0, 100)
    await writeParts(harness)
    const rules = harness.texts.map((text) => text.match(/^-A KUBE-SVC-/gm)?.length ?? 0)
    expect(Math.max(...rules)).toBe(limits.rules)
    expect(rules.reduce((sum, count) => sum + count)).toBe(101)
  })

  it('gets the rules of a chain in use by a substitute, some at a time, when one endpoint of many changes', async () => {
    const { harness, table } = setUp()
    putGiant(harness, 0, 150)
    await writeParts(harness)
    const whole = new Set<string>([String(table.rulesAt('172.30.0.1')?.map(targetOf))])
    const before = normalise(table)
    for (const [from, to] of [
      [0, 149],
      [1, 150],
    ] as const) {
      putGiant(harness, from, to)
      const direct = setUp()
      putGiant(direct.harness, from, to)
      await direct.harness.sync()
      whole.add(String(direct.table.rulesAt('172.30.0.1')?.map(targetOf)))
      harness.texts.length = 0
      const parts = await writeParts(harness, async () => {
        // What the cluster IP and the node port lead to is what was there, or what is wanted.
        for (const rules of [table.rulesAt('172.30.0.1'), table.rulesAtNodePort(30_001)]) {
          expect(whole).toContain(String(rules?.map(targetOf)))
        }
      })
      // The rules twice, 30 at a time: once in the substitute.
      expect(parts).toBeGreaterThanOrEqual(2 * (150 / limits.rules) + 2)
      const written = harness.texts.map((text) => text.match(/^-A KUBE-SVC-/gm)?.length ?? 0)
      expect(Math.max(...written)).toBe(limits.rules)
      expect(normalise(table)).toEqual(normalise(direct.table))
      expect(normalise(table)).not.toEqual(before)
    }
  })

  it('ends the same if the next change comes between any two parts', async () => {
    for (let stop = 1; ; stop++) {
      const { harness, table } = setUp()
      putGiant(harness, 0, 100)
      await writeParts(harness)
      putGiant(harness, 0, 99)
      const first = splitChanges(diffAtOnce(harness.ledger), (id) => harness.written.port(id), limits)
      for (const part of first.slice(0, stop)) {
        await harness.writer.write(groupChanges(part.changes()), { everything: false, signal })
      }
      putGiant(harness, 1, 100)
      await writeParts(harness, async () => {
        expect(table.rulesAt('172.30.0.1')?.length).toBeGreaterThanOrEqual(100)
        expect(table.rulesAtNodePort(30_001)).toEqual(table.rulesAt('172.30.0.1'))
      })
      const direct = setUp()
      putGiant(direct.harness, 1, 100)
      await direct.harness.sync()
      expect(normalise(table)).toEqual(normalise(direct.table))
      if (stop === first.length) break
    }
  })

  it('is one part with everything else if it is small', () => {
    const { harness } = setUp()
    putGiant(harness, 0, 10)
    putSmall(harness, 1)
    const changes = diffAtOnce(harness.ledger)
    const parts = splitChanges(changes, () => undefined, limits)
    expect(parts.map(({ changes, complete }) => [changes(), complete])).toEqual([[changes, changes]])
  })
})

/** Where a rule leads, with its probability. */
const targetOf = (rule: string) => withoutComment(rule).replace(/^-A \S+/, '')

/** Every chain with its rules, without comments: those of large clusters have none. */
const normalise = ({ chains }: NatTable) =>
  Object.fromEntries(
    [...chains].sort(([a], [b]) => (a < b ? -1 : 1)).map(([name, rules]) => [name, rules.map(withoutComment)]),
  )

const withoutComment = (rule: string) => rule.replace(/ -m comment --comment ("[^"]*"|\S+)/, '')
