// Runs the demo of `sluice up --demo`: builds its network, starts an API server and a proxy inside node1, and removes everything again.

import { type ChildProcess, spawn } from 'node:child_process'
import { appendFileSync, rmSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { type ApiServer, startApiServer } from '../../../apiserver/start.ts'
import type { Mode } from '../../../backend/backend.ts'
import { AdminClient } from '../../../http/admin-client.ts'
import { describeError, ProxyError } from '../../../lib/errors.ts'
import { createLogger } from '../../../lib/log.ts'
import { count } from '../../../lib/plural.ts'
import { sleep, systemClock } from '../../../lib/time.ts'
import { writePrivateFile } from '../../../sys/private-files.ts'
import { ownProgram } from '../../own-program.ts'
import type { Progress } from '../../progress.ts'
import { findToolCommands, type ToolCommands } from '../tool-commands.ts'
import { claimDirectory, type DemoDirectory, readLastLines } from './demo-directory.ts'
import { DemoNetwork, nodes } from './demo-network.ts'
import {
  clusterCidr,
  creations,
  kubernetesIp,
  podCreation,
  podPath,
  scaleManifest,
  secondRedis,
  serviceCidr,
} from './demo-objects.ts'

const apiPort = 6443
const readyMs = 60_000
const pollMs = 50

export interface DemoOptions {
  readonly mode: Mode
  readonly progress: Progress
  /** Ends every wait when it aborts. */
  readonly signal: AbortSignal
  /** The folder that has one directory per demo. */
  readonly folder?: string
}

export class Demo {
  readonly network: DemoNetwork
  readonly directory: string
  readonly mode: Mode
  readonly proxy: AdminClient
  readonly #progress: Progress
  readonly #signal: AbortSignal
  #api: ApiServer | undefined
  #child: ChildProcess | undefined
  #closed: Promise<void> | undefined

  private constructor({ prefix, path }: DemoDirectory, { mode, progress, signal }: DemoOptions) {
    this.network = new DemoNetwork(prefix)
    this.directory = path
    this.mode = mode
    this.proxy = new AdminClient(`/run/sluice/${prefix}node1.sock`)
    this.#progress = progress
    this.#signal = signal
  }

  /**
   * Resolves when the proxy has programmed the objects of the API server. Removes everything again if that fails, and resolves undefined
   * if the signal aborts first.
   */
  static async start(options: DemoOptions): Promise<Demo | undefined> {
    const demo = new Demo(await claimDirectory(options.folder ?? '/run/sluice'), options)
    try {
      await demo.#start()
      return demo
    } catch (error) {
      await demo.close()
      if (options.signal.aborted) return undefined
      throw error
    }
  }

  get kubeconfig(): string {
    return join(this.directory, 'kubeconfig')
  }

  get scaleFile(): string {
    return join(this.directory, 'scale-to-2.yaml')
  }

  /** How commands of a person reach this demo. */
  toolCommands(): Promise<ToolCommands> {
    return findToolCommands(this.proxy.path, this.kubeconfig)
  }

  /** Resolves with the reason if the proxy ends by itself. */
  get proxyEnded(): Promise<string> {
    const child = this.#child as ChildProcess
    return new Promise((resolve) => {
      const ended = () =>
        resolve(`the proxy ended with ${child.signalCode ?? `exit code ${child.exitCode}`}; its log is ${this.#log}`)
      if (child.exitCode !== null || child.signalCode !== null) ended()
      else child.once('exit', ended)
    })
  }

  /** Gives work/saythx-redis one pod or two. */
  async scale(replicas: 1 | 2): Promise<void> {
    const api = this.#api as ApiServer
    try {
      if (replicas === 2) await api.client.request({ method: 'POST', ...podCreation(secondRedis) })
      else {
        const body = { gracePeriodSeconds: 0 }
        await api.client.request({ method: 'DELETE', path: podPath(secondRedis), body })
      }
    } catch (error) {
      // The service has as many pods as wanted already.
      if (!(error instanceof ProxyError) || !['already-exists', 'not-found'].includes(error.code)) throw error
    }
  }

  /** Waits until the proxy balances a service over this number of endpoints. */
  async waitForEndpoints(service: string, endpoints: number): Promise<void> {
    await this.#waitFor(`${count(endpoints, 'endpoint')} of ${service}`, async () => {
      const [one] = await this.proxy.services(service, false)
      const present = new Set(one?.ports.flatMap(({ endpoints }) => endpoints.map(({ address }) => address)))
      return one !== undefined && !one.pending && present.size === endpoints && (await this.#isProgrammed(service))
    })
  }

  close(): Promise<void> {
    this.#closed ??= this.#close()
    return this.#closed
  }

  async #start(): Promise<void> {
    const step = async (title: string, work: () => Promise<void>) => {
      this.#signal.throwIfAborted()
      await this.#progress.report(title, work, this.#signal)
    }
    await step('Making a client, two nodes and five pods, each a network namespace', async () => {
      await this.network.build()
      await this.network.startServers()
    })
    await step('Starting the API server', () => this.#startApi())
    await step(`Starting the proxy in node1, mode ${this.mode}`, () => this.#startProxy())
  }

  async #startApi(): Promise<void> {
    const log = createLogger({
      format: 'text',
      verbosity: 0,
      write: (line) => appendFileSync(join(this.directory, 'apiserver.log'), line),
    })
    const advertised = { address: nodes.node1.ip, port: apiPort }
    this.#api = await startApiServer({ serviceCidrs: [serviceCidr], advertised, names: [kubernetesIp], log })
    writePrivateFile(this.kubeconfig, this.#api.kubeconfig())
    writeFileSync(this.scaleFile, scaleManifest())
    for (const { path, body } of creations()) await this.#api.client.request({ method: 'POST', path, body })
    for (const address of ['127.0.0.1', advertised.address]) {
      await this.network.tunnel('node1', { address, port: apiPort }, this.#api.port)
    }
  }

  async #startProxy(): Promise<void> {
    const kubeconfig = join(this.directory, 'node1.kubeconfig')
    const api = this.#api as ApiServer
    writePrivateFile(kubeconfig, api.kubeconfig().replaceAll(api.url, `https://127.0.0.1:${apiPort}`))
    const config = join(this.directory, 'proxy.yaml')
    writeFileSync(config, JSON.stringify(proxyConfig(this.mode, kubeconfig), undefined, 2))
    const args = ['netns', 'exec', this.network.namespace('node1'), ...ownProgram(), 'proxy']
    this.#child = spawn('ip', [...args, `--config=${config}`, '--hostname-override=node1'], {
      stdio: ['ignore', 'pipe', 'pipe'],
      env: { ...process.env, SLUICE_ADMIN_SOCKET: this.proxy.path },
      // Ctrl-C must reach only this process, which stops the proxy itself.
      detached: true,
    })
    this.#child.on('error', () => {})
    for (const stream of [this.#child.stdout, this.#child.stderr]) {
      stream?.on('data', (chunk: Buffer) => appendFileSync(this.#log, chunk))
    }
    writeFileSync(join(this.directory, 'proxy.pid'), String(this.#child.pid))
    await this.#waitFor('the first sync', async () => {
      const { families } = await this.proxy.summary()
      return families.every(({ lastSync }) => lastSync?.ok === true)
    })
    await this.waitForEndpoints('work/saythx-redis', 1)
  }

  get #log(): string {
    return join(this.directory, 'proxy.log')
  }

  async #isProgrammed(service: string): Promise<boolean> {
    const [one] = await this.proxy.services(service, true)
    return one !== undefined && one.wrong.length === 0
  }

  async #waitFor(event: string, hasHappened: () => Promise<boolean>): Promise<void> {
    const end = performance.now() + readyMs
    let last = ''
    for (;;) {
      const child = this.#child as ChildProcess
      if (child.exitCode !== null || child.signalCode !== null) {
        throw new ProxyError('demo', `the proxy ended while waiting for ${event}: ${readLastLines(this.#log)}`)
      }
      try {
        if (await hasHappened()) return
      } catch (error) {
        last = describeError(error)
      }
      if (performance.now() > end) {
        throw new ProxyError(
          'demo',
          `waited ${readyMs / 1000} s for ${event}${last === '' ? '' : `: ${last}`}; log: ${this.#log}`,
        )
      }
      await sleep(systemClock, pollMs, this.#signal)
    }
  }

  async #close(): Promise<void> {
    await stopChild(this.#child)
    await this.network.close()
    await this.#api?.close()
    rmSync(this.directory, { recursive: true, force: true })
    rmSync(this.proxy.path, { force: true })
  }
}

async function stopChild(child: ChildProcess | undefined): Promise<void> {
  if (child?.pid === undefined || child.exitCode !== null || child.signalCode !== null) return
  const exited = new Promise((resolve) => child.once('exit', resolve))
  child.kill('SIGTERM')
  const timer = setTimeout(() => child.kill('SIGKILL'), 10_000)
  await exited
  clearTimeout(timer)
}

const proxyConfig = (mode: Mode, kubeconfig: string) => ({
  apiVersion: 'kubeproxy.config.k8s.io/v1alpha1',
  kind: 'KubeProxyConfiguration',
  mode,
  clusterCIDR: clusterCidr,
  clientConnection: { kubeconfig },
  healthzBindAddress: '127.0.0.1:10256',
  metricsBindAddress: '127.0.0.1:10249',
  // The size of the conntrack table is a setting of the whole machine, which the demo must not change.
  conntrack: { maxPerCore: 0, min: 0, tcpEstablishedTimeout: '0s', tcpCloseWaitTimeout: '0s' },
})
