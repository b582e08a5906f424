// The three kinds of patches: the examples of their standards, and properties with random documents.

import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { jsonPatch, mergePatch } from '../../../src/apiserver/requests/json-patch.ts'
import { strategicPatch } from '../../../src/apiserver/requests/strategic.ts'
import type { Json } from '../../../src/apiserver/schema/json.ts'
import { getResource } from '../../../src/apiserver/schema/served-resources.ts'
import { deepEqual } from '../../../src/lib/equal.ts'

const leaf = fc.oneof(fc.string({ maxLength: 3 }), fc.integer({ min: -5, max: 5 }), fc.boolean())
const key = fc.constantFrom('a', 'b', 'c/d', 'e~f', '')
const { tree } = fc.letrec<{ tree: unknown; map: unknown; list: unknown }>((tie) => ({
  tree: fc.oneof({ depthSize: 'small', withCrossShrink: true }, leaf, tie('map'), tie('list')),
  map: fc.dictionary(key, tie('tree'), { maxKeys: 4 }),
  list: fc.array(tie('tree'), { maxLength: 4 }),
}))
const document = fc.dictionary(key, tree, { maxKeys: 4 })

/** The merge patch that turns `a` into `b`. */
function difference(a: unknown, b: unknown): unknown {
  const isMap = (value: unknown): value is Json => typeof value === 'object' && value !== null && !Array.isArray(value)
  if (!isMap(a) || !isMap(b)) return b
  const patch: Record<string, unknown> = {}
  for (const name of Object.keys(a)) if (!Object.hasOwn(b, name)) patch[name] = null
  for (const [name, value] of Object.entries(b))
    if (!deepEqual(a[name], value)) patch[name] = difference(a[name], value)
  return patch
}

describe('a merge patch', () => {
  it.each([
    [{ a: 'b' }, { a: 'c' }, { a: 'c' }],
    [{ a: 'b' }, { b: 'c' }, { a: 'b', b: 'c' }],
    [{ a: 'b' }, { a: null }, {}],
    [{ a: ['b'] }, { a: 'c' }, { a: 'c' }],
    [{ a: { b: 'c' } }, { a: { b: 'd', c: null } }, { a: { b: 'd' } }],
    [{ a: [{ b: 'c' }] }, { a: [1] }, { a: [1] }],
    [{ e: null }, { a: 1 }, { e: null, a: 1 }],
    [{}, { a: { bb: { ccc: null } } }, { a: { bb: {} } }],
  ])('of RFC 7386: %j with %j', (target, patch, result) => {
    expect(mergePatch(target, patch)).toEqual(result)
  })

  it('turns any document into any other, and changes neither', () => {
    fc.assert(
      fc.property(document, document, (a, b) => {
        const before = JSON.stringify([a, b])
        expect(mergePatch(a, difference(a, b))).toEqual(b)
        expect(JSON.stringify([a, b])).toBe(before)
      }),
    )
  })

  it('has the same result when it is applied twice', () => {
    fc.assert(
      fc.property(document, document, (a, patch) => {
        const once = mergePatch(a, patch)
        expect(mergePatch(once, patch)).toEqual(once)
      }),
    )
  })

  it('cannot change a prototype', () => {
    const patch = JSON.parse('{"a":{"__proto__":{"polluted":true}}}') as unknown
    mergePatch({ a: {} }, patch)
    expect(({} as { polluted?: boolean }).polluted).toBeUndefined()
  })
})

