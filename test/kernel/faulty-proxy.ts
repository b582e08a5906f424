// The whole program on the node of a NodeNetwork, on a machine that fails when the test says so.

import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import { closeSync, openSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import type { Mode } from '../../src/backend/backend.ts'
import { nodeName } from '../scenarios/expand.ts'
import { bundleProgram } from '../support/bundle-program.ts'
import { until } from '../support/until.ts'
import type { FaultOrder } from './faulty-sluice.worker.ts'
import type { NodeNetwork } from './node-network.ts'

let bundled: Promise<string> | undefined

function bundle(): Promise<string> {
  bundled ??= bundleProgram(join(import.meta.dirname, 'faulty-sluice.worker.ts')).then(({ file, remove }) => {
    process.once('exit', remove)
    return file
  })
  return bundled
}

export interface FaultyProxyOptions {
  readonly network: NodeNetwork
  readonly url: string
  readonly mode: Mode
  /** The file that gets the log. */
  readonly logFile: string
  readonly flags?: readonly string[]
  readonly env?: NodeJS.ProcessEnv
  readonly prefix?: readonly string[]
}

const metricsAddress = '127.0.0.1:10249'

export class FaultyProxy {
  readonly child: ChildProcess
  readonly exited: Promise<unknown>
  readonly #options: FaultyProxyOptions
  readonly #kill = () => void this.child.kill('SIGKILL')

  private constructor(child: ChildProcess, options: FaultyProxyOptions) {
    this.child = child
    this.#options = options
    this.exited = once(child, 'exit')
    process.once('exit', this.#kill)
  }

  /** Starts it and waits for the first sync of IPv4. */
  static async start(options: FaultyProxyOptions): Promise<FaultyProxy> {
    const { network, url, mode, logFile, flags = [], env = {}, prefix = [] } = options
    const args = [
      ...['--pdeathsig', 'KILL', 'ip', 'netns', 'exec', network.node.name, ...prefix],
      ...[process.execPath, await bundle(), 'proxy', `--master=${url}`, `--proxy-mode=${mode}`],
      ...[`--hostname-override=${nodeName}`, '--cluster-cidr=10.0.0.0/8', '--conntrack-max-per-core=0'],
      ...['--healthz-bind-address=', `--metrics-bind-address=${metricsAddress}`, ...flags],
    ]
    const log = openSync(logFile, 'a')
    const stdio = ['ignore', log, log, 'ipc'] as const
    const child = spawn('setpriv', args, {
      stdio: [...stdio],
      env: { ...process.env, SLUICE_ADMIN_SOCKET: 'off', ...env },
    })
    closeSync(log)
    const proxy = new FaultyProxy(child, options)
    const synced = async () => /last_timestamp_seconds\{ip_family="IPv4"\} [1-9]/.test(await proxy.metrics())
    await until(`${mode} has synced`, synced, { limitMs: 60_000, everyMs: 50 })
    return proxy
  }

  get pid(): number {
    return this.child.pid ?? -1
  }

  get isRunning(): boolean {
    return this.child.exitCode === null && this.child.signalCode === null
  }

  get log(): string {
    return readFileSync(this.#options.logFile, 'utf8')
  }

  async metrics(): Promise<string> {
    if (!this.isRunning) throw new Error(`the proxy ended: ${this.log.slice(-2000)}`)
    const url = `http://${metricsAddress}/metrics`
    return (await this.#options.network.node.exec('curl', ['-s', '-m', '5', url])).stdout
  }

  /** Returns the number of sockets or clocks that the order concerned, or what the order reads. */
  async order(order: FaultOrder): Promise<number> {
    const answered = once(this.child, 'message')
    this.child.send(order)
    const [count] = await answered
    return count as number
  }

  /** Stops the process, does the work, and lets the process go on. */
  async stopDuring(work: () => Promise<unknown>): Promise<void> {
    this.child.kill('SIGSTOP')
    try {
      await work()
    } finally {
      this.child.kill('SIGCONT')
    }
  }

  residentMegabytes(): number {
    return Number(/VmRSS:\s+(\d+)/.exec(readFileSync(`/proc/${this.pid}/status`, 'utf8'))?.[1]) / 1024
  }

  openFiles(): number {
    return Number(/FDSize:\s+(\d+)/.exec(readFileSync(`/proc/${this.pid}/status`, 'utf8'))?.[1])
  }

  async end(signal: NodeJS.Signals = 'SIGTERM'): Promise<void> {
    this.child.kill(signal)
    await this.exited
    process.removeListener('exit', this.#kill)
  }
}
