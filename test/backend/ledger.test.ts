// Checks which entries the ledger puts and drops: shared claims, refusals, interruptions and random histories.

import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import type { Held } from '../../src/backend/backend.ts'
import { Ledger } from '../../src/backend/ledger.ts'
import { type Steps, stride } from '../../src/lib/yielding.ts'
import { diffAtOnce, resetAtOnce, settleAtOnce } from '../support/ledger-at-once.ts'
import { runAtOnce } from '../support/run-at-once.ts'

interface Entry extends Held {
  readonly content: string
}

const entry = (id: string, content = 'x'): Entry => ({ id, kind: 'thing', digest: `#${content}`, content })
const ids = (list: Iterable<Held>) => [...list].map((one) => one.id).sort()
const sync = (ledger: Ledger<Entry>) => {
  const changes = diffAtOnce(ledger)
  settleAtOnce(ledger, changes)
  return { put: ids(changes.put), drop: ids(changes.drop) }
}

describe('Ledger', () => {
  it('puts new entries, leaves equal ones, and drops entries that no owner claims', () => {
    const ledger = new Ledger<Entry>()
    ledger.want('a', [entry('1'), entry('2')])
    expect(sync(ledger)).toEqual({ put: ['1', '2'], drop: [] })
    expect(sync(ledger)).toEqual({ put: [], drop: [] })
    ledger.want('a', [entry('2'), entry('3')])
    expect(sync(ledger)).toEqual({ put: ['3'], drop: ['1'] })
    ledger.want('a', [])
    expect(sync(ledger)).toEqual({ put: [], drop: ['2', '3'] })
    expect(ledger.wanted().size).toBe(0)
  })

  it('keeps a shared entry until its last owner releases it', () => {
    const ledger = new Ledger<Entry>()
    ledger.want('a', [entry('hairpin')])
    ledger.want('b', [entry('hairpin')])
    sync(ledger)
    expect(ledger.owners('hairpin')).toEqual(['a', 'b'])
    ledger.want('a', [])
    expect(sync(ledger)).toEqual({ put: [], drop: [] })
    expect(ledger.owners('hairpin')).toEqual(['b'])
    ledger.want('b', [])
    expect(sync(ledger)).toEqual({ put: [], drop: ['hairpin'] })
    expect(ledger.owners('hairpin')).toEqual([])
  })

  it('leaves postponed entries out of diffs until they are settled or recalled', () => {
    const ledger = new Ledger<Entry>()
    ledger.want('large', [entry('1'), entry('2'), entry('3')])
    const changes = diffAtOnce(ledger)
    runAtOnce(ledger.postpone((id) => id !== '3'))
    expect(sync(ledger)).toEqual({ put: ['3'], drop: [] })
    settleAtOnce(ledger, { put: changes.put.slice(0, 1), drop: [] })
    expect(sync(ledger)).toEqual({ put: [], drop: [] })
    expect(ledger.isDisturbed).toBe(false)
    runAtOnce(ledger.recall())
    expect(sync(ledger)).toEqual({ put: ['2'], drop: [] })
  })

  it('says if a postponed entry is no longer wanted as it was', () => {
    const changesOfMind: readonly ((ledger: Ledger<Entry>) => void)[] = [
      (ledger) => ledger.want('large', []),
      (ledger) => ledger.want('large', [entry('1', 'new')]),
      (ledger) => ledger.want('a', [entry('1', 'of a')]),
    ]
    for (const change of changesOfMind) {
      const ledger = new Ledger<Entry>()
      ledger.want('large', [entry('1')])
      runAtOnce(ledger.postpone(() => true))
      ledger.want('large', [entry('1')])
      expect(ledger.isDisturbed).toBe(false)
      change(ledger)
      expect(ledger.isDisturbed).toBe(true)
      runAtOnce(ledger.recall())
      const fresh = new Ledger<Entry>()
      for (const { owner, entry } of ledger.winners()) fresh.want(owner, [entry])
      expect(diffAtOnce(ledger)).toEqual(diffAtOnce(fresh))
    }
  })

  it('compares postponed entries after a reset', () => {
    const ledger = new Ledger<Entry>()
    ledger.want('large', [entry('1'), entry('2')])
    runAtOnce(ledger.postpone(() => true))
    resetAtOnce(ledger, [entry('1')])
    expect(sync(ledger)).toEqual({ put: ['2'], drop: [] })
  })

  it('lets the smallest owner win in any order, and then the next one', () => {
    for (const order of [
      ['a', 'b', ''],
      ['', 'b', 'a'],
      ['b', '', 'a'],
    ]) {
      const ledger = new Ledger<Entry>()
      for (const owner of order) ledger.want(owner, [entry('1', owner)])
      expect(ledger.wanted().entry('1')?.content).toBe('')
      sync(ledger)
      ledger.want('', [])
      expect(diffAtOnce(ledger).put.map((e) => e.content)).toEqual(['a'])
    }
  })

  it('takes the first of two entries with one id from one owner', () => {
    const ledger = new Ledger<Entry>()
    ledger.want('b', [entry('1', 'first'), entry('1', 'second')])
    expect(ledger.wanted().entry('1')?.content).toBe('first')
    ledger.want('b', [entry('1', 'third'), entry('1', 'first')])
    expect(ledger.wanted().entry('1')?.content).toBe('third')
    ledger.want('a', [entry('1', 'a')])
    ledger.want('c', [entry('1', 'c1'), entry('1', 'c2')])
    ledger.want('a', [])
    ledger.want('b', [])
    expect(ledger.wanted().entry('1')?.content).toBe('c1')
    ledger.want('c', [])
    expect(ledger.wanted().size).toBe(0)
  })

  it('compares everything after a reset, and drops held entries that are not wanted', () => {
    const ledger = new Ledger<Entry>()
    ledger.want('a', [entry('same'), entry('other', 'new'), entry('missing')])
    sync(ledger)
    resetAtOnce(ledger, [entry('same'), entry('other', 'old'), entry('alien')])
    expect(sync(ledger)).toEqual({ put: ['missing', 'other'], drop: ['alien'] })
    expect(sync(ledger)).toEqual({ put: [], drop: [] })
  })

  it('returns the same diff again until it is settled', () => {
    const ledger = new Ledger<Entry>()
    ledger.want('a', [entry('1')])
    diffAtOnce(ledger)
    expect(ids(diffAtOnce(ledger).put)).toEqual(['1'])
    ledger.want('a', [])
    expect(diffAtOnce(ledger)).toEqual({ put: [], drop: [] })
  })

  it('keeps changes due that happen between diff and settle', () => {
    const ledger = new Ledger<Entry>()
    ledger.want('a', [entry('1', 'old'), entry('2')])
    const changes = diffAtOnce(ledger)
    ledger.want('a', [entry('1', 'new')])
    settleAtOnce(ledger, changes)
    expect(diffAtOnce(ledger).put.map((e) => e.content)).toEqual(['new'])
    expect(ids(diffAtOnce(ledger).drop)).toEqual(['2'])
  })

  it('sets a refused entry aside until it is retried, changed or observed', () => {
    const ledger = new Ledger<Entry>()
    ledger.want('a', [entry('bad'), entry('good')])
    const refuse = () => settleAtOnce(ledger, diffAtOnce(ledger), ['bad'])
    refuse()
    expect(diffAtOnce(ledger).put).toEqual([])
    expect(ids(ledger.wanted().entries())).toEqual(['good'])
    expect(ledger.wanted().size).toBe(1)
    expect(ledger.wanted().entry('bad')).toBeUndefined()
    resetAtOnce(ledger, [entry('good')])
    expect(diffAtOnce(ledger).put).toEqual([])
    ledger.retry('bad')
    expect(ids(diffAtOnce(ledger).put)).toEqual(['bad'])
    refuse()
    ledger.want('a', [entry('bad'), entry('good')])
    expect(diffAtOnce(ledger).put).toEqual([])
    ledger.want('a', [entry('bad', 'mended'), entry('good')])
    expect(ids(diffAtOnce(ledger).put)).toEqual(['bad'])
    refuse()
    resetAtOnce(ledger, [entry('bad', 'mended'), entry('good')])
    expect(ids(ledger.wanted().entries())).toEqual(['bad', 'good'])
  })

  it('keeps what was held under a refused id, and drops it when the owner releases it', () => {
    const ledger = new Ledger<Entry>()
    ledger.want('a', [entry('1', 'old')])
    sync(ledger)
    ledger.want('a', [entry('1', 'bad')])
    settleAtOnce(ledger, diffAtOnce(ledger), ['1'])
    ledger.want('a', [])
    expect(diffAtOnce(ledger).drop.map((held) => held.digest)).toEqual(['#old'])
    settleAtOnce(ledger, diffAtOnce(ledger), ['1'])
    expect(diffAtOnce(ledger).drop).toEqual([])
    ledger.retry('1')
    expect(ids(diffAtOnce(ledger).drop)).toEqual(['1'])
  })

  it('ignores the refusal of an entry that was not offered', () => {
    const ledger = new Ledger<Entry>()
    ledger.want('a', [entry('1')])
    settleAtOnce(ledger, diffAtOnce(ledger), ['2'])
    expect(ids(ledger.wanted().entries())).toEqual(['1'])
  })
})

