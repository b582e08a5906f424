// Files of Debian packages for an image: fetched by name with an apt of our own, for any architecture, and unpacked without running them.

import { execFileSync } from 'node:child_process'
import { existsSync, mkdirSync, readdirSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { extract } from 'tar-stream'
import { FileTree } from './file-tree.ts'
import { type Architecture, cache } from './inputs.ts'

const suite = 'bookworm'
const keyring = '/usr/share/keyrings/debian-archive-keyring.gpg'

export interface DebianPackage {
  readonly name: string
  readonly version: string
  readonly files: FileTree
}

/** Fetches the packages once per version of the archive and returns what is in them, without documentation. */
export async function readDebianPackages(
  names: readonly string[],
  architecture: Architecture,
): Promise<readonly DebianPackage[]> {
  const folder = join(cache, 'debian', suite, architecture)
  mkdirSync(folder, { recursive: true })
  const options = privateApt(folder, architecture)
  execFileSync('apt-get', [...options, 'update'], { stdio: ['ignore', 'ignore', 'inherit'] })
  execFileSync('apt-get', [...options, 'download', ...names], { cwd: folder, stdio: ['ignore', 'ignore', 'inherit'] })
  const packages: DebianPackage[] = []
  for (const name of names) packages.push(await readPackage(folder, name, versionOf(name, options)))
  return packages
}

async function readPackage(folder: string, name: string, version: string): Promise<DebianPackage> {
  // apt writes the colon of an epoch as %3a.
  const prefix = `${name}_${version.replace(':', '%3a')}_`
  const archive = readdirSync(folder).find((file) => file.startsWith(prefix))
  if (archive === undefined) throw new Error(`apt did not download ${name} ${version}`)
  const tar = execFileSync('dpkg-deb', ['--fsys-tarfile', join(folder, archive)], { maxBuffer: 512 * 1024 * 1024 })
  return { name, version, files: await readTar(tar) }
}

function versionOf(name: string, options: readonly string[]): string {
  const printed = execFileSync('apt-cache', [...options, 'show', '--no-all-versions', name], { encoding: 'utf8' })
  const version = /^Version: (.+)$/m.exec(printed)?.[1]
  if (version === undefined) throw new Error(`apt knows no version of ${name}`)
  return version
}

/** Documentation, translations and maintainer files do not belong in an image; licences do. */
const isWanted = (path: string): boolean =>
  !/^usr\/share\/(?:doc|man|info|locale|lintian|bug|bash-completion)\//.test(path) || path.endsWith('/copyright')

async function readTar(bytes: Uint8Array): Promise<FileTree> {
  const tree = new FileTree()
  const reader = extract()
  reader.end(bytes)
  for await (const entry of reader) {
    const path = entry.header.name.replace(/^\.\//, '')
    const chunks: Buffer[] = []
    for await (const chunk of entry) chunks.push(chunk as Buffer)
    if (!isWanted(path)) continue
    if (entry.header.type === 'symlink') tree.link(path, entry.header.linkname ?? '')
    if (entry.header.type === 'file') tree.add(path, Buffer.concat(chunks), entry.header.mode)
  }
  return tree
}

/** Sources and state of its own, with the mirrors that this machine uses, so that nothing of the machine changes. */
function privateApt(folder: string, architecture: Architecture): readonly string[] {
  const state = join(folder, 'apt')
  for (const name of ['lists/partial', 'cache/archives/partial']) mkdirSync(join(state, name), { recursive: true })
  if (!existsSync(join(state, 'status'))) writeFileSync(join(state, 'status'), '')
  const sources = join(state, 'sources.list')
  writeFileSync(
    sources,
    mirrors()
      .map((line) => `deb [signed-by=${keyring}] ${line} main\n`)
      .join(''),
  )
  const options = {
    'Dir::Etc::sourcelist': sources,
    'Dir::Etc::sourceparts': '-',
    'Dir::State::lists': join(state, 'lists'),
    'Dir::State::status': join(state, 'status'),
    'Dir::Cache': join(state, 'cache'),
    'APT::Architecture': architecture,
    'APT::Architectures': architecture,
    'APT::Sandbox::User': 'root',
    'Acquire::Languages': 'none',
  }
  return ['-qq', ...Object.entries(options).flatMap(([name, value]) => ['-o', `${name}=${value}`])]
}

function mirrors(): readonly string[] {
  const printed = execFileSync('apt-get', ['indextargets', '--format', '$(REPO_URI) $(CODENAME)'], { encoding: 'utf8' })
  const sites = printed.trim().split('\n')
  const find = (codename: RegExp) => sites.find((site) => codename.test(site.split(' ')[1] ?? ''))?.split(' ')[0]
  const main = find(/^[a-z]+$/)
  const security = find(/-security$/)
  if (main === undefined) throw new Error('apt has no Debian mirror here: run apt-get update first')
  return [`${main} ${suite}`, ...(security === undefined ? [] : [`${security} ${suite}-security`])]
}
