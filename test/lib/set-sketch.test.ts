import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { hashText, SetSketch, type SketchElement } from '../../src/lib/set-sketch.ts'

const element = (name: string, content: number): SketchElement => ({ key: hashText(name), content })

function sketchOf(elements: Iterable<SketchElement>): SetSketch {
  const sketch = new SetSketch()
  for (const one of elements) sketch.add(one)
  return SetSketch.parse(sketch.toString()) as SetSketch
}

const sorted = (elements: readonly SketchElement[]) => elements.map(({ key, content }) => `${key} ${content}`).sort()

describe('a sketch', () => {
  it('reveals the differences of two large sets', () => {
    const common = Array.from({ length: 30_000 }, (_, i) => element(`ns/service-${i}`, i))
    const changed = Array.from({ length: 20 }, (_, i) => element(`ns/service-${i * 7}`, 99_999 + i))
    const changedKeys = new Set(changed.map(({ key }) => key))
    const other = [...common.filter(({ key }) => !changedKeys.has(key)), ...changed]
    const { onlyFirst, onlySecond, isComplete } = sketchOf(common).compare(sketchOf(other))
    expect(isComplete).toBe(true)
    expect(sorted(onlySecond)).toEqual(sorted(changed))
    expect(sorted(onlyFirst)).toEqual(sorted(common.filter(({ key }) => changedKeys.has(key))))
  })

  it('never names an element that both sets have or neither has, however many differ', () => {
    const elements = fc.uniqueArray(fc.record({ key: fc.nat(2 ** 32 - 1), content: fc.nat(2 ** 32 - 1) }), {
      selector: ({ key, content }) => `${key} ${content}`,
      maxLength: 200,
    })
    fc.assert(
      fc.property(elements, fc.nat(200), fc.nat(200), (all, from, to) => {
        const [first, second] = [all.slice(0, to), all.slice(from)]
        const result = sketchOf(first).compare(sketchOf(second))
        const has = (set: readonly SketchElement[], one: SketchElement) =>
          set.some(({ key, content }) => key === one.key && content === one.content)
        for (const one of result.onlyFirst) expect([has(first, one), has(second, one)]).toEqual([true, false])
        for (const one of result.onlySecond) expect([has(first, one), has(second, one)]).toEqual([false, true])
        if (!result.isComplete) return
        expect(result.onlyFirst).toHaveLength(first.filter((one) => !has(second, one)).length)
        expect(result.onlySecond).toHaveLength(second.filter((one) => !has(first, one)).length)
      }),
      { numRuns: 200 },
    )
  })

  it('says that there are more differences than it can reveal', () => {
    const many = Array.from({ length: 500 }, (_, i) => element(`ns/service-${i}`, i))
    expect(sketchOf(many).compare(sketchOf([])).isComplete).toBe(false)
  })

  it('reveals 20 changed services in nearly every case', () => {
    let complete = 0
    for (let round = 0; round < 200; round++) {
      const pairs = Array.from({ length: 20 }, (_, i) => element(`ns-${round}/service-${i}`, round * 31 + i))
      const changed = pairs.map(({ key, content }) => ({ key, content: content ^ 0xabcdef }))
      if (sketchOf(pairs).compare(sketchOf(changed)).isComplete) complete++
    }
    expect(complete).toBeGreaterThan(190)
  })

  it('is not made of other texts', () => {
    expect(SetSketch.parse('')).toBeUndefined()
    expect(SetSketch.parse('AAAA')).toBeUndefined()
    const rubbish = SetSketch.parse(Buffer.alloc(96 * 12, 0xff).toString('base64')) as SetSketch
    expect(rubbish.compare(new SetSketch()).isComplete).toBe(false)
  })
})
