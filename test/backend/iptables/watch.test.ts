// The watch with eyes that the test opens: what is told as drift, what is tolerated, and what it costs.

import { describe, expect, it } from 'vitest'
import { Book } from '../../../src/backend/iptables/book.ts'
import { jumps, savedJump } from '../../../src/backend/iptables/chains.ts'
import { portEntry } from '../../../src/backend/iptables/entries.ts'
import { countUses, OwnChainsSaved, type OwnChanges, type Sight } from '../../../src/backend/iptables/sight.ts'
import { Watch } from '../../../src/backend/iptables/watch.ts'
import { silentLogger } from '../../../src/lib/log.ts'
import { FakeClock } from '../../support/clock.ts'

const signal = new AbortController().signal

class Eyes implements Sight {
  readonly book = new Book()
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
  readonly watch: Watch

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
    this.watch = new Watch({
      sight: this,
      expected: () => this.book.uses(),
      parts: () => this.book.parts(),
      hooks: jumps,
      onDrift: (culprit) => this.told.push(culprit),
      clock: this.clock,
      log: silentLogger,
    })
  }

  mark = async () => String(this.generation)
  onlyOwn = (before: string, after: string, { commits }: OwnChanges) => Number(after) === Number(before) + commits
  look = async () => {
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
  survey = async () => ({ ...(await this.look()), own: new OwnChainsSaved() })
  close = () => {}

  /** Somebody changes something. */
  change(chain: string, use: number | undefined): void {
    this.changed.set(chain, use)
    this.generation++
  }

  async write(full = false, commits = 2): Promise<void> {
    const before = await this.watch.pause()
    this.generation += commits
    await this.watch.resume(before, commits, full, signal)
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
    countUses(saved, { uses, jumps, own: undefined, table: '' })
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
    const before = await eyes.watch.pause()
    eyes.change('nat KUBE-SEP-A', undefined)
    eyes.generation += 2
    await eyes.watch.resume(before, 2, false, signal)
    await eyes.pass(1000)
    expect(eyes.told).toHaveLength(1)
  })

  it('does not take for a jump of others what somebody put in the moment after a repair', async () => {
    const eyes = new Eyes()
    await eyes.write(true)
    eyes.change('nat KUBE-SERVICES', -1)
    await eyes.pass(1000)
    const before = await eyes.watch.pause()
    eyes.generation += 2
    eyes.change('nat KUBE-SERVICES', 1)
    await eyes.watch.resume(before, 2, true, signal)
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
    const before = await eyes.watch.pause()
    eyes.generation += 2
    eyes.change('nat KUBE-SERVICES', 1)
    await eyes.watch.resume(before, 2, true, signal)
    await eyes.pass(1000)
    expect(eyes.told).toHaveLength(1)
  })

  it('notices after a write that failed', async () => {
    const eyes = new Eyes()
    await eyes.write(true)
    await eyes.watch.pause()
    eyes.change('nat KUBE-SEP-A', undefined)
    eyes.watch.abandon()
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
      const before = await eyes.watch.pause()
      eyes.generation += 3
      await eyes.watch.resume(before, 2, true, signal)
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
