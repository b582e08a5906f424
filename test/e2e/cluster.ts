// A real control plane for one test file: etcd and kube-apiserver on loopback, in a directory that is removed afterwards.
// There are no controllers: tests create EndpointSlices, Nodes and tokens with kubectl.

import { execFile } from 'node:child_process'
import { existsSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { createServer } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { until } from '../support/until.ts'
import { type Child, startChild } from './child.ts'
import { type Authority, createAuthority, createTokenKeys } from './cluster-certificates.ts'

const ADMIN_TOKEN = 'e2e-admin'
const START_LIMIT_MS = 90_000
const KUBECTL_LIMIT_MS = 30_000

export interface ClusterOptions {
  /** Directory of the programs that build-cluster made. */
  readonly binaries: string
  /** Addresses besides loopback that clients dial (a gate in a network namespace); the certificate contains them. */
  readonly addresses?: readonly string[]
  /** Further flags of kube-apiserver, for example --watch-cache=false. */
  readonly flags?: readonly string[]
}

/** An entry of the audit log: a request that was started or finished. A watch has two entries. */
export interface AuditRecord {
  /** The same for all entries of a request. */
  readonly auditID: string
  readonly stage: 'ResponseStarted' | 'ResponseComplete' | 'Panic'
  readonly verb: string
  readonly requestURI: string
  readonly userAgent?: string
  readonly user?: { readonly username?: string; readonly extra?: Readonly<Record<string, readonly string[]>> }
  readonly objectRef?: { readonly resource?: string; readonly apiGroup?: string; readonly namespace?: string }
  readonly responseStatus?: { readonly code?: number }
  readonly requestReceivedTimestamp: string
}

interface User {
  readonly token?: string
  readonly tokenFile?: string
  /** Base name of a key and certificate that `issue` wrote. */
  readonly certificate?: string
}

export interface Cluster {
  readonly directory: string
  readonly port: number
  readonly authority: Authority
  /** Path of the kubeconfig of a member of system:masters. */
  readonly kubeconfig: string
  /** Runs kubectl as admin and returns its stdout. Throws an error with its stderr if it fails. */
  kubectl(args: readonly string[], stdin?: string): Promise<string>
  apply(manifest: string): Promise<string>
  /** Writes `<name>.kubeconfig`; `server` defaults to the API server itself. */
  writeKubeconfig(name: string, user: User, server?: string): string
  /**
   * Returns a token of a TokenRequest, valid for 600 s, which is the shortest time that the API grants. To end it sooner, bind it to a
   * Secret and delete the Secret: the API server may still accept it for 10 s from its cache.
   */
  mintToken(namespace: string, serviceAccount: string, boundSecret?: string): Promise<string>
  /** Returns a token that is bound to a pod, as the kubelet mounts it: the API server knows the pod's node from it. */
  mintPodToken(namespace: string, serviceAccount: string, pod: string): Promise<string>
  /** Compacts all history before now, as the API server does every five minutes. Returns the revision. */
  compact(): Promise<number>
  /** Kills the oldest API server with SIGKILL, so that watches do not end gracefully. */
  killApiServer(): Promise<void>
  /** With --permit-port-sharing in the flags, several API servers run at a time. */
  startApiServer(flags?: readonly string[]): Promise<void>
  /** Process ids of the API servers that run, the oldest first. */
  apiServerPids(): readonly number[]
  /** Restarts the API server if it does not run with exactly these flags. */
  useFlags(...flags: readonly string[]): Promise<void>
  /** Times when the API server was started and when it was ready. Between them it may answer 403 to what RBAC allows. */
  readonly starts: readonly { readonly from: number; readonly ready: number }[]
  audit(): readonly AuditRecord[]
  /** Returns the last lines of the log of the API server, for a failing test. */
  log(lines?: number): string
  stop(): Promise<void>
}

export async function startCluster(options: ClusterOptions): Promise<Cluster> {
  const directory = mkdtempSync(join(tmpdir(), 'sluice-e2e-'))
  const file = (name: string) => join(directory, name)
  const authority = await createAuthority(directory)
  await authority.issue('server', '/CN=kube-apiserver', ['127.0.0.1', ...(options.addresses ?? [])])
  const keys = createTokenKeys(directory)
  writeFileSync(file('tokens.csv'), `${ADMIN_TOKEN},admin,admin,"system:masters"\n`, { mode: 0o600 })
  writeFileSync(file('audit.yaml'), AUDIT_POLICY)
  const [etcdPort, peerPort, port] = [await freePort(), await freePort(), await freePort()]
  const etcdUrl = `http://127.0.0.1:${etcdPort}`

  const etcd = startChild({
    program: join(options.binaries, 'etcd'),
    args: etcdFlags(file('etcd'), etcdUrl, `http://127.0.0.1:${peerPort}`),
    log: file('etcd.log'),
  })
  const apiServers: Child[] = []
  const starts: { from: number; ready: number }[] = []

  let current: readonly string[] = options.flags ?? []

  const startApiServer = async (flags = current) => {
    current = flags
    const from = Date.now()
    const args = [...apiServerFlags({ file, etcdUrl, port, authority, keys }), ...flags]
    const child = startChild({
      program: join(options.binaries, 'kube-apiserver'),
      args,
      log: file('kube-apiserver.log'),
    })
    apiServers.push(child)
    await until('API server ready', () => ready(child, kubectl), { limitMs: START_LIMIT_MS, everyMs: 250 })
    starts.push({ from, ready: Date.now() })
  }

  const writeKubeconfig: Cluster['writeKubeconfig'] = (name, user, server = `https://127.0.0.1:${port}`) => {
    const path = file(`${name}.kubeconfig`)
    writeFileSync(path, renderKubeconfig(server, authority.certificate, directory, user), { mode: 0o600 })
    return path
  }
  const kubeconfig = writeKubeconfig('admin', { token: ADMIN_TOKEN })

  const kubectl: Cluster['kubectl'] = (args, stdin) => {
    const common = ['--kubeconfig', kubeconfig, '--cache-dir', file('kubectl-cache')]
    return execute(join(options.binaries, 'kubectl'), [...common, ...args], stdin)
  }

  const stop = async () => {
    for (const apiServer of apiServers) await apiServer.end('SIGKILL')
    await etcd.end('SIGKILL')
    rmSync(directory, { recursive: true, force: true })
  }

  try {
    await until('etcd healthy', () => healthy(etcd, etcdUrl), { limitMs: START_LIMIT_MS })
    await startApiServer()
  } catch (error) {
    const tail = lastLines(file('kube-apiserver.log'), 20) || lastLines(file('etcd.log'), 20)
    await stop()
    throw new Error(`cluster did not start\n${tail}`, { cause: error })
  }

  return {
    directory,
    port,
    authority,
    kubeconfig,
    kubectl,
    apply: (manifest) => kubectl(['apply', '-f', '-'], manifest),
    writeKubeconfig,
    async mintToken(namespace, serviceAccount, boundSecret) {
      const args = ['create', 'token', serviceAccount, '--namespace', namespace, '--duration', '600s']
      if (boundSecret !== undefined) args.push('--bound-object-kind', 'Secret', '--bound-object-name', boundSecret)
      return (await kubectl(args)).trim()
    },
    async mintPodToken(namespace, serviceAccount, pod) {
      const args = ['create', 'token', serviceAccount, '--namespace', namespace, '--duration', '3600s']
      return (await kubectl([...args, '--bound-object-kind', 'Pod', '--bound-object-name', pod])).trim()
    },
    async compact() {
      const found = await etcdCall(etcdUrl, 'range', { key: 'AA==' })
      const revision = Number((found as { header: { revision: string } }).header.revision)
      await etcdCall(etcdUrl, 'compaction', { revision: String(revision), physical: true })
      return revision
    },
    async killApiServer() {
      await apiServers.shift()?.end('SIGKILL')
    },
    startApiServer,
    apiServerPids: () => apiServers.map(({ pid }) => pid),
    async useFlags(...flags) {
      if (flags.join(' ') === current.join(' ')) return
      await apiServers.shift()?.end('SIGKILL')
      await startApiServer(flags)
    },
    starts,
    audit: () => readAudit(file('audit.log')),
    log: (lines = 40) => lastLines(file('kube-apiserver.log'), lines),
    stop,
  }
}

/** Records all requests except those of the admin's kubectl and of the API server itself. */
const AUDIT_POLICY = `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
  - level: None
    users: [admin, system:apiserver]
  - level: Metadata
`

function etcdFlags(dataDirectory: string, clientUrl: string, peerUrl: string): readonly string[] {
  return [
    `--data-dir=${dataDirectory}`,
    `--listen-client-urls=${clientUrl}`,
    `--advertise-client-urls=${clientUrl}`,
    `--listen-peer-urls=${peerUrl}`,
    `--initial-advertise-peer-urls=${peerUrl}`,
    `--initial-cluster=default=${peerUrl}`,
    '--unsafe-no-fsync', // no data has to survive a power failure
    '--log-level=warn',
  ]
}

interface ApiServerSetup {
  readonly file: (name: string) => string
  readonly etcdUrl: string
  readonly port: number
  readonly authority: Authority
  readonly keys: { readonly signing: string; readonly checking: string }
}

function apiServerFlags({ file, etcdUrl, port, authority, keys }: ApiServerSetup): readonly string[] {
  return [
    `--etcd-servers=${etcdUrl}`,
    '--etcd-compaction-interval=0', // only the test compacts
    '--bind-address=127.0.0.1',
    `--secure-port=${port}`,
    '--endpoint-reconciler-type=none', // a loopback address is not a valid endpoint of default/kubernetes
    `--tls-cert-file=${file('server.crt')}`,
    `--tls-private-key-file=${file('server.key')}`,
    `--client-ca-file=${authority.certificate}`,
    `--token-auth-file=${file('tokens.csv')}`,
    '--service-account-issuer=https://sluice.test',
    `--service-account-signing-key-file=${keys.signing}`,
    `--service-account-key-file=${keys.checking}`,
    '--authorization-mode=RBAC',
    '--service-cluster-ip-range=10.96.0.0/16,fd00:96::/112',
    `--audit-policy-file=${file('audit.yaml')}`,
    `--audit-log-path=${file('audit.log')}`,
    '--profiling=false',
  ]
}

function renderKubeconfig(server: string, authority: string, directory: string, user: User): string {
  const credentials: Record<string, string> = {}
  if (user.token !== undefined) credentials.token = user.token
  if (user.tokenFile !== undefined) credentials.tokenFile = user.tokenFile
  if (user.certificate !== undefined) {
    credentials['client-certificate'] = join(directory, `${user.certificate}.crt`)
    credentials['client-key'] = join(directory, `${user.certificate}.key`)
  }
  const config = {
    apiVersion: 'v1',
    kind: 'Config',
    clusters: [{ name: 'e2e', cluster: { server, 'certificate-authority': authority } }],
    users: [{ name: 'e2e', user: credentials }],
    contexts: [{ name: 'e2e', context: { cluster: 'e2e', user: 'e2e' } }],
    'current-context': 'e2e',
  }
  return `${JSON.stringify(config, undefined, 2)}\n` // JSON is YAML
}

async function ready(child: Child, kubectl: Cluster['kubectl']): Promise<boolean> {
  if (!child.running) throw new Error('kube-apiserver has exited')
  return (await kubectl(['get', '--raw', '/readyz', '--request-timeout=5s'])).trim() === 'ok'
}

async function healthy(etcd: Child, url: string): Promise<boolean> {
  if (!etcd.running) throw new Error('etcd has exited')
  return (await fetch(`${url}/health`, { signal: AbortSignal.timeout(2_000) })).ok
}

/** Calls etcd's gRPC API as JSON over HTTP; keys are base64. */
async function etcdCall(url: string, call: string, request: Record<string, unknown>): Promise<unknown> {
  const response = await fetch(`${url}/v3/kv/${call}`, {
    method: 'POST',
    body: JSON.stringify(request),
    signal: AbortSignal.timeout(10_000),
  })
  if (!response.ok) throw new Error(`etcd ${call}: ${response.status} ${await response.text()}`)
  return response.json()
}

function execute(program: string, args: readonly string[], stdin = ''): Promise<string> {
  return new Promise((resolve, reject) => {
    const limits = { timeout: KUBECTL_LIMIT_MS, killSignal: 'SIGKILL', maxBuffer: 64 << 20 } as const
    const child = execFile(program, args, limits, (error, stdout, stderr) => {
      if (error === null) resolve(stdout)
      else reject(new Error(`kubectl ${args.slice(4).join(' ')}: ${stderr.trim() || error.message}`))
    })
    child.stdin?.on('error', () => {}) // it may exit without reading
    child.stdin?.end(stdin)
  })
}

/**
 * Returns a free port below the range from which the kernel takes the ports of outgoing connections: a restarted API server must find
 * its port free again.
 */
async function freePort(): Promise<number> {
  for (let attempt = 0; attempt < 100; attempt++) {
    const port = 20_000 + Math.floor(Math.random() * 10_000)
    if (await listens(port)) return port
  }
  throw new Error('no free port')
}

function listens(port: number): Promise<boolean> {
  return new Promise((resolve) => {
    const server = createServer()
    server.once('error', () => resolve(false))
    server.listen(port, '127.0.0.1', () => server.close(() => resolve(true)))
  })
}

function readAudit(path: string): readonly AuditRecord[] {
  if (!existsSync(path)) return []
  const lines = readFileSync(path, 'utf8').split('\n')
  lines.pop() // empty, or not completely written yet
  return lines.map((line) => JSON.parse(line) as AuditRecord)
}

function lastLines(path: string, count: number): string {
  return existsSync(path) ? readFileSync(path, 'utf8').trimEnd().split('\n').slice(-count).join('\n') : ''
}
