// Makes the two images: `sluice` with the programs of every mode, and `sluice:nftables` with the executable and its libraries alone.

import { existsSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { commitId, commitTime } from './commit.ts'
import { type DebianPackage, readDebianPackages } from './debian-packages.ts'
import { makeExecutable, outputFolder } from './executable.ts'
import { FileTree } from './file-tree.ts'
import { type Architecture, architectures, inputsOf, koffiAddon, nodeVersion } from './inputs.ts'
import { type ImageConfig, type PlatformImage, writeArchive } from './oci.ts'
import { type Component, writeSbom } from './sbom.ts'

const root = join(import.meta.dirname, '..')

interface Manifest {
  readonly version: string
  readonly dependencies: Readonly<Record<string, string>>
}

const manifest = JSON.parse(readFileSync(join(root, 'package.json'), 'utf8')) as Manifest

/** The libraries that node is linked with. */
const libraries = ['libc6', 'libgcc-s1', 'libstdc++6']

/** What the modes iptables, ipvs and userspace run, and the libraries of these programs. */
const programs = [
  ...['iptables', 'libip4tc2', 'libip6tc2', 'libxtables12', 'libnftnl11', 'libmnl0', 'libnfnetlink0'],
  ...['libnetfilter-conntrack3', 'ipset', 'libipset13', 'kmod', 'libkmod2', 'liblzma5', 'libzstd1', 'libssl3'],
]

interface Variant {
  readonly name: string
  readonly file: string
  readonly packages: readonly string[]
  readonly title: string
}

const variants: readonly Variant[] = [
  { name: 'sluice', file: 'sluice.tar', packages: [...libraries, ...programs], title: 'Sluice, every mode' },
  { name: 'sluice:nftables', file: 'sluice-nftables.tar', packages: libraries, title: 'Sluice, nftables mode' },
]

/** Makes the images with these names, by default both, and returns the paths of the archives. */
export async function makeImages(
  wanted: readonly Architecture[] = architectures,
  names: readonly string[] = variants.map(({ name }) => name),
): Promise<readonly string[]> {
  const seconds = commitTime()
  const paths: string[] = []
  for (const variant of variants.filter(({ name }) => names.includes(name))) {
    const images: PlatformImage[] = []
    for (const architecture of wanted) images.push(await makeImage(variant, architecture, seconds))
    const path = join(outputFolder, variant.file)
    writeFileSync(path, await writeArchive([{ name: imageName(variant), platforms: images }], seconds))
    paths.push(path)
  }
  return paths
}

const imageName = ({ name }: Variant): string =>
  name.includes(':') ? `docker.io/library/${name}-${manifest.version}` : `docker.io/library/${name}:${manifest.version}`

async function makeImage(variant: Variant, architecture: Architecture, seconds: number): Promise<PlatformImage> {
  const packages = await readDebianPackages(variant.packages, architecture)
  const system = new FileTree()
  for (const { files } of packages) merge(system, files)
  addAccounts(system)
  addUsrMerge(system, architecture)
  const own = new FileTree()
  const executable = join(outputFolder, `sluice-linux-${architecture}`)
  if (!existsSync(executable)) await makeExecutable(architecture)
  own.copy('usr/local/bin/sluice', executable, 0o755)
  own.link('usr/local/bin/kube-proxy', 'sluice')
  own.copy('usr/local/lib/sluice/koffi.node', koffiAddon(architecture))
  own.copy('usr/share/doc/sluice/LICENSE', join(root, 'LICENSE'))
  return {
    architecture,
    layers: [await system.toTar(seconds), await own.toTar(seconds)],
    config: configOf(variant, seconds),
    sbom: writeSbom(`${variant.name}-${architecture}`, componentsOf(packages, architecture), seconds),
  }
}

function merge(into: FileTree, from: FileTree): void {
  for (const [path, node] of from.entries()) {
    // Debian's packages still name /lib and /sbin; the image has the merged layout that a Debian system has.
    const merged = path.replace(/^(bin|sbin|lib|lib64)\//, 'usr/$1/')
    if (node.type === 'symlink') into.link(merged, node.target)
    else into.add(merged, node.content, node.mode)
  }
}

function addUsrMerge(tree: FileTree, architecture: Architecture): void {
  for (const folder of ['bin', 'sbin', 'lib']) tree.link(folder, `usr/${folder}`)
  if (architecture === 'amd64') tree.link('lib64', 'usr/lib64')
  // update-alternatives does this on a Debian system.
  if (!tree.has('usr/sbin/iptables-nft')) return
  for (const family of ['iptables', 'ip6tables']) {
    for (const suffix of ['', '-save', '-restore']) tree.link(`usr/sbin/${family}${suffix}`, `${family}-nft${suffix}`)
  }
}

function addAccounts(tree: FileTree): void {
  tree.add('etc/passwd', 'root:x:0:0:root:/:/sbin/nologin\nnobody:x:65534:65534:nobody:/:/sbin/nologin\n')
  tree.add('etc/group', 'root:x:0:\nnogroup:x:65534:\n')
  tree.add('tmp/.keep', '')
}

const configOf = (variant: Variant, seconds: number): ImageConfig => ({
  entrypoint: ['/usr/local/bin/kube-proxy'],
  user: '0',
  env: ['PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin'],
  labels: {
    'org.opencontainers.image.title': variant.title,
    'org.opencontainers.image.version': manifest.version,
    'org.opencontainers.image.licenses': 'Apache-2.0',
    'org.opencontainers.image.revision': commitId(),
    'org.opencontainers.image.created': new Date(seconds * 1000).toISOString().replace('.000Z', 'Z'),
    'io.sluice.node.version': nodeVersion,
  },
})

function componentsOf(packages: readonly DebianPackage[], architecture: Architecture): readonly Component[] {
  const npm = (name: string, version: string): Component => ({
    name,
    version,
    purl: `pkg:npm/${name.replace('@', '%40')}@${version}`,
  })
  return [
    { name: 'sluice', version: manifest.version, purl: `pkg:npm/sluice@${manifest.version}`, license: 'Apache-2.0' },
    ...inputsOf(architecture).map(({ name, version }) => npm(name, version)),
    ...Object.entries(manifest.dependencies).map(([name, version]) => npm(name, version)),
    ...packages.map(({ name, version }) => ({
      name,
      version,
      purl: `pkg:deb/debian/${name.replaceAll('+', '%2B')}@${encodeURIComponent(version)}?arch=${architecture}`,
    })),
  ]
}
