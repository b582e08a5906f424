// Random changes of inputs for decoders: of bytes, and of JSON values so that the result stays JSON.

import fc from 'fast-check'

const nestings = [
  () => `${'['.repeat(6_000)}${']'.repeat(6_000)}`,
  () => `${'{"a":'.repeat(6_000)}1${'}'.repeat(6_000)}`,
].map((make) => JSON.parse(make()) as unknown)

/** Values that decoders tend to forget. */
const oddValue: fc.Arbitrary<unknown> = fc.oneof(
  fc.jsonValue({ maxDepth: 3 }),
  fc.constantFrom(...nestings),
  fc.constantFrom('', ' ', '\0', '\u202e', '::', '0.0.0.0/0', '010.0.0.1', '1e3', '__proto__', 'constructor', null),
  fc.constantFrom(0, -1, -0, 65_535, 65_536, 2 ** 53, 1e308, 0.5),
  fc.integer({ min: 100, max: 10_000 }).map((length) => 'x'.repeat(length)),
  fc.integer({ min: 100, max: 3_000 }).map((length) => Array.from({ length }, (_, i) => ({ port: i, name: `p${i}` }))),
)

/** Lists the places of a value: an object or a list, and a key in it. */
function* findPlaces(value: unknown): Generator<readonly [object, string]> {
  if (typeof value !== 'object' || value === null) return
  for (const key of Object.keys(value)) {
    yield [value, key]
    yield* findPlaces(Reflect.get(value, key))
  }
}

/** Returns copies of the values in which some fields have another value, or are missing. */
export function mutateJson(seeds: readonly unknown[]): fc.Arbitrary<unknown> {
  const change = fc.record({ place: fc.nat(), value: oddValue, remove: fc.boolean() })
  return fc
    .tuple(fc.constantFrom(...seeds), fc.array(change, { minLength: 1, maxLength: 4 }))
    .map(([seed, changes]) => {
      const copy = structuredClone(seed)
      const places = [...findPlaces(copy)]
      for (const { place, value, remove } of changes) {
        const [parent, key] = places[place % places.length] ?? [{}, '']
        if (remove && !Array.isArray(parent)) Reflect.deleteProperty(parent, key)
        else Object.defineProperty(parent, key, { value, enumerable: true, configurable: true, writable: true })
      }
      return copy
    })
}

/** Returns copies of the inputs in which some bytes are changed, removed, or repeated. */
export function mutateBytes(seeds: readonly Buffer[]): fc.Arbitrary<Buffer> {
  const change = fc.record({
    at: fc.nat(),
    length: fc.integer({ min: 0, max: 40 }),
    bytes: fc.uint8Array({ maxLength: 8 }),
    times: fc.constantFrom(1, 1, 1, 2, 50, 5_000),
  })
  return fc
    .tuple(fc.constantFrom(...seeds), fc.array(change, { minLength: 1, maxLength: 4 }))
    .map(([seed, changes]) => {
      let bytes = seed
      for (const { at, length, bytes: given, times } of changes) {
        const start = at % (bytes.length + 1)
        const cut = bytes.subarray(start, start + length)
        const inserted = given.length === 0 ? cut : Buffer.from(given)
        const middle = Array.from({ length: times }, () => inserted)
        bytes = Buffer.concat([bytes.subarray(0, start), ...middle, bytes.subarray(start + length)])
      }
      return bytes
    })
}
