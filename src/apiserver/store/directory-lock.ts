// Allows one server per state directory: a file `owner` names the process, and counts only while that process lives.

import { open, readFile, rm } from 'node:fs/promises'
import { join } from 'node:path'
import { hasErrno, ProxyError } from '../../lib/errors.ts'

export interface DirectoryLock {
  release(): Promise<void>
}

const maxAttempts = 3

/** Rejects with a ProxyError `storage` if another process uses the directory. */
export async function lockDirectory(directory: string): Promise<DirectoryLock> {
  const path = join(directory, 'owner')
  const self = await identifyProcess(process.pid)
  for (let attempt = 0; attempt < maxAttempts; attempt++) {
    if (await createFile(path, `${self}\n`)) return { release: () => rm(path, { force: true }) }
    const owner = (await readFile(path, 'utf8').catch(() => '')).trim()
    const pid = Number.parseInt(owner, 10)
    if (Number.isInteger(pid) && (await identifyProcess(pid).catch(() => '')) === owner) {
      throw new ProxyError('storage', `${directory} is in use by process ${pid}`, { fields: { directory, pid } })
    }
    await rm(path, { force: true })
  }
  throw new ProxyError('storage', `cannot lock ${directory}: other processes lock it at the same time`)
}

/** Resolves to false if the file exists. */
async function createFile(path: string, content: string): Promise<boolean> {
  try {
    const file = await open(path, 'wx', 0o600)
    await file.writeFile(content)
    await file.close()
    return true
  } catch (error) {
    if (!hasErrno(error, 'EEXIST')) throw error
    return false
  }
}

/** The start time differs from that of a later process with the same pid, and the boot id from that of a process before a reboot. */
async function identifyProcess(pid: number): Promise<string> {
  const stat = await readFile(`/proc/${pid}/stat`, 'utf8')
  const started = stat.slice(stat.lastIndexOf(')') + 2).split(' ')[19]
  const boot = await readFile('/proc/sys/kernel/random/boot_id', 'utf8')
  return `${pid} ${started} ${boot.trim()}`
}
