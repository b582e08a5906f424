import { expect, it } from 'vitest'
import { createRestoreBuffer, RestoreInput } from '../../../src/backend/iptables-kit/restore-input.ts'
import { MemoryFile } from '../../../src/sys/process/memory-file.ts'

it('is the text in pieces, and knows how many rules and tables there are', () => {
  const sheet = new MemoryFile('rules')
  const paper = new RestoreInput(sheet, createRestoreBuffer())
  let text = ''
  const add = (lines: string) => {
    paper.add(lines)
    text += lines
  }
  paper.begin('filter')
  text += '*filter\n'
  add(':KUBE-A - [0:0]\n')
  add('-A KUBE-A -j DROP\n-A KUBE-A -m comment --comment "a\u00df\u20ac\u{1f6b0}" -j ACCEPT\n')
  paper.commit()
  text += 'COMMIT\n'
  paper.begin('nat')
  text += '*nat\n'
  // More than fits on the desk, in one piece and in many.
  add(`-A KUBE-B -j RETURN\n`.repeat(20_000))
  for (let i = 0; i < 10_000; i++) add(`-A KUBE-B -d 10.0.${i >> 8}.${i & 255} -j RETURN\n`)
  add('-X KUBE-C\n')
  paper.commit()
  text += 'COMMIT\n'
  expect(String(paper)).toBe(text)
  sheet.close()
  expect(paper.rules).toEqual({ filter: 2, nat: 30_001 })
  expect(paper.commits).toBe(2)
})
