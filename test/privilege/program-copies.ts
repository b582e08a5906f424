// The programs whose privileges are tested, in a folder that every user may read: the bundle with this Node, and the single executable
// with Node 26, where `npm run package` has made it.

import { chmodSync, copyFileSync, existsSync, mkdirSync, mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { publishProgram } from '../support/publish-program.ts'

const root = join(import.meta.dirname, '../..')
const executable = join(root, 'dist/package/sluice-linux-amd64')
export const hasExecutable = existsSync(executable)
/** As in bin/kube-proxy. */
const nodeOptions = [
  ...['--max-semi-space-size=4', '--initial-old-space-size=80', '--heap-growing-percent=30', '--no-parallel-scavenge'],
]

export interface ProgramCopy {
  /** The command line up to the flags of the proxy. */
  readonly command: readonly string[]
  remove(): void
}

export async function copyBundle(): Promise<ProgramCopy> {
  const { command, remove } = await publishProgram(join(root, 'test/commands/sluice.worker.ts'))
  return { command: [command[0], ...nodeOptions, command[1], 'proxy'], remove }
}

/** With its native addon beside it, as packages and images install it: nothing has to be written to load it. */
export function copyExecutable(): ProgramCopy {
  const folder = mkdtempSync(join(tmpdir(), 'sluice-executable-'))
  chmodSync(folder, 0o755)
  for (const name of ['bin', 'lib', 'lib/sluice']) mkdirSync(join(folder, name))
  copyFileSync(executable, join(folder, 'bin/sluice'))
  copyFileSync(
    join(root, 'node_modules/@koromix/koffi-linux-x64/linux_x64/koffi.node'),
    join(folder, 'lib/sluice/koffi.node'),
  )
  return {
    command: [join(folder, 'bin/sluice'), 'proxy'],
    remove: () => rmSync(folder, { recursive: true, force: true }),
  }
}