describe('a JSON patch', () => {
  it.each([
    [{ a: 1 }, [{ op: 'add', path: '/b', value: 2 }], { a: 1, b: 2 }],
    [{ a: [1, 3] }, [{ op: 'add', path: '/a/1', value: 2 }], { a: [1, 2, 3] }],
    [{ a: [1] }, [{ op: 'add', path: '/a/-', value: 2 }], { a: [1, 2] }],
    [{ a: 1, b: 2 }, [{ op: 'remove', path: '/a' }], { b: 2 }],
    [{ a: 1 }, [{ op: 'replace', path: '/a', value: [2] }], { a: [2] }],
    [{ a: { b: 1 }, c: {} }, [{ op: 'move', from: '/a/b', path: '/c/d' }], { a: {}, c: { d: 1 } }],
    [{ a: { b: 1 } }, [{ op: 'copy', from: '/a', path: '/c' }], { a: { b: 1 }, c: { b: 1 } }],
    [
      { 'a/b': 1, 'c~d': 2 },
      [
        { op: 'remove', path: '/a~1b' },
        { op: 'replace', path: '/c~0d', value: 3 },
      ],
      { 'c~d': 3 },
    ],
    [
      { a: 1 },
      [
        { op: 'test', path: '/a', value: 1 },
        { op: 'replace', path: '', value: { b: 1 } },
      ],
      { b: 1 },
    ],
    [{ a: null }, [{ op: 'test', path: '/a', value: null }], { a: null }],
  ])('turns %j by %j into %j', (target, patch, result) => {
    expect(jsonPatch(target, patch)).toEqual(result)
  })

  it.each([
    [[{ op: 'remove', path: '/x' }], 422],
    [[{ op: 'replace', path: '/x', value: 1 }], 422],
    [[{ op: 'add', path: '/x/y', value: 1 }], 422],
    [[{ op: 'add', path: '/list/5', value: 1 }], 422],
    [[{ op: 'add', path: '/list/01', value: 1 }], 422],
    [[{ op: 'test', path: '/a', value: 2 }], 422],
    [[{ op: 'add', path: '/b' }], 422],
    [[{ op: 'move', from: '/a', path: '/a/b' }], 422],
    [[{ op: 'frobnicate', path: '/a' }], 422],
    [[{ op: 'add', path: 'a', value: 1 }], 422],
    [[{ op: 'remove', path: '' }], 422],
    [['no object'], 400],
    [{ no: 'list' }, 400],
  ])('refuses %j with %i', (patch, code) => {
    expect(() => jsonPatch({ a: 1, list: [1] }, patch)).toThrow(
      expect.objectContaining({ refusal: expect.objectContaining({ code }) }),
    )
  })

  it('restores the document when it adds a member and removes it again', () => {
    fc.assert(
      fc.property(document, tree, (target, value) => {
        const patch = [
          { op: 'add', path: '/new', value },
          { op: 'test', path: '/new', value },
          { op: 'remove', path: '/new' },
        ]
        expect(jsonPatch(target, patch)).toEqual(target)
      }),
    )
  })
})

const schema = getResource('services').schema
const strategic = (target: Json, patch: Json) =>
  strategicPatch(schema, target, patch) as { spec: { ports: unknown; [key: string]: unknown }; metadata: Json }

