import { expect, it } from 'vitest'
import { createRestoreBuffer, RestoreInput } from '../../../src/backend/iptables-kit/restore-input.ts'
import { MemoryFile } from '../../../src/sys/process/memory-file.ts'

it('passes the text on in pieces, and counts rules and tables', () => {
  const sink = new MemoryFile('rules')
  const input = new RestoreInput(sink, createRestoreBuffer())
  let text = ''
  const add = (lines: string) => {
    input.add(lines)
    text += lines
  }
  input.begin('filter')
  text += '*filter\n'
  add(':KUBE-A - [0:0]\n')
  add('-A KUBE-A -j DROP\n-A KUBE-A -m comment --comment "a\u00df\u20ac\u{1f6b0}" -j ACCEPT\n')
  input.commit()
  text += 'COMMIT\n'
  input.begin('nat')
  text += '*nat\n'
  // More text than the buffer holds, in one piece and in many.
  add(`-A KUBE-B -j RETURN\n`.repeat(20_000))
  for (let i = 0; i < 10_000; i++) add(`-A KUBE-B -d 10.0.${i >> 8}.${i & 255} -j RETURN\n`)
  add('-X KUBE-C\n')
  input.commit()
  text += 'COMMIT\n'
  expect(String(input)).toBe(text)
  sink.close()
  expect(input.rules).toEqual({ filter: 2, nat: 30_001 })
  expect(input.commits).toBe(2)
})
