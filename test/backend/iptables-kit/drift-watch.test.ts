// The watch with eyes that the test opens: what is told as drift, what is tolerated, and what it costs.

import { describe, expect, it } from 'vitest'
import { portEntry } from '../../../src/backend/iptables/entries.ts'
import { WrittenRules } from '../../../src/backend/iptables/written.ts'
import { jumps, savedJump } from '../../../src/backend/iptables-kit/chains.ts'
import { DriftWatch } from '../../../src/backend/iptables-kit/drift-watch.ts'
import type { IptablesPrograms } from '../../../src/backend/iptables-kit/programs.ts'
import { countUses, SavedServiceChains } from '../../../src/backend/iptables-kit/saved-uses.ts'
import { type OwnChange, openTableReader, type TableReader } from '../../../src/backend/iptables-kit/table-reader.ts'
import { silentLogger } from '../../../src/lib/log.ts'
import { endpoint, service, slice, tcp } from '../../support/builders.ts'
import { FakeClock } from '../../support/fake-clock.ts'
import { WriterHarness } from '../iptables/writer-harness.ts'

const signal = new AbortController().signal

class Eyes implements TableReader {
  readonly book = new WrittenRules()
  readonly clock = new FakeClock()
  readonly told: string[] = []
  generation = 1
  looks = 0
  /** How long one takes. */
  lookMs = 0
  /** Set: as the legacy flavour tells them. */
  jumps: ReadonlySet<string> | undefined
  /** Differences to what the book says. */
  readonly changed = new Map<string, number | undefined>()
  readonly watch: DriftWatch

  constructor() {
    const owner = { id: 'ns/a/tcp', service: 'ns/a' }
    this.book.put(
      portEntry(owner, {
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
        endpoints: 1,
      }),
    )
    this.watch = new DriftWatch({
      reader: this,
      expected: () => this.book.uses(),
      legacyEntries: () => this.book.legacyEntries(),
      written: () => ({ rules: this.book.rules(), uses: this.book.sharedUses() }),
      hooks: jumps,
      onDrift: (culprit) => this.told.push(culprit),
      clock: this.clock,
      log: silentLogger,
    })
  }

