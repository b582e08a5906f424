// Provides another kernel from Debian's packages, unpacked into a cache and never installed: vmlinux, modules, and an initrd.

import { spawnSync } from 'node:child_process'
import {
  existsSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  renameSync,
  rmSync,
  statSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs'
import { basename, join } from 'node:path'
import { cache, privateApt, run } from './apt.ts'
import { capture } from './host-packages.ts'
import { writeInitrd } from './initrd.ts'

export interface Kernel {
  /** `bookworm`, or `bookworm:linux-image-6.12-amd64`: a suite of Debian, and a package if it is not the default kernel. */
  readonly spec: string
  /** `6.1.0-40-amd64`. */
  readonly release: string
  readonly directory: string
}

/** Returns it from the cache, or downloads it, which takes half a minute. Throws with the reason if that fails. */
export function provideKernel(spec: string): Kernel {
  const directory = join(cache, spec.replace(/[^\w.-]/g, '_'))
  if (!existsSync(join(directory, 'release'))) {
    process.stderr.write(`vm: fetching the kernel of ${spec}\n`)
    fetchKernel(spec, directory)
  }
  const kernel = { spec, release: readFileSync(join(directory, 'release'), 'utf8'), directory }
  const initrd = join(directory, 'initrd')
  const source = join(import.meta.dirname, 'init')
  if (!existsSync(initrd) || statSync(initrd).mtimeMs < statSync(source).mtimeMs) writeInitrd(kernel, source, initrd)
  return kernel
}

function fetchKernel(spec: string, directory: string): void {
  const [suite, meta = 'linux-image-amd64'] = spec.split(':') as [string, string?]
  const work = `${directory}.new`
  rmSync(work, { recursive: true, force: true })
  mkdirSync(join(work, 'tree'), { recursive: true })
  const apt = privateApt(suite, work)
  run('apt-get', [...apt, 'update'])
  for (const deb of downloadAll(apt, suite, meta, work)) run('dpkg-deb', ['-x', deb, join(work, 'tree')])
  const find = (...args: string[]) => (capture('find', [join(work, 'tree'), ...args]) ?? '').split('\n')[0] as string
  const image = find('-name', 'vmlinuz*', '-type', 'f')
  const modules = find('-type', 'd', '-path', '*lib/modules/*/kernel')
  if (image === '' || modules === '') throw new Error(`the packages of ${spec} have no kernel and modules`)
  // Before the modules are moved, because newer suites have the kernel among them.
  writeFileSync(join(work, 'vmlinux'), extractElf(readFileSync(image)))
  const release = basename(join(modules, '..'))
  unpackModules(modules)
  // The packages have no modules.dep, and depmod needs the usual folders above the modules.
  const root = join(work, 'root/lib')
  mkdirSync(root, { recursive: true })
  renameSync(join(modules, '../..'), join(root, 'modules'))
  symlinkSync('root/lib/modules', join(work, 'modules'))
  run('depmod', ['-b', join(work, 'root'), release])
  for (const name of ['tree', 'apt', ...readdirSync(work).filter((file) => file.endsWith('.deb'))]) {
    rmSync(join(work, name), { recursive: true, force: true })
  }
  writeFileSync(join(work, 'release'), release)
  rmSync(directory, { recursive: true, force: true })
  renameSync(work, directory)
}

/** The default package depends on the versioned one, which since Debian 14 depends on several. */
function downloadAll(apt: readonly string[], suite: string, meta: string, work: string): readonly string[] {
  const target = suite.endsWith('-backports') ? ['-t', suite] : []
  const wanted = new Set([meta])
  for (const name of wanted) {
    const shown = capture('apt-cache', [...apt, ...target, 'show', '--no-all-versions', name])
    if (shown === undefined || shown === '') throw new Error(`${suite} has no package ${name}`)
    const depends = /^Depends: (.*)$/m.exec(shown)?.[1] ?? ''
    for (const part of depends.split(/[,|] */)) {
      const dependency = part.split(' ')[0] as string
      if (/^linux-(image|binary|modules|base)-.*amd64$/.test(dependency)) wanted.add(dependency)
    }
  }
  run('apt-get', [...apt, ...target, 'download', ...wanted], work)
  return readdirSync(work)
    .filter((name) => name.endsWith('.deb'))
    .map((name) => join(work, name))
}

/** Deletes drivers of hardware, which are most of the size, and decompresses the rest, which newer suites compress. */
function unpackModules(modules: string): void {
  const kept = new Set(['net', 'virtio', 'block', 'char'])
  for (const name of readdirSync(join(modules, 'drivers'))) {
    if (!kept.has(name)) rmSync(join(modules, 'drivers', name), { recursive: true })
  }
  for (const name of ['sound', 'drivers/net/ethernet', 'drivers/net/wireless', 'drivers/net/usb', 'drivers/net/can']) {
    rmSync(join(modules, name), { recursive: true, force: true })
  }
  const find = (ending: string, program: readonly string[]) =>
    run('sh', ['-c', `find '${modules}' -name '*${ending}' -print0 | xargs -0r -n 64 -P 2 ${program.join(' ')}`])
  find('.ko.xz', ['xz', '-d'])
  find('.ko.zst', ['zstd', '-dq', '--rm'])
}

const packers: readonly (readonly [string, readonly string[]])[] = [
  ['02214c18', ['lz4', '-dc']],
  ['28b52ffd', ['zstd', '-dcq']],
  ['fd377a58', ['xz', '-dc']],
  ['1f8b0800', ['gzip', '-dc']],
]

/**
 * Extracts the ELF image from a bzImage, whose header says where it is. QEMU starts it directly, without a BIOS and without unpacking in an
 * emulated CPU, which saves 3 of 7 seconds.
 */
function extractElf(image: Buffer): Buffer {
  const start = ((image[0x1f1] || 4) + 1) * 512 + image.readUInt32LE(0x248)
  const packed = image.subarray(start, start + image.readUInt32LE(0x24c) - 4)
  const [program, ...args] = packers.find(([magic]) => packed.subarray(0, 4).toString('hex') === magic)?.[1] ?? []
  if (program === undefined) throw new Error('the kernel is compressed in an unknown way')
  const { stdout } = spawnSync(program, args, { input: packed, maxBuffer: 1 << 30 })
  if (stdout.subarray(1, 4).toString() !== 'ELF') throw new Error('the kernel image has no ELF image')
  return stdout
}
