// Runs `sluice up` without --demo: the API server and the proxy in this process, for the machine it runs on.

import { existsSync, readdirSync, readFileSync, rmSync } from 'node:fs'
import { homedir, hostname } from 'node:os'
import { join } from 'node:path'
import { type ApiServer, startApiServer } from '../../apiserver/start.ts'
import type { Mode } from '../../backend/backend.ts'
import { findLeftovers } from '../../backend/leftovers.ts'
import { findMode } from '../../backend/modes.ts'
import type { UnprivilegedTraits } from '../../backend/proxy-mode.ts'
import { resolveOptions } from '../../config/flags/options.ts'
import { makeSettings } from '../../daemon/backend-settings.ts'
import { runDaemon } from '../../daemon/daemon.ts'
import { AdminClient } from '../../http/admin-client.ts'
import { describeError, ProxyError } from '../../lib/errors.ts'
import { canonicalIp } from '../../lib/ip.ts'
import { createLogger, type RootLogger } from '../../lib/log.ts'
import { ipv6Available } from '../../sys/kernel-facts.ts'
import { ensurePrivateDirectory, writePrivateFile } from '../../sys/private-files.ts'
import type { Flags } from '../command.ts'
import { reportStep } from '../progress.ts'
import { ownAddresses } from '../sources/own-addresses.ts'
import type { Terminal } from '../terminal.ts'
import { splitList, validateFlags } from './up-flags.ts'

export interface StandaloneOptions {
  readonly mode: Mode
  readonly flags: Flags
  readonly terminal: Terminal
}

const readyMs = 60_000

export class Standalone {
  readonly #options: StandaloneOptions
  readonly #directory: string
  readonly #node: string
  readonly #stop = new AbortController()
  readonly #log: RootLogger
  /** Set if this process may not program the kernel and the mode can serve without it. */
  readonly #unprivileged: UnprivilegedTraits | undefined
  #api: ApiServer | undefined
  #running: Promise<ProxyError | undefined> | undefined
  #closed: Promise<void> | undefined

  private constructor(options: StandaloneOptions) {
    const { flags, mode } = options
    this.#options = options
    this.#unprivileged = process.getuid?.() === 0 ? undefined : findMode(mode).unprivileged
    this.#node = (flags.get('node') ?? hostname()).toLowerCase()
    this.#directory = flags.get('state') ?? claimRunDirectory()
    const { terminal } = options
    this.#log = createLogger({ format: 'text', verbosity: 0, write: (line) => showProblem(line, terminal) })
  }