describe('a strategic merge patch', () => {
  const service = {
    metadata: { labels: { a: '1' }, finalizers: ['x'] },
    spec: {
      ports: [
        { port: 80, name: 'a' },
        { port: 81, name: 'b' },
      ],
      externalIPs: ['1.1.1.1'],
    },
  }

  it('merges ports by their number', () => {
    expect(strategic(service, { spec: { ports: [{ port: 81, nodePort: 30000 }, { port: 82 }] } }).spec.ports).toEqual([
      { port: 80, name: 'a' },
      { port: 81, name: 'b', nodePort: 30000 },
      { port: 82 },
    ])
  })
  it('deletes an element by directive, and orders the others as the patch says', () => {
    const patch = {
      spec: {
        ports: [{ port: 80, $patch: 'delete' }, { port: 82 }],
        '$setElementOrder/ports': [{ port: 82 }, { port: 81 }],
      },
    }
    expect(strategic(service, patch).spec.ports).toEqual([{ port: 82 }, { port: 81, name: 'b' }])
  })
  it('replaces objects and lists by directive, and lists without a key always', () => {
    expect(strategic(service, { spec: { ports: [{ $patch: 'replace' }, { port: 1 }] } }).spec.ports).toEqual([
      { port: 1 },
    ])
    expect(strategic(service, { spec: { $patch: 'replace', type: 'NodePort' } }).spec).toEqual({ type: 'NodePort' })
    expect(strategic(service, { spec: { externalIPs: ['2.2.2.2'] } }).spec.externalIPs).toEqual(['2.2.2.2'])
  })
  it('adds to sets of plain values, and deletes from them', () => {
    expect(strategic(service, { metadata: { finalizers: ['y', 'x'] } }).metadata.finalizers).toEqual(['x', 'y'])
    expect(
      strategic(service, { metadata: { '$deleteFromPrimitiveList/finalizers': ['x'] } }).metadata.finalizers,
    ).toEqual([])
  })
  it('refuses an element without its key', () => {
    expect(() => strategic(service, { spec: { ports: [{ name: 'x' }] } })).toThrow(
      /does not contain declared merge key: port/,
    )
  })
  it('equals a merge patch where there are no lists', () => {
    fc.assert(
      fc.property(
        fc.dictionary(fc.constantFrom('x', 'y'), fc.oneof(leaf, fc.constant(null))),
        fc.dictionary(fc.constantFrom('x', 'y'), leaf),
        (patch, labels) => {
          const target = { metadata: { labels } }
          expect(strategicPatch(schema, target, { metadata: { labels: patch } })).toEqual(
            mergePatch(target, { metadata: { labels: patch } }),
          )
        },
      ),
    )
  })
})

describe('the cost of a JSON patch', () => {
  const refusal = (patch: unknown, target: unknown = {}) => {
    try {
      jsonPatch(target, patch)
      return undefined
    } catch (error) {
      return (error as { refusal?: { code: number; message: string; details?: unknown } }).refusal
    }
  }

  it('is bounded where a value is copied into itself again and again', () => {
    const target = { metadata: { annotations: { a: 'x'.repeat(70) } } }
    const double = (i: number) => ({ op: 'copy', from: '/metadata/annotations', path: `/metadata/annotations/b${i}` })
    const before = process.memoryUsage().heapUsed
    expect(
      refusal(
        Array.from({ length: 40 }, (_, i) => double(i)),
        target,
      ),
    ).toMatchObject({
      code: 422,
      details: {
        causes: [
          {
            message: expect.stringMatching(
              /^Unable to complete the copy, the accumulated size increase of copy is \d+, exceeding the limit 3145728$/,
            ),
          },
        ],
      },
    })
    expect(process.memoryUsage().heapUsed - before).toBeLessThan(100 << 20)
  })

  it('allows copies of 3 MB in total', () => {
    const megabyte = 'x'.repeat((1 << 20) - 2)
    const copies = (count: number) =>
      Array.from({ length: count }, (_, i) => ({ op: 'copy', from: '/a', path: `/b${i}` }))
    expect(refusal(copies(3), { a: megabyte })).toBeUndefined()
    expect(refusal(copies(4), { a: megabyte })).toMatchObject({ code: 422 })
  })

  it('is bounded where a long list is shifted again and again', () => {
    const list = Array.from({ length: 1_000_000 }, () => 0)
    const before = process.cpuUsage()
    for (const operation of [
      { op: 'add', path: '/list/0', value: 1 },
      { op: 'remove', path: '/list/0' },
    ]) {
      expect(
        refusal(
          Array.from({ length: 10_000 }, () => operation),
          { list },
        ),
      ).toMatchObject({ code: 422 })
    }
    const { user, system } = process.cpuUsage(before)
    expect((user + system) / 1000).toBeLessThan(2_000)
  })

  it('is bounded by the number of operations, in the words of the real server', () => {
    const operations = Array.from({ length: 10_001 }, () => ({ op: 'test', path: '', value: {} }))
    expect(refusal(operations)).toMatchObject({
      code: 413,
      message: 'Request entity too large: The allowed maximum operations in a JSON patch is 10000, got 10001',
    })
  })
})