// ---- Many entries: operations pause, so that they never hold the event loop for long. ----

/** Runs the steps to their end and calls `pause` at every pause. Returns the result and the number of pauses. */
function drive<T>(steps: Steps<T>, pause: () => void = () => {}): { readonly value: T; readonly pauses: number } {
  for (let pauses = 0; ; pauses++) {
    const step = steps.next()
    if (step.done === true) return { value: step.value, pauses }
    pause()
  }
}

describe('Ledger, with many entries', () => {
  const many = Array.from({ length: 3 * stride }, (_, i) => entry(String(i)))

  it('can be interrupted after every stride of entries, in every operation', () => {
    const ledger = new Ledger<Entry>()
    ledger.want('a', many)
    const { value: changes, pauses } = drive(ledger.diff())
    expect(changes.put).toHaveLength(many.length)
    // Each operation visits the list of due slots as well.
    expect(pauses).toBe(2 + 3)
    expect(drive(ledger.settle(changes)).pauses).toBe(3 + 2)
    expect(drive(ledger.reset(many)).pauses).toBe(6)
    ledger.want('a', [])
    expect(drive(ledger.settle(drive(ledger.diff()).value)).pauses).toBe(3 + 2)
    expect(ledger.wanted().size).toBe(0)
  })

  it('loses no claim that is made, changed or released in a pause', () => {
    for (const interrupted of ['diff', 'settle', 'reset'] as const) {
      const ledger = new Ledger<Entry>()
      const kernel = new Map<string, Entry>([['alien', entry('alien')]])
      ledger.want('a', many)
      ledger.want('b', [entry('early')])
      let turn = 0
      const changeClaims = () => {
        turn++
        if (turn > 6) return
        ledger.want('b', turn % 2 === 0 ? [entry('early'), entry('5', 'b')] : [])
        ledger.want('c', [entry(String(many.length - 1), `c${turn}`), entry(`new${turn}`)])
        ledger.want('a', many.slice(turn * 10))
      }
      const run = <T>(name: string, steps: Steps<T>): T =>
        drive(steps, name === interrupted ? changeClaims : undefined).value
      for (let round = 0; round < 2; round++) {
        if (round === 0) run('reset', ledger.reset(kernel.values()))
        const changes = run('diff', ledger.diff())
        expect(new Set(changes.put.map(({ id }) => id)).size).toBe(changes.put.length)
        for (const one of changes.put) kernel.set(one.id, one)
        for (const one of changes.drop) kernel.delete(one.id)
        run('settle', ledger.settle(changes))
      }
      expect(turn).toBeGreaterThan(2)
      expect(diffAtOnce(ledger)).toEqual({ put: [], drop: [] })
      const wanted = [...ledger.wanted().entries()].map(({ id, digest }) => `${id}${digest}`).sort()
      expect([...kernel.values()].map(({ id, digest }) => `${id}${digest}`).sort()).toEqual(wanted)
    }
  })

  it('forgets nothing that is due if a diff is abandoned in any pause', () => {
    for (let pauses = 0; pauses < 5; pauses++) {
      const ledger = new Ledger<Entry>()
      ledger.want('a', many)
      const steps = ledger.diff()
      for (let i = 0; i <= pauses; i++) steps.next()
      ledger.want('b', [entry('late')])
      steps.return({ put: [], drop: [] })
      expect(diffAtOnce(ledger).put.map(({ id }) => id)).toHaveLength(many.length + 1)
    }
  })

  it('keeps the same entry object while its content is equal', () => {
    const ledger = new Ledger<Entry>()
    const first = entry('1')
    ledger.want('a', [first, entry('2')])
    sync(ledger)
    ledger.want('a', [entry('1'), entry('2', 'y')])
    expect(ledger.claims('a')[0]).toBe(first)
    expect(ledger.wanted().entry('1')).toBe(first)
    expect(sync(ledger)).toEqual({ put: ['2'], drop: [] })
  })
})

