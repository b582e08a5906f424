import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { excerptJson, parseBounded } from '../../src/lib/bounded-json.ts'

const nest = (levels: number, open: string, close: string) => open.repeat(levels) + close.repeat(levels)

describe('an excerpt', () => {
  it('equals the JSON where that is short and flat enough', () => {
    fc.assert(
      fc.property(fc.jsonValue({ maxDepth: 5 }), (value) => {
        const text = JSON.stringify(value)
        expect(excerptJson(value, 80)).toBe(text.length <= 80 ? text : `${text.slice(0, 77)}...`)
      }),
    )
  })

  it.each([
    ['lists', nest(100_000, '[', ']')],
    ['objects', `${'{"a":'.repeat(100_000)}1${'}'.repeat(100_000)}`],
  ])('is short for deeply nested %s', (_, text) => {
    const shown = excerptJson(JSON.parse(text), 80)
    expect(shown.length).toBeLessThanOrEqual(80)
    expect(shown).toContain('...')
  })

  it('does not print what it does not show', () => {
    const huge = { text: 'x'.repeat(10 << 20), list: Array.from({ length: 1e6 }, () => 'y'.repeat(100)) }
    const started = performance.now()
    for (let i = 0; i < 100; i++) excerptJson([huge, huge.list], 80)
    expect(performance.now() - started).toBeLessThan(500)
  })

  it.each([
    [undefined, 'undefined'],
    [null, 'null'],
    [Number.NaN, 'null'],
  ])('shows %s', (value, text) => expect(excerptJson(value, 80)).toBe(text))
})

describe('parsing', () => {
  it('refuses a long text that nests deeper than the API server allows', () => {
    expect(() => parseBounded(nest(1 << 20, '[', ']'))).toThrow('deeper than 10000 levels')
    expect(() => parseBounded('{"a":'.repeat(1 << 20))).toThrow('deeper than 10000 levels')
  })

  it('does not take brackets in strings, or brackets side by side, for levels', () => {
    const text = JSON.stringify([`\\"${'['.repeat(1 << 20)}"`, Array.from({ length: 200_000 }, () => [{}])])
    expect(parseBounded(text)).toEqual(JSON.parse(text))
  })

  it('lets the last of several equal keys win, and adds nothing to prototypes', () => {
    expect(parseBounded('{"a":1,"a":2}')).toEqual({ a: 2 })
    parseBounded('{"__proto__":{"polluted":true}}')
    expect('polluted' in {}).toBe(false)
  })
})
