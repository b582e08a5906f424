// Checks how compiled modules are left out of the blob of an executable, with a blob of the same layout.

import { describe, expect, it } from 'vitest'
import { keepCompiledModules } from '../../packaging/code-cache.ts'

const number = (value: number): Buffer => {
  const bytes = Buffer.alloc(8)
  bytes.writeBigUInt64LE(BigInt(value))
  return bytes
}
const text = (value: string | Buffer): Buffer => Buffer.concat([number(value.length), Buffer.from(value)])
const u32 = (value: number): Buffer => Buffer.from(Uint32Array.of(value).buffer)

const modules = Array.from({ length: 120 }, (_, i) => ({ name: `internal/module${i}`, code: Buffer.alloc(50 + i, i) }))
type Module = (typeof modules)[number]

function makeBlob(cached: readonly Module[], magic = 0x143da19): Buffer {
  const heap = Buffer.alloc(1000, 7)
  const facts = Buffer.concat([number(3), text('one'), number(100_000), number(120), Buffer.alloc(31, 1)])
  const cache = [number(cached.length), ...cached.map(({ name, code }) => Buffer.concat([text(name), text(code)]))]
  const metadata = [u32(magic), Buffer.of(1), text('24.0.0'), text('x64'), text('linux'), u32(0)]
  const snapshot = Buffer.concat([...metadata, u32(heap.length), heap, facts, ...cache])
  const head = [u32(1), u32(2), Buffer.of(0, 0), text('/main.cjs')]
  return Buffer.concat([...head, text(snapshot), number(1), text('asset'), text('content')])
}

describe('a blob', () => {
  it('keeps the code of the modules that are named, and everything else', () => {
    const kept = ['internal/module3', 'internal/module119']
    const expected = makeBlob(modules.filter(({ name }) => kept.includes(name)))
    expect(keepCompiledModules(makeBlob(modules), new Set([...kept, 'unknown'])).equals(expected)).toBe(true)
  })

  it.each([
    ['another magic number', makeBlob(modules, 5), 'no snapshot where it is expected'],
    ['no code at its end', makeBlob([]), 'does not end with compiled modules'],
  ])('is refused with %s', (_, blob, message) => {
    expect(() => keepCompiledModules(blob, new Set())).toThrow(message)
  })
})
