// `sluice up --demo`: the world, an API server for it, the proxy inside its node; and taking all of it away again.

import { type ChildProcess, spawn } from 'node:child_process'
import { appendFileSync, existsSync, mkdirSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { type ApiServer, startApiServer } from '../../../apiserver/start.ts'
import type { Mode } from '../../../backend/backend.ts'
import { AdminClient } from '../../../http/admin-client.ts'
import { describeError, ProxyError } from '../../../lib/errors.ts'
import { createLogger } from '../../../lib/log.ts'
import { ownProgram } from '../../own-program.ts'
import { reportStep } from '../../progress.ts'
import type { Terminal } from '../../terminal.ts'
import { DemoNetwork, removeNamespaces } from './demo-network.ts'
import {
  clusterCidr,
  creations,
  podCreation,
  podPath,
  scaleManifest,
  secondRedis,
  serviceCidr,
} from './demo-objects.ts'

const apiPort = 6443
const readyMs = 60_000

export interface DemoOptions {
  readonly mode: Mode
  readonly terminal: Terminal
  /** Where the files of demos are. */
  readonly folder?: string
}

export class Demo {
  readonly world: DemoNetwork
  readonly directory: string
  readonly mode: Mode
  readonly proxy: AdminClient
  readonly #terminal: Terminal
  #api: ApiServer | undefined
  #child: ChildProcess | undefined
  #closed: Promise<void> | undefined

  private constructor(prefix: string, directory: string, { mode, terminal }: DemoOptions) {
    this.world = new DemoNetwork(prefix)
    this.directory = directory
    this.mode = mode
    this.proxy = new AdminClient(`/run/sluice/${prefix}node1.sock`)
    this.#terminal = terminal
  }

  /** Everything is up, and the proxy has programmed what the API server holds. What was made is removed if that fails. */
  static async start(options: DemoOptions): Promise<Demo> {
    const folder = options.folder ?? '/run/sluice'
    const { prefix, directory } = await claim(folder)
    const demo = new Demo(prefix, directory, options)
    try {
      await demo.#start()
      return demo
    } catch (error) {
      await demo.close()
      throw error
    }
  }

  get kubeconfig(): string {
    return join(this.directory, 'kubeconfig')
  }

  get scaleFile(): string {
    return join(this.directory, 'scale-to-2.yaml')
  }

  /** Resolves if the proxy ends by itself, with why. */
  get proxyEnded(): Promise<string> {
    const child = this.#child as ChildProcess
    return new Promise((resolve) => {
      const ended = () =>
        resolve(`the proxy ended with ${child.signalCode ?? `exit code ${child.exitCode}`}; its log is ${this.#log}`)
      if (child.exitCode !== null || child.signalCode !== null) ended()
      else child.once('exit', ended)
    })
  }

  /** One pod behind work/saythx-redis, or two. */
  async scale(replicas: 1 | 2): Promise<void> {
    const api = this.#api as ApiServer
    try {
      if (replicas === 2) await api.local.request({ method: 'POST', ...podCreation(secondRedis) })
      else {
        const body = { gracePeriodSeconds: 0 }
        await api.local.request({ method: 'DELETE', path: podPath(secondRedis), body })
      }
    } catch (error) {
      // As many as wanted already.
      if (!(error instanceof ProxyError) || !['already-exists', 'not-found'].includes(error.code)) throw error
    }
  }

  /** Waits until the proxy balances a service over so many endpoints. */
  async settled(service: string, endpoints: number): Promise<void> {
    await this.#until(`${count(endpoints)} of ${service}`, async () => {
      const [one] = await this.proxy.services(service, false)
      const now = new Set(one?.ports.flatMap((port) => port.endpoints))
      return one !== undefined && !one.pending && now.size === endpoints && (await this.#programmed(service))
    })
  }

  close(): Promise<void> {
    this.#closed ??= this.#close()
    return this.#closed
  }

  async #start(): Promise<void> {
    const { world } = this
    await reportStep(this.#terminal, 'Making a client, two nodes and five pods, each a network namespace', async () => {
      await world.build()
      await world.serve()
    })
    await reportStep(this.#terminal, 'Starting the API server', () => this.#startApi())
    await reportStep(this.#terminal, `Starting the proxy in node1, mode ${this.mode}`, () => this.#startProxy())
  }

  async #startApi(): Promise<void> {
    const log = createLogger({
      format: 'text',
      verbosity: 0,
      write: (line) => appendFileSync(join(this.directory, 'apiserver.log'), line),
    })
    this.#api = await startApiServer({ serviceCidrs: [serviceCidr], log })
    writeFileSync(this.kubeconfig, this.#api.kubeconfig(), { mode: 0o600 })
    writeFileSync(this.scaleFile, scaleManifest())
    for (const { path, body } of creations()) await this.#api.local.request({ method: 'POST', path, body })
    await this.world.tunnel('node1', apiPort, this.#api.port)
  }

  async #startProxy(): Promise<void> {
    const kubeconfig = join(this.directory, 'node1.kubeconfig')
    const api = this.#api as ApiServer
    writeFileSync(kubeconfig, api.kubeconfig().replaceAll(api.url, `https://127.0.0.1:${apiPort}`), { mode: 0o600 })
    const config = join(this.directory, 'proxy.yaml')
    writeFileSync(config, JSON.stringify(proxyConfig(this.mode, kubeconfig), undefined, 2))
    const args = ['netns', 'exec', this.world.space('node1'), ...ownProgram(), 'proxy']
    this.#child = spawn('ip', [...args, `--config=${config}`, '--hostname-override=node1'], {
      stdio: ['ignore', 'pipe', 'pipe'],
      env: { ...process.env, SLUICE_ADMIN_SOCKET: this.proxy.path },
      // Ctrl-C on the terminal is for us; the proxy is ended in its turn.
      detached: true,
    })
    this.#child.on('error', () => {})
    for (const stream of [this.#child.stdout, this.#child.stderr]) {
      stream?.on('data', (chunk: Buffer) => appendFileSync(this.#log, chunk))
    }
    writeFileSync(join(this.directory, 'proxy.pid'), String(this.#child.pid))
    await this.#until('the first sync', async () => {
      const { families } = await this.proxy.summary()
      return families.every(({ lastSync }) => lastSync?.ok === true)
    })
    await this.settled('work/saythx-redis', 1)
  }

  get #log(): string {
    return join(this.directory, 'proxy.log')
  }

  async #programmed(service: string): Promise<boolean> {
    const [one] = await this.proxy.services(service, true)
    return one !== undefined && one.wrong.length === 0
  }

  async #until(what: string, met: () => Promise<boolean>): Promise<void> {
    const end = performance.now() + readyMs
    let last = ''
    for (;;) {
      const child = this.#child as ChildProcess
      if (child.exitCode !== null || child.signalCode !== null) {
        throw new ProxyError('demo', `the proxy ended while waiting for ${what}: ${lastLines(this.#log)}`)
      }
      try {
        if (await met()) return
      } catch (error) {
        last = describeError(error)
      }
      if (performance.now() > end) {
        throw new ProxyError(
          'demo',
          `waited ${readyMs / 1000} s for ${what}${last === '' ? '' : `: ${last}`}; log: ${this.#log}`,
        )
      }
      await new Promise((resolve) => setTimeout(resolve, 50))
    }
  }

  async #close(): Promise<void> {
    await endChild(this.#child)
    await this.world.close()
    await this.#api?.close()
    rmSync(this.directory, { recursive: true, force: true })
    rmSync(this.proxy.path, { force: true })
  }
}

