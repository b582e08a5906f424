// `sluice up` without a demo: the API server and the proxy in this process, for the machine it runs on.

import { existsSync, mkdirSync, readdirSync, readFileSync, rmSync, statSync, writeFileSync } from 'node:fs'
import { homedir, hostname } from 'node:os'
import { join } from 'node:path'
import { type ApiServer, startApiServer } from '../../apiserver/start.ts'
import type { Mode } from '../../backend/backend.ts'
import { findLeftovers } from '../../backend/leftovers.ts'
import { findMode } from '../../backend/modes.ts'
import type { UnprivilegedTraits } from '../../backend/proxy-mode.ts'
import { resolveOptions } from '../../config/flags/options.ts'
import { settingsOf } from '../../daemon/backend-settings.ts'
import { runDaemon } from '../../daemon/daemon.ts'
import { AdminClient } from '../../http/admin-client.ts'
import { describeError, ProxyError } from '../../lib/errors.ts'
import { canonicalIp, parseCidr } from '../../lib/ip.ts'
import { createLogger, type RootLogger } from '../../lib/log.ts'
import { ipv6Available } from '../../sys/kernel-facts.ts'
import { reportStep } from '../progress.ts'
import { ownAddresses } from '../sources/own-addresses.ts'
import type { Terminal } from '../terminal.ts'

