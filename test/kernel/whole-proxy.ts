// The whole program, ours or kube-proxy, as a process on the node of a NodeNetwork.

import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import { existsSync } from 'node:fs'
import { homedir } from 'node:os'
import { join } from 'node:path'
import type { Mode } from '../../src/backend/backend.ts'
import type { FixedApi } from '../lab/fixed-api.ts'
import type { Namespace } from '../lab/namespace.ts'
import { nodeName } from '../scenarios/expand.ts'
import { bundleProgram } from '../support/bundle-program.ts'
import { until } from '../support/until.ts'

let bundled: Promise<string> | undefined

/** Bundles the program: it starts in a tenth of the time that compiling at each start takes. */
function bundle(): Promise<string> {
  bundled ??= bundleProgram(join(import.meta.dirname, '../commands/sluice.worker.ts')).then(({ file, remove }) => {
    process.once('exit', remove)
    return file
  })
  return bundled
}

const cache = process.env.XDG_CACHE_HOME ?? join(homedir(), '.cache')
/** The real kube-proxy, where the end-to-end tests have stored it. */
export const kubeProxy = join(cache, 'sluice/k8s-v1.36.4/kube-proxy')
export const hasKubeProxy = existsSync(kubeProxy)

export interface WholeProxyOptions {
  readonly network: { readonly node: Namespace }
  readonly api: Pick<FixedApi, 'url'>
  readonly mode: Mode
  readonly program?: 'ours' | 'kube-proxy'
  /** Another way to start our program: benches measure what is shipped. */
  readonly command?: readonly string[]
  readonly metricsPort?: number
  readonly flags?: readonly string[]
  readonly env?: NodeJS.ProcessEnv
  /** Put before the command, for example prlimit with its options. */
  readonly prefix?: readonly string[]
}

export class WholeProxy {
  /** Everything it has logged. */
  log = ''
  readonly child: ChildProcess
  readonly exited: Promise<unknown>
  readonly #options: WholeProxyOptions

  private constructor(child: ChildProcess, options: WholeProxyOptions) {
    this.child = child
    this.#options = options
    this.exited = once(child, 'exit')
    child.stderr?.on('data', (chunk) => {
      this.log += chunk
    })
    process.setMaxListeners(Math.max(50, process.getMaxListeners()))
    process.once('exit', this.#kill)
  }

  /** Starts it. Does not wait for the first sync. */
  static async start(options: WholeProxyOptions): Promise<WholeProxy> {
    const { network, api, mode, program = 'ours', metricsPort = 10249, flags = [], prefix = [] } = options
    const ours = async () => options.command ?? [process.execPath, await bundle(), 'proxy']
    const command = program === 'ours' ? await ours() : [kubeProxy]
    const args = [
      ...['netns', 'exec', network.node.name, ...prefix, ...command, `--master=${api.url}`, `--proxy-mode=${mode}`],
      ...[`--hostname-override=${nodeName}`, '--cluster-cidr=10.0.0.0/8', '--conntrack-max-per-core=0'],
      ...['--healthz-bind-address=', `--metrics-bind-address=127.0.0.1:${metricsPort}`],
      ...['--nodeport-addresses=0.0.0.0/0', ...flags],
    ]
    const env = { ...process.env, SLUICE_ADMIN_SOCKET: 'off', ...options.env }
    return new WholeProxy(spawn('ip', args, { stdio: ['ignore', 'ignore', 'pipe'], env }), options)
  }

  /** Resolves when the first sync of IPv4 is written. */
  async waitUntilSynced(): Promise<void> {
    const synced = async () => /last_timestamp_seconds\{ip_family="IPv4"\} [1-9]/.test(await this.metrics())
    await until(`${this.#options.mode} has synced`, synced, { limitMs: 60_000, everyMs: 50 })
  }

  async metrics(): Promise<string> {
    if (this.child.exitCode !== null) throw new Error(`the proxy ended: ${this.log.slice(-2000)}`)
    const url = `http://127.0.0.1:${this.#options.metricsPort ?? 10249}/metrics`
    return (await this.#options.network.node.exec('curl', ['-s', '-m', '5', url])).stdout
  }

  async stop(signal: NodeJS.Signals = 'SIGTERM'): Promise<void> {
    this.child.kill(signal)
    await this.exited
    process.removeListener('exit', this.#kill)
  }

  readonly #kill = () => void this.child.kill('SIGKILL')
}
