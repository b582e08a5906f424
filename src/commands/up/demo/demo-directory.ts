// Claims a directory and a namespace prefix for one demo, and removes what demos that were killed have left.

import { existsSync, mkdirSync, readdirSync, rmSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { ProxyError } from '../../../lib/errors.ts'
import { ensureSharedDirectory } from '../../../sys/private-files.ts'
import { readTextOrEmpty } from '../../text-file.ts'
import { removeNamespaces } from './demo-network.ts'

export interface DemoDirectory {
  /** Begins the names of the demo's network namespaces. */
  readonly prefix: string
  readonly path: string
}

export async function claimDirectory(folder: string): Promise<DemoDirectory> {
  ensureSharedDirectory(folder)
  await removeStaleDemos(folder)
  for (let i = 1; i < 100; i++) {
    const prefix = i === 1 ? 'sluice-' : `sluice${i}-`
    const path = join(folder, i === 1 ? 'demo' : `demo${i}`)
    if (!makeDirectory(path)) continue
    writeFileSync(join(path, 'pid'), String(process.pid))
    await removeNamespaces(prefix)
    return { prefix, path }
  }
  throw new ProxyError('demo', `too many demos run already, see ${folder}`)
}

/** Returns false if the directory exists: another demo has it. */
function makeDirectory(path: string): boolean {
  try {
    mkdirSync(path, { mode: 0o700 })
    return true
  } catch {
    return false
  }
}

async function removeStaleDemos(folder: string): Promise<void> {
  for (const [, number = ''] of readdirSync(folder).flatMap((name) => [...name.matchAll(/^demo(\d*)$/g)])) {
    const path = join(folder, `demo${number}`)
    if (!isAlive(readNumber(join(path, 'pid')))) await removeDemo({ prefix: `sluice${number}-`, path })
  }
}

async function removeDemo({ prefix, path }: DemoDirectory): Promise<void> {
  const pid = readNumber(join(path, 'proxy.pid'))
  // Another process may have this pid by now: the proxy of the demo has the directory in its command line.
  if (isAlive(pid) && readTextOrEmpty(`/proc/${pid}/cmdline`).includes(path)) process.kill(pid, 'SIGKILL')
  await removeNamespaces(prefix)
  rmSync(path, { recursive: true, force: true })
}

const isAlive = (pid: number): boolean => pid > 0 && existsSync(`/proc/${pid}`)

const readNumber = (path: string): number => Number(readTextOrEmpty(path)) || 0

/** Returns the last three lines of a log file in one line; '' if the file does not exist. */
export const readLastLines = (path: string): string => readTextOrEmpty(path).trim().split('\n').slice(-3).join(' | ')
