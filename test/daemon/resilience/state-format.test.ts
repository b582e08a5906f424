// Whatever happens to the bytes of a saved state, what is read is a state that existed, or nothing.

import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import {
  type Decoded,
  decodeState,
  type StateChange,
  StateEncoder,
  type StateOwner,
} from '../../../src/daemon/resilience/state-format.ts'
import type { ServiceRecord, SliceRecord } from '../../../src/model/types.ts'

const owner: StateOwner = { node: 'n1', cluster: 'c1' }

function decode(bytes: Buffer, expected = owner): Decoded {
  const steps = decodeState(bytes, expected)
  for (;;) {
    const step = steps.next()
    if (step.done) return step.value
  }
}

const service = (key: string, note: string): StateChange => ({
  kind: 'service',
  key,
  record: { key, uid: note } as ServiceRecord,
})
const slice = (key: string, note: number): StateChange => ({
  kind: 'slice',
  key,
  record: { key, triggered: note } as SliceRecord,
})
const key = fc.constantFrom('a/1', 'a/2', 'ä/3')
const change: fc.Arbitrary<StateChange> = fc.oneof(
  fc.tuple(key, fc.string()).map(([name, note]) => service(name, note)),
  fc.tuple(key, fc.nat()).map(([name, note]) => slice(name, note)),
  key.map((name): StateChange => ({ kind: 'service', key: name, record: undefined })),
)
const puts = fc
  .uniqueArray(fc.tuple(key, fc.string()), { selector: ([name]) => name })
  .map((list) => list.map(([name, note]) => service(name, note)))

function encode(snapshot: readonly StateChange[], changes: readonly StateChange[], given = owner) {
  const encoder = new StateEncoder()
  const lines = [encoder.header(given)]
  for (const one of snapshot) lines.push(encoder.change(one))
  lines.push(encoder.endOfSnapshot())
  const snapshotBytes = Buffer.byteLength(lines.join(''))
  for (const one of changes) lines.push(encoder.change(one))
  return { bytes: Buffer.from(lines.join('')), snapshotBytes }
}

/** What an observer would know after each number of changes. */
function states(snapshot: readonly StateChange[], changes: readonly StateChange[]): readonly string[] {
  const known = new Map<string, unknown>()
  const apply = ({ kind, key: name, record }: StateChange) =>
    record === undefined ? known.delete(`${kind} ${name}`) : known.set(`${kind} ${name}`, record)
  const show = () => JSON.stringify([...known].sort(([a], [b]) => (a < b ? -1 : 1)))
  for (const one of snapshot) apply(one)
  const all = [show()]
  for (const one of changes) {
    apply(one)
    all.push(show())
  }
  return all
}

function show(decoded: Decoded): string | undefined {
  if ('refused' in decoded) return undefined
  const { service: services, slice: slices } = decoded.objects
  const named = [
    ...[...services].map(([name, record]) => [`service ${name}`, record] as const),
    ...[...slices].map(([name, record]) => [`slice ${name}`, record] as const),
  ]
  return JSON.stringify(named.sort(([a], [b]) => (a < b ? -1 : 1)))
}

describe('a saved state', () => {
  it('is read as it was written', () => {
    fc.assert(
      fc.property(puts, fc.array(change), (snapshot, changes) => {
        expect(show(decode(encode(snapshot, changes).bytes))).toBe(states(snapshot, changes).at(-1))
      }),
    )
  })

  it('that ends anywhere is refused, or is one of the states that existed', () => {
    fc.assert(
      fc.property(puts, fc.array(change), fc.nat(), (snapshot, changes, cut) => {
        const { bytes, snapshotBytes } = encode(snapshot, changes)
        const end = cut % (bytes.length + 1)
        const shown = show(decode(bytes.subarray(0, end)))
        if (end < snapshotBytes) expect(shown).toBeUndefined()
        else expect(states(snapshot, changes)).toContain(shown)
      }),
    )
  })

  it('with one changed byte is refused, or is one of the states that existed', () => {
    fc.assert(
      fc.property(puts, fc.array(change), fc.nat(), fc.integer({ min: 1, max: 255 }), (snapshot, changes, at, bits) => {
        const { bytes, snapshotBytes } = encode(snapshot, changes)
        const place = at % bytes.length
        bytes[place] = (bytes[place] as number) ^ bits
        const shown = show(decode(bytes))
        if (place < snapshotBytes) expect(shown).toBeUndefined()
        else expect(states(snapshot, changes)).toContain(shown)
      }),
    )
  })

  it('without one of its lines is refused, or is one of the states that existed', () => {
    const { bytes } = encode([service('a/1', 'x'), service('a/2', 'y')], [service('a/1', 'z'), slice('a/2', 1)])
    const lines = bytes.toString().split('\n')
    for (let i = 0; i < lines.length - 1; i++) {
      const shown = show(decode(Buffer.from(lines.toSpliced(i, 1).join('\n'))))
      if (i < 4) expect(shown).toBeUndefined()
    }
  })

  it('of another node or cluster, or of another version, is refused in words', () => {
    const { bytes } = encode([], [])
    expect(decode(bytes, { ...owner, node: 'n2' })).toEqual({ refused: 'it belongs to the node "n1"' })
    expect(decode(bytes, { ...owner, cluster: 'c2' })).toEqual({ refused: 'it belongs to another cluster' })
    expect(decode(Buffer.from('garbage'))).toHaveProperty('refused')
    expect(decode(Buffer.alloc(0))).toHaveProperty('refused')
  })

  it('with random bytes is never more than refused', () => {
    fc.assert(fc.property(fc.uint8Array({ maxLength: 500 }), (bytes) => 'refused' in decode(Buffer.from(bytes))))
  })
})
