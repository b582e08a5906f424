// Kernel settings under /proc/sys: read one, or make sure of its value. Writes only what differs, since many places mount it read-only.

import { readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { ProxyError } from '../lib/errors.ts'

const procSys = '/proc/sys'

/** The value without its newline; undefined if it cannot be read. `name` is `net/ipv4/ip_forward`. */
export function readSysctl(name: string, root = procSys): string | undefined {
  try {
    return readFileSync(join(root, name), 'utf8').trim()
  } catch {
    return undefined
  }
}

/** Returns whether it had to write. */
export function ensureSysctl(name: string, value: string | number, root = procSys): boolean {
  return ensureFile(join(root, name), String(value), readSysctl(name, root))
}

/** Writes a kernel file unless it holds the value; the error says all one needs to set it by hand. */
export function ensureFile(path: string, wanted: string, current: string | undefined): boolean {
  if (current === wanted) return false
  try {
    writeFileSync(path, wanted)
    return true
  } catch (cause) {
    const is = current === undefined ? 'cannot be read' : `is ${current}`
    throw new ProxyError('sysctl', `cannot set ${path} to ${wanted}, it ${is}: ${advice(cause, wanted, path)}`, {
      cause,
      fields: { file: path, wanted, current },
    })
  }
}

function advice(cause: unknown, wanted: string, path: string): string {
  const byHand = `set it on the host (echo ${wanted} > ${path})`
  switch ((cause as NodeJS.ErrnoException).code) {
    case 'ENOENT':
      return 'this kernel has no such setting, is its module loaded?'
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
