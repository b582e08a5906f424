// Writes the first file system of a VM as a cpio archive: busybox, the init script, and the modules that mount the shared files.

import { readFileSync, writeFileSync } from 'node:fs'
import { basename, join } from 'node:path'
import type { Kernel } from './provide-kernel.ts'

const needed = ['virtio_pci', 'overlay', '9pnet_virtio', '9p']

export function writeInitrd(kernel: Kernel, init: string, file: string): void {
  const modules = join(kernel.directory, 'modules', kernel.release)
  const load = needed.flatMap((name) => withDependencies(readFileSync(join(modules, 'modules.dep'), 'utf8'), name))
  const order = [...new Set(load)]
  const archive = new Cpio()
  for (const name of ['bin', 'm', 'proc', 'sys', 'dev', 'host', 'changes', 'new']) archive.add(name, 0o040755)
  archive.add('bin/busybox', 0o100755, readFileSync('/bin/busybox'))
  archive.add('init', 0o100755, readFileSync(init))
  for (const path of order) archive.add(`m/${basename(path)}`, 0o100644, readFileSync(join(modules, path)))
  archive.add('modules', 0o100644, Buffer.from(order.map((path) => `${basename(path)}\n`).join('')))
  writeFileSync(file, archive.bytes())
}

/** Paths of the module and its dependencies in the order to load them; empty if it is built into the kernel. */
function withDependencies(table: string, name: string): readonly string[] {
  const pattern = new RegExp(`^(\\S*/)?${name.replace(/[-_]/g, '[-_]')}\\.ko: ?(.*)$`, 'm')
  const match = pattern.exec(table)
  if (match === null) return []
  const path = (match[0] as string).split(':')[0] as string
  const rest = (match[2] as string).split(' ').filter((text) => text !== '')
  return [...rest.flatMap((one) => withDependencies(table, basename(one, '.ko'))), path]
}

/** The "newc" format that the kernel reads. */
class Cpio {
  readonly #parts: Buffer[] = []
  #inode = 1

  add(name: string, mode: number, content = Buffer.alloc(0)): void {
    const fields = [this.#inode++, mode, 0, 0, 1, 0, content.length, 0, 0, 0, 0, name.length + 1, 0]
    const header = `070701${fields.map((field) => field.toString(16).padStart(8, '0')).join('')}${name}\0`
    this.#parts.push(padded(Buffer.from(header)), padded(content))
  }

  bytes(): Buffer {
    this.add('TRAILER!!!', 0)
    return Buffer.concat(this.#parts)
  }
}

const padded = (bytes: Buffer): Buffer => Buffer.concat([bytes, Buffer.alloc(-bytes.length & 3)])
