// A clean Debian system in a folder, made once per machine and copied for each test; commands run in it by chroot.

import { execFileSync, spawnSync } from 'node:child_process'
import { copyFileSync, existsSync, mkdirSync, mkdtempSync, renameSync, rmSync } from 'node:fs'
import { homedir, tmpdir } from 'node:os'
import { basename, join } from 'node:path'

const cache = join(process.env.SLUICE_CACHE ?? join(homedir(), '.cache', 'sluice'), 'debian-root')

export class DebianRoot {
  readonly path: string

  constructor() {
    this.path = mkdtempSync(join(tmpdir(), 'sluice-root-'))
    execFileSync('cp', ['-a', `${baseSystem()}/.`, this.path])
  }

  /** Copies a file of this machine to /tmp of the root and returns its path there. */
  add(file: string): string {
    copyFileSync(file, join(this.path, 'tmp', basename(file)))
    return join('/tmp', basename(file))
  }

  /** Returns what the command printed, stderr included, and its exit status. */
  run(...command: string[]): { readonly status: number; readonly output: string } {
    const env = { PATH: '/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin', LC_ALL: 'C', DEBIAN_FRONTEND: 'noninteractive' }
    // Its /proc, as on every system, is mounted for this command alone.
    const script = 'mount -t proc proc "$0/proc" && exec chroot "$0" "$@"'
    const args = ['--mount', '--propagation', 'private', 'sh', '-c', script, this.path, ...command]
    const done = spawnSync('unshare', args, { encoding: 'utf8', env, timeout: 120_000 })
    return { status: done.status ?? -1, output: `${done.stdout}${done.stderr}` }
  }

  remove(): void {
    rmSync(this.path, { recursive: true, force: true })
  }
}

function baseSystem(): string {
  const path = join(cache, 'bookworm')
  if (existsSync(path)) return path
  mkdirSync(cache, { recursive: true })
  const partial = `${path}.partial-${process.pid}`
  const printed = execFileSync('apt-get', ['indextargets', '--format', '$(REPO_URI)'], { encoding: 'utf8' })
  const mirror = printed.split('\n')[0] as string
  // libstdc++6 is what the package depends on beyond the base system; apt itself has no network in the root.
  const args = ['--variant=minbase', '--include=libstdc++6', 'bookworm', partial, mirror]
  execFileSync('debootstrap', args, { stdio: ['ignore', 'ignore', 'inherit'] })
  renameSync(partial, path)
  return path
}
