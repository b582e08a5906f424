// The watch with a table reader that the test controls: what is reported as drift, what is tolerated, and what it costs.

import { describe, expect, it } from 'vitest'
import { formatJump, jumps } from '../../../src/backend/iptables-kit/chains.ts'
import { DriftWatch } from '../../../src/backend/iptables-kit/drift-watch.ts'
import { RuleSetHash } from '../../../src/backend/iptables-kit/rule-hash.ts'
import { SavedServiceChains } from '../../../src/backend/iptables-kit/saved-uses.ts'
import type { OwnChange, TableReader } from '../../../src/backend/iptables-kit/table-reader.ts'
import { silentLogger } from '../../../src/lib/log.ts'
import { FakeClock } from '../../support/fake-clock.ts'

const signal = new AbortController().signal

/** Uses of one service port and of the jumps into shared chains. */
function expectedUses(): ReadonlyMap<string, number> {
  const uses = new Map([
    ['nat KUBE-SVC-A', 2],
    ['nat KUBE-SEP-A', 3],
    ['nat KUBE-SERVICES', 1],
    ['nat KUBE-MARK-MASQ', 1],
  ])
  for (const { table, to } of jumps) uses.set(`${table} ${to}`, (uses.get(`${table} ${to}`) ?? 0) + 1)
  return uses
}

class FakeReader implements TableReader {
  readonly expected = expectedUses()
  readonly clock = new FakeClock()
  readonly reports: string[] = []
  generation = 1
  looks = 0
  versionReads = 0
  /** How long one look takes. */
  lookMs = 0
  /** If set, rules that jump to our chains, as in the legacy flavour. */
  jumps: ReadonlySet<string> | undefined
  /** Differences to the expected uses; undefined: the chain is gone. */
  readonly changed = new Map<string, number | undefined>()
  readonly watch: DriftWatch

  constructor() {
    this.watch = new DriftWatch({
      reader: this,
      expected: () => this.expected,
      legacyEntries: () => ({ filter: 0, nat: 0 }),
      written: () => ({ rules: new RuleSetHash(), uses: new Map() }),
      hooks: jumps,
      onDrift: (culprit) => this.reports.push(culprit),
      clock: this.clock,
      log: silentLogger,
    })
  }

  readVersion = async () => {
    this.versionReads++
    return String(this.generation)
  }
  watchVersions?: NonNullable<TableReader['watchVersions']>
  isOwnChange = (before: string, after: string, { commits }: OwnChange) => Number(after) === Number(before) + commits
  readUses = async () => {
    this.looks++
    if (this.lookMs > 0) await new Promise<void>((resolve) => this.clock.after(this.lookMs, resolve))
    const uses = new Map(this.expected)
    for (const table of ['filter', 'nat', 'mangle']) uses.set(`${table} KUBE-PROXY-CANARY`, 0)
    for (const [chain, use] of this.changed) {
      if (use === undefined) uses.delete(chain)
      else uses.set(chain, (uses.get(chain) ?? 0) + use)
    }
    return { uses, jumps: this.jumps }
  }
  matches?: NonNullable<TableReader['matches']>
  readChains = async () => ({ ...(await this.readUses()), serviceChains: new SavedServiceChains() })
  close = () => {}

  /** Another program changes the use of a chain. */
  change(chain: string, use: number | undefined): void {
    this.changed.set(chain, use)
    this.generation++
  }

  async write(full = false, commits = 2): Promise<void> {
    await this.watch.beginWrite()
    this.generation += commits
    await this.watch.endWrite({ commits, full, clean: true }, signal)
  }

  async pass(ms: number): Promise<void> {
    await this.clock.advance(ms)
  }
}