  version = async () => String(this.generation)
  isOwnChange = (before: string, after: string, { commits }: OwnChange) => Number(after) === Number(before) + commits
  readUses = async () => {
    this.looks++
    if (this.lookMs > 0) await new Promise<void>((resolve) => this.clock.after(this.lookMs, resolve))
    const uses = new Map(this.book.uses())
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

  /** Somebody changes something. */
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
  it('counts a use for every rule in a chain and every jump to it', () => {
    const { book } = new Eyes()
    expect(book.uses().get('nat KUBE-SVC-A')).toBe(2)
    expect(book.uses().get('nat KUBE-SEP-A')).toBe(3)
    // Two built-in chains jump to it.
    expect(book.uses().get('nat KUBE-SERVICES')).toBe(3)
  })

  it('counts the same from a saved table', () => {
    const uses = new Map<string, number>()
    const jumps = new Set<string>()
    const saved = `*nat\n:PREROUTING ACCEPT [0:0]\n:KUBE-A - [0:0]\n:KUBE-B - [0:0]
-A PREROUTING -m comment --comment "kubernetes service portals" -j KUBE-A\n-A KUBE-A -m comment --comment "x -j KUBE-B" -j KUBE-B\n-A KUBE-A -j RETURN\nCOMMIT\n`
    countUses(saved, { uses, jumps, serviceChains: undefined, table: '' })
    expect(Object.fromEntries(uses)).toEqual({ 'nat PREROUTING': 1, 'nat KUBE-A': 3, 'nat KUBE-B': 1 })
    expect([...jumps]).toEqual(['nat -A PREROUTING -m comment --comment "kubernetes service portals" -j KUBE-A'])
  })

  it('looks closely only when somebody else changed something', async () => {
    const eyes = new Eyes()
    await eyes.write(true)
    await eyes.pass(5000)
    await eyes.write()
    await eyes.pass(5000)
    expect(eyes.looks).toBe(0)
    eyes.change('nat CNI-X', 1)
    await eyes.pass(1000)
    expect(eyes.looks).toBe(1)
    await eyes.pass(5000)
    expect(eyes.looks).toBe(1)
    expect(eyes.told).toEqual([])
  })

  it.each([
    ['a chain is gone', 'nat KUBE-SEP-A', undefined, 'nat KUBE-SEP-A is gone'],
    ['a rule is missing', 'nat KUBE-SVC-A', -1, 'nat KUBE-SVC-A has 1 rules and jumps instead of 2'],
    ['a rule too many', 'nat KUBE-SERVICES', 1, 'nat KUBE-SERVICES has 4 rules and jumps instead of 3'],
    ['the canary is gone', 'mangle KUBE-PROXY-CANARY', undefined, 'mangle KUBE-PROXY-CANARY is gone'],
  ] as const)('tells once that %s, within a second', async (_, chain, use, words) => {
    const eyes = new Eyes()
    await eyes.write(true)
    eyes.change(chain, use)
    await eyes.pass(1000)
    expect(eyes.told).toEqual([`another program (${words})`])
    expect(eyes.watch.drifted).toBe(true)
    await eyes.pass(10_000)
    expect(eyes.told).toHaveLength(1)
    eyes.changed.clear()
    await eyes.write(true)
    expect(eyes.watch.drifted).toBe(false)
    await eyes.pass(10_000)
    expect(eyes.told).toHaveLength(1)
  })

  it('looks at most a twentieth of the time where others write all the time, but is not late after a single look', async () => {
    const eyes = new Eyes()
    eyes.lookMs = 400
    await eyes.write(true)
    eyes.change('nat CNI-X', 1)
    await eyes.pass(1000)
    expect(eyes.looks).toBe(1)
    eyes.change('nat KUBE-SEP-A', undefined)
    await eyes.pass(1500)
    expect(eyes.told).toHaveLength(1)
    eyes.changed.clear()
    const repaired = eyes.write(true)
    await eyes.pass(eyes.lookMs)
    await repaired
    eyes.looks = 0
    for (let i = 0; i < 800; i++) {
      eyes.change('nat CNI-X', i)
      await eyes.pass(100)
    }
    expect(eyes.looks).toBeGreaterThan(5)
    expect(eyes.looks).toBeLessThan(15)
  })

  it('notices what others did during our own write', async () => {
    const eyes = new Eyes()
    await eyes.write(true)
    await eyes.watch.beginWrite()
    eyes.change('nat KUBE-SEP-A', undefined)
    eyes.generation += 2
    await eyes.watch.endWrite({ commits: 2, full: false, clean: true }, signal)
    await eyes.pass(1000)
    expect(eyes.told).toHaveLength(1)
  })

  it('does not take for a jump of others what somebody put in the moment after a repair', async () => {
    const eyes = new Eyes()
    await eyes.write(true)
    eyes.change('nat KUBE-SERVICES', -1)
    await eyes.pass(1000)
    await eyes.watch.beginWrite()
    eyes.generation += 2
    eyes.change('nat KUBE-SERVICES', 1)
    await eyes.watch.endWrite({ commits: 2, full: true, clean: true }, signal)
    expect(eyes.told).toHaveLength(2)
    eyes.changed.clear()
    await eyes.write(true)
    expect(eyes.watch.drifted).toBe(false)
    eyes.change('nat KUBE-SERVICES', 1)
    await eyes.pass(1000)
    expect(eyes.told).toHaveLength(3)
  })

  it('notices what others did during a full write', async () => {
    const eyes = new Eyes()
    await eyes.watch.beginWrite()
    eyes.generation += 2
    eyes.change('nat KUBE-SERVICES', 1)
    await eyes.watch.endWrite({ commits: 2, full: true, clean: true }, signal)
    await eyes.pass(1000)
    expect(eyes.told).toHaveLength(1)
  })

  it('notices after a write that failed', async () => {
    const eyes = new Eyes()
    await eyes.write(true)
    await eyes.watch.beginWrite()
    eyes.change('nat KUBE-SEP-A', undefined)
    eyes.watch.abandonWrite()
    await eyes.pass(1000)
    expect(eyes.told).toHaveLength(1)
  })

  it('tolerates jumps of others that survive a full write', async () => {
    const eyes = new Eyes()
    await eyes.write(true)
    eyes.change('nat KUBE-SERVICES', 1)
    await eyes.pass(1000)
    expect(eyes.told).toHaveLength(1)
    await eyes.write(true)
    eyes.change('nat CNI-X', 1)
    await eyes.pass(2000)
    expect(eyes.told).toHaveLength(1)
    expect(eyes.watch.drifted).toBe(false)
  })

  it('tells jumps of others from rules of others where it reads the rules', async () => {
    const eyes = new Eyes()
    const own = jumps.map((one) => `${one.table} ${savedJump(one)}`)
    eyes.jumps = new Set([...own, 'nat -A OUTPUT -d 10.66.0.1/32 -j KUBE-SVC-A'])
    await eyes.write(true)
    eyes.change('nat KUBE-SVC-A', 1)
    await eyes.pass(1000)
    await eyes.write(true)
    expect(eyes.watch.drifted).toBe(false)
    // A rule that comes again in the moment after each repair.
    eyes.change('nat KUBE-SVC-A', 2)
    await eyes.pass(1000)
    expect(eyes.told).toHaveLength(2)
    await eyes.write(true)
    expect(eyes.told).toHaveLength(3)
    eyes.change('nat KUBE-SVC-A', 1)
    await eyes.write(true)
    expect(eyes.watch.drifted).toBe(false)
  })

  it('does not write for ever where others write all the time', async () => {
    const eyes = new Eyes()
    await eyes.write(true)
    eyes.change('nat KUBE-SERVICES', 1)
    await eyes.pass(1000)
    for (let i = 0; i < 4; i++) {
      expect(eyes.watch.drifted).toBe(true)
      await eyes.watch.beginWrite()
      eyes.generation += 3
      await eyes.watch.endWrite({ commits: 2, full: true, clean: true }, signal)
    }
    expect(eyes.watch.drifted).toBe(false)
  })

  it('does not write for ever where a kernel counts otherwise', async () => {
    const eyes = new Eyes()
    await eyes.write(true)
    eyes.change('nat KUBE-SVC-A', -1)
    await eyes.pass(1000)
    for (let i = 0; i < 4; i++) {
      expect(eyes.watch.drifted).toBe(true)
      await eyes.write(true)
    }
    eyes.change('nat CNI-X', 1)
    await eyes.pass(10_000)
    expect(eyes.told).toHaveLength(4)
    expect(eyes.watch.drifted).toBe(false)
  })

  it('lets kubelet add to its chain', async () => {
    const eyes = new Eyes()
    await eyes.write(true)
    eyes.change('filter KUBE-FIREWALL', 1)
    await eyes.pass(1000)
    expect(eyes.told).toEqual([])
    eyes.change('filter KUBE-FIREWALL', -1)
    await eyes.pass(1000)
    expect(eyes.told).toHaveLength(1)
  })
})

