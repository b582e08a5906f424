// Returns the command line that starts this program again as a child process: the same Node, options and file.

import { createRequire } from 'node:module'

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
