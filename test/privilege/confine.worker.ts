// Takes privileges from itself, one after the other, and then becomes the given program: first writable files, then the user and
// capabilities (by setpriv), then system calls. Each stage replaces this process by the next one.

import { chownSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs'
import { loadKoffi } from '../../src/sys/native-addon.ts'

export interface Confinement {
  /** Files that appear at other paths, by these paths. */
  readonly binds?: Readonly<Record<string, string>>
  /** The only paths that stay writable, folders with a slash at their end; undefined leaves all mounts as they are. */
  readonly writable?: readonly string[]
  /** The owner of the writable paths. */
  readonly owner?: number
  /** Options of setpriv; undefined skips it. */
  readonly setpriv?: readonly string[]
  /** The command line of a program that starts the next stage and watches it. */
  readonly tracer?: readonly string[]
  /** A file with a BPF program for seccomp. */
  readonly filter?: string
  readonly command: readonly string[]
}

interface Koffi {
  load(path: null): { func(definition: string): (...args: unknown[]) => number }
  struct(name: string, fields: Record<string, string>): unknown
  errno(): number
}

const koffi = loadKoffi() as Koffi
const libc = koffi.load(null)

function check(what: string, returned: number): void {
  if (returned < 0) throw new Error(`${what}: errno ${koffi.errno()}`)
}

const MS_BIND = 4096
const MS_REC = 16384
const MS_PRIVATE = 1 << 18
const SYS_mount_setattr = 442
const AT_FDCWD = -100
const AT_RECURSIVE = 0x8000
const MOUNT_ATTR_RDONLY = 1n

const emptied = ['/run', '/var/lib']

/**
 * Makes every mount read-only but those of the writable paths. The process must have a mount namespace of its own. /run and /var/lib are
 * empty: what the machine has there stays untouched, and writable paths below are made.
 */
function restrictMounts({ writable = [], binds = {}, owner = 0 }: Confinement): void {
  const mount = libc.func('int mount(const char *, const char *, const char *, unsigned long, const void *)')
  const call = libc.func('long syscall(long, int, const char *, unsigned int, const void *, size_t)')
  const set = (path: string, flags: number, on: bigint, off: bigint) => {
    const attributes = BigUint64Array.of(on, off, 0n, 0n)
    check(`mount_setattr ${path}`, call(SYS_mount_setattr, AT_FDCWD, path, flags, attributes, attributes.byteLength))
  }
  check('mount', mount(null, '/', null, MS_REC | MS_PRIVATE, null))
  for (const [path, file] of Object.entries(binds)) check(`mount ${path}`, mount(file, path, null, MS_BIND, null))
  for (const path of emptied) check(`mount ${path}`, mount('tmpfs', path, 'tmpfs', 0, 'mode=755,size=1m'))
  for (const path of writable) {
    if (emptied.some((folder) => path.startsWith(`${folder}/`))) make(path, owner)
    check(`mount ${path}`, mount(path, path, null, MS_BIND, null))
  }
  set('/', AT_RECURSIVE, MOUNT_ATTR_RDONLY, 0n)
  for (const path of writable) set(path, 0, 0n, MOUNT_ATTR_RDONLY)
}

function make(path: string, owner: number): void {
  if (path.endsWith('/')) mkdirSync(path, { recursive: true })
  else writeFileSync(path, '', { mode: 0o600 })
  chownSync(path, owner, owner)
}

const PR_SET_SECCOMP = 22
const SECCOMP_MODE_FILTER = 2

/** Applies to this thread, which is the one that becomes the program. */
function restrictCalls(file: string): void {
  const filter = readFileSync(file)
  koffi.struct('sock_fprog', { length: 'uint16_t', filter: 'const void *' })
  const prctl = libc.func('int prctl(int, unsigned long, const sock_fprog *)')
  check('prctl', prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, { length: filter.length / 8, filter }))
}

const F_SETFD = 2

function become(command: readonly string[]): never {
  // Node closes its standard files for programs that it becomes.
  const fcntl = libc.func('int fcntl(int, int, long)')
  for (const fd of [0, 1, 2]) fcntl(fd, F_SETFD, 0)
  const exec = libc.func('int execv(const char *, const char **)')
  exec(command[0], [...command, null])
  throw new Error(`cannot execute ${command[0]}: errno ${koffi.errno()}`)
}

const confinement = JSON.parse(process.argv[2] ?? '') as Confinement
const { writable, setpriv, tracer = [], filter, command } = confinement
if (writable !== undefined) restrictMounts(confinement)
if (setpriv !== undefined) {
  const rest = JSON.stringify({ ...(filter && { filter }), command })
  become(['/usr/bin/setpriv', ...setpriv, ...tracer, process.execPath, process.argv[1] as string, rest])
}
if (filter !== undefined) restrictCalls(filter)
become(command)
