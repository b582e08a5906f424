// A file tree in memory, and its reproducible tar archive: sorted entries, one modification time, root as the owner.

import { readFileSync } from 'node:fs'
import { buffer } from 'node:stream/consumers'
import { pack } from 'tar-stream'

interface RegularFile {
  readonly type: 'file'
  readonly mode: number
  readonly content: Uint8Array
}

interface Link {
  readonly type: 'symlink'
  readonly target: string
}

type Node = RegularFile | Link

/** Paths have no leading slash. Folders follow from the paths of the files in them. */
export class FileTree {
  readonly #nodes = new Map<string, Node>()

  add(path: string, content: Uint8Array | string, mode = 0o644): void {
    this.#nodes.set(path, { type: 'file', mode, content: typeof content === 'string' ? Buffer.from(content) : content })
  }

  copy(path: string, from: string, mode = 0o644): void {
    this.add(path, readFileSync(from), mode)
  }

  link(path: string, target: string): void {
    this.#nodes.set(path, { type: 'symlink', target })
  }

  has(path: string): boolean {
    return this.#nodes.has(path)
  }

  entries(): Iterable<readonly [string, Node]> {
    return this.#nodes
  }

  paths(): readonly string[] {
    return [...this.#nodes.keys()].sort()
  }

  /** `seconds` is the modification time of every entry. */
  async toTar(seconds: number): Promise<Buffer> {
    const archive = pack()
    const mtime = new Date(seconds * 1000)
    const common = { mtime, uid: 0, gid: 0, uname: '', gname: '' }
    const content = buffer(archive)
    for (const folder of this.#folders()) {
      archive.entry({ ...common, name: `${folder}/`, type: 'directory', mode: folder === 'tmp' ? 0o1777 : 0o755 })
    }
    for (const path of this.paths()) {
      const node = this.#nodes.get(path) as Node
      if (node.type === 'symlink') {
        archive.entry({ ...common, name: path, type: 'symlink', linkname: node.target, mode: 0o777 })
      } else {
        archive.entry({ ...common, name: path, type: 'file', mode: node.mode }, Buffer.from(node.content))
      }
    }
    archive.finalize()
    return await content
  }

  #folders(): readonly string[] {
    const folders = new Set<string>()
    for (const path of this.#nodes.keys()) {
      const parts = path.split('/')
      for (let length = 1; length < parts.length; length++) folders.add(parts.slice(0, length).join('/'))
    }
    return [...folders].filter((folder) => !this.#nodes.has(folder)).sort()
  }
}
