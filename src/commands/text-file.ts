// Reads a text file that may be missing or unreadable, as files below /proc often are, and says why a file cannot be read.

import { readFileSync } from 'node:fs'
import { describeError, type Errno, readErrno } from '../lib/errors.ts'

/** Returns '' if the file cannot be read. */
export function readTextOrEmpty(path: string): string {
  try {
    return readFileSync(path, 'utf8')
  } catch {
    return ''
  }
}

const fileProblems: Readonly<Partial<Record<Errno, string>>> = {
  ENOENT: 'there is no such file or directory',
  EISDIR: 'it is a directory',
  EACCES: 'this user has no permission',
  EAGAIN: 'nothing is connected to standard input',
}

/** Says why a file cannot be read, without the names of system calls. */
export function describeFileError(error: unknown): string {
  const errno = readErrno(error)
  return (errno && fileProblems[errno]) ?? describeError(error)
}
