// Reads OCI archives: the index, manifests and configurations by architecture, and the layers unpacked into a folder.

import { execFileSync } from 'node:child_process'
import { mkdtempSync, readFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'

interface Descriptor {
  readonly digest: string
  readonly size: number
  readonly platform?: { readonly architecture: string }
}

interface Manifest {
  readonly config: Descriptor
  readonly layers: readonly Descriptor[]
  readonly artifactType?: string
  readonly subject?: Descriptor
}

export class OciArchive {
  readonly #folder: string
  readonly index: { readonly manifests: readonly Descriptor[] }

  constructor(path: string) {
    this.#folder = mkdtempSync(join(tmpdir(), 'sluice-oci-'))
    execFileSync('tar', ['-xf', path, '-C', this.#folder])
    const top = JSON.parse(readFileSync(join(this.#folder, 'index.json'), 'utf8')) as OciArchive['index']
    this.index = this.read(top.manifests[0] as Descriptor) as OciArchive['index']
  }

  /** The JSON behind a descriptor. */
  read({ digest }: Descriptor): unknown {
    return JSON.parse(readFileSync(this.#blob(digest), 'utf8'))
  }

  manifest(architecture: string): Manifest {
    const found = this.index.manifests.find(({ platform }) => platform?.architecture === architecture)
    return this.read(found as Descriptor) as Manifest
  }

  /** Unpacks the image of an architecture and returns the folder. */
  unpack(architecture: string): string {
    const folder = mkdtempSync(join(tmpdir(), 'sluice-image-'))
    for (const { digest } of this.manifest(architecture).layers) {
      execFileSync('tar', ['-xzf', this.#blob(digest), '-C', folder])
    }
    return folder
  }

  #blob(digest: string): string {
    return join(this.#folder, 'blobs', 'sha256', digest.replace('sha256:', ''))
  }

  remove(): void {
    execFileSync('rm', ['-rf', this.#folder])
  }
}
