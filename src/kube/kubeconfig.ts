// Turns a kubeconfig, or the service account of a pod, into a connection. Every error names the file and the field.

import { accessSync, constants } from 'node:fs'
import { join } from 'node:path'
import { createSecureContext } from 'node:tls'
import { describeError, ProxyError } from '../lib/errors.ts'
import type { Auth, Connection, ExecPlugin, PemSource } from './connection.ts'
import { asObject } from './decode/fields.ts'
import { findEnvironmentProxy, parseProxy } from './http-proxy.ts'
import { KubeconfigSection, makeKubeconfigError, readPem, readText } from './kubeconfig-file.ts'

export interface ConnectionOptions {
  readonly kubeconfig: string
  /** A context of the kubeconfig; its current context if absent. */
  readonly context?: string | undefined
  /** `--master`: replaces the server of the kubeconfig. */
  readonly master: string
  readonly env?: NodeJS.ProcessEnv
  /** Where the service account's token and CA are mounted. */
  readonly serviceAccountDir?: string
}

const defaultServiceAccountDir = '/var/run/secrets/kubernetes.io/serviceaccount'

/** Ignores the variable KUBECONFIG: kube-proxy reads only its flags and the files of its pod. */
export function loadConnection(options: ConnectionOptions): Connection {
  const connection = readConnection(options, options.env ?? process.env)
  checkCertificates(connection)
  return connection
}

function readConnection(
  { kubeconfig, context, master, serviceAccountDir = defaultServiceAccountDir }: ConnectionOptions,
  env: NodeJS.ProcessEnv,
): Connection {
  if (kubeconfig !== '') return readKubeconfig({ path: kubeconfig, context, master }, env)
  if (master === '') return readServiceAccount(serviceAccountDir, env)
  return makePlainConnection('--master', parseServer(master, { isSecure: false, file: '--master', field: '' }), env)
}

// ---- The service account of a pod. ----

function readServiceAccount(dir: string, env: NodeJS.ProcessEnv): Connection {
  const host = env.KUBERNETES_SERVICE_HOST ?? ''
  const port = env.KUBERNETES_SERVICE_PORT ?? ''
  if (host === '' || port === '') {
    throw new ProxyError(
      'config',
      'neither --kubeconfig nor --master is given, and this is not a pod: KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT are not set',
    )
  }
  const origin = 'in-cluster'
  const url = `https://${host.includes(':') ? `[${host}]` : host}:${port}`
  const server = parseServer(url, { isSecure: true, file: origin, field: 'server' })
  const file = join(dir, 'token')
  const ca = join(dir, 'ca.crt')
  const auth: Auth = { kind: 'token-file', file, token: readText(file, origin, 'token') }
  const base = { ...makePlainConnection(origin, server, env), auth }
  if (isReadable(ca)) return { ...base, ca: { field: 'ca.crt', file: ca } }
  return { ...base, warnings: [`${ca} cannot be read; only servers that the system trusts are accepted`] }
}

function makePlainConnection(origin: string, server: URL, env: NodeJS.ProcessEnv): Connection {
  return {
    origin,
    server,
    ca: undefined,
    insecure: false,
    serverName: '',
    proxy: readEnvironmentProxy(server, env),
    compression: true,
    certificate: undefined,
    auth: { kind: 'none' },
    headers: {},
    warnings: [],
  }
}

function isReadable(path: string): boolean {
  try {
    accessSync(path, constants.R_OK)
    return true
  } catch {
    return false
  }
}

// ---- A kubeconfig. ----

interface KubeconfigChoice {
  readonly path: string
  readonly context: string | undefined
  readonly master: string
}

