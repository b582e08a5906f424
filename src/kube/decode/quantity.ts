// Parses resource quantities (`4`, `3920m`, `1e3`, `2Ki`) as Kubernetes does. Pure.

/** Powers of ten. */
const decimalSuffixes: Readonly<Record<string, number>> = {
  n: -9,
  u: -6,
  m: -3,
  '': 0,
  k: 3,
  M: 6,
  G: 9,
  T: 12,
  P: 15,
  E: 18,
}
/** Powers of 1024. */
const binarySuffixes: Readonly<Record<string, number>> = { Ki: 1, Mi: 2, Gi: 3, Ti: 4, Pi: 5, Ei: 6 }

const form = /^([+-]?)(\d+\.?\d*|\.\d+)(?:[eE]([+-]?\d+)|([a-zA-Z]*))$/

/**
 * Returns thousandths, rounded up to a whole number as Kubernetes rounds them, and at most the largest safe integer; undefined if the text
 * is not a quantity. The decimal point is moved in the text, since a product such as 1.005 * 1000 is not exact.
 */
export function parseMilliQuantity(text: string): number | undefined {
  const [, sign, digits, exponent, suffix = ''] = form.exec(text) ?? []
  if (digits === undefined) return undefined
  const binary = Object.hasOwn(binarySuffixes, suffix) ? binarySuffixes[suffix] : undefined
  const decimal = Object.hasOwn(decimalSuffixes, suffix) ? decimalSuffixes[suffix] : undefined
  if (binary === undefined && decimal === undefined) return undefined
  const power = exponent === undefined ? (decimal ?? 0) : Number(exponent)
  const value = Number(`${digits}e${power + 3}`) * 1024 ** (binary ?? 0)
  const least = /[1-9]/.test(digits) ? 1 : 0
  const milli = Math.min(Math.max(Math.ceil(value), least), Number.MAX_SAFE_INTEGER)
  return sign === '-' && milli !== 0 ? -milli : milli
}
