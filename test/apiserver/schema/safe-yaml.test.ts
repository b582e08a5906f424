// Checks what YAML the API server reads, what it refuses, and that no body costs more than its length.

import { describe, expect, it } from 'vitest'
import { parseManifests } from '../../../src/apiserver/manifests/parse.ts'
import { parseYaml } from '../../../src/apiserver/schema/safe-yaml.ts'

const kilobyte = 1024

describe('YAML', () => {
  it.each([
    ['a: 1\nb: [x, {c: d}]\n', { a: 1, b: ['x', { c: 'd' }] }],
    ['- - - deep\n', [[['deep']]]],
    [
      'script: |\n  if (a[[[[[{{{{{ - - - - ? ? ?\n  ---------\n',
      { script: 'if (a[[[[[{{{{{ - - - - ? ? ?\n---------\n' },
    ],
    [`line: "${'- '.repeat(80)}"`, { line: '- '.repeat(80) }],
    ['a: &x [1, 2]\nb: *x\n', { a: [1, 2], b: [1, 2] }],
    ['{"a": {"b": [1]}}', { a: { b: [1] } }],
    ["{a: 'not JSON'}", { a: 'not JSON' }],
    ['', null],
  ])('reads %j', (source, expected) => {
    expect(parseYaml(source)).toEqual(expected)
  })

  it('reads JSON of any length, as kubectl sends it for server-side apply', () => {
    const value = { list: Array.from({ length: 200_000 }, (_, i) => i) }
    expect(parseYaml(JSON.stringify(value))).toEqual(value)
  })

  it.each([
    ['a key that is set twice', 'a: 1\na: 2\n', 'the key "a" is set twice'],
    ['a key that is set twice in a flow', 'a: {b: 1, b: 2}\n', 'the key "b" is set twice'],
    ['keys after "?"', '? x\n: y\n', 'the YAML has a key after "?", which is not supported here'],
    ['malformed YAML', 'a: [\n', 'Flow sequence in block collection must be sufficiently indented and end with a ]'],
    ['deep lists', `${'- '.repeat(51)}x`, 'the YAML nests deeper than 50 levels'],
    ['deep flows', '['.repeat(51), 'the YAML nests deeper than 50 levels'],
    ['deep pairs in flows', `{${'"a":'.repeat(60)}}`, 'the YAML nests deeper than 50 levels'],
    ['deep pairs in a line', 'a: '.repeat(60), 'the YAML nests deeper than 50 levels'],
    [
      'deep blocks',
      Array.from({ length: 60 }, (_, i) => `${' '.repeat(i)}a:\n`).join(''),
      'the YAML nests deeper than 50 levels',
    ],
    ['many aliases', `a: &x 1\nb:\n${'- *x\n'.repeat(21)}`, 'the YAML has more than 20 aliases'],
    ['many tokens', '- x\n'.repeat(5_000), 'the YAML has more than 10000 tokens; send JSON, which may be longer'],
    [
      'long text',
      `a: ${'x'.repeat(256 * kilobyte)}`,
      'the YAML is longer than 262144 bytes; send JSON, which may be longer',
    ],
  ])('refuses %s', (_, source, message) => {
    expect(() => parseYaml(source)).toThrow(new SyntaxError(message))
  })
})

describe('the cost of YAML', () => {
  /** Sources that cost the square or the cube of their length before there were limits, each made as long as a body may be. */
  const sources: readonly (readonly [string, string])[] = [
    ['nested "? "', '? '.repeat(10_000)],
    ['many keys', Array.from({ length: 100_000 }, (_, i) => `key${i}: v`).join('\n')],
    ['keys within the limits', Array.from({ length: 2_400 }, (_, i) => `key${i}: v`).join('\n')],
    ['many anchors and aliases', Array.from({ length: 50_000 }, (_, i) => `- &a${i} x\n- *a${i}\n`).join('')],
    ['a wide flow', `[${'1,'.repeat(500_000)}1]x`],
    ['commas', `[${','.repeat(9_000)}]`],
    ['deep flows', '{a: ['.repeat(100_000)],
    ['flow pairs', `{${'"a":'.repeat(200_000)}}`],
    ['stairs', Array.from({ length: 1_500 }, (_, i) => `${' '.repeat(i)}a:\n`).join('')],
    ['a long literal', `a: |\n${'  x\n'.repeat(60_000)}`],
    ['3 MB of spaces', ' '.repeat(3 << 20)],
    ['3 MB of braces', '{'.repeat(3 << 20)],
  ]

  it.each(sources)('%s: at most a second of CPU', (_, source) => {
    const before = process.cpuUsage()
    try {
      parseYaml(source)
    } catch (error) {
      expect(error).toBeInstanceOf(SyntaxError)
    }
    const { user, system } = process.cpuUsage(before)
    expect((user + system) / 1000).toBeLessThan(1_000)
  })
})

describe('manifests', () => {
  it('name the line of a key that is set twice', () => {
    const { problems } = parseManifests('a.yaml', 'apiVersion: v1\nkind: Service\nmetadata:\n  name: a\n  name: b\n')
    expect(problems).toEqual([{ file: 'a.yaml', line: 5, field: '', message: 'the key "name" is set twice' }])
  })

  it('may have many keys', () => {
    const keys = Array.from({ length: 12_000 }, (_, i) => `    key${i}: v`).join('\n')
    const source = `apiVersion: v1\nkind: Service\nmetadata:\n  name: a\n  annotations:\n${keys}\n`
    const before = process.cpuUsage()
    expect(parseManifests('a.yaml', source).problems).toEqual([])
    const { user, system } = process.cpuUsage(before)
    expect((user + system) / 1000).toBeLessThan(2_000)
  })
})
