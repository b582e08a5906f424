// Makes the single executables: the bundle, the page of the dashboard, koffi's addon and V8's snapshot inside a node binary.

import { execFileSync } from 'node:child_process'
import {
  chmodSync,
  copyFileSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  writeFileSync,
} from 'node:fs'
import { join } from 'node:path'
import { inject } from 'postject'
import { type OutputOptions, type Plugin, rolldown } from 'rolldown'
import { pageBuild } from '../web/page-build.ts'
import { findHeap, keepCompiledModules } from './code-cache.ts'
import { type Architecture, koffiAddon, nodeBinary } from './inputs.ts'
import { nodeOptions } from './node-options.ts'
import { clearUnusedBytes } from './unused-bytes.ts'

const root = join(import.meta.dirname, '..')
export const outputFolder = join(root, 'dist', 'package')

/** Node looks for this text in its own binary to learn whether it carries a program. */
const fuse = 'NODE_SEA_FUSE_fce680ab2cc467b6e072b8b5df1996b2'

/** The program that removes symbols from binaries of an architecture. */
export const stripOf = (architecture: Architecture): string =>
  ({ amd64: 'strip', arm64: 'aarch64-linux-gnu-strip' })[architecture]

/** Makes `sluice-linux-ARCHITECTURE` and returns its path. */
export async function makeExecutable(architecture: Architecture): Promise<string> {
  mkdirSync(outputFolder, { recursive: true })
  const work = mkdtempSync(join(outputFolder, '.work-'))
  try {
    await makeBundle(join(work, 'sluice.cjs'))
    await makePage(join(work, 'web'))
    const blob = makeBlob(work, architecture)
    const binary = join(work, 'node')
    copyFileSync(nodeBinary(architecture), binary)
    chmodSync(binary, 0o755)
    execFileSync(stripOf(architecture), [binary])
    await inject(binary, 'NODE_SEA_BLOB', blob, { sentinelFuse: fuse })
    const path = join(outputFolder, `sluice-linux-${architecture}`)
    copyFileSync(binary, path)
    chmodSync(path, 0o755)
    return path
  } finally {
    rmSync(work, { recursive: true, force: true })
  }
}

async function makeBundle(path: string): Promise<void> {
  const build = await rolldown({
    input: join(import.meta.dirname, 'entry.ts'),
    platform: 'node',
    external: ['koffi'],
    plugins: [deferBuiltIns],
  })
  await build.write({ file: path, format: 'cjs', codeSplitting: false, minify: true })
  await build.close()
  // Node makes a text of two bytes per character from a file with anything but ASCII: twice the memory, in the blob and in the heap.
  writeFileSync(path, readFileSync(path, 'utf8').replace(/[^\0-\x7f]/g, escapeCharacter), 'utf8')
}

const escapeCharacter = (character: string): string => `\\u${character.charCodeAt(0).toString(16).padStart(4, '0')}`

/** Modules of Node that V8 cannot put into a snapshot, because they hold objects of C++. */
const unserializable = ['http', 'https', 'tls']

/** Loads the modules that a snapshot cannot contain when they are used first. */
const deferBuiltIns: Plugin = {
  name: 'defer-built-ins',
  resolveId(id, importer) {
    const name = id.replace(/^node:/, '')
    return unserializable.includes(name) && !importer?.startsWith('\0deferred:') ? `\0deferred:${name}` : null
  },
  load: (id) =>
    id.startsWith('\0deferred:')
      ? `module.exports = new Proxy({}, { get: (_, key) => ${findModule(id.slice('\0deferred:'.length))}[key] })`
      : null,
}

/** The rehearsal has others instead. */
const findModule = (name: string): string => `(globalThis.rehearsedModules?.${name} ?? require('node:${name}'))`

/** Builds the page of the dashboard. */
async function makePage(folder: string): Promise<void> {
  const { output, ...input } = pageBuild(folder)
  const build = await rolldown(input)
  await build.write(output as OutputOptions)
  await build.close()
}

/** The files of the page, and their list, since a program cannot list its assets in Node 20. */
function pageAssets(work: string): Readonly<Record<string, string>> {
  const names = readdirSync(join(work, 'web')).sort()
  writeFileSync(join(work, 'files.json'), JSON.stringify(names))
  const files = names.map((name) => [`web/${name}`, join(work, 'web', name)])
  return { 'web/files.json': join(work, 'files.json'), ...Object.fromEntries(files) }
}

/**
 * V8 accepts a snapshot only from the same version, architecture and flags, so it is made by the very binary that will read it. The other
 * architecture's binary does not run here; its executable has no snapshot, and starts as a script does. What makes a snapshot reproducible
 * is a fixed seed, and a path of the script that does not say where it was made.
 */
function makeBlob(work: string, architecture: Architecture): Buffer {
  const host = process.arch === 'arm64' ? 'arm64' : 'amd64'
  const config = {
    main: '/proc/self/cwd/sluice.cjs',
    output: 'sluice.blob',
    disableExperimentalSEAWarning: true,
    useSnapshot: architecture === host,
    execArgv: nodeOptions,
    execArgvExtension: 'none',
    assets: { 'koffi.node': koffiAddon(architecture), ...pageAssets(work) },
  }
  writeFileSync(join(work, 'sea.json'), JSON.stringify(config))
  writeFileSync(join(work, 'kubeconfig'), kubeconfig)
  const flags = [...nodeOptions, '--random-seed=1', '--no-warnings', '--experimental-sea-config']
  // A rehearsal that does not come to its end would wait for ever.
  execFileSync(nodeBinary(host), [...flags, 'sea.json'], { cwd: work, timeout: 60_000 })
  const blob = readFileSync(join(work, 'sluice.blob'))
  if (!config.useSnapshot) return blob
  clearUnusedBytes(findHeap(blob))
  return keepCompiledModules(blob, listLaterModules(nodeBinary(host), readFileSync(join(work, 'sluice.cjs'), 'utf8')))
}

/** For the rehearsal, which dials nobody. Users have files in either style. */
const kubeconfig = `apiVersion: v1
kind: Config
clusters:
- name: rehearsal
  cluster:
    server: http://192.0.2.1
contexts: [{name: rehearsal, context: {cluster: rehearsal, user: rehearsal}}]
users: [{name: rehearsal, user: {token: none}}]
current-context: rehearsal
`

/** The modules of Node that a process loads although it starts from the snapshot: parts of those that the snapshot cannot contain. */
function listLaterModules(node: string, bundle: string): ReadonlySet<string> {
  const used = new Set([...bundle.matchAll(/require\(.node:([a-z_/]+).\)/g)].map(([, name = '']) => name))
  const later = [...unserializable, 'sea', 'dns', 'cluster']
  const inSnapshot = listLoadedModules(
    node,
    [...used].filter((name) => !later.includes(name)),
  )
  return new Set(listLoadedModules(node, later).filter((name) => !inSnapshot.includes(name)))
}

/** What Node loads for its modules with these names. */
function listLoadedModules(node: string, names: readonly string[]): readonly string[] {
  const program = `${JSON.stringify(names)}.map((name) => require('node:' + name)); console.log(process.moduleLoadList.join('\\n'))`
  const output = execFileSync(node, ['--no-warnings', '-e', program], { encoding: 'utf8' })
  return [...output.matchAll(/^NativeModule (.+)$/gm)].map(([, name = '']) => name)
}
