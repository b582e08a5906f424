// Finds programs in fixed folders, never through PATH: a user who can write to a folder in PATH would run code as root here.

import { type Stats, statSync } from 'node:fs'
import { join } from 'node:path'

export const systemFolders: readonly string[] = [
  '/usr/local/sbin',
  '/usr/local/bin',
  '/usr/sbin',
  '/usr/bin',
  '/sbin',
  '/bin',
]

/** Where programs are looked for. Tests put folders with scripts before the system's. */
export const programSearch: { folders: readonly string[] } = { folders: systemFolders }

/** The environment of a program: our own, but the program finds others only in the same folders. */
export const programEnvironment = (): NodeJS.ProcessEnv => ({ ...process.env, PATH: programSearch.folders.join(':') })

/** Returns the path of the program; undefined if no folder has a safe one. A name with a slash is a path already. */
export function findProgram(name: string): string | undefined {
  if (name.includes('/')) return name
  return programSearch.folders
    .filter(isSafeFolder)
    .map((folder) => join(folder, name))
    .find(isSafeProgram)
}

/** Only root and we may own what we run, and no one else may write to it. */
const isSafeProgram = (path: string): boolean => {
  const stats = readStats(path)
  return stats?.isFile() === true && isOurs(stats) && (stats.mode & 0o022) === 0
}

/** A group may write to the folder: on Debian the group "staff" may write to /usr/local. A file that it puts there has another owner, and is not run. */
const isSafeFolder = (path: string): boolean => {
  const stats = readStats(path)
  return stats?.isDirectory() === true && isOurs(stats) && (stats.mode & 0o002) === 0
}

const isOurs = ({ uid }: Stats): boolean => uid === 0 || uid === process.getuid?.()

/** Undefined also where we may not look (EACCES): the program is not there for us. */
function readStats(path: string): Stats | undefined {
  try {
    return statSync(path, { throwIfNoEntry: false })
  } catch {
    return undefined
  }
}
