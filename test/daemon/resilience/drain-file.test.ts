// The file of draining service ports: what one process writes another reads, and anything else is ignored.

import { mkdtempSync, readdirSync, readFileSync, rmSync, statSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setImmediate as turn } from 'node:timers/promises'
import { afterEach, beforeEach, expect, it } from 'vitest'
import { DrainFile } from '../../../src/daemon/resilience/drain-file.ts'
import { silentLogger } from '../../../src/lib/log.ts'

let folder: string
beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), 'sluice-drains-'))
})
afterEach(() => rmSync(folder, { recursive: true, force: true }))

const open = () => new DrainFile(join(folder, 'node-a.state'), silentLogger)
const path = () => join(folder, 'node-a.drains')

it('is read as it was written last, and belongs to this user alone', async () => {
  const file = open()
  file.write(new Map([['4 uid ns1/web:http', 1]]))
  file.write(new Map([['4 uid ns1/web:http', 1_700_000_000_000]]))
  await turn()
  await turn()
  expect(open().read()).toEqual(new Map([['4 uid ns1/web:http', 1_700_000_000_000]]))
  expect(statSync(path()).mode & 0o777).toBe(0o600)
  expect(readdirSync(folder)).toEqual(['node-a.drains'])
})

it.each([
  '',
  '{',
  'null',
  '[]',
  '{"version":2,"ports":{"a":1}}',
  '{"version":1,"ports":null}',
  '{"version":1,"ports":{"a":"b"}}',
])('is empty if it has the content %s', (content) => {
  writeFileSync(path(), content, { mode: 0o600 })
  expect(open().read()).toEqual(new Map())
})

it('is empty if it does not exist, and does not fail if its folder is gone', async () => {
  expect(open().read()).toEqual(new Map())
  rmSync(folder, { recursive: true })
  open().write(new Map())
  await turn()
  expect(() => readFileSync(path())).toThrow('ENOENT')
})
