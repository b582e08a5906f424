// Checks that state, credentials and kubeconfigs are read and written only where no other user could have put something.

import {
  chmodSync,
  chownSync,
  lstatSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  statSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import {
  ensurePrivateDirectory,
  ensureSharedDirectory,
  openPrivateForAppend,
  openPrivateForRead,
  readPrivateFile,
  writePrivateFile,
} from '../../src/sys/private-files.ts'

let directory: string
beforeEach(() => {
  directory = mkdtempSync(join(tmpdir(), 'sluice-private-'))
})
afterEach(() => rmSync(directory, { recursive: true, force: true }))

const at = (name: string) => join(directory, name)
const isRoot = process.getuid?.() === 0
const modeOf = (path: string) => statSync(path).mode & 0o777

describe('a private directory', () => {
  it('is created with all its parents, for this user alone', () => {
    ensurePrivateDirectory(at('a/b'))
    expect([modeOf(at('a')), modeOf(at('a/b'))]).toEqual([0o700, 0o700])
    ensurePrivateDirectory(at('a/b'))
  })

  it.each([0o777, 0o775, 0o1777, 0o722])('is refused with mode %o', (mode) => {
    mkdirSync(at('a'))
    chmodSync(at('a'), mode)
    const shown = mode.toString(8).padStart(4, '0')
    expect(() => ensurePrivateDirectory(at('a'))).toThrow(
      `other users may write to ${at('a')} (mode ${shown}): check its content, then run chmod go-w ${at('a')}`,
    )
  })

  it.runIf(isRoot)('is refused if it belongs to someone else, also behind a symbolic link', () => {
    mkdirSync(at('a'))
    chownSync(at('a'), 65_534, 65_534)
    const line = `belongs to user 65534, not to root: remove it, or change its owner`
    expect(() => ensurePrivateDirectory(at('a'))).toThrow(`${at('a')} ${line}`)
    symlinkSync(at('a'), at('link'))
    expect(() => ensurePrivateDirectory(at('link'))).toThrow(`${at('link')} ${line}`)
  })

  it('may be behind a symbolic link of this user', () => {
    mkdirSync(at('a'), { mode: 0o700 })
    symlinkSync(at('a'), at('link'))
    ensurePrivateDirectory(at('link'))
  })
})

describe('a shared directory', () => {
  it('may be writable by others only with the sticky bit', () => {
    mkdirSync(at('a'))
    chmodSync(at('a'), 0o1777)
    ensureSharedDirectory(at('a'))
    chmodSync(at('a'), 0o777)
    expect(() => ensureSharedDirectory(at('a'))).toThrow('other users may write to')
  })
})

describe('a private file', () => {
  it('is written for this user alone, and replaced as a whole', () => {
    writePrivateFile(at('a'), 'one')
    writePrivateFile(at('a'), 'two')
    expect([readPrivateFile(at('a')), modeOf(at('a')), readdirSync(directory)]).toEqual(['two', 0o600, ['a']])
    expect(readPrivateFile(at('missing'))).toBeUndefined()
  })

  it('is not written through a symbolic link', () => {
    writeFileSync(at('victim'), 'precious')
    chmodSync(at('victim'), 0o666)
    symlinkSync(at('victim'), at('kubeconfig'))
    writePrivateFile(at('kubeconfig'), 'secret')
    expect(readFileSync(at('victim'), 'utf8')).toBe('precious')
    expect([lstatSync(at('kubeconfig')).isFile(), modeOf(at('kubeconfig'))]).toEqual([true, 0o600])
  })

  it('is not read through a symbolic link', async () => {
    writeFileSync(at('other'), 'x', { mode: 0o600 })
    symlinkSync(at('other'), at('token'))
    const line = `${at('token')} is a symbolic link: remove it`
    expect(() => readPrivateFile(at('token'))).toThrow(line)
    await expect(openPrivateForRead(at('token'))).rejects.toThrow(line)
    await expect(openPrivateForAppend(at('token'))).rejects.toThrow(line)
  })

  it('is refused if others may write to it', async () => {
    writeFileSync(at('token'), 'x')
    chmodSync(at('token'), 0o666)
    const line = `other users may write to ${at('token')} (mode 0666)`
    expect(() => readPrivateFile(at('token'))).toThrow(line)
    await expect(openPrivateForRead(at('token'))).rejects.toThrow(line)
    await expect(openPrivateForAppend(at('token'))).rejects.toThrow(line)
  })

  it.runIf(isRoot)('is refused if it belongs to someone else', () => {
    writeFileSync(at('token'), 'x', { mode: 0o600 })
    chownSync(at('token'), 65_534, 65_534)
    expect(() => readPrivateFile(at('token'))).toThrow('belongs to user 65534, not to root')
  })

  it('is not a directory', () => {
    mkdirSync(at('token'))
    expect(() => readPrivateFile(at('token'))).toThrow(`${at('token')} is not a regular file`)
  })
})
