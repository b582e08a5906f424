// A tree of namespaces of our own: one PID namespace for everything, and a network, mount and UTS namespace per machine of the cluster.
// The kernel kills every process in it, containers included, when this process ends, however it ends.

import { type ChildProcess, execFile, spawn } from 'node:child_process'
import { closeSync, openSync, readdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { until } from '../support/until.ts'

/** bash reaps the orphans that land at process 1. */
const firstProcess = 'while :; do sleep 86400 & wait; done'

export interface CommandOptions {
  readonly input?: string
  readonly limitMs?: number
}

/** A process that was started in one of the namespaces. */
export interface Daemon {
  readonly running: boolean
  stop(signal?: NodeJS.Signals): Promise<void>
}

/** What looks like a machine: commands that run on it see its network, its host name and its own mounts. */
export interface Machine {
  readonly name: string
  /** The process that keeps the namespaces, as process 1 numbers it. */
  readonly pid: number
  readonly prefix: readonly string[]
  run(command: readonly string[], options?: CommandOptions): Promise<string>
  start(name: string, command: readonly string[], env?: NodeJS.ProcessEnv): Daemon
}

export class NamespaceTree {
  readonly #directory: string
  readonly #first: ChildProcess
  readonly #firstPid: number

  private constructor(directory: string, first: ChildProcess, firstPid: number) {
    this.#directory = directory
    this.#first = first
    this.#firstPid = firstPid
  }

  /** `directory` gets the logs of the processes. */
  static async create(directory: string): Promise<NamespaceTree> {
    const isolate = [
      'unshare',
      '--pid',
      '--mount',
      '--fork',
      '--kill-child=KILL',
      '--mount-proc',
      '--propagation',
      'private',
    ]
    const args = ['--pdeathsig', 'KILL', ...isolate, 'bash', '-c', firstProcess]
    const first = spawn('setpriv', args, { stdio: 'ignore' })
    const pid = await until('the first process of the namespaces', () => childOf(first.pid as number), { everyMs: 20 })
    return new NamespaceTree(directory, first, pid)
  }

  /** `setUp` is a script that runs on the machine before anything else. */
  async addMachine(name: string, setUp: string): Promise<Machine> {
    const script = `set -e; mount --make-rshared /; hostname ${name}; ip link set lo up; ${setUp}\necho $$; exec sleep infinity >/dev/null`
    const isolate = ['unshare', '--net', '--mount', '--uts', '--propagation', 'private', 'bash', '-c', script]
    const [enter = '', ...args] = [...this.#enterFirst(), ...isolate]
    const holder = spawn(enter, args, { stdio: ['ignore', 'pipe', 'pipe'], detached: true })
    const pid = await firstLine(holder, name)
    return this.#machine(name, Number(pid))
  }

  /** Kills everything that runs in the namespaces. */
  async end(): Promise<void> {
    if (this.#first.exitCode !== null || this.#first.signalCode !== null) return
    const exited = new Promise((resolve) => this.#first.once('exit', resolve))
    process.kill(this.#firstPid, 'SIGKILL')
    await exited
  }

  #enterFirst(): readonly string[] {
    return ['nsenter', '-t', String(this.#firstPid), '-p', '-m', '--']
  }

  #machine(name: string, pid: number): Machine {
    const prefix = [...this.#enterFirst(), 'nsenter', '-t', String(pid), '-m', '-n', '-u', '--']
    return {
      name,
      pid,
      prefix,
      run: (command, options) => runCommand([...prefix, ...command], options),
      start: (log, command, env) => startDaemon([...prefix, ...command], join(this.#directory, `${log}.log`), env),
    }
  }
}

function childOf(parent: number): number | undefined {
  for (const name of readdirSync('/proc')) {
    if (/^\d+$/.test(name) && parentOf(name) === parent) return Number(name)
  }
  return undefined
}

function parentOf(pid: string): number | undefined {
  try {
    return Number(/^PPid:\s+(\d+)$/m.exec(readFileSync(`/proc/${pid}/status`, 'utf8'))?.[1])
  } catch {
    return undefined // it ended meanwhile
  }
}

function firstLine(child: ChildProcess, name: string): Promise<string> {
  return new Promise((resolve, reject) => {
    let output = ''
    let errors = ''
    child.stdout?.on('data', (chunk) => {
      output += chunk
      const end = output.indexOf('\n')
      if (end < 0) return
      resolve(output.slice(0, end))
      child.unref()
    })
    child.stderr?.on('data', (chunk) => {
      errors += chunk
    })
    child.once('exit', () => reject(new Error(`cannot set ${name} up: ${errors.trim()}`)))
  })
}

/** Returns what the command printed. Throws an error with its stderr if it fails. */
export function runCommand(command: readonly string[], options: CommandOptions = {}): Promise<string> {
  const [file = '', ...args] = command
  const limits = { timeout: options.limitMs ?? 60_000, killSignal: 'SIGKILL', maxBuffer: 256 << 20 } as const
  return new Promise((resolve, reject) => {
    const child = execFile(file, args, limits, (error, stdout, stderr) => {
      if (error === null) return resolve(stdout)
      const shown = command.slice(command.lastIndexOf('--') + 1).join(' ')
      reject(new Error(`${shown.slice(0, 300)}: ${stderr.trim() || stdout.trim() || error.message}`))
    })
    child.stdin?.on('error', () => {}) // it may exit without reading
    child.stdin?.end(options.input ?? '')
  })
}

/** nsenter forks, and a signal to it does not reach its child: the process group gets all signals. */
function startDaemon(command: readonly string[], log: string, env: NodeJS.ProcessEnv = {}): Daemon {
  const [file = '', ...args] = command
  const output = openSync(log, 'a')
  const child = spawn(file, args, {
    stdio: ['ignore', output, output],
    detached: true,
    env: { ...process.env, ...env },
  })
  closeSync(output)
  const group = -(child.pid as number)
  const isRunning = () => {
    try {
      return process.kill(group, 0)
    } catch {
      return false
    }
  }
  return {
    get running() {
      return isRunning()
    },
    async stop(signal = 'SIGTERM') {
      if (!isRunning()) return
      process.kill(group, signal)
      const killAt = performance.now() + 20_000
      await until(`the end of ${log}`, () => {
        if (performance.now() > killAt && isRunning()) process.kill(group, 'SIGKILL')
        return !isRunning()
      })
    },
  }
}
