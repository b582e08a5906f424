// Says how this program is started again: as a child process by the same Node, options and file, and by a person in a shell.

import { accessSync, constants, realpathSync } from 'node:fs'
import { createRequire } from 'node:module'
import { delimiter, join, relative } from 'node:path'

/** The single executable is its own program; otherwise Node starts the script. */
export const ownProgram = (): readonly string[] =>
  isSingleExecutable() ? [process.execPath] : [process.execPath, ...process.execArgv, process.argv[1] ?? '']

/** Node before 20.12 has no module `node:sea`. */
function isSingleExecutable(): boolean {
  try {
    return (createRequire(import.meta.url)('node:sea') as { isSea(): boolean }).isSea()
  } catch {
    return false
  }
}

/** Returns how a person starts this program from a shell in the same directory: `sluice` if the PATH leads to it, otherwise a path. */
export function ownCommand(env: NodeJS.ProcessEnv = process.env, program: readonly string[] = ownProgram()): string {
  const file = program.at(-1) as string
  if (!isExecutable(file)) return program.map(quote).join(' ')
  const found = findOnPath('sluice', env)
  if (found !== undefined && realpathSync(found) === realpathSync(file)) return 'sluice'
  const below = relative(process.cwd(), file)
  return quote(below.startsWith('..') || !below.includes('/') ? file : below)
}

/** Returns the path of a program; undefined if no folder of the PATH has it. */
export const findOnPath = (name: string, { PATH = '' }: NodeJS.ProcessEnv): string | undefined =>
  PATH.split(delimiter)
    .map((folder) => join(folder, name))
    .find(isExecutable)

function isExecutable(path: string): boolean {
  try {
    accessSync(path, constants.X_OK)
    return true
  } catch {
    return false
  }
}

/** Quotes a word for the shell if it needs quotes. */
const quote = (word: string): string => (/^[\w./:=@%+-]+$/.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`)