describe('the watch', () => {
  it('looks at all chains only when another program changed something', async () => {
    const reader = new FakeReader()
    await reader.write(true)
    await reader.pass(5000)
    await reader.write()
    await reader.pass(5000)
    expect(reader.looks).toBe(0)
    reader.change('nat CNI-X', 1)
    await reader.pass(1000)
    expect(reader.looks).toBe(1)
    await reader.pass(5000)
    expect(reader.looks).toBe(1)
    expect(reader.reports).toEqual([])
  })

  describe('where the kernel reports changes', () => {
    const reporting = () => {
      const reader = new FakeReader()
      let report: (version: string | undefined) => void = () => {}
      reader.watchVersions = (onChange) => {
        report = onChange
        return true
      }
      return { reader, report: (version: string | undefined = String(reader.generation)) => report(version) }
    }

    it('reads nothing while nothing is reported, nor because of its own writes', async () => {
      const { reader, report } = reporting()
      await reader.write(true)
      report()
      const before = reader.versionReads
      await reader.pass(60_000)
      expect(reader.versionReads).toBe(before)
      expect(reader.looks).toBe(0)
    })

    it.each([
      ['a change', undefined],
      ['lost reports', 'lost'],
    ])('checks after %s', async (_, how) => {
      const { reader, report } = reporting()
      await reader.write(true)
      reader.change('nat KUBE-SEP-A', undefined)
      report(how === undefined ? String(reader.generation) : undefined)
      await reader.pass(1000)
      expect(reader.reports).toEqual(['another program (nat KUBE-SEP-A is gone)'])
    })

    it('checks after a change that is reported between the last reading of a write and its end', async () => {
      const { reader, report } = reporting()
      await reader.watch.beginWrite()
      reader.generation += 2
      const read = reader.readVersion
      reader.readVersion = async () => {
        const version = await read()
        reader.change('nat KUBE-SEP-A', undefined)
        report()
        return version
      }
      await reader.watch.endWrite({ commits: 2, full: true, clean: true }, signal)
      reader.readVersion = read
      await reader.pass(1000)
      expect(reader.reports).toEqual(['another program (nat KUBE-SEP-A is gone)'])
    })

    it('checks after a change that is reported during a check', async () => {
      const { reader, report } = reporting()
      await reader.write(true)
      reader.lookMs = 100
      reader.change('nat CNI-X', 1)
      report()
      await reader.pass(550)
      reader.change('nat KUBE-SEP-A', undefined)
      // The look that is under way has not seen this change.
      const seen = new Map(reader.changed)
      reader.changed.delete('nat KUBE-SEP-A')
      report()
      await reader.pass(100)
      for (const [chain, use] of seen) reader.changed.set(chain, use)
      await reader.pass(1000)
      expect(reader.reports).toEqual(['another program (nat KUBE-SEP-A is gone)'])
    })
  })

  it.each([
    ['a chain is gone', 'nat KUBE-SEP-A', undefined, 'nat KUBE-SEP-A is gone'],
    ['a rule is missing', 'nat KUBE-SVC-A', -1, 'nat KUBE-SVC-A has 1 rules and jumps instead of 2'],
    ['a rule too many', 'nat KUBE-SERVICES', 1, 'nat KUBE-SERVICES has 4 rules and jumps instead of 3'],
    ['the canary is gone', 'mangle KUBE-PROXY-CANARY', undefined, 'mangle KUBE-PROXY-CANARY is gone'],
  ] as const)('reports once that %s, within a second', async (_, chain, use, words) => {
    const reader = new FakeReader()
    await reader.write(true)
    reader.change(chain, use)
    await reader.pass(1000)
    expect(reader.reports).toEqual([`another program (${words})`])
    expect(reader.watch.drifted).toBe(true)
    await reader.pass(10_000)
    expect(reader.reports).toHaveLength(1)
    reader.changed.clear()
    await reader.write(true)
    expect(reader.watch.drifted).toBe(false)
    await reader.pass(10_000)
    expect(reader.reports).toHaveLength(1)
  })

  it('looks at most a twentieth of the time where others write all the time, but does not wait after a single look', async () => {
    const reader = new FakeReader()
    reader.lookMs = 400
    await reader.write(true)
    reader.change('nat CNI-X', 1)
    await reader.pass(1000)
    expect(reader.looks).toBe(1)
    reader.change('nat KUBE-SEP-A', undefined)
    await reader.pass(1500)
    expect(reader.reports).toHaveLength(1)
    reader.changed.clear()
    const repaired = reader.write(true)
    await reader.pass(reader.lookMs)
    await repaired
    reader.looks = 0
    for (let i = 0; i < 800; i++) {
      reader.change('nat CNI-X', i)
      await reader.pass(100)
    }
    expect(reader.looks).toBeGreaterThan(5)
    expect(reader.looks).toBeLessThan(15)
  })

  it('notices what others did during our own write', async () => {
    const reader = new FakeReader()
    await reader.write(true)
    await reader.watch.beginWrite()
    reader.change('nat KUBE-SEP-A', undefined)
    reader.generation += 2
    await reader.watch.endWrite({ commits: 2, full: false, clean: true }, signal)
    await reader.pass(1000)
    expect(reader.reports).toHaveLength(1)
  })

  it('does not tolerate a rule that was inserted right after a repair', async () => {
    const reader = new FakeReader()
    await reader.write(true)
    reader.change('nat KUBE-SERVICES', -1)
    await reader.pass(1000)
    await reader.watch.beginWrite()
    reader.generation += 2
    reader.change('nat KUBE-SERVICES', 1)
    await reader.watch.endWrite({ commits: 2, full: true, clean: true }, signal)
    expect(reader.reports).toHaveLength(2)
    reader.changed.clear()
    await reader.write(true)
    expect(reader.watch.drifted).toBe(false)
    reader.change('nat KUBE-SERVICES', 1)
    await reader.pass(1000)
    expect(reader.reports).toHaveLength(3)
  })

  it('notices what others did during a full write', async () => {
    const reader = new FakeReader()
    await reader.watch.beginWrite()
    reader.generation += 2
    reader.change('nat KUBE-SERVICES', 1)
    await reader.watch.endWrite({ commits: 2, full: true, clean: true }, signal)
    await reader.pass(1000)
    expect(reader.reports).toHaveLength(1)
  })

  it('notices after a write that failed', async () => {
    const reader = new FakeReader()
    await reader.write(true)
    await reader.watch.beginWrite()
    reader.change('nat KUBE-SEP-A', undefined)
    reader.watch.abandonWrite()
    await reader.pass(1000)
    expect(reader.reports).toHaveLength(1)
  })

  it('tolerates jumps of others that survive a full write', async () => {
    const reader = new FakeReader()
    await reader.write(true)
    reader.change('nat KUBE-SERVICES', 1)
    await reader.pass(1000)
    expect(reader.reports).toHaveLength(1)
    await reader.write(true)
    reader.change('nat CNI-X', 1)
    await reader.pass(2000)
    expect(reader.reports).toHaveLength(1)
    expect(reader.watch.drifted).toBe(false)
  })

  it('tolerates jumps of others, but no rules of others, where it reads the rules', async () => {
    const reader = new FakeReader()
    const own = jumps.map((one) => `${one.table} ${formatJump(one)}`)
    reader.jumps = new Set([...own, 'nat -A OUTPUT -d 10.66.0.1/32 -j KUBE-SVC-A'])
    await reader.write(true)
    reader.change('nat KUBE-SVC-A', 1)
    await reader.pass(1000)
    await reader.write(true)
    expect(reader.watch.drifted).toBe(false)
    // A rule that comes back right after each repair.
    reader.change('nat KUBE-SVC-A', 2)
    await reader.pass(1000)
    expect(reader.reports).toHaveLength(2)
    await reader.write(true)
    expect(reader.reports).toHaveLength(3)
    reader.change('nat KUBE-SVC-A', 1)
    await reader.write(true)
    expect(reader.watch.drifted).toBe(false)
  })

  it('does not repair for ever where others write all the time', async () => {
    const reader = new FakeReader()
    await reader.write(true)
    reader.change('nat KUBE-SERVICES', 1)
    await reader.pass(1000)
    for (let i = 0; i < 4; i++) {
      expect(reader.watch.drifted).toBe(true)
      await reader.watch.beginWrite()
      reader.generation += 3
      await reader.watch.endWrite({ commits: 2, full: true, clean: true }, signal)
    }
    expect(reader.watch.drifted).toBe(false)
  })

  it('does not repair for ever where a kernel counts differently', async () => {
    const reader = new FakeReader()
    await reader.write(true)
    reader.change('nat KUBE-SVC-A', -1)
    await reader.pass(1000)
    for (let i = 0; i < 4; i++) {
      expect(reader.watch.drifted).toBe(true)
      await reader.write(true)
    }
    reader.change('nat CNI-X', 1)
    await reader.pass(10_000)
    expect(reader.reports).toHaveLength(4)
    expect(reader.watch.drifted).toBe(false)
  })

  it('lets kubelet add to its chain', async () => {
    const reader = new FakeReader()
    await reader.write(true)
    reader.change('filter KUBE-FIREWALL', 1)
    await reader.pass(1000)
    expect(reader.reports).toEqual([])
    reader.change('filter KUBE-FIREWALL', -1)
    await reader.pass(1000)
    expect(reader.reports).toHaveLength(1)
  })
})