export interface StandaloneOptions {
  readonly mode: Mode
  readonly flags: ReadonlyMap<string, string>
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
    this.#directory = flags.get('state') ?? runFolder()
    const { terminal } = options
    this.#log = createLogger({ format: 'text', verbosity: 0, write: (line) => void logged(line, terminal) })
  }

  static async start(options: StandaloneOptions): Promise<Standalone> {
    checkFlags(options.flags)
    const one = new Standalone(options)
    await one.#checkMachine()
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

  /** Resolves if the proxy ends by itself, with why. */
  get ended(): Promise<ProxyError | undefined> {
    return this.#running as Promise<ProxyError | undefined>
  }

  introduction(): string {
    const { mode, flags } = this.#options
    const manifests = flags.get('manifests')
    const where = this.#unprivileged === undefined ? '' : `  ${this.#unprivileged.describe()}\n`
    return [
      `Serving ${this.#node}, mode ${mode}. The API is at ${this.#api?.url}\n`,
      where,
      manifests === undefined ? '' : `  Manifests: ${manifests} (changes are applied as they are saved)\n`,
      `  kubectl --kubeconfig ${this.#kubeconfig} get services\n`,
      `  sluice status --socket ${this.#socket}\n`,
      'Ctrl-C ends it.\n',
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

  /** Another proxy's rules are not ours to replace unless we are told to. */
  async #checkMachine(): Promise<void> {
    const { flags } = this.#options
    if (this.#unprivileged !== undefined || flags.has('take-over') || flags.has('keep-rules')) return
    const found = await findLeftovers()
    if (found.length === 0) return
    const what = found.map(({ what: thing, where }) => `${thing} in ${where}`).join('; ')
    throw new ProxyError(
      'taken',
      `a proxy has rules on this machine (${what}): stop it and run sluice cleanup, or add --take-over`,
    )
  }

  async #startApi(): Promise<void> {
    const { flags } = this.#options
    mkdirSync(this.#directory, { recursive: true, mode: 0o700 })
    const cidrs = list(flags.get('service-cidr'))
    const manifests = flags.get('manifests')
    this.#api = await startApiServer({
      address: flags.get('address') ?? '127.0.0.1',
      port: Number(flags.get('port') ?? '6443'),
      serviceCidrs:
        cidrs.length > 0
          ? cidrs
          : ipv6Available() && this.#unprivileged === undefined
            ? ['10.96.0.0/16', 'fd00:10:96::/112']
            : ['10.96.0.0/16'],
      ...(flags.has('state') ? { stateDir: flags.get('state') as string } : {}),
      ...(manifests === undefined ? {} : { manifests }),
      log: this.#log.named('apiserver'),
    })
    writeFileSync(this.#kubeconfig, this.#api.kubeconfig(), { mode: 0o600 })
    await this.#registerNode()
  }

  async #registerNode(): Promise<void> {
    const addresses = await this.#addresses()
    const api = (this.#api as ApiServer).local
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
    writeFileSync(config, JSON.stringify(this.#proxyConfig(), undefined, 2))
    const options = resolveOptions([`--config=${config}`, `--hostname-override=${this.#node}`], (path) =>
      readFileSync(path, 'utf8'),
    )
    const settings = settingsOf(options.config)
    const backend = (this.#unprivileged ?? findMode(this.#options.mode)).makeBackend(settings)
    process.env.SLUICE_ADMIN_SOCKET = this.#socket
    this.#running = runDaemon({ options, backend, log: this.#log, signal: this.#stop.signal }).then(
      () => (this.#stop.signal.aborted ? undefined : new ProxyError('proxy', 'the proxy ended')),
      (error: unknown) =>
        error instanceof ProxyError ? error : new ProxyError('proxy', describeError(error), { cause: error }),
    )
    await this.#firstSync(this.#running)
  }

  async #firstSync(running: Promise<ProxyError | undefined>): Promise<void> {
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
      nodePortAddresses: this.#unprivileged === undefined ? list(flags.get('nodeport-addresses')) : ['127.0.0.0/8'],
      clientConnection: { kubeconfig: this.#kubeconfig },
      healthzBindAddress: '127.0.0.1:10256',
      metricsBindAddress: '127.0.0.1:10249',
      // This machine has other things to do than being a node: its connection tracking stays as it is.
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

/** Throws a ProxyError 'usage': what cannot be is said before anything is started. */
export function checkFlags(flags: ReadonlyMap<string, string>): void {
  const check = (name: string, allowed: string, good: (value: string) => boolean) => {
    const value = flags.get(name)
    if (value !== undefined && !good(value))
      throw new ProxyError('usage', `--${name}: given "${value}", allowed: ${allowed}`)
  }
  const isIp = (value: string) => canonicalIp(value) !== undefined
  const isPair = (value: string) => {
    const families = value.split(',').map((one) => parseCidr(one)?.family)
    return families.length <= 2 && !families.includes(undefined) && new Set(families).size === families.length
  }
  const pair = 'a CIDR, or one of each family separated by a comma'
  check('port', 'a number from 0 to 65535', (value) => /^\d{1,5}$/.test(value) && Number(value) <= 65_535)
  check('address', 'an IP address', isIp)
  check('node-address', 'an IP address', isIp)
  check('service-cidr', pair, isPair)
  check('cluster-cidr', pair, isPair)
  check('manifests', 'a directory', (value) => statSync(value, { throwIfNoEntry: false })?.isDirectory() === true)
  check('node', 'a name of lower case letters, digits, - and .', (value) => nodeName.test(value.toLowerCase()))
}

const nodeName = /^[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?$/

/** What is said of routine is the log's; what is wrong is for whoever looks. */
function logged(line: string, terminal: Terminal): void {
  if (/^[WE]/.test(line)) terminal.note(line)
}

const list = (text: string | undefined): readonly string[] => (text ?? '').split(',').filter((part) => part !== '')

/** Ours until we end; those of processes that were killed are removed on the way. */
function runFolder(): string {
  const root = process.getuid?.() === 0
  const base = root ? '/run/sluice' : (process.env.XDG_RUNTIME_DIR ?? join(homedir(), '.cache'))
  const prefix = root ? 'up-' : 'sluice-up-'
  for (const name of existsSync(base) ? readdirSync(base) : []) {
    const pid = name.startsWith(prefix) ? name.slice(prefix.length) : ''
    if (/^\d+$/.test(pid) && !existsSync(`/proc/${pid}`)) rmSync(join(base, name), { recursive: true, force: true })
  }
  return join(base, `${prefix}${process.pid}`)
}
