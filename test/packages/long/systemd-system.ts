// A running systemd in namespaces of its own, on a copy of this machine's files: what units do is tried with systemd itself.

import { type ChildProcess, execFileSync, spawn, spawnSync } from 'node:child_process'
import { existsSync, mkdirSync, mkdtempSync, readdirSync, readFileSync, rmdirSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { until } from '../../support/until.ts'
import { deployFolder } from '../rendered-manifests.ts'

/** Returns undefined if systemd can be started here. */
export function whyNotSystemd(): string | undefined {
  if (process.getuid?.() !== 0) return 'it needs root'
  if (!existsSync('/lib/systemd/systemd')) return 'there is no systemd'
  const missing = ['overlay', 'cgroup2'].find((name) => !readFileSync('/proc/filesystems', 'utf8').includes(name))
  if (missing !== undefined) return `the kernel has no ${missing}`
  return cgroupFolder() === undefined ? 'no cgroup2 is mounted' : undefined
}

const cgroupFolder = (): string | undefined => /^\S+ (\S+) cgroup2 /m.exec(readFileSync('/proc/mounts', 'utf8'))?.[1]

export interface CommandAnswer {
  readonly status: number | null
  readonly stdout: string
  readonly stderr: string
}

export class SystemdSystem {
  /** The network namespace; its interfaces are up and have a default route. */
  readonly space = `sluice-systemd-${process.pid}`
  readonly #folder = mkdtempSync(join(tmpdir(), 'sluice-systemd-'))
  readonly #cgroup = join(cgroupFolder() ?? '', this.space)
  #process: ChildProcess | undefined
  /** The process id of systemd outside of its namespace. */
  #init = 0

  async boot(executable: string): Promise<void> {
    execFileSync('ip', ['netns', 'add', this.space])
    const links = ['link set lo up', 'link add eth0 type veth peer name eth1', 'link set eth1 up', 'link set eth0 up']
    const routes = ['addr add 192.168.44.5/24 dev eth0', 'route add default dev eth0']
    execFileSync('ip', ['-n', this.space, '-batch', '-'], { input: [...links, ...routes].join('\n') })
    // systemd manages the control groups below its own.
    mkdirSync(this.#cgroup)
    const enter = `echo $$ >${this.#cgroup}/cgroup.procs && exec "$@"`
    const spaces = [
      '--pid',
      '--fork',
      '--kill-child',
      '--mount',
      '--propagation',
      'private',
      '--cgroup',
      '--uts',
      '--ipc',
    ]
    const boot = [join(import.meta.dirname, 'boot-systemd'), this.#folder, executable, join(deployFolder, 'systemd')]
    const words = ['nsenter', `--net=/run/netns/${this.space}`, 'unshare', ...spaces, 'bash', ...boot]
    const child = spawn('bash', ['-c', enter, 'bash', ...words], { stdio: ['ignore', 'pipe', 'pipe'] })
    this.#process = child
    let log = ''
    for (const stream of [child.stdout, child.stderr]) stream.on('data', (chunk) => (log += chunk))
    const isUp = () => {
      if (child.exitCode !== null) throw new Error(`systemd ended: ${log}`)
      this.#init = findChild(child.pid ?? 0)
      return this.#init !== 0 && this.run('systemctl', 'is-active', 'basic.target').stdout === 'active\n'
    }
    await until('systemd is up', isUp, { limitMs: 120_000, everyMs: 200 })
  }

  /** Runs a command in all namespaces of systemd. */
  run(...command: readonly string[]): CommandAnswer {
    const args = ['-t', String(this.#init), '--all', ...command]
    return spawnSync('nsenter', args, { encoding: 'utf8', timeout: 60_000, stdio: ['ignore', 'pipe', 'pipe'] })
  }

  /** As `run`, for what must succeed. Returns what it printed. */
  must(...command: readonly string[]): string {
    const { status, stdout, stderr } = this.run(...command)
    if (status !== 0) throw new Error(`${command.join(' ')} ended with ${status}: ${stdout}${stderr}${this.journal()}`)
    return stdout
  }

  write(path: string, text: string): void {
    execFileSync('nsenter', ['-t', String(this.#init), '--mount', 'tee', path], {
      input: text,
      stdio: ['pipe', 'ignore', 'inherit'],
    })
  }

  /** A property of a unit: `systemctl show`. */
  property(unit: string, name: string): string {
    return this.must('systemctl', 'show', '--value', '-p', name, unit).trim()
  }

  journal(): string {
    return this.run('journalctl', '--no-pager', '-o', 'cat', '-n', '60').stdout
  }

  async stop(): Promise<void> {
    const child = this.#process
    if (child !== undefined && child.exitCode === null) {
      const ended = new Promise((resolve) => child.once('exit', resolve))
      // The kernel ends every process of the namespace with its first one.
      if (this.#init !== 0) process.kill(this.#init, 'SIGKILL')
      else child.kill('SIGKILL')
      await ended
    }
    spawnSync('ip', ['netns', 'del', this.space])
    await until('the control groups are empty', () => removeFolders(this.#cgroup), { limitMs: 20_000 })
    rmSync(this.#folder, { recursive: true, force: true })
  }
}

/** The child of `unshare`, which itself has taken the place of the shell that was spawned. */
function findChild(pid: number): number {
  try {
    const [child = ''] = readFileSync(`/proc/${pid}/task/${pid}/children`, 'utf8').trim().split(' ')
    return Number(child)
  } catch {
    return 0
  }
}

/** A control group cannot be removed like a folder with files. Returns true if it is gone. */
function removeFolders(path: string): boolean {
  if (!existsSync(path)) return true
  try {
    for (const entry of readdirSync(path, { withFileTypes: true })) {
      if (entry.isDirectory()) removeFolders(join(path, entry.name))
    }
    rmdirSync(path)
    return true
  } catch {
    return false
  }
}
