// Runs programs of arm64 under qemu-user, with the libraries of Debian's arm64 packages.

import { execFileSync, spawnSync } from 'node:child_process'
import { chmodSync, mkdirSync, mkdtempSync, rmSync, symlinkSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { dirname, join } from 'node:path'
import { readDebianPackages } from '../../../packaging/debian-packages.ts'
import { koffiAddon, nodeBinary } from '../../../packaging/inputs.ts'

const emulator = 'qemu-aarch64-static'
/** What Node is linked with. */
const libraries = ['libc6', 'libgcc-s1', 'libstdc++6']

/** Returns undefined if programs of arm64 run here. */
export function whyNotArm64(): string | undefined {
  if (spawnSync(emulator, ['--version']).status === 0) return undefined
  return `there is no ${emulator}; packaging/install installs it`
}

export class EmulatedArm64 {
  readonly #folder = mkdtempSync(join(tmpdir(), 'sluice-arm64-'))
  readonly #libraries = join(this.#folder, 'root')

  async unpackLibraries(): Promise<void> {
    // Other users run programs, too.
    chmodSync(this.#folder, 0o755)
    mkdirSync(this.#libraries)
    for (const { files } of await readDebianPackages(libraries, 'arm64')) {
      execFileSync('tar', ['-x', '-C', this.#libraries], { input: await files.toTar(0) })
    }
    const scope = join(this.#folder, 'modules', '@koromix')
    mkdirSync(scope, { recursive: true })
    symlinkSync(dirname(dirname(koffiAddon('arm64'))), join(scope, 'koffi-linux-arm64'))
  }

  /** The command line of a program of arm64. */
  command(program: string, ...args: readonly string[]): readonly [string, ...string[]] {
    return [emulator, '-L', this.#libraries, program, ...args]
  }

  /** Runs a file with Node of arm64, which finds the native addon of that architecture. */
  runNode(file: string, args: readonly string[], env: NodeJS.ProcessEnv) {
    const [program, ...words] = this.command(nodeBinary('arm64'), file, ...args)
    const all = { ...process.env, ...env, NODE_PATH: join(this.#folder, 'modules') }
    return spawnSync(program, words, { encoding: 'utf8', timeout: 500_000, env: all, maxBuffer: 64 << 20 })
  }

  remove(): void {
    rmSync(this.#folder, { recursive: true, force: true })
  }
}
