// The file of the sums of packets and bytes: what is written is read again, and what is not valid is not used.

import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import { AccountingFile } from '../../../src/daemon/traffic/accounting-file.ts'
import type { SavedSums } from '../../../src/engine/flows/traffic-sums.ts'
import { silentLogger } from '../../../src/lib/log.ts'

const sums: SavedSums = {
  ports: [[4, 'ns/a:http', [1, 2, 3, 4], [['10.0.0.1:80', [1, 2, 3, 4]]]]],
  open: [[65_536, 0, '10.0.0.1:80', [1, 1, 1, 1]]],
}

describe('AccountingFile', () => {
  let folder: string
  let path: string
  beforeEach(() => {
    folder = mkdtempSync(join(tmpdir(), 'sluice-sums-'))
    path = join(folder, 'node.traffic')
  })
  afterEach(() => rmSync(folder, { recursive: true, force: true }))

  const open = () => new AccountingFile(join(folder, 'node.state'), silentLogger)

  it('returns what was written, and nothing before', () => {
    expect(open().read()).toBeUndefined()
    open().write(sums)
    expect(open().read()).toMatchObject(sums)
  })

  it.each([
    ['text that is not JSON', () => '{'],
    ['a list', () => '[]'],
    ['another version', (text: string) => text.replace('"version":1', '"version":2')],
    ['another start of the machine', (text: string) => text.replace(/"boot":"[^"]*"/, '"boot":"other"')],
    ['a negative count', (text: string) => text.replace('[1,2,3,4]', '[1,-2,3,4]')],
    ['a count that is not a number', (text: string) => text.replace('[1,2,3,4]', '[1,"2",3,4]')],
    ['an endpoint without counts', (text: string) => text.replace(/"10.0.0.1:80",\[1,2,3,4\]/, '"10.0.0.1:80"')],
    ['an open flow without a port', (text: string) => text.replace('[65536,0,', '[65536,null,')],
    ['an unknown family', (text: string) => text.replace('[[4,"ns', '[[5,"ns')],
  ])('does not use a file with %s', (_, damage) => {
    open().write(sums)
    const damaged = damage(readFileSync(path, 'utf8'))
    expect(damaged).not.toBe(readFileSync(path, 'utf8'))
    writeFileSync(path, damaged)
    expect(open().read()).toBeUndefined()
  })
})
