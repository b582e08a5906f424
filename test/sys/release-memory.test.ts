import { execFileSync } from 'node:child_process'
import { join } from 'node:path'
import { describe, expect, it } from 'vitest'
import { findUnchangedFiles } from '../../src/sys/release-memory.ts'

const root = join(import.meta.dirname, '../..')

/** `place` is the range and the permissions. */
const mapping = (place: string, path: string, rssKb: number, anonymousKb: number): string =>
  [
    `${place} 00001000 fe:00 131${path === '' ? ' ' : `${' '.repeat(20)}${path}`}`,
    'Size:               1368 kB',
    `Rss:                ${rssKb} kB`,
    `Anonymous:          ${anonymousKb} kB`,
    'VmFlags: rd ex mr mw me sd \n',
  ].join('\n')

describe('the mappings whose pages may be unmapped', () => {
  it('are files that the process cannot write to', () => {
    const smaps = [
      mapping('00400000-0074a000 r--p', '/usr/bin/node', 2008, 0),
      mapping('0074a000-03201000 r-xp', '/usr/bin/my node (deleted)', 22084, 0),
      mapping('06b7d000-06bb6000 rw-p', '/usr/bin/node', 100, 0),
      mapping('7f0000000000-7f0000001000 r--s', '/usr/lib/cache', 4, 0),
    ].join('')
    expect(findUnchangedFiles(smaps)).toEqual([
      { start: 0x400000n, end: 0x74a000n },
      { start: 0x74a000n, end: 0x3201000n },
    ])
  })

  it('are not those that have a changed page, or none in memory, or no file', () => {
    const smaps = [
      // The dynamic linker wrote addresses into it and made it read-only then.
      mapping('06b00000-06b7d000 r--p', '/usr/bin/node', 500, 500),
      mapping('06b80000-06b90000 r-xp', '/usr/bin/node', 500, 4),
      mapping('06ba0000-06bb0000 r--p', '/usr/bin/node', 0, 0),
      mapping('36d9a44c0000-36d9a44de000 r--p', '', 120, 0),
      mapping('7ffd1000-7ffd3000 r-xp', '[vdso]', 8, 0),
    ].join('')
    expect(findUnchangedFiles(smaps)).toEqual([])
  })
})

describe.skipIf(process.platform !== 'linux')('a release', () => {
  it('takes pages of files out of memory, and the process goes on', () => {
    const script = `
      import { readFileSync } from 'node:fs'
      const { releaseMemory } = await import('./src/sys/release-memory.ts')
      const readFilePages = () => Number(/^RssFile:\\s+(\\d+)/m.exec(readFileSync('/proc/self/status', 'utf8'))[1])
      const before = readFilePages()
      for (let i = 0; i < 20; i++) releaseMemory({ collection: i % 2 === 0 ? 'idle' : 'now' })
      const after = readFilePages()
      const sorted = Array.from({ length: 50_000 }, (_, i) => String((i * 7919) % 50_000)).sort()
      console.log(JSON.stringify({ before, after, sum: sorted.reduce((sum, text) => sum + Number(text), 0), re: /a+b/.test('aaab') }))
    `
    const args = ['--import', 'tsx', '--input-type=module', '-e', script]
    const { before, after, sum, re } = JSON.parse(execFileSync(process.execPath, args, { encoding: 'utf8', cwd: root }))
    expect({ sum, re }).toEqual({ sum: (49_999 * 50_000) / 2, re: true })
    // Node's code alone is more than 20 MB after a start; what such a script uses of it is a third.
    expect(after).toBeLessThan(before / 2)
  })
})
