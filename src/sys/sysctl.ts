// Reads and ensures kernel settings under /proc/sys. Writes only values that differ, because containers often mount it read-only.

import { readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { ProxyError, readErrno } from '../lib/errors.ts'

const procSys = '/proc/sys'

/** Returns the value without its newline; undefined if it cannot be read. A name is `net/ipv4/ip_forward`. */
export function readSysctl(name: string, root = procSys): string | undefined {
  try {
    return readFileSync(join(root, name), 'utf8').trim()
  } catch {
    return undefined
  }
}

/** Returns true if the value was written. */
export function ensureSysctl(name: string, value: string | number, root = procSys): boolean {
  return ensureFile(join(root, name), String(value), readSysctl(name, root))
}

/** Writes a kernel file unless it already holds the value. The error says how to set the value by hand. */
export function ensureFile(path: string, wanted: string, current: string | undefined): boolean {
  if (current === wanted) return false
  try {
    writeFileSync(path, wanted)
    return true
  } catch (cause) {
    const state = current === undefined ? 'cannot be read' : `is ${current}`
    const message = `cannot set ${path} to ${wanted}, it ${state}: ${advise(cause, wanted, path)}`
    throw new ProxyError('sysctl', message, { cause, fields: { file: path, wanted, current } })
  }
}

function advise(cause: unknown, wanted: string, path: string): string {
  const byHand = `set it on the host (echo ${wanted} > ${path})`
  switch (readErrno(cause)) {
    case 'ENOENT':
      return 'this kernel has no such setting: is its module loaded?'
    case 'EROFS':
      return `the file system is read-only here; mount it writable or ${byHand}`
    case 'EACCES':
    case 'EPERM':
      return `not permitted; run privileged or ${byHand}`
    case 'EINVAL':
      return 'the kernel refuses this value'
    default:
      return 'the write failed'
  }
}
