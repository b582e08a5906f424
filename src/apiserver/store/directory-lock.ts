// One server per state directory: a file that names the process, believed only while that very process lives.

import { open, readFile, rm } from 'node:fs/promises'
import { join } from 'node:path'
import { ProxyError } from '../../lib/errors.ts'

export async function lockDirectory(directory: string): Promise<{ release(): Promise<void> }> {
  const path = join(directory, 'owner')
  const self = await identify(process.pid)
  for (let attempt = 0; attempt < 3; attempt++) {
    try {
      const file = await open(path, 'wx', 0o600)
      await file.writeFile(`${self}\n`)
      await file.close()
      return { release: () => rm(path, { force: true }) }
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code !== 'EEXIST') throw error
    }
    const owner = (await readFile(path, 'utf8').catch(() => '')).trim()
    const pid = Number.parseInt(owner, 10)
    if (Number.isInteger(pid) && (await identify(pid).catch(() => '')) === owner) {
      throw new ProxyError('storage', `${directory} is in use by process ${pid}`, { fields: { directory, pid } })
    }
    await rm(path, { force: true })
  }
  throw new ProxyError('storage', `cannot claim ${directory}`)
}

/** The start time tells a process from a later one with the same number; the boot id from one before a reboot. */
async function identify(pid: number): Promise<string> {
  const stat = await readFile(`/proc/${pid}/stat`, 'utf8')
  const started = stat.slice(stat.lastIndexOf(')') + 2).split(' ')[19]
  const boot = await readFile('/proc/sys/kernel/random/boot_id', 'utf8')
  return `${pid} ${started} ${boot.trim()}`
}
