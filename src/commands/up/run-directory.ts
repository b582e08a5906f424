// Claims a directory for the files of one `sluice up`: kubeconfig, configuration and, without root, the admin socket.

import { existsSync, readdirSync, rmSync } from 'node:fs'
import { homedir } from 'node:os'
import { dirname, join } from 'node:path'
import { ProxyError } from '../../lib/errors.ts'
import { ensurePrivateDirectory } from '../../sys/private-files.ts'

/** Returns the path of a directory for this process, which removes it at the end. */
export function runDirectory(env: NodeJS.ProcessEnv = process.env): string {
  if (process.getuid?.() === 0) return join('/run/sluice', `up-${process.pid}`)
  return join(env.XDG_RUNTIME_DIR || join(env.HOME || homedir(), '.cache'), `sluice-up-${process.pid}`)
}

/** Creates the directory, and removes those of processes that were killed. Throws a ProxyError. */
export function claimRunDirectory(path: string): void {
  removeStale(path)
  try {
    ensurePrivateDirectory(path)
  } catch (error) {
    if (error instanceof ProxyError) throw error
    const advice = 'name a writable directory with --state DIR, HOME or XDG_RUNTIME_DIR'
    throw new ProxyError('storage', `cannot create ${path} (${(error as NodeJS.ErrnoException).code}): ${advice}`)
  }
}

/** What cannot be read or removed belongs to another user and stays. */
function removeStale(path: string): void {
  const [parent, prefix] = [dirname(path), path.slice(dirname(path).length + 1).replace(/\d+$/, '')]
  try {
    for (const name of readdirSync(parent)) {
      const pid = name.startsWith(prefix) ? name.slice(prefix.length) : ''
      if (/^\d+$/.test(pid) && !existsSync(`/proc/${pid}`)) rmSync(join(parent, name), { recursive: true, force: true })
    }
  } catch {
    // The next run tries again.
  }
}