// ---- Histories: claims, syncs that succeed, fail half way or meet refusals, changes by other programs. ----

const owner = fc.constantFrom('', 'a', 'b', 'c')
const id = fc.constantFrom('1', '2', '3', '4')
const content = fc.constantFrom('x', 'y', 'z')
/** All ids of the claims and of the entries that other programs add. */
const allIds = ['1', '2', '3', '4', '9']
type Step =
  | { do: 'want'; owner: string; entries: [string, string][] }
  | { do: 'sync' | 'crash'; refuse: string | undefined }
  | { do: 'fail'; after: number }
  | { do: 'tamper'; id: string; content: string | undefined }
const step: fc.Arbitrary<Step> = fc.oneof(
  {
    weight: 5,
    arbitrary: fc.record({
      do: fc.constant('want' as const),
      owner,
      entries: fc.array(fc.tuple(id, content), { maxLength: 5 }),
    }),
  },
  {
    weight: 2,
    arbitrary: fc.record({
      do: fc.constantFrom('sync' as const, 'crash' as const),
      refuse: fc.option(id, { nil: undefined, freq: 4 }),
    }),
  },
  { weight: 1, arbitrary: fc.record({ do: fc.constant('fail' as const), after: fc.nat(4) }) },
  {
    weight: 1,
    arbitrary: fc.record({
      do: fc.constant('tamper' as const),
      id: fc.constantFrom('1', '3', '9'),
      content: fc.option(content, { nil: undefined }),
    }),
  },
)