describe('a saved table', () => {
  /** As iptables-save would print what was written, the hooks and canaries included. */
  async function written() {
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
    const hooks = (table: string) => jumps.filter((jump) => jump.table === table).map(savedJump)
    const saved = ['filter', 'nat'].map((table) => {
      const text = harness.text.slice(harness.text.indexOf(`*${table}`))
      const lines = text.slice(0, text.indexOf('COMMIT')).trim().split('\n')
      return [lines[0], ':KUBE-PROXY-CANARY - [0:0]', ...lines.slice(1), ...hooks(table), 'COMMIT'].join('\n')
    })
    return { book: harness.book, saved: `${saved.join('\n')}\n*mangle\n:KUBE-PROXY-CANARY - [0:0]\nCOMMIT\n` }
  }

  const matches = async (book: WrittenRules, saved: string) => {
    const tools = { set: { flavour: 'legacy' }, saveAll: async (visit: (lines: string) => void) => visit(saved) }
    const sight = openTableReader(tools as unknown as IptablesPrograms, 4)
    return await sight.matches?.({ rules: book.rules(), uses: book.sharedUses() })
  }

  it('matches what was written, whatever others have', async () => {
    const { book, saved } = await written()
    expect(await matches(book, saved)).toBe(true)
    const more = saved
      .replace('*nat\n', '*nat\n:CNI-X - [0:0]\n')
      .replace(/COMMIT\n\*mangle/, '-A CNI-X -j ACCEPT\nCOMMIT\n*mangle')
    expect(await matches(book, more)).toBe(true)
  })

  it('does not match if any rule or canary of ours is missing, doubled or leads elsewhere', async () => {
    const { book, saved } = await written()
    const lines = saved.split('\n')
    for (const [i, line] of lines.entries()) {
      if (!line.startsWith('-A') && !line.includes('CANARY')) continue
      const without = lines.toSpliced(i, 1).join('\n')
      expect([line, await matches(book, without)]).toEqual([line, false])
      if (!line.startsWith('-A KUBE-') || line.startsWith('-A KUBE-FIREWALL')) continue
      expect([line, await matches(book, lines.toSpliced(i, 0, line).join('\n'))]).toEqual([line, false])
      if (!/-j KUBE-S/.test(line)) continue
      const elsewhere = line.replace(/-j KUBE-S\S+/, '-j KUBE-MARK-MASQ')
      expect([line, await matches(book, lines.toSpliced(i, 1, elsewhere).join('\n'))]).toEqual([line, false])
    }
  })

  it('does not match if others jump to a chain of ours', async () => {
    const { book, saved } = await written()
    const sep = /^:(KUBE-SEP-\S+)/m.exec(saved)?.[1]
    for (const chain of [sep, 'KUBE-MARK-MASQ']) {
      expect(await matches(book, saved.replace(/COMMIT\n\*mangle/, `-A OUTPUT -j ${chain}\nCOMMIT\n*mangle`))).toBe(
        false,
      )
    }
  })

  it('is followed through any history', async () => {
    const { book, saved } = await written()
    // Counted by now, and kept from then on.
    expect(await matches(book, saved)).toBe(true)
    const [entry] = book.ports()
    book.drop(entry?.id ?? '')
    expect(await matches(book, saved)).toBe(false)
    if (entry !== undefined) book.put(entry)
    expect(await matches(book, saved)).toBe(true)
  })
})

it('takes a cheap match for a look, and looks only if there is none', async () => {
  const eyes = new Eyes()
  let asked = 0
  let matching = true
  eyes.matches = async () => {
    asked++
    return matching
  }
  await eyes.write(true)
  eyes.change('nat CNI-X', 1)
  await eyes.pass(1000)
  expect([asked, eyes.looks]).toEqual([1, 0])
  matching = false
  eyes.change('nat KUBE-SVC-A', 1)
  await eyes.pass(1000)
  expect([asked, eyes.looks]).toEqual([2, 1])
  expect(eyes.told).toHaveLength(1)
})

it('makes nothing of what it saw across a write', async () => {
  const eyes = new Eyes()
  await eyes.write(true)
  const { readUses } = eyes
  eyes.readUses = async () => {
    const seen = await readUses()
    // A whole write between the look and its end: what was seen is of another time.
    await eyes.write(true)
    return seen
  }
  eyes.change('nat KUBE-SVC-A', 1)
  await eyes.pass(600)
  expect(eyes.looks).toBe(1)
  expect(eyes.told).toEqual([])
})
