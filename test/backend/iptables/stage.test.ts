// What a write would change is worked out without changing anything; applied, it gives the same result as writing everything at once.

import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import {
  createBaseEntry,
  createPortEntry,
  createStray,
  type IptablesEntry,
  type PortEntry,
} from '../../../src/backend/iptables/entries.ts'
import { stage } from '../../../src/backend/iptables/write/stage.ts'
import { addForgotten, groupChanges } from '../../../src/backend/iptables/write/units.ts'
import { WrittenRules } from '../../../src/backend/iptables/write/written.ts'

/** A port with one chain of its own and some endpoints. */
function port(name: string, ...endpoints: number[]): PortEntry {
  const service = `KUBE-SVC-${name}`
  const chains = endpoints.map((n) => `KUBE-SEP-${name}-${n}`)
  return createPortEntry(
    { id: `ns/${name}:p/tcp`, service: `ns/${name}` },
    {
      chains: [service, ...chains],
      shared: [`-A KUBE-SERVICES -d 10.0.0.1 -j ${service}`],
      counted: 0,
      own: [...chains.map((chain) => `-A ${service} -j ${chain}`), ...chains.map((chain) => `-A ${chain} -j DNAT`)],
      filter: [],
      unreached: 0,
    },
    endpoints.length,
  )
}

const unitsOf = (put: readonly IptablesEntry[], drop: readonly IptablesEntry[] = []) => {
  const { required, units } = groupChanges({ put, drop })
  return [required, ...units]
}

function writtenOf(...entries: readonly IptablesEntry[]): WrittenRules {
  const written = new WrittenRules()
  for (const entry of entries) written.put(entry)
  return written
}

const summaryOf = (written: WrittenRules) => ({
  ports: written.ports().map(({ digest }) => digest),
  base: [...written.base.keys()],
  endpoints: written.endpoints,
  rules: [written.ruleCount('filter'), written.ruleCount('nat')],
  legacy: written.legacyEntries(),
  checksum: String(written.chainChecksum),
})

describe('staging', () => {
  it('names the chains of a port that changed, and those that it loses', () => {
    const written = writtenOf(port('a', 1, 2), port('b', 1))
    const staged = stage(written, unitsOf([port('a', 1, 3)]), false)
    expect(staged.chains).toEqual(new Map([['ns/a:p/tcp', new Set(['KUBE-SVC-a', 'KUBE-SEP-a-3'])]]))
    expect(staged.rewritten).toEqual([port('a', 1, 3)])
    expect(staged.staleChains).toEqual(['KUBE-SEP-a-2'])
    expect(staged.endpoints).toBe(3)
  })

  it('changes nothing by itself', () => {
    const written = writtenOf(port('a', 1), port('b', 1))
    const before = summaryOf(written)
    stage(written, unitsOf([port('a', 2), port('c', 1)], [port('b', 1)]), false)
    expect(summaryOf(written)).toEqual(before)
  })

  it('takes no chain to be as it was if everything is written', () => {
    const entries = [port('a', 1), port('b', 1)]
    const staged = stage(writtenOf(...entries), unitsOf(entries), true)
    expect(staged.chains).toBeUndefined()
    expect(staged.rewritten).toEqual(entries)
    expect([staged.put, staged.drop, staged.staleChains]).toEqual([[], [], []])
  })

  it('deletes chains that jump before those that they jump to', () => {
    const [a, b] = [port('a', 1, 2), port('b', 3)]
    const { staleChains } = stage(writtenOf(a, b), unitsOf([], [a, b]), false)
    expect(staleChains.map((chain) => chain.slice(0, 8))).toEqual([
      ...Array(2).fill('KUBE-SVC'),
      ...Array(3).fill('KUBE-SEP'),
    ])
  })

  it('does not delete a stray chain that a port has by now', () => {
    const { required, units } = groupChanges({
      put: [port('a', 1)],
      drop: ['KUBE-SVC-a', 'KUBE-SVC-old'].map(createStray),
    })
    expect(stage(new WrittenRules(), [required, ...units], true).staleChains).toEqual(['KUBE-SVC-old'])
  })

  it('keeps chains that cannot be deleted', () => {
    const a = port('a', 1)
    const units = unitsOf([], [a]).map((unit) => ({ ...unit, keepsChains: true }))
    const staged = stage(writtenOf(a), units, false)
    expect([staged.drop, staged.staleChains]).toEqual([['ns/a:p/tcp'], []])
  })

  it('forgets entries that are not wanted when everything is written, and deletes their chains', () => {
    const written = writtenOf(port('a', 1), port('b', 1))
    const { required, units } = addForgotten(groupChanges({ put: [port('a', 1)], drop: [] }), written)
    expect(units.map(({ kind }) => kind)).toEqual(['service', 'forgotten'])
    // Their rules go even if no unit is accepted.
    expect(stage(written, [required], true)).toMatchObject({ drop: ['ns/b:p/tcp'], staleChains: [] })
    expect(stage(written, [required, ...units], true).staleChains).toEqual(['KUBE-SVC-b', 'KUBE-SEP-b-1'])
  })

  it('gives the same result through any history', () => {
    const names = ['a', 'b', 'c', 'd', 'e', 'f']
    const changes = fc.array(fc.tuple(fc.constantFrom(...names), fc.subarray([1, 2, 3])), { maxLength: 6 })
    fc.assert(
      fc.property(fc.array(changes, { maxLength: 8 }), (history) => {
        const written = writtenOf(createBaseEntry('nat head', ['-A KUBE-MARK-MASQ -j MARK']))
        const wanted = new Map<string, PortEntry>()
        for (const batch of history) {
          const latest = new Map(batch)
          const put = [...latest].filter(([, ends]) => ends.length > 0).map(([name, ends]) => port(name, ...ends))
          const gone = [...latest].filter(([, ends]) => ends.length === 0).map(([name]) => wanted.get(name))
          const drop = gone.filter((entry) => entry !== undefined)
          written.apply(stage(written, unitsOf(put, drop), false))
          for (const [name, ends] of latest) {
            if (ends.length > 0) wanted.set(name, port(name, ...ends))
            else wanted.delete(name)
          }
        }
        const fresh = writtenOf(createBaseEntry('nat head', ['-A KUBE-MARK-MASQ -j MARK']), ...wanted.values())
        expect(summaryOf(written)).toEqual(summaryOf(fresh))
      }),
    )
  })
})
