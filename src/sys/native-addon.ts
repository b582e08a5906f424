// Loads koffi, the one native addon: from node_modules, or from the single executable, which carries it.

import { mkdtempSync, rmSync, statSync, writeFileSync } from 'node:fs'
import { createRequire } from 'node:module'
import { tmpdir } from 'node:os'
import { dirname, join } from 'node:path'
import { ProxyError } from '../lib/errors.ts'

/** The asset's name in the single executable, and the file's name beside it. */
const addonName = 'koffi.node'

interface Sea {
  isSea(): boolean
  getRawAsset(name: string): ArrayBuffer
}

export function loadKoffi(): unknown {
  const require = createRequire(import.meta.url)
  const sea = findSea(require)
  if (sea === undefined) return require('koffi')
  const installed = join(dirname(process.execPath), '..', 'lib', 'sluice', addonName)
  if (isOwn(installed)) return dlopen(installed)
  return loadFromAsset(sea, installed)
}

/** Undefined unless this process is a single executable. Node before 20.12 has no such module. */
function findSea(require: NodeJS.Require): Sea | undefined {
  try {
    const sea = require('node:sea') as Sea
    return sea.isSea() ? sea : undefined
  } catch {
    return undefined
  }
}

/** True if root or this user wrote the file, and nobody else can: its code runs with our privileges. */
function isOwn(path: string): boolean {
  const stats = statSync(path, { throwIfNoEntry: false })
  if (stats === undefined || !stats.isFile()) return false
  return (stats.uid === 0 || stats.uid === process.getuid?.()) && (stats.mode & 0o022) === 0
}

/** The dynamic linker loads only files: the addon lies in a private folder for the moment of loading. */
function loadFromAsset(sea: Sea, installed: string): unknown {
  const folder = makePrivateFolder(installed)
  try {
    const path = join(folder, addonName)
    writeFileSync(path, new Uint8Array(sea.getRawAsset(addonName)), { mode: 0o700 })
    return dlopen(path)
  } finally {
    rmSync(folder, { recursive: true, force: true })
  }
}

/** A read-only container may still have one of the other two. */
function makePrivateFolder(installed: string): string {
  const parents = [tmpdir(), '/run', '/dev/shm']
  for (const parent of parents) {
    try {
      return mkdtempSync(join(parent, 'sluice-'))
    } catch {}
  }
  const message = `native code cannot be unpacked: none of ${parents.join(', ')} is writable; install ${installed}`
  throw new ProxyError('native-code', message)
}

function dlopen(path: string): unknown {
  const addon = { exports: {} }
  process.dlopen(addon, path)
  return addon.exports
}