const count = (endpoints: number): string => `${endpoints} endpoint${endpoints === 1 ? '' : 's'}`

async function endChild(child: ChildProcess | undefined): Promise<void> {
  if (child?.pid === undefined || child.exitCode !== null || child.signalCode !== null) return
  const gone = new Promise((resolve) => child.once('exit', resolve))
  child.kill('SIGTERM')
  const timer = setTimeout(() => child.kill('SIGKILL'), 10_000)
  await gone
  clearTimeout(timer)
}

/** A directory and a prefix of our own; what demos that were killed have left is removed first. */
async function claim(folder: string): Promise<{ prefix: string; directory: string }> {
  mkdirSync(folder, { recursive: true })
  for (const [, number] of readdirSync(folder).flatMap((name) => [...name.matchAll(/^demo(\d*)$/g)])) {
    const directory = join(folder, `demo${number}`)
    if (!alive(readNumber(join(directory, 'pid')))) await sweep(`sluice${number}-`, directory)
  }
  for (let i = 1; i < 100; i++) {
    const prefix = i === 1 ? 'sluice-' : `sluice${i}-`
    const directory = join(folder, i === 1 ? 'demo' : `demo${i}`)
    try {
      mkdirSync(directory, { mode: 0o700 })
    } catch {
      // Somebody else was faster.
      continue
    }
    writeFileSync(join(directory, 'pid'), String(process.pid))
    await removeNamespaces(prefix)
    return { prefix, directory }
  }
  throw new ProxyError('demo', `too many demos run already, see ${folder}`)
}

async function sweep(prefix: string, directory: string): Promise<void> {
  const pid = readNumber(join(directory, 'proxy.pid'))
  // The number may be somebody else's by now.
  if (alive(pid) && readText(`/proc/${pid}/cmdline`).includes(directory)) process.kill(pid, 'SIGKILL')
  await removeNamespaces(prefix)
  rmSync(directory, { recursive: true, force: true })
}

const alive = (pid: number): boolean => pid > 0 && existsSync(`/proc/${pid}`)
const readNumber = (path: string): number => Number(readText(path)) || 0

function readText(path: string): string {
  try {
    return readFileSync(path, 'utf8')
  } catch {
    return ''
  }
}

const lastLines = (path: string): string => readText(path).trim().split('\n').slice(-3).join(' | ')

const proxyConfig = (mode: Mode, kubeconfig: string) => ({
  apiVersion: 'kubeproxy.config.k8s.io/v1alpha1',
  kind: 'KubeProxyConfiguration',
  mode,
  clusterCIDR: clusterCidr,
  clientConnection: { kubeconfig },
  healthzBindAddress: '127.0.0.1:10256',
  metricsBindAddress: '127.0.0.1:10249',
  // The table's size is the whole machine's, not the demo's.
  conntrack: { maxPerCore: 0, min: 0, tcpEstablishedTimeout: '0s', tcpCloseWaitTimeout: '0s' },
})
