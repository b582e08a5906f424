// Runs `sluice up` without --demo: the API server and the proxy in this process, for the machine it runs on.

import { readFileSync, rmSync } from 'node:fs'
import { hostname } from 'node:os'
import { join } from 'node:path'
import { type ApiServer, startApiServer } from '../../apiserver/start.ts'
import type { Mode } from '../../backend/backend.ts'
import { findMode } from '../../backend/modes.ts'
import type { UnprivilegedTraits } from '../../backend/proxy-mode.ts'
import { resolveOptions } from '../../config/flags/options.ts'
import { makeSettings } from '../../daemon/backend-settings.ts'
import { runDaemon } from '../../daemon/daemon.ts'
import { AdminClient } from '../../http/admin-client.ts'
import { describeError, hasErrno, ProxyError } from '../../lib/errors.ts'
import { createLogger, type RootLogger } from '../../lib/log.ts'
import { sleep, systemClock } from '../../lib/time.ts'
import { ipv6Available } from '../../sys/kernel-facts.ts'
import { writePrivateFile } from '../../sys/private-files.ts'
import type { Flags } from '../command.ts'
import { parseNodePortRange } from '../node-port-range.ts'
import type { Progress } from '../progress.ts'
import { nodeStatus } from './node-status.ts'
import { claimRunDirectory, runDirectory } from './run-directory.ts'
import { checkMode, chooseNodeAddresses, findMissingRoute, refuseOtherRules } from './start-checks.ts'
import { findToolCommands } from './tool-commands.ts'
import { nodePortAddresses, splitList, validateFlags } from './up-flags.ts'

export interface StandaloneOptions {
  readonly mode: Mode
  readonly flags: Flags
  readonly progress: Progress
  /** Ends the start when it aborts. */
  readonly signal: AbortSignal
}

const readyMs = 60_000
const pollMs = 50

export class Standalone {
  readonly #options: StandaloneOptions
  readonly #directory: string
  readonly #node: string
  readonly #stop = new AbortController()
  readonly #log: RootLogger
  /** Set if this process may not program the kernel and the mode can serve without it. */
  readonly #unprivileged: UnprivilegedTraits | undefined
  #addresses: readonly string[] = []
  #api: ApiServer | undefined
  #running: Promise<ProxyError | undefined> | undefined
  #closed: Promise<void> | undefined

  private constructor(options: StandaloneOptions) {
    const { flags, mode } = options
    this.#options = options
    this.#unprivileged = process.getuid?.() === 0 ? undefined : findMode(mode).unprivileged
    this.#node = (flags.get('node') ?? hostname()).toLowerCase()
    this.#directory = flags.get('state') ?? runDirectory()
    const { progress } = options
    this.#log = createLogger({ format: 'text', verbosity: 0, write: (line) => showProblem(line, progress) })
  }

  /** Resolves undefined if the signal aborts the start; everything is removed then. */
  static async start(options: StandaloneOptions): Promise<Standalone | undefined> {
    const { flags, mode, progress, signal } = options
    validateFlags(flags)
    const one = new Standalone(options)
    claimRunDirectory(one.#directory)
    try {
      await one.#check()
      signal.throwIfAborted()
      await progress.report('Starting the API server', () => one.#startApi())
      signal.throwIfAborted()
      await progress.report(`Starting the proxy, mode ${mode}`, () => one.#startProxy(), signal)
      return one
    } catch (error) {
      await one.close()
      if (signal.aborted) return undefined
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

  async introduce(): Promise<string> {
    const { sluice, kubectl } = await findToolCommands(this.#socket, this.#kubeconfig)
    const { mode, flags } = this.#options
    const manifests = flags.get('manifests')
    const where = this.#unprivileged === undefined ? '' : `  ${this.#unprivileged.describe()}\n`
    return [
      `Serving ${this.#node}, mode ${mode}. The API server is at ${this.#api?.url}\n`,
      where,
      manifests === undefined ? '' : `  Manifests: ${manifests} (changes are applied as they are saved)\n`,
      `  ${kubectl} get services\n`,
      `  ${sluice('status')}\n`,
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

  /** Throws a ProxyError if the proxy cannot work here. Nothing has been started yet. */
  async #check(): Promise<void> {
    const { flags, mode, progress } = this.#options
    const onLoopback = this.#unprivileged !== undefined
    if (!onLoopback) await checkMode(mode)
    this.#addresses = await chooseNodeAddresses({ given: flags.get('node-address'), onLoopback })
    if (onLoopback) return
    if (!flags.has('take-over') && !flags.has('keep-rules')) await refuseOtherRules()
    const advice = await findMissingRoute(this.#serviceCidrs()[0] as string, this.#addresses)
    if (advice !== undefined) progress.note(`${advice}\n`)
  }

  async #startApi(): Promise<void> {
    const { flags } = this.#options
    const manifests = flags.get('manifests')
    const nodePorts = flags.get('service-node-port-range')
    this.#api = await startApiServer({
      address: flags.get('address') ?? '127.0.0.1',
      port: Number(flags.get('port') ?? '6443'),
      ...(nodePorts === undefined ? {} : { nodePortRange: parseNodePortRange(nodePorts) }),
      serviceCidrs: this.#serviceCidrs(),
      ...(flags.has('state') ? { stateDir: flags.get('state') as string } : {}),
      ...(manifests === undefined ? {} : { manifests }),
      log: this.#log.named('apiserver'),
    }).catch((error: unknown) => {
      throw adviseOtherPort(error)
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
    const api = (this.#api as ApiServer).client
    const body = {
      apiVersion: 'v1',
      kind: 'Node',
      metadata: { name: this.#node, labels: { 'kubernetes.io/hostname': this.#node } },
      status: nodeStatus(this.#addresses),
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

  async #startProxy(): Promise<void> {
    const config = join(this.#directory, 'proxy.yaml')
    const text = JSON.stringify(this.#proxyConfig(), undefined, 2)
    writePrivateFile(config, text)
    const argv = [`--config=${config}`, `--hostname-override=${this.#node}`]
    const options = resolveOptions(argv, (path) => (path === config ? text : readFileSync(path, 'utf8')), process.env)
    const settings = makeSettings(options.config, options.sluice.traffic)
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
    const { signal } = this.#options
    const end = performance.now() + readyMs
    while (performance.now() < end) {
      if (ended !== undefined) throw ended
      try {
        const { families } = await this.proxy.summary()
        if (families.every(({ lastSync }) => lastSync?.ok === true)) return
      } catch (error) {
        if (!(error instanceof ProxyError)) throw error
      }
      await sleep(systemClock, pollMs, signal)
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
        this.#unprivileged === undefined
          ? splitList(flags.get('nodeport-addresses') ?? nodePortAddresses)
          : ['127.0.0.0/8'],
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
function showProblem(line: string, progress: Progress): void {
  if (/^[WE]/.test(line)) progress.note(line)
}

/** Names the flag that helps if another program has the port. */
function adviseOtherPort(error: unknown): unknown {
  if (!(error instanceof ProxyError) || !hasErrno(error.cause, 'EADDRINUSE')) return error
  const advice = 'another program has this port: give --port PORT (0: any free port)'
  return new ProxyError('listen', `${error.message}: ${advice}`)
}
