// A containerd of our own in a folder, with the programs that test/cluster/build made and Debian's runc; images are imported and run with ctr.

import { type ChildProcess, execFileSync, spawn } from 'node:child_process'
import { existsSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { program } from '../../cluster/cache.ts'
import { until } from '../../support/until.ts'

/** Says why there is no containerd here, or returns undefined. */
export function whyNotContainerd(): string | undefined {
  if (process.getuid?.() !== 0) return 'it needs root'
  const absent = ['containerd', 'ctr', 'containerd-shim-runc-v2'].map(program).filter((path) => !existsSync(path))
  if (absent.length > 0) return `no ${absent.join(', ')}; test/cluster/build makes them`
  return existsSync('/usr/sbin/runc') ? undefined : 'no /usr/sbin/runc; test/cluster/build installs it'
}

export class Containerd {
  readonly #folder: string
  readonly #daemon: ChildProcess
  #containers = 0

  private constructor(folder: string, daemon: ChildProcess) {
    this.#folder = folder
    this.#daemon = daemon
  }

  static async start(): Promise<Containerd> {
    const folder = mkdtempSync(join(tmpdir(), 'sluice-containerd-'))
    const file = (name: string) => join(folder, name)
    const config = [
      'version = 3',
      `root = ${JSON.stringify(file('root'))}`,
      `state = ${JSON.stringify(file('state'))}`,
      'disabled_plugins = ["io.containerd.grpc.v1.cri", "io.containerd.cri.v1.images", "io.containerd.cri.v1.runtime"]',
      `[grpc]\n  address = ${JSON.stringify(file('containerd.sock'))}`,
    ]
    writeFileSync(file('config.toml'), `${config.join('\n')}\n`)
    const env = { PATH: `${join(program('containerd'), '..')}:/usr/sbin:/usr/bin:/sbin:/bin` }
    const daemon = spawn(program('containerd'), ['--config', file('config.toml')], { stdio: 'ignore', env })
    const containerd = new Containerd(folder, daemon)
    await until('containerd', () => containerd.ctr('version') !== '', { limitMs: 60_000, everyMs: 500 })
    return containerd
  }

  ctr(...args: readonly string[]): string {
    const address = join(this.#folder, 'containerd.sock')
    return execFileSync(program('ctr'), ['-a', address, ...args], { encoding: 'utf8', timeout: 120_000 })
  }

  /** Runs the entry point of an image with arguments on a read-only root, and returns what it prints. */
  run(image: string, ...args: readonly string[]): string {
    const name = `sluice-${++this.#containers}`
    const options = ['--rm', '--read-only']
    return this.ctr('run', ...options, image, name, '/usr/local/bin/kube-proxy', ...args)
  }

  async stop(): Promise<void> {
    const ended = new Promise((resolve) => this.#daemon.once('exit', resolve))
    this.#daemon.kill('SIGTERM')
    await ended
    rmSync(this.#folder, { recursive: true, force: true })
  }
}