it('looks at all chains only if the cheap comparison finds a difference', async () => {
  const reader = new FakeReader()
  let asked = 0
  let matching = true
  reader.matches = async () => {
    asked++
    return matching
  }
  await reader.write(true)
  reader.change('nat CNI-X', 1)
  await reader.pass(1000)
  expect([asked, reader.looks]).toEqual([1, 0])
  matching = false
  reader.change('nat KUBE-SVC-A', 1)
  await reader.pass(1000)
  expect([asked, reader.looks]).toEqual([2, 1])
  expect(reader.reports).toHaveLength(1)
})

it('ignores what it saw if a write happened during the look', async () => {
  const reader = new FakeReader()
  await reader.write(true)
  const { readUses } = reader
  reader.readUses = async () => {
    const seen = await readUses()
    // A whole write happens during the look, so its result is outdated.
    await reader.write(true)
    return seen
  }
  reader.change('nat KUBE-SVC-A', 1)
  await reader.pass(600)
  expect(reader.looks).toBe(1)
  expect(reader.reports).toEqual([])
})

describe('the states of the watch', () => {
  it('stay drifted through a partial write and a failed write', async () => {
    const reader = new FakeReader()
    await reader.write(true)
    reader.change('nat KUBE-SEP-A', undefined)
    await reader.pass(1000)
    await reader.write(false)
    expect(reader.watch.drifted).toBe(true)
    await reader.watch.beginWrite()
    expect(reader.watch.drifted).toBe(true)
    reader.watch.abandonWrite()
    expect(reader.watch.drifted).toBe(true)
    await reader.pass(5000)
    expect(reader.reports).toHaveLength(1)
  })

  it('go on watching if the tables cannot be read after a write', async () => {
    const reader = new FakeReader()
    await reader.write(true)
    reader.change('nat KUBE-SEP-A', undefined)
    await reader.pass(1000)
    const { readUses } = reader
    reader.readUses = async () => {
      throw new Error('no')
    }
    await reader.write(true)
    expect(reader.watch.drifted).toBe(true)
    reader.readUses = readUses
    reader.changed.clear()
    await reader.write(true)
    expect(reader.watch.drifted).toBe(false)
  })

  it('end with close, also during a write', async () => {
    const reader = new FakeReader()
    await reader.write(true)
    await reader.watch.beginWrite()
    reader.watch.close()
    await reader.watch.endWrite({ commits: 0, full: true, clean: true }, signal)
    reader.watch.abandonWrite()
    reader.change('nat KUBE-SEP-A', undefined)
    await reader.pass(60_000)
    expect(reader.looks).toBe(0)
    expect(reader.reports).toEqual([])
  })

  it('put off the next check while everything is about to be written', async () => {
    const reader = new FakeReader()
    await reader.write(true)
    reader.watch.postpone()
    reader.change('nat KUBE-SEP-A', undefined)
    await reader.pass(20_000)
    expect(reader.reports).toEqual([])
    await reader.pass(15_000)
    expect(reader.reports).toHaveLength(1)
  })
})
