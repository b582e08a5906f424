// Named pipes of Windows. A file per pipe in the folder of Sluice shows which pipes there are.
//
// 1. Only administrators can create a pipe below ProtectedPrefix\Administrators, so no other user can wait there for our questions.
// 2. A pipe without a security descriptor of its own lets administrators and its owner write, and everyone only read. A question must be
//    written, so only they get answers.
// 3. Looking at a pipe with stat, or for its existence, would connect to it.

import { existsSync, mkdirSync, readdirSync, rmSync, writeFileSync } from 'node:fs'
import { win32 } from 'node:path'
import { ProxyError } from '../../lib/errors.ts'
import { bindPath, type LocalSockets, mayBeInUse } from './local-sockets.ts'

const prefix = '\\\\.\\pipe\\ProtectedPrefix\\Administrators\\sluice\\'
const suffix = '.pipe'

/** The folder of Sluice: `C:\ProgramData\sluice`. */
export const findStateFolder = (env: NodeJS.ProcessEnv = process.env): string =>
  win32.join(env.ProgramData ?? 'C:\\ProgramData', 'sluice')

/** `join` joins the parts of a path; tests replace it. */
export function makeNamedPipes(folder: string, join = win32.join): LocalSockets {
  const pathOf = (name: string) => `${prefix}${name}`
  /** Undefined for a pipe with a name that the user has chosen: it is not listed. */
  const fileOf = (path: string) =>
    path.startsWith(prefix) ? join(folder, `${path.slice(prefix.length)}${suffix}`) : undefined
  return {
    folder,
    pathOf,
    list(from) {
      try {
        return readdirSync(from)
          .filter((name) => name.endsWith(suffix))
          .map((name) => pathOf(name.slice(0, -suffix.length)))
      } catch {
        return []
      }
    },
    exists(path) {
      const file = fileOf(path)
      return file !== undefined && existsSync(file)
    },
    async listen(server, path) {
      // The first instance of a pipe is exclusive on Windows, but not under Wine.
      if (await mayBeInUse(path)) throw new ProxyError('admin', `another proxy listens on ${path}`)
      await bindPath(server, path)
      const file = fileOf(path)
      if (file === undefined) return
      mkdirSync(folder, { recursive: true })
      writeFileSync(file, `${path}\n`)
    },
    forget(path) {
      const file = fileOf(path)
      if (file !== undefined) rmSync(file, { force: true })
    },
  }
}
