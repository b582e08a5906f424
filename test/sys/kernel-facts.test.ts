// Checks the facts about the kernel that can be checked on any machine.

import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { expect, it, onTestFinished } from 'vitest'
import { openFileLimit } from '../../src/sys/kernel-facts.ts'
import { kernelFiles } from '../../src/sys/tuning.ts'

it.each([
  [
    'Max cpu time              unlimited            unlimited            seconds\nMax open files            1024                 524288               files\n',
    1024,
  ],
  ['Max open files            unlimited            unlimited            files\n', Number.POSITIVE_INFINITY],
  ['', Number.POSITIVE_INFINITY],
])('reads the limit of open files from %j', (text, expected) => {
  const proc = mkdtempSync(join(tmpdir(), 'sluice-proc-'))
  onTestFinished(() => rmSync(proc, { recursive: true }))
  mkdirSync(join(proc, 'self'))
  writeFileSync(join(proc, 'self/limits'), text)
  expect(openFileLimit({ ...kernelFiles, proc })).toBe(expected)
})