function readKubeconfig({ path, context, master }: KubeconfigChoice, env: NodeJS.ProcessEnv): Connection {
  const { cluster, user } = findContext(KubeconfigSection.open(path), context, master !== '')
  const ca = cluster.readPem('certificate-authority')
  const insecure = cluster.readFlag('insecure-skip-tls-verify')
  if (insecure && ca !== undefined) {
    throw cluster.makeError('insecure-skip-tls-verify', 'and a certificate authority exclude each other')
  }
  const certificate = readCertificate(user)
  const isSecure = ca !== undefined || insecure || certificate !== undefined
  const server =
    master === ''
      ? parseServer(readServer(cluster), { isSecure, file: path, field: cluster.joinPath('server') })
      : parseServer(master, { isSecure, file: '--master', field: '' })
  return {
    origin: path,
    server,
    ca,
    insecure,
    // The name in the file belongs to the server of the file, not to the one on the command line.
    serverName: master === '' ? cluster.readText('tls-server-name') : '',
    proxy: readProxy(cluster) ?? readEnvironmentProxy(server, env),
    compression: !cluster.readFlag('disable-compression'),
    certificate,
    auth: readAuth(user, cluster),
    headers: readImpersonation(user),
    warnings: [],
  }
}

interface ContextParts {
  readonly cluster: KubeconfigSection
  readonly user: KubeconfigSection
}

/** Finds the cluster and the user of the given or current context. A file without a current context is enough if `--master` is given. */
function findContext(root: KubeconfigSection, given: string | undefined, hasMaster: boolean): ContextParts {
  const name = given ?? root.readText('current-context')
  if (name === '' && !hasMaster) throw root.makeError('current-context', 'is not set')
  const context = root.findEntry('contexts', 'context', name)
  const cluster = context.readText('cluster')
  const user = context.readText('user')
  return { cluster: root.findEntry('clusters', 'cluster', cluster), user: root.findEntry('users', 'user', user) }
}

function readServer(cluster: KubeconfigSection): string {
  const server = cluster.readText('server')
  if (server === '') throw cluster.makeError('server', 'is not set')
  return server
}

function readProxy(cluster: KubeconfigSection): URL | undefined {
  const url = cluster.readText('proxy-url')
  if (url === '') return undefined
  try {
    return parseProxy(url)
  } catch (error) {
    throw cluster.makeError('proxy-url', describeError(error))
  }
}

function readCertificate(user: KubeconfigSection): Connection['certificate'] {
  const cert = user.readPem('client-certificate')
  const key = user.readPem('client-key')
  if (cert === undefined && key === undefined) return undefined
  if (key === undefined) throw user.makeError('client-key', 'is not set, but a client certificate is')
  if (cert === undefined) throw user.makeError('client-certificate', 'is not set, but a client key is')
  return { cert, key }
}

function readAuth(user: KubeconfigSection, cluster: KubeconfigSection): Auth {
  const token = user.readText('token')
  const tokenFile = user.readPath('tokenFile')
  const username = user.readText('username')
  const password = user.readText('password')
  const hasPlugin = user.fields.exec !== undefined
  if (user.fields['auth-provider'] !== undefined) {
    throw user.makeError('auth-provider', 'is no longer supported by Kubernetes; use an exec plugin')
  }
  const ways = [token !== '' || tokenFile !== '', username !== '', hasPlugin]
  if (ways.filter(Boolean).length > 1) {
    throw user.makeError('', 'has more than one of token, username and exec; only one is allowed')
  }
  if (hasPlugin) return { kind: 'exec', plugin: readPlugin(user.readSection('exec'), cluster) }
  if (username !== '') return { kind: 'basic', username, password }
  if (tokenFile === '') return token === '' ? { kind: 'none' } : { kind: 'token', token }
  return { kind: 'token-file', file: tokenFile, token: token || user.readFile('tokenFile') }
}

function readPlugin(exec: KubeconfigSection, cluster: KubeconfigSection): ExecPlugin {
  const apiVersion = exec.readText('apiVersion')
  if (!/^client\.authentication\.k8s\.io\/v1(beta1)?$/.test(apiVersion)) {
    const given = JSON.stringify(apiVersion)
    throw exec.makeError('apiVersion', `must be client.authentication.k8s.io/v1 or v1beta1, is ${given}`)
  }
  const command = exec.readText('command')
  if (command === '') throw exec.makeError('command', 'is not set')
  checkInteractiveMode(exec, apiVersion.endsWith('beta1') ? 'IfAvailable' : '')
  const env = exec.readList('env').map((item) => asObject(item) ?? {})
  return {
    apiVersion,
    command: /[/\\]/.test(command) ? exec.resolvePath(command) : command,
    args: exec.readList('args').map(String),
    env: Object.fromEntries(env.map((pair) => [String(pair.name ?? ''), String(pair.value ?? '')])),
    installHint: exec.readText('installHint'),
    cluster: exec.readFlag('provideClusterInfo') ? collectClusterInfo(cluster) : undefined,
  }
}

