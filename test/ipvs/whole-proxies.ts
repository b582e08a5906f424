// Starts whole proxies on the network's node, ours as users start it or the real kube-proxy, both with a small API server.

import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import { existsSync } from 'node:fs'
import { homedir } from 'node:os'
import { join } from 'node:path'
import { type Item, WatchedApi } from '../lab/watched-api.ts'
import { nodeName } from '../scenarios/expand.ts'
import type { Json } from '../scenarios/twins.ts'
import { bundledAlready } from '../support/bundle-program.ts'
import { type IpvsNetwork, nodeOptions } from './ipvs-network.ts'

const cache = process.env.SLUICE_CACHE ?? join(process.env.XDG_CACHE_HOME ?? join(homedir(), '.cache'), 'sluice')
/** The real kube-proxy, which `test/e2e/build-cluster kube-proxy` builds from Go modules. */
export const kubeProxy = join(cache, 'k8s-v1.36.4', 'kube-proxy')
export const haveKubeProxy = existsSync(kubeProxy)

const apiPort = 8001
export const metricsPort = 10249
const source = join(import.meta.dirname, 'sluice.worker.ts')
const bundled = bundledAlready(source)
const program = bundled === undefined ? ['--import', 'tsx', source] : [bundled]
const sluice = [process.execPath, ...nodeOptions, ...program]

export interface RunningProxy {
  /** The last 6000 characters of its output. */
  readonly output: () => string
  kill(signal: 'SIGKILL' | 'SIGTERM'): Promise<void>
}

export class Proxies {
  readonly #network: IpvsNetwork
  readonly #api: WatchedApi
  readonly #children = new Set<ChildProcess>()

  private constructor(network: IpvsNetwork, api: WatchedApi) {
    this.#network = network
    this.#api = api
  }

  static async open(network: IpvsNetwork, ...objects: Json[]): Promise<Proxies> {
    const proxies = new Proxies(network, await WatchedApi.listen(network.node, apiPort))
    const node = {
      apiVersion: 'v1',
      kind: 'Node',
      metadata: { name: nodeName, uid: 'n' },
      spec: {},
      status: { addresses: [{ type: 'InternalIP', address: '192.168.0.2' }] },
    }
    proxies.#api.put(node)
    proxies.put(...objects)
    return proxies
  }

  /** Puts objects that are given in the shorthand of the scenarios. */
  put(...objects: Json[]): void {
    this.#api.put(...(this.#network.manifests(objects) as readonly unknown[] as readonly Item[]))
  }

  /** Puts objects as they are, even if they are invalid. */
  putRaw(...objects: readonly object[]): void {
    this.#api.put(...(objects as readonly Item[]))
  }

  ours(mode: string, ...flags: string[]): RunningProxy {
    return this.#start([...sluice, 'proxy', ...this.#flags(mode), ...flags])
  }

  theirs(mode: string): RunningProxy {
    return this.#start([kubeProxy, ...this.#flags(mode), '--feature-gates=WatchListClient=false'])
  }

  /** Runs `sluice` with a command on the node. Resolves with its output and its exit code. */
  async command(...args: string[]): Promise<{ readonly code: number; readonly text: string }> {
    const [program = '', ...rest] = [...sluice, ...args]
    const { code, stdout, stderr } = await this.#network.node.exec(program, rest)
    return { code, text: stdout + stderr }
  }

  close(): void {
    for (const child of this.#children) child.kill('SIGKILL')
    this.#api.close()
  }

  #flags(mode: string): readonly string[] {
    return [
      ...[`--master=${this.#api.url}`, `--proxy-mode=${mode}`, `--hostname-override=${nodeName}`],
      ...['--kube-api-content-type=application/json', '--cluster-cidr=10.0.0.0/8'],
      ...['--nodeport-addresses=192.168.0.2/32', `--metrics-bind-address=127.0.0.1:${metricsPort}`],
      ...['--conntrack-max-per-core=0', '--conntrack-tcp-timeout-established=0'],
      ...['--conntrack-tcp-timeout-close-wait=0', '--healthz-bind-address='],
    ]
  }

  #start(command: readonly string[]): RunningProxy {
    const args = ['netns', 'exec', this.#network.node.name, ...command]
    const child = spawn('ip', args, { stdio: ['ignore', 'pipe', 'pipe'] })
    this.#children.add(child)
    let output = ''
    const append = (data: Buffer) => {
      output = (output + data).slice(-6000)
    }
    child.stdout.on('data', append)
    child.stderr.on('data', append)
    return {
      output: () => output,
      kill: async (signal) => {
        const exited = once(child, 'exit')
        child.kill(signal)
        await exited
        this.#children.delete(child)
      },
    }
  }
}
