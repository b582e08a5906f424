// Provides libfaketime, which shows a program another wall clock: the one of this machine, else Debian's package in the cache.

import { spawnSync } from 'node:child_process'
import { existsSync, mkdirSync } from 'node:fs'
import { homedir } from 'node:os'
import { join } from 'node:path'

const installed = 'usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1'
const cache = process.env.SLUICE_CACHE ?? join(process.env.XDG_CACHE_HOME ?? join(homedir(), '.cache'), 'sluice')

/** Returns the path of the library; undefined if this machine has none and cannot download it. */
export function provideFaketime(): string | undefined {
  const own = join('/', installed)
  if (existsSync(own)) return own
  const folder = join(cache, 'faketime')
  const cached = join(folder, installed)
  if (existsSync(cached)) return cached
  mkdirSync(folder, { recursive: true })
  const script = 'apt-get download -qq libfaketime && dpkg -x libfaketime_*.deb . && rm libfaketime_*.deb'
  spawnSync('sh', ['-c', script], { cwd: folder, stdio: 'ignore', timeout: 60_000 })
  return existsSync(cached) ? cached : undefined
}

/** The environment of a program whose wall clock follows the file: `+3650d` in it is ten years ahead. */
export const fakeClockOf = (library: string, file: string): NodeJS.ProcessEnv => ({
  ...fakeClocksOf(library, file),
  FAKETIME_DONT_FAKE_MONOTONIC: '1',
})

/** The same for all clocks, also the monotonic one, by which timers of Node are due. */
export const fakeClocksOf = (library: string, file: string): NodeJS.ProcessEnv => ({
  LD_PRELOAD: library,
  FAKETIME_TIMESTAMP_FILE: file,
  FAKETIME_NO_CACHE: '1',
})
