// Label and field selectors: the grammar, its errors, and laws that hold for all selectors.

import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import {
  matchesFields,
  matchesLabels,
  matchesMap,
  parseFieldSelector,
  parseLabelSelector,
} from '../../../src/apiserver/requests/selectors.ts'

const matches = (selector: string, labels: Record<string, string>) =>
  matchesLabels(parseLabelSelector(selector), labels)

describe('a label selector', () => {
  const labels = { app: 'web', tier: '', size: '5', 'a.b/c': 'd' }
  it.each([
    ['', true],
    ['app=web', true],
    ['app==web', true],
    ['app!=web', false],
    ['none!=web', true],
    ['app', true],
    ['!app', false],
    ['! none', true],
    ['tier=', true],
    ['tier', true],
    ['app in (web, db)', true],
    ['app in (db)', false],
    ['app notin (db),size', true],
    ['none notin (x)', true],
    ['none in ()', false],
    ['tier in (,x)', true],
    ['size>4', true],
    ['size < 5', false],
    ['app>1', false],
    ['a.b/c=d , app = web', true],
    ['!service.kubernetes.io/service-proxy-name', true],
  ])('%j is %s', (selector, wanted) => {
    expect(matches(selector, labels)).toBe(wanted)
  })

  it.each([
    'a===b',
    'a=b,',
    ',a',
    'a in b',
    'a in (b',
    'a=(b)',
    '!',
    '!=a',
    'a b',
    'a>b',
    '-a=b',
    'a=b c',
    'a/b/c=d',
    'a=!b',
    `${'a'.repeat(64)}=b`,
    'a=b_',
  ])('%j is refused', (selector) => {
    expect(() => parseLabelSelector(selector)).toThrow(
      expect.objectContaining({ refusal: expect.objectContaining({ code: 400 }) }),
    )
  })

  it('matches an object or its opposite does, but never both', () => {
    const key = fc.constantFrom('a', 'b')
    const value = fc.constantFrom('x', 'y', '')
    fc.assert(
      fc.property(key, fc.uniqueArray(value, { minLength: 1 }), fc.dictionary(key, value), (name, values, given) => {
        const list = `(${values.join(',')})`
        expect(matches(`${name} in ${list}`, given)).toBe(!matches(`${name} notin ${list}`, given))
        expect(matches(name, given)).toBe(!matches(`!${name}`, given))
        expect(matches(`${name}=${values[0]}`, given)).toBe(!matches(`${name}!=${values[0]}`, given))
        expect(matchesMap({ [name]: values[0] }, given)).toBe(matches(`${name}=${values[0]}`, given))
      }),
    )
  })

  it('throws only Status errors', () => {
    fc.assert(
      fc.property(fc.string({ unit: fc.constantFrom(...'ab=!<>(), innotx/.-') }), (text) => {
        try {
          parseLabelSelector(text)
        } catch (error) {
          expect(error).toMatchObject({ refusal: { code: 400 } })
        }
      }),
      { numRuns: 2000 },
    )
  })
})

describe('a field selector', () => {
  const known = ['metadata.name', 'spec.clusterIP']
  const read = (field: string) => ({ 'metadata.name': 'a,b=c', 'spec.clusterIP': 'None' })[field] ?? ''
  it.each([
    ['', true],
    ['spec.clusterIP=None', true],
    ['spec.clusterIP!=None', false],
    ['metadata.name==a\\,b\\=c', true],
    ['metadata.name=x,spec.clusterIP=None', false],
  ])('%j is %s', (selector, wanted) => {
    expect(matchesFields(parseFieldSelector(selector, known), read)).toBe(wanted)
  })
  it.each(['spec.foo=1', 'nonsense', '=x', 'metadata.name=a\\x', 'metadata.name'])('%j is refused', (selector) => {
    expect(() => parseFieldSelector(selector, known)).toThrow(
      expect.objectContaining({ refusal: expect.objectContaining({ code: 400 }) }),
    )
  })
})
