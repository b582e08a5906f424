import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { parseMilliQuantity } from '../../../src/kube/decode/quantity.ts'

describe('a resource quantity', () => {
  it.each([
    ['4', 4_000],
    ['3920m', 3_920],
    ['1e3', 1_000_000],
    ['1E3', 1_000_000],
    ['25e-1', 2_500],
    ['1e+2', 100_000],
    ['1.5', 1_500],
    ['.5', 500],
    ['5.', 5_000],
    ['1.005', 1_005],
    ['007', 7_000],
    ['+3', 3_000],
    ['-2', -2_000],
    ['0', 0],
    ['-0', 0],
    // Kubernetes rounds up: a hundred nanocores are not nothing.
    ['100n', 1],
    ['1u', 1],
    ['1e-400', 1],
    ['0.0039', 4],
    ['2k', 2_000_000],
    ['2Ki', 2_048_000],
    ['1M', 1_000_000_000],
    ['1E', Number.MAX_SAFE_INTEGER],
    ['1e400', Number.MAX_SAFE_INTEGER],
  ])('%s has %i thousandths', (text, milli) => {
    expect(parseMilliQuantity(text)).toBe(milli)
  })

  it.each([
    '',
    ' 4',
    '4 ',
    'm',
    '.',
    'e3',
    '1e',
    '1e1.5',
    '1mm',
    '1K',
    '1i',
    '1ki',
    '0x10',
    '1_000',
    '1.2.3',
    '4 CPUs',
    'toString',
    'NaN',
  ])('is not %j', (text) => {
    expect(parseMilliQuantity(text)).toBeUndefined()
  })

  it('has the same value in every form that it can be written in', () => {
    fc.assert(
      fc.property(fc.nat({ max: 100_000_000 }), (milli) => {
        const [whole, rest] = [Math.floor(milli / 1000), String(milli % 1000).padStart(3, '0')]
        for (const text of [`${milli}m`, `${milli}e-3`, `${milli}000u`, `${whole}.${rest}`, `${whole}.${rest}e0`]) {
          expect([text, parseMilliQuantity(text)]).toEqual([text, milli])
        }
      }),
    )
  })
})
