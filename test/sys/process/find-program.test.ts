import { chmodSync, chownSync, mkdirSync, mkdtempSync, rmSync, symlinkSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import { runProgram } from '../../../src/sys/process/exec.ts'
import { findProgram, programSearch, systemFolders } from '../../../src/sys/process/find-program.ts'
import { spawnProgram } from '../../../src/sys/process/spawn.ts'

let folder = ''
const path = process.env.PATH
const write = (name: string, mode = 0o755): string => {
  const file = join(folder, name)
  writeFileSync(file, '#!/bin/sh\necho foreign\n')
  chmodSync(file, mode)
  return file
}

beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), 'sluice-find-'))
  programSearch.folders = [folder]
})

afterEach(() => {
  process.env.PATH = path
  programSearch.folders = systemFolders
  rmSync(folder, { recursive: true })
})

describe('findProgram', () => {
  it('finds a program that only its owner can write', () => {
    expect(findProgram('one')).toBeUndefined()
    const file = write('one')
    expect(findProgram('one')).toBe(file)
    symlinkSync(file, join(folder, 'link'))
    expect(findProgram('link')).toBe(join(folder, 'link'))
  })

  it('does not find what others can write, and no folders', () => {
    write('group', 0o775)
    write('world', 0o757)
    mkdirSync(join(folder, 'folder'))
    for (const name of ['group', 'world', 'folder']) expect(findProgram(name)).toBeUndefined()
    write('one')
    chmodSync(folder, 0o777)
    expect(findProgram('one')).toBeUndefined()
  })

  it.runIf(process.getuid?.() === 0)('does not find what someone else owns', () => {
    chownSync(write('foreign'), 65534, 65534)
    expect(findProgram('foreign')).toBeUndefined()
  })

  it('goes on to the next folder where it may not look', () => {
    write('one')
    programSearch.folders = ['/proc/1/cwd', join(write('file'), 'below'), folder]
    expect(findProgram('one')).toBe(join(folder, 'one'))
  })

  it('does not look into PATH', async () => {
    write('cat')
    programSearch.folders = systemFolders
    process.env.PATH = folder
    for (const run of [runProgram, spawnProgram]) {
      expect((await run('cat', [])).stdout).toBe('')
      expect((await run('sh', ['-c', 'echo $PATH'])).stdout).toBe(`${systemFolders.join(':')}\n`)
    }
  })
})
