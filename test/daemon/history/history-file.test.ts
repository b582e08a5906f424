import { chmodSync, mkdirSync, readFileSync, rmdirSync, statSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { describe, expect, it } from 'vitest'
import { HistoryFile } from '../../../src/daemon/history/history-file.ts'
import type { HistoryRecord } from '../../../src/engine/history/history-record.ts'
import { silentLogger } from '../../../src/lib/log.ts'
import { directory } from '../../commands/run-command.ts'

const lineOf = (sync: number, padding = ''): string =>
  JSON.stringify({
    sync,
    at: '2026-11-17T03:12:07Z',
    durationMs: 1,
    family: 4,
    ok: true,
    error: padding,
    full: false,
    causes: ['change'],
    objects: [],
    moreObjects: 0,
    notes: [],
    services: [],
    moreServices: 0,
    put: 0,
    dropped: 0,
    entries: [],
    refused: [],
  } satisfies HistoryRecord)

const open = (folder: string, maxBytes = 1 << 20) =>
  new HistoryFile({ directory: folder, node: 'here', maxBytes, log: silentLogger })

async function write(folder: string, syncs: readonly number[], maxBytes?: number): Promise<void> {
  const file = open(folder, maxBytes)
  for (const sync of syncs) file.append(lineOf(sync))
  await file.close()
}

async function read(folder: string, maxBytes?: number): Promise<readonly number[]> {
  const found: number[] = []
  await open(folder, maxBytes).read((_, sync) => found.push(sync))
  return found
}

const count = (length: number, first = 1) => Array.from({ length }, (_, i) => i + first)

describe('the file of the history', () => {
  it('gives back what was written, in order, and is private', async () => {
    const folder = join(directory(), 'made', 'here')
    await write(folder, count(50))
    await write(folder, count(50, 51))
    expect(await read(folder)).toEqual(count(100))
    expect(statSync(join(folder, 'here.history')).mode & 0o777).toBe(0o600)
    expect(statSync(folder).mode & 0o777).toBe(0o700)
  })

  it('stays within two files of the given size, and keeps the newest records', async () => {
    const folder = directory()
    const maxBytes = 5_000
    for (let sync = 1; sync <= 200; sync++) await write(folder, [sync], maxBytes)
    for (const name of ['here.history', 'here.history.old']) {
      expect(statSync(join(folder, name)).size).toBeLessThanOrEqual(maxBytes)
    }
    const kept = await read(folder, maxBytes)
    expect(kept).toEqual(count(kept.length, 201 - kept.length))
    expect(kept.length * lineOf(200).length).toBeGreaterThan(maxBytes / 2)
  })

  it('ignores a line that a crash cut off, wherever the cut is, and writes on after it', async () => {
    for (let cut = 1; cut < lineOf(3).length; cut += 17) {
      const folder = directory()
      await write(folder, [1, 2])
      const path = join(folder, 'here.history')
      writeFileSync(path, readFileSync(path, 'utf8') + lineOf(3).slice(0, cut), { mode: 0o600 })
      expect(await read(folder)).toEqual([1, 2])
      await write(folder, [4])
      expect(await read(folder)).toEqual([1, 2, 4])
    }
  })

  it('ignores lines that are not records', async () => {
    const folder = directory()
    const lines = ['null', '[]', '7', '{}', '{"sync":"1"}', '{"sync":5,"at":"x"}', lineOf(6), '\u0000\u0000', '']
    writeFileSync(join(folder, 'here.history'), lines.join('\n'), { mode: 0o600 })
    expect(await read(folder)).toEqual([6])
  })

  it('does not read a file that others may write, and starts empty', async () => {
    const folder = directory()
    await write(folder, [1])
    chmodSync(join(folder, 'here.history'), 0o666)
    expect(await read(folder)).toEqual([])
  })

  it('keeps what could not be written until it can', async () => {
    const folder = directory()
    const path = join(folder, 'here.history')
    mkdirSync(path)
    const file = open(folder)
    file.append(lineOf(1))
    await file.close()
    expect(file.hasFailed).toBe(true)
    rmdirSync(path)
    file.append(lineOf(2))
    await file.close()
    expect(file.hasFailed).toBe(false)
    expect(await read(folder)).toEqual([1, 2])
  })

  it('holds no more than one file of what cannot be written', async () => {
    const folder = directory()
    mkdirSync(join(folder, 'here.history'))
    const file = open(folder, 2_000)
    for (const sync of count(1_000)) file.append(lineOf(sync))
    await file.close()
    rmdirSync(join(folder, 'here.history'))
    file.append(lineOf(1_001))
    await file.close()
    expect(statSync(join(folder, 'here.history')).size).toBeLessThanOrEqual(2_000 + lineOf(1).length)
  })
})
