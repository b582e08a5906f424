// Says whether this machine can package: the tools of Debian and the inputs from the npm registry.

import { spawnSync } from 'node:child_process'
import { stripOf } from '../../packaging/executable.ts'
import { type Architecture, koffiAddon, nodeBinary } from '../../packaging/inputs.ts'

/** Fetches the inputs if they are not in the cache. Returns a reason, or undefined if an executable can be made. */
export function whyNotPackage(architecture: Architecture): string | undefined {
  if (process.platform !== 'linux' || process.arch !== 'x64') return 'it is made on Linux on amd64'
  const strip = stripOf(architecture)
  if (spawnSync(strip, ['--version']).status !== 0) return `there is no ${strip}; packaging/install installs it`
  try {
    nodeBinary(architecture)
    koffiAddon(architecture)
    return undefined
  } catch (error) {
    return `the npm registry does not answer: ${(error as Error).message.split('\n')[0]}`
  }
}