  static async start(options: StandaloneOptions): Promise<Standalone> {
    validateFlags(options.flags)
    const one = new Standalone(options)
    await one.#refuseOtherRules()
    try {
      await reportStep(options.terminal, 'Starting the API server', () => one.#startApi())
      await reportStep(options.terminal, `Starting the proxy, mode ${options.mode}`, () => one.#startProxy())
      return one
    } catch (error) {
      await one.close()
      throw error
    }
  }

  get proxy(): AdminClient {
    return new AdminClient(this.#socket)
  }

  /** Resolves with the reason if the proxy ends by itself. */
  get ended(): Promise<ProxyError | undefined> {
    return this.#running as Promise<ProxyError | undefined>
  }

  introduce(): string {
    const { mode, flags } = this.#options
    const manifests = flags.get('manifests')
    const where = this.#unprivileged === undefined ? '' : `  ${this.#unprivileged.describe()}\n`
    return [
      `Serving ${this.#node}, mode ${mode}. The API server is at ${this.#api?.url}\n`,
      where,
      manifests === undefined ? '' : `  Manifests: ${manifests} (changes are applied as they are saved)\n`,
      `  kubectl --kubeconfig ${this.#kubeconfig} get services\n`,
      `  sluice status --socket ${this.#socket}\n`,
      'Ctrl-C stops it.\n',
    ].join('')
  }

  close(): Promise<void> {
    this.#closed ??= this.#close()
    return this.#closed
  }

  get #kubeconfig(): string {
    return join(this.#directory, 'kubeconfig')
  }

  get #socket(): string {
    return join(process.getuid?.() === 0 ? '/run/sluice' : this.#directory, `${this.#node}.sock`)
  }

  /** Throws a ProxyError 'taken' if another proxy has rules here, unless a flag allows to replace them. */
  async #refuseOtherRules(): Promise<void> {
    const { flags } = this.#options
    if (this.#unprivileged !== undefined || flags.has('take-over') || flags.has('keep-rules')) return
    const found = await findLeftovers()
    if (found.length === 0) return
    const rules = found.map(({ what, where }) => `${what} in ${where}`).join('; ')
    throw new ProxyError(
      'taken',
      `a proxy has rules on this machine (${rules}): stop it and run sluice cleanup, or add --take-over`,
    )
  }

  async #startApi(): Promise<void> {
    const { flags } = this.#options
    ensurePrivateDirectory(this.#directory)
    const manifests = flags.get('manifests')
    this.#api = await startApiServer({
      address: flags.get('address') ?? '127.0.0.1',
      port: Number(flags.get('port') ?? '6443'),
      serviceCidrs: this.#serviceCidrs(),
      ...(flags.has('state') ? { stateDir: flags.get('state') as string } : {}),
      ...(manifests === undefined ? {} : { manifests }),
      log: this.#log.named('apiserver'),
    })
    writePrivateFile(this.#kubeconfig, this.#api.kubeconfig())
    await this.#registerNode()
  }

  #serviceCidrs(): readonly string[] {
    const given = splitList(this.#options.flags.get('service-cidr'))
    if (given.length > 0) return given
    const hasIpv6 = ipv6Available() && this.#unprivileged === undefined
    return hasIpv6 ? ['10.96.0.0/16', 'fd00:10:96::/112'] : ['10.96.0.0/16']
  }

  async #registerNode(): Promise<void> {
    const addresses = await this.#addresses()
    const api = (this.#api as ApiServer).client
    const body = {
      apiVersion: 'v1',
      kind: 'Node',
      metadata: { name: this.#node, labels: { 'kubernetes.io/hostname': this.#node } },
      status: {
        addresses: addresses.map((address) => ({ type: 'InternalIP', address })),
        conditions: [{ type: 'Ready', status: 'True' }],
      },
    }
    try {
      await api.request({ method: 'POST', path: '/api/v1/nodes', body })
    } catch (error) {
      if (!(error instanceof ProxyError) || error.code !== 'already-exists') throw error
      const path = `/api/v1/nodes/${this.#node}`
      await api.request({
        method: 'PATCH',
        path,
        body: { status: body.status },
        contentType: 'application/merge-patch+json',
      })
    }
  }

  async #addresses(): Promise<readonly string[]> {
    const given = this.#options.flags.get('node-address')
    if (given !== undefined) return [canonicalIp(given) as string]
    return ownAddresses()
  }

  async #startProxy(): Promise<void> {
    const config = join(this.#directory, 'proxy.yaml')
    writePrivateFile(config, JSON.stringify(this.#proxyConfig(), undefined, 2))
    const argv = [`--config=${config}`, `--hostname-override=${this.#node}`]
    const options = resolveOptions(argv, (path) => readFileSync(path, 'utf8'), process.env)
    const settings = makeSettings(options.config)
    const backend = (this.#unprivileged ?? findMode(this.#options.mode)).makeBackend(settings)
    process.env.SLUICE_ADMIN_SOCKET = this.#socket
    const manifests = this.#api?.manifests
    const daemon = { options, backend, log: this.#log, signal: this.#stop.signal, ...(manifests && { manifests }) }
    this.#running = runDaemon(daemon).then(
      () => (this.#stop.signal.aborted ? undefined : new ProxyError('proxy', 'the proxy ended by itself')),
      (error: unknown) =>
        error instanceof ProxyError ? error : new ProxyError('proxy', describeError(error), { cause: error }),
    )
    await this.#waitForSync(this.#running)
  }

  async #waitForSync(running: Promise<ProxyError | undefined>): Promise<void> {
    let ended: ProxyError | undefined
    void running.then((error) => {
      ended = error
    })
    const end = performance.now() + readyMs
    while (performance.now() < end) {
      if (ended !== undefined) throw ended
      try {
        const { families } = await this.proxy.summary()
        if (families.every(({ lastSync }) => lastSync?.ok === true)) return
      } catch (error) {
        if (!(error instanceof ProxyError)) throw error
      }
      await new Promise((resolve) => setTimeout(resolve, 50))
    }
    throw new ProxyError('proxy', `the proxy has not synced in ${readyMs / 1000} s`)
  }

  #proxyConfig() {
    const { mode, flags } = this.#options
    return {
      apiVersion: 'kubeproxy.config.k8s.io/v1alpha1',
      kind: 'KubeProxyConfiguration',
      mode,
      clusterCIDR: flags.get('cluster-cidr') ?? '',
      nodePortAddresses:
        this.#unprivileged === undefined ? splitList(flags.get('nodeport-addresses')) : ['127.0.0.0/8'],
      clientConnection: { kubeconfig: this.#kubeconfig },
      healthzBindAddress: '127.0.0.1:10256',
      metricsBindAddress: '127.0.0.1:10249',
      // This machine is not only a node: its settings for connection tracking stay unchanged.
      conntrack: { maxPerCore: 0, min: 0, tcpEstablishedTimeout: '0s', tcpCloseWaitTimeout: '0s' },
    }
  }

  async #close(): Promise<void> {
    const { mode, flags } = this.#options
    this.#stop.abort(new Error('stopped'))
    await this.#running
    await this.#api?.close()
    if (this.#unprivileged === undefined && !flags.has('keep-rules') && this.#running !== undefined) {
      await findMode(mode).leftovers.cleanup(this.#log)
    }
    if (!flags.has('state')) rmSync(this.#directory, { recursive: true, force: true })
  }
}

/** Shows warnings and errors of the log; routine messages are left out. */
function showProblem(line: string, terminal: Terminal): void {
  if (/^[WE]/.test(line)) terminal.note(line)
}

/** Returns a directory for this process, which removes it at the end. Removes the directories of processes that were killed. */
function claimRunDirectory(): string {
  const isRoot = process.getuid?.() === 0
  const parent = isRoot ? '/run/sluice' : (process.env.XDG_RUNTIME_DIR ?? join(homedir(), '.cache'))
  const prefix = isRoot ? 'up-' : 'sluice-up-'
  for (const name of existsSync(parent) ? readdirSync(parent) : []) {
    const pid = name.startsWith(prefix) ? name.slice(prefix.length) : ''
    if (/^\d+$/.test(pid) && !existsSync(`/proc/${pid}`)) rmSync(join(parent, name), { recursive: true, force: true })
  }
  return join(parent, `${prefix}${process.pid}`)
}