/** A lane and a data plane, reduced to a few lines. */
class LedgerHarness {
  ledger = new Ledger<Entry>()
  kernel = new Map<string, Entry>()
  claims = new Map<string, readonly Entry[]>()
  trusted = false
  writes = 0

  run(step: Step): void {
    if (step.do === 'want') {
      const entries = step.entries.map(([id, content]) => entry(id, content))
      this.claims.set(step.owner, entries)
      this.ledger.want(step.owner, entries)
    } else if (step.do === 'tamper') {
      if (step.content === undefined) this.kernel.delete(step.id)
      else this.kernel.set(step.id, entry(step.id, step.content))
      this.trusted = false
    } else if (step.do === 'fail') {
      if (!this.trusted) resetAtOnce(this.ledger, this.kernel.values())
      const { put, drop } = diffAtOnce(this.ledger)
      for (const one of put.slice(0, step.after)) this.kernel.set(one.id, one)
      for (const one of drop.slice(0, step.after)) this.kernel.delete(one.id)
      this.trusted = false
    } else {
      if (step.do === 'crash') this.restart()
      this.sync(step.refuse)
    }
  }

  restart(): void {
    this.ledger = new Ledger()
    for (const [owner, entries] of this.claims) this.ledger.want(owner, entries)
    this.trusted = false
  }

  sync(refuse?: string): void {
    if (!this.trusted) resetAtOnce(this.ledger, this.kernel.values())
    const changes = diffAtOnce(this.ledger)
    for (const one of changes.put) if (one.id !== refuse) this.kernel.set(one.id, one)
    for (const one of changes.drop) if (one.id !== refuse) this.kernel.delete(one.id)
    this.writes = changes.put.length + changes.drop.length
    settleAtOnce(this.ledger, changes, refuse === undefined ? [] : [refuse])
    this.trusted = true
  }

  /** The winners, computed from all claims. */
  expected(): Record<string, string> {
    const winners: Record<string, string> = {}
    for (const owner of [...this.claims.keys()].sort().reverse()) {
      for (const one of [...(this.claims.get(owner) as readonly Entry[])].reverse()) winners[one.id] = one.content
    }
    return winners
  }

  held(): Record<string, string> {
    return Object.fromEntries([...this.kernel.values()].map((one) => [one.id, one.content]))
  }
}

describe('Ledger, over random histories', () => {
  it('one sync makes the data plane equal the winners of all claims, and the next diff is empty', () => {
    fc.assert(
      fc.property(fc.array(step, { maxLength: 25 }), (history) => {
        const harness = new LedgerHarness()
        for (const step of history) harness.run(step)
        for (const id of allIds) harness.ledger.retry(id)
        harness.sync()
        expect(harness.held()).toEqual(harness.expected())
        const wanted = Object.fromEntries([...harness.ledger.wanted().entries()].map((one) => [one.id, one.content]))
        expect(wanted).toEqual(harness.expected())
        expect(harness.ledger.wanted().size).toBe(harness.kernel.size)
        expect(diffAtOnce(harness.ledger)).toEqual({ put: [], drop: [] })
        harness.restart()
        harness.sync()
        expect(harness.writes).toBe(0)
        for (const owner of harness.claims.keys()) harness.ledger.want(owner, [])
        harness.sync()
        expect(harness.kernel.size).toBe(0)
      }),
      { numRuns: 20_000 },
    )
  })

  it('never writes what the data plane holds already, and a refusal never affects another entry', () => {
    fc.assert(
      fc.property(fc.array(step, { maxLength: 25 }), id, (history, refuse) => {
        const harness = new LedgerHarness()
        for (const step of history) harness.run(step)
        if (!harness.trusted) resetAtOnce(harness.ledger, harness.kernel.values())
        harness.trusted = true
        for (const id of allIds) harness.ledger.retry(id)
        const before = harness.held()
        const { put, drop } = diffAtOnce(harness.ledger)
        expect(put.filter((one) => before[one.id] === one.content)).toEqual([])
        expect(drop.filter((one) => before[one.id] === undefined)).toEqual([])
        harness.sync(refuse)
        const [held, expected] = [harness.held(), harness.expected()]
        expect(allIds.map((id) => held[id])).toEqual(allIds.map((id) => (id === refuse ? before : expected)[id]))
      }),
      { numRuns: 5_000 },
    )
  })
})
