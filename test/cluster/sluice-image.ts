// Makes Sluice's images from the sources of this repository, for amd64 alone. It is a process of its own, because compressing an image
// keeps it busy while the cluster starts: `tsx sluice-image.ts NAME...` prints the executable and the archives.

import { makeExecutable } from '../../packaging/executable.ts'
import { makeImages } from '../../packaging/image.ts'
import { runCommand } from './namespaces.ts'

export interface SluiceImages {
  readonly executable: string
  readonly archives: readonly string[]
}

/** `names` as in packaging/image.ts: `sluice`, `sluice:nftables`. */
export async function makeSluiceImages(names: readonly string[]): Promise<SluiceImages> {
  const printed = await runCommand([process.execPath, '--import', 'tsx', import.meta.filename, ...names], {
    limitMs: 1_200_000, // a minute, but ten on a machine that does much else
  })
  return JSON.parse(printed.trim().split('\n').at(-1) as string) as SluiceImages
}

if (process.argv[1] === import.meta.filename) {
  const executable = await makeExecutable('amd64')
  const archives = await makeImages(['amd64'], process.argv.slice(2))
  console.log(JSON.stringify({ executable, archives }))
}
