// Creates, reads and replaces files that only this user may change: state, credentials, kubeconfigs. What someone else owns or may
// change is refused with one line, and no symbolic link is followed.

import { randomBytes } from 'node:crypto'
import {
  closeSync,
  constants,
  fstatSync,
  fsyncSync,
  lstatSync,
  mkdirSync,
  openSync,
  readFileSync,
  renameSync,
  rmSync,
  type Stats,
  statSync,
  writeFileSync,
} from 'node:fs'
import { type FileHandle, open } from 'node:fs/promises'
import { hasErrno, ProxyError } from '../lib/errors.ts'

const { O_APPEND, O_CREAT, O_EXCL, O_NOFOLLOW, O_NONBLOCK, O_RDONLY, O_RDWR, O_WRONLY } = constants
const writableByOthers = 0o022
const sticky = 0o1000

/**
 * Creates the directory with mode 0700 if it is missing. Throws a ProxyError 'foreign' if it belongs to another user or others may write
 * to it. A symbolic link to it is followed only if it belongs to root or to this user.
 */
export function ensurePrivateDirectory(path: string): void {
  mkdirSync(path, { recursive: true, mode: 0o700 })
  checkDirectory(path)
}

/** Like `ensurePrivateDirectory`, for a directory that others may enter. As in /tmp, others may write to it if its sticky bit is set. */
export function ensureSharedDirectory(path: string): void {
  mkdirSync(path, { recursive: true, mode: 0o755 })
  const stats = statSync(path)
  if ((stats.mode & sticky) === 0) checkDirectory(path)
  else checkOwner(path, stats)
}

function checkDirectory(path: string): void {
  checkOwner(path, lstatSync(path))
  const stats = statSync(path)
  if (!stats.isDirectory()) throw foreign(`${path} is not a directory`)
  checkOwner(path, stats)
  checkMode(path, stats)
}

/** Returns the content; undefined if the file does not exist. Throws a ProxyError 'foreign'. */
export function readPrivateFile(path: string): string | undefined {
  const fd = openOrUndefined(path)
  if (fd === undefined) return undefined
  try {
    checkFile(path, fstatSync(fd))
    return readFileSync(fd, 'utf8')
  } finally {
    closeSync(fd)
  }
}

function openOrUndefined(path: string): number | undefined {
  try {
    // Without O_NONBLOCK, opening a named pipe would wait for a writer.
    return openSync(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK)
  } catch (error) {
    if (hasErrno(error, 'ENOENT')) return undefined
    throw describeLink(path, error)
  }
}

/**
 * Writes the file with mode 0600, or replaces it. Readers see the old content or the new content. Whatever has the name is replaced: the
 * target of a symbolic link does not change.
 */
export function writePrivateFile(path: string, content: string): void {
  const part = `${path}.${randomBytes(6).toString('hex')}.part`
  const fd = openSync(part, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW, 0o600)
  try {
    writeFileSync(fd, content)
    fsyncSync(fd)
    renameSync(part, path)
  } catch (error) {
    rmSync(part, { force: true })
    throw error
  } finally {
    closeSync(fd)
  }
}

/** Opens a file to read it. Rejects with a ProxyError 'foreign'. */
export const openPrivateForRead = (path: string): Promise<FileHandle> => openPrivate(path, O_RDONLY | O_NONBLOCK)

/** Opens a file to append to it, and creates it with mode 0600 if it is missing. Rejects with a ProxyError 'foreign'. */
export const openPrivateForAppend = (path: string): Promise<FileHandle> =>
  openPrivate(path, O_RDWR | O_APPEND | O_CREAT | O_NONBLOCK)

async function openPrivate(path: string, flags: number): Promise<FileHandle> {
  const file = await open(path, flags | O_NOFOLLOW, 0o600).catch((error: unknown) => {
    throw describeLink(path, error)
  })
  try {
    checkFile(path, await file.stat())
    return file
  } catch (error) {
    await file.close()
    throw error
  }
}

function checkFile(path: string, stats: Stats): void {
  if (!stats.isFile()) throw foreign(`${path} is not a regular file`)
  checkOwner(path, stats)
  checkMode(path, stats)
}

function checkOwner(path: string, { uid }: Stats): void {
  const own = process.geteuid?.() ?? 0
  if (uid === own || uid === 0) return
  throw foreign(
    `${path} belongs to user ${uid}, not to root${own === 0 ? '' : ` or user ${own}`}: remove it, or change its owner`,
  )
}

function checkMode(path: string, { mode }: Stats): void {
  if ((mode & writableByOthers) === 0) return
  const shown = (mode & 0o7777).toString(8).padStart(4, '0')
  throw foreign(`other users may write to ${path} (mode ${shown}): check its content, then run chmod go-w ${path}`)
}

const describeLink = (path: string, error: unknown): unknown =>
  hasErrno(error, 'ELOOP') ? foreign(`${path} is a symbolic link: remove it`) : error

const foreign = (message: string) => new ProxyError('foreign', message)