function checkInteractiveMode(exec: KubeconfigSection, defaultMode: string): void {
  const mode = exec.readText('interactiveMode') || defaultMode
  if (mode === 'Never' || mode === 'IfAvailable') return
  const message = mode === 'Always' ? 'is Always, but a daemon has no terminal' : 'must be Never, IfAvailable or Always'
  throw exec.makeError('interactiveMode', message)
}

/** Returns what the plugin gets as `spec.cluster`. */
function collectClusterInfo(cluster: KubeconfigSection): object {
  const { fields } = cluster
  const ca = cluster.readPem('certificate-authority')
  const extensions = cluster.readList('extensions').map((item) => asObject(item) ?? {})
  return {
    server: fields.server,
    'tls-server-name': fields['tls-server-name'],
    'insecure-skip-tls-verify': fields['insecure-skip-tls-verify'],
    'certificate-authority-data': ca && Buffer.from(readPem(ca, cluster.file)).toString('base64'),
    'proxy-url': fields['proxy-url'],
    'disable-compression': fields['disable-compression'],
    config: extensions.find((item) => item.name === 'client.authentication.k8s.io/exec')?.extension,
  }
}

function readImpersonation(user: KubeconfigSection): Connection['headers'] {
  const headers: Record<string, string | string[]> = {}
  const name = user.readText('as')
  const uid = user.readText('as-uid')
  const groups = user.readList('as-groups').map(String)
  if (name !== '') headers['impersonate-user'] = name
  if (uid !== '') headers['impersonate-uid'] = uid
  if (groups.length > 0) headers['impersonate-group'] = groups
  for (const [key, values] of Object.entries(user.readSection('as-user-extra').fields)) {
    const header = `impersonate-extra-${encodeURIComponent(key.toLowerCase())}`
    headers[header] = Array.isArray(values) ? values.map(String) : String(values)
  }
  return headers
}

// ---- Both. ----

interface ServerOrigin {
  /** A server without a scheme gets https if this is true, else http. */
  readonly isSecure: boolean
  readonly file: string
  readonly field: string
}

function parseServer(text: string, { isSecure, file, field }: ServerOrigin): URL {
  const url = text.includes('://') ? text : `${isSecure ? 'https' : 'http'}://${text}`
  const parsed = URL.canParse(url) ? new URL(url) : undefined
  if (parsed === undefined || (parsed.protocol !== 'http:' && parsed.protocol !== 'https:') || parsed.hostname === '') {
    throw makeKubeconfigError(file, field, `is not a valid http or https URL: ${JSON.stringify(text)}`)
  }
  return parsed
}

function readEnvironmentProxy(server: URL, env: NodeJS.ProcessEnv): URL | undefined {
  try {
    return findEnvironmentProxy(server, env)
  } catch (error) {
    throw makeKubeconfigError('environment', 'HTTPS_PROXY', describeError(error))
  }
}

/** Finds missing and unusable files at the start, not at the first request. */
function checkCertificates({ origin, ca, certificate }: Connection): void {
  const tryUse = (source: PemSource, options: Parameters<typeof createSecureContext>[0]) => {
    try {
      createSecureContext(options)
    } catch (error) {
      const where = 'file' in source ? ` (${source.file})` : ''
      const message = `cannot be used${where}: ${error instanceof Error ? error.message : String(error)}`
      throw makeKubeconfigError(origin, source.field, message, error)
    }
  }
  if (ca !== undefined) {
    const pem = readPem(ca, origin)
    // OpenSSL accepts a bundle without certificates as an empty bundle.
    if (!pem.includes('-----BEGIN CERTIFICATE-----')) {
      throw makeKubeconfigError(origin, ca.field, 'holds no PEM certificate')
    }
    tryUse(ca, { ca: pem })
  }
  if (certificate === undefined) return
  const cert = readPem(certificate.cert, origin)
  tryUse(certificate.cert, { cert })
  tryUse(certificate.key, { cert, key: readPem(certificate.key, origin) })
}
