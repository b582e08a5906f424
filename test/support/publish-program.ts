// Copies a program to a folder that every user may read. Tests that drop root's privileges run it from there, since the checkout, or
// Node itself, may be in a folder that only root can enter (root's home, or what `mktemp -d` makes).

import { chmodSync, copyFileSync, cpSync, mkdtempSync, rmSync, statSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { basename, dirname, join } from 'node:path'
import { bundleProgram } from './bundle-program.ts'

const root = join(import.meta.dirname, '../..')
/** The packages that bundles do not contain, because they load native code. */
const nativePackages = ['koffi', '@koromix']

export interface PublishedProgram {
  readonly folder: string
  /** Node and the file it runs. */
  readonly command: readonly [string, string]
  remove(): void
}

export async function publishProgram(source: string): Promise<PublishedProgram> {
  const folder = mkdtempSync(join(tmpdir(), 'sluice-public-'))
  const { file, remove } = await bundleProgram(source)
  // In a VM the bundle imports other files of its folder.
  cpSync(dirname(file), folder, { recursive: true })
  remove()
  for (const name of nativePackages) {
    cpSync(join(root, 'node_modules', name), join(folder, 'node_modules', name), { recursive: true })
  }
  let node = process.execPath
  if (!isOpenToAll(node)) {
    node = join(folder, 'node')
    copyFileSync(process.execPath, node)
  }
  chmodSync(folder, 0o755)
  return {
    folder,
    command: [node, join(folder, basename(file))],
    remove: () => rmSync(folder, { recursive: true, force: true }),
  }
}

/** True if every user may execute the file and enter all folders above it. */
function isOpenToAll(path: string): boolean {
  const mayExecute = (statSync(path).mode & 0o001) !== 0
  return mayExecute && (dirname(path) === path || isOpenToAll(dirname(path)))
}
