// Wine for the windows tier: says whether this machine has it, and makes prefixes (the C: drives of Wine) with the stand-in for netsh.

import { execFileSync, spawn, spawnSync } from 'node:child_process'
import { createHash } from 'node:crypto'
import {
  cpSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readFileSync,
  renameSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs'
import { homedir, tmpdir } from 'node:os'
import { basename, join } from 'node:path'
import { cache, windowsNodeBinary } from '../../packaging/inputs.ts'

const wine = '/usr/lib/wine/wine64'
const wineserver = '/usr/lib/wine/wineserver64'
/** The compilers for programs of Windows and for wineserver-bind.c. */
const compilers = { windows: 'x86_64-w64-mingw32-gcc', linux: 'gcc' } as const
const netshSource = join(import.meta.dirname, 'netsh.c')
const bindSource = join(import.meta.dirname, 'wineserver-bind.c')

const bindLibrary = 'wineserver-bind.so'

export type Environment = Readonly<Record<string, string>>
/** Wine says that it is Windows 7, which Node no longer supports. */
const nodeEnvironment: Environment = { NODE_SKIP_PLATFORM_CHECK: '1' }

/** Fetches Node for Windows if it is not in the cache. Returns a reason, or undefined if the tier can run. */
export function whyNotWine(): string | undefined {
  if (process.platform !== 'linux' || process.arch !== 'x64') return 'Node for Windows is a program for amd64'
  if (process.getuid?.() !== 0 || spawnSync('ip', ['netns', 'list']).status !== 0) {
    return 'it needs root and network namespaces'
  }
  if (!existsSync(wine) || !existsSync(wineserver)) return 'there is no wine64; test/windows/install installs it'
  const absent = Object.values(compilers).find((compiler) => spawnSync(compiler, ['--version']).status !== 0)
  if (absent !== undefined) return `there is no ${absent}; test/windows/install installs it`
  try {
    windowsNodeBinary()
    return undefined
  } catch (error) {
    return `the npm registry does not answer: ${(error as Error).message.split('\n')[0]}`
  }
}

/** One C: drive with its own Wine server: what runs in it shares one network namespace. */
export class WinePrefix {
  readonly path: string
  readonly #namespace: string
  /** A test run that is interrupted leaves nothing behind. */
  readonly #onExit = () => this.close()

  private constructor(path: string, namespace: string) {
    this.path = path
    this.#namespace = namespace
    process.once('exit', this.#onExit)
  }

  /** The system files are those of the template; everything that a test changes is a copy. Services get `serviceEnvironment`. */
  static open(namespace: string, serviceEnvironment: Environment): WinePrefix {
    const template = makeTemplate()
    const path = mkdtempSync(join(tmpdir(), 'sluice-wine-'))
    const windows = join('drive_c', 'windows')
    cpSync(template, path, { recursive: true, verbatimSymlinks: true, filter: (from) => !from.endsWith(`/${windows}`) })
    symlinkSync(join(template, windows), join(path, windows))
    addToRegistry(join(path, 'system.reg'), { ...serviceEnvironment, ...nodeEnvironment })
    const prefix = new WinePrefix(path, namespace)
    // Programs start faster while a server waits for them. It keeps the sockets, so it must run inside.
    const env = prefix.env({ LD_PRELOAD: join(template, bindLibrary) })
    execFileSync('ip', ['netns', 'exec', namespace, wineserver, '-p'], { env, stdio: 'ignore' })
    return prefix
  }

  env(more: Environment): NodeJS.ProcessEnv {
    return { ...wineEnvironment(this.path), WINEDLLOVERRIDES: 'netsh.exe=n;winemenubuilder.exe=', ...more }
  }

  /** Starts a program inside the namespace. Wine needs files for its output: Node for Windows cannot use pipes of Linux. */
  start(command: readonly string[], output: { stdout: number; stderr: number }, env: Environment) {
    const args = ['netns', 'exec', this.#namespace, wine, ...command]
    return spawn('ip', args, { env: this.env(env), stdio: ['ignore', output.stdout, output.stderr] })
  }

  /** Compiles a program to the drive C:, and returns its path there. */
  compile(source: string): string {
    const name = basename(source).replace(/\.c$/, '.exe')
    compile(source, join(this.path, 'drive_c', name))
    return `C:\\${name}`
  }

  /** Ends everything that runs in this prefix, and removes it. */
  close(): void {
    process.removeListener('exit', this.#onExit)
    spawnSync(wineserver, ['-k', '-w'], { env: this.env({}) })
    rmSync(this.path, { recursive: true, force: true })
  }
}

const wineEnvironment = (path: string): NodeJS.ProcessEnv => ({
  HOME: homedir(),
  PATH: process.env.PATH,
  WINEPREFIX: path,
  WINEDEBUG: '-all',
  ...nodeEnvironment,
})

/** The environment of services is in the registry, which is a text while no server of Wine runs. */
function addToRegistry(file: string, environment: Environment): void {
  const lines = Object.entries(environment).map(([name, value]) => `"${name}"=${JSON.stringify(value)}\n`)
  const section = /^\[System\\\\CurrentControlSet\\\\Control\\\\Session Manager\\\\Environment\].*\n/m
  writeFileSync(
    file,
    readFileSync(file, 'utf8').replace(section, (line) => `${line}${lines.join('')}`),
  )
}

const compile = (source: string, program: string, ...options: readonly string[]): void => {
  execFileSync(compilers.windows, ['-O2', '-s', '-Wall', '-Werror', '-o', program, source, ...options])
}

/** Makes the prefix from which all others are copied, once, in the cache. */
function makeTemplate(): string {
  const version = spawnSync(wine, ['--version'], { encoding: 'utf8' }).stdout
  const id = createHash('sha256')
    .update(version)
    .update(readFileSync(netshSource))
    .update(readFileSync(bindSource))
    .digest('hex')
    .slice(0, 12)
  const template = join(cache, 'wine', `prefix-${id}`)
  if (existsSync(template)) return template
  const partial = `${template}.partial-${process.pid}`
  mkdirSync(partial, { recursive: true })
  try {
    const env = { ...wineEnvironment(partial), WINEDLLOVERRIDES: 'winemenubuilder.exe=' }
    execFileSync(wine, ['wineboot', '-i'], { env, stdio: 'ignore' })
    spawnSync(wineserver, ['-w'], { env })
    const program = join(partial, 'drive_c', 'windows', 'system32', 'netsh.exe')
    rmSync(program, { force: true })
    compile(netshSource, program, '-lws2_32')
    const library = join(partial, bindLibrary)
    execFileSync(compilers.linux, ['-shared', '-fPIC', '-nostdlib', '-O2', '-o', library, bindSource])
    renameSync(partial, template)
  } finally {
    rmSync(partial, { recursive: true, force: true })
  }
  return template
}
