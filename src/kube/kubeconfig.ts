// Kubeconfig or in-cluster files to a connection; every complaint names the file and the field.

import { accessSync, constants, readFileSync } from 'node:fs'
import { dirname, isAbsolute, join, resolve } from 'node:path'
import { createSecureContext } from 'node:tls'
import { parseDocument } from 'yaml'
import { ProxyError } from '../lib/errors.ts'
import type { Auth, Connection, ExecPlugin, Source } from './connection.ts'
import { parseProxy, proxyFromEnvironment } from './http-proxy.ts'
import { asObject, type JsonObject } from './reflect/fields.ts'

export interface ConnectionOptions {
  readonly kubeconfig: string
  /** `--master`: replaces the server of the kubeconfig. */
  readonly master: string
  readonly env?: NodeJS.ProcessEnv
  /** Where the service account's token and CA are mounted. */
  readonly serviceAccountDir?: string
}

const serviceAccountDir = '/var/run/secrets/kubernetes.io/serviceaccount'

/** The KUBECONFIG variable is not looked at: kube-proxy knows only its flags and the pod it runs in. */
export function loadConnection(options: ConnectionOptions): Connection {
  const env = options.env ?? process.env
  const connection =
    options.kubeconfig !== ''
      ? fromFile(options.kubeconfig, options.master, env)
      : options.master !== ''
        ? plain({ origin: '--master', server: parseServer(options.master, false, '--master', ''), env })
        : inCluster(env, options.serviceAccountDir)
  checkMaterial(connection)
  return connection
}

function inCluster(env: NodeJS.ProcessEnv, dir = serviceAccountDir): Connection {
  const host = env.KUBERNETES_SERVICE_HOST ?? ''
  const port = env.KUBERNETES_SERVICE_PORT ?? ''
  if (host === '' || port === '') {
    throw new ProxyError(
      'config',
      'no --kubeconfig and no --master is given, and this is no pod: KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT are not set',
    )
  }
  const origin = 'in-cluster'
  const server = parseServer(`https://${host.includes(':') ? `[${host}]` : host}:${port}`, true, origin, 'server')
  const file = join(dir, 'token')
  const ca = join(dir, 'ca.crt')
  const token = readText(file, origin, 'token')
  const base = plain({ origin, server, env })
  const auth: Auth = { kind: 'token-file', file, token }
  if (readable(ca)) return { ...base, auth, ca: { field: 'ca.crt', file: ca } }
  return { ...base, auth, warnings: [`${ca} cannot be read; only servers the system trusts will be believed`] }
}

function plain(given: { origin: string; server: URL; env: NodeJS.ProcessEnv }): Connection {
  return {
    origin: given.origin,
    server: given.server,
    ca: undefined,
    insecure: false,
    serverName: '',
    proxy: environmentProxy(given),
    compression: true,
    certificate: undefined,
    auth: { kind: 'none' },
    headers: {},
    warnings: [],
  }
}

function fromFile(path: string, master: string, env: NodeJS.ProcessEnv): Connection {
  const file = new Kubeconfig(path)
  const contextName = file.text(file.root, 'current-context', 'current-context')
  const missing = contextName === '' && master !== ''
  if (contextName === '' && !missing) throw file.wrong('current-context', 'is not set')
  const context = missing ? {} : file.named('contexts', 'context', contextName)
  const clusterName = file.text(context, 'cluster', `contexts[${contextName}].context.cluster`)
  const userName = file.text(context, 'user', `contexts[${contextName}].context.user`)
  const cluster = clusterName === '' ? {} : file.named('clusters', 'cluster', clusterName)
  const user = userName === '' ? {} : file.named('users', 'user', userName)
  const at = `clusters[${clusterName}].cluster`

  const ca = file.source(cluster, 'certificate-authority', at)
  const insecure = file.flag(cluster, 'insecure-skip-tls-verify', at)
  if (insecure && ca !== undefined)
    throw file.wrong(`${at}.insecure-skip-tls-verify`, 'and a certificate authority exclude each other')
  const certificate = readCertificate(file, user, `users[${userName}].user`)
  const secure = ca !== undefined || insecure || certificate !== undefined
  const given = file.text(cluster, 'server', `${at}.server`)
  if (master === '' && given === '') throw file.wrong(`${at}.server`, 'is not set')
  const server = parseServer(
    master || given,
    secure,
    master === '' ? path : '--master',
    master === '' ? `${at}.server` : '',
  )
  const proxyUrl = file.text(cluster, 'proxy-url', `${at}.proxy-url`)
  return {
    origin: path,
    server,
    ca,
    insecure,
    // A server given on the command line is not the one the name in the file was meant for.
    serverName: master === '' ? file.text(cluster, 'tls-server-name', `${at}.tls-server-name`) : '',
    proxy:
      proxyUrl === '' ? environmentProxy({ server, env }) : file.attempt(`${at}.proxy-url`, () => parseProxy(proxyUrl)),
    compression: !file.flag(cluster, 'disable-compression', at),
    certificate,
    auth: readAuth(file, user, `users[${userName}].user`, cluster),
    headers: readImpersonation(file, user, `users[${userName}].user`),
    warnings: [],
  }
}

function readCertificate(file: Kubeconfig, user: JsonObject, at: string): Connection['certificate'] {
  const cert = file.source(user, 'client-certificate', at)
  const key = file.source(user, 'client-key', at)
  if (cert === undefined && key === undefined) return undefined
  if (key === undefined) throw file.wrong(`${at}.client-key`, 'is not set, but a client certificate is')
  if (cert === undefined) throw file.wrong(`${at}.client-certificate`, 'is not set, but a client key is')
  return { cert, key }
}

function readAuth(file: Kubeconfig, user: JsonObject, at: string, cluster: JsonObject): Auth {
  const token = file.text(user, 'token', `${at}.token`)
  const tokenFile = file.path(file.text(user, 'tokenFile', `${at}.tokenFile`))
  const username = file.text(user, 'username', `${at}.username`)
  const password = file.text(user, 'password', `${at}.password`)
  if (user['auth-provider'] !== undefined) {
    throw file.wrong(`${at}.auth-provider`, 'is no longer supported by Kubernetes; use an exec plugin')
  }
  const bearer = token !== '' || tokenFile !== ''
  if (Number(bearer) + Number(username !== '') + Number(user.exec !== undefined) > 1) {
    throw file.wrong(at, 'has more than one of token, username and exec; only one is allowed')
  }
  if (user.exec !== undefined) {
    return { kind: 'exec', plugin: readPlugin(file, file.section(user, 'exec', `${at}.exec`), `${at}.exec`, cluster) }
  }
  if (username !== '') return { kind: 'basic', username, password }
  if (tokenFile === '') return token === '' ? { kind: 'none' } : { kind: 'token', token }
  return { kind: 'token-file', file: tokenFile, token: token || readText(tokenFile, file.name, `${at}.tokenFile`) }
}

function readPlugin(file: Kubeconfig, exec: JsonObject, at: string, cluster: JsonObject): ExecPlugin {
  const apiVersion = file.text(exec, 'apiVersion', `${at}.apiVersion`)
  if (!/^client\.authentication\.k8s\.io\/v1(beta1)?$/.test(apiVersion)) {
    throw file.wrong(
      `${at}.apiVersion`,
      `must be client.authentication.k8s.io/v1 or v1beta1, is ${JSON.stringify(apiVersion)}`,
    )
  }
  const command = file.text(exec, 'command', `${at}.command`)
  if (command === '') throw file.wrong(`${at}.command`, 'is not set')
  const mode =
    file.text(exec, 'interactiveMode', `${at}.interactiveMode`) || (apiVersion.endsWith('beta1') ? 'IfAvailable' : '')
  if (mode !== 'Never' && mode !== 'IfAvailable') {
    const why = mode === 'Always' ? 'is Always, but a daemon has no terminal' : 'must be Never, IfAvailable or Always'
    throw file.wrong(`${at}.interactiveMode`, why)
  }
  const env = file.list(exec, 'env', `${at}.env`).map((item) => asObject(item) ?? {})
  return {
    apiVersion,
    command: /[/\\]/.test(command) ? file.path(command) : command,
    args: file.list(exec, 'args', `${at}.args`).map(String),
    env: Object.fromEntries(env.map((pair) => [String(pair.name ?? ''), String(pair.value ?? '')])),
    installHint: file.text(exec, 'installHint', `${at}.installHint`),
    cluster: file.flag(exec, 'provideClusterInfo', at) ? clusterOf(file, cluster) : undefined,
  }
}

function clusterOf(file: Kubeconfig, cluster: JsonObject): object {
  const ca = file.source(cluster, 'certificate-authority', 'cluster')
  const pem = ca === undefined ? undefined : 'text' in ca ? ca.text : readText(ca.file, file.name, ca.field)
  const extensions = file.list(cluster, 'extensions', 'cluster.extensions').map((item) => asObject(item) ?? {})
  return {
    server: cluster.server,
    'tls-server-name': cluster['tls-server-name'],
    'insecure-skip-tls-verify': cluster['insecure-skip-tls-verify'],
    'certificate-authority-data': pem === undefined ? undefined : Buffer.from(pem).toString('base64'),
    'proxy-url': cluster['proxy-url'],
    'disable-compression': cluster['disable-compression'],
    config: extensions.find((item) => item.name === 'client.authentication.k8s.io/exec')?.extension,
  }
}

function readImpersonation(file: Kubeconfig, user: JsonObject, at: string): Connection['headers'] {
  const headers: Record<string, string | string[]> = {}
  const name = file.text(user, 'as', `${at}.as`)
  const uid = file.text(user, 'as-uid', `${at}.as-uid`)
  const groups = file.list(user, 'as-groups', `${at}.as-groups`).map(String)
  if (name !== '') headers['impersonate-user'] = name
  if (uid !== '') headers['impersonate-uid'] = uid
  if (groups.length > 0) headers['impersonate-group'] = groups
  for (const [key, values] of Object.entries(file.section(user, 'as-user-extra', `${at}.as-user-extra`))) {
    headers[`impersonate-extra-${encodeURIComponent(key.toLowerCase())}`] = Array.isArray(values)
      ? values.map(String)
      : String(values)
  }
  return headers
}

/** One file, with readers that complain in its name. */
class Kubeconfig {
  readonly name: string
  readonly root: JsonObject
  readonly #dir: string

  constructor(name: string) {
    this.name = name
    this.#dir = dirname(resolve(name))
    const document = parseDocument(readText(name, name, ''), { prettyErrors: true })
    const broken = document.errors[0]
    if (broken !== undefined) throw this.wrong('', `is no YAML: ${broken.message.split('\n')[0]}`)
    const root = asObject(document.toJS())
    if (root === undefined) throw this.wrong('', 'is empty or no kubeconfig')
    this.root = root
  }

  wrong(field: string, message: string, cause?: unknown): ProxyError {
    return configError(this.name, field, message, cause)
  }

  attempt<T>(field: string, make: () => T): T {
    try {
      return make()
    } catch (error) {
      throw this.wrong(field, error instanceof Error ? error.message : String(error))
    }
  }

  text(from: JsonObject, name: string, field: string): string {
    const value = from[name] ?? ''
    if (typeof value === 'string') return value
    // YAML reads an unquoted token or name of digits as a number.
    if (typeof value === 'number') return String(value)
    throw this.wrong(field, 'must be a string')
  }

  flag(from: JsonObject, name: string, at: string): boolean {
    const value = from[name] ?? false
    if (typeof value !== 'boolean') throw this.wrong(`${at}.${name}`, 'must be true or false')
    return value
  }

  list(from: JsonObject, name: string, field: string): readonly unknown[] {
    const value = from[name] ?? []
    if (!Array.isArray(value)) throw this.wrong(field, 'must be a list')
    return value
  }

  section(from: JsonObject, name: string, field: string): JsonObject {
    const value = asObject(from[name] ?? {})
    if (value === undefined) throw this.wrong(field, 'must be an object')
    return value
  }

  /** The entry of `clusters`, `users` or `contexts` with a name. */
  named(list: string, inner: string, name: string): JsonObject {
    const entry = this.list(this.root, list, list).find((item) => asObject(item)?.name === name)
    if (entry === undefined) throw this.wrong(list, `has no entry named ${JSON.stringify(name)}`)
    return this.section(entry as JsonObject, inner, `${list}[${name}].${inner}`)
  }

  /** Relative paths are relative to the kubeconfig, not to the working directory. */
  path(path: string): string {
    return path === '' || isAbsolute(path) ? path : resolve(this.#dir, path)
  }

  /** `name-data` (base64) wins over `name` (a file). */
  source(from: JsonObject, name: string, at: string): Source | undefined {
    const encoded = this.text(from, `${name}-data`, `${at}.${name}-data`)
    if (encoded !== '') return { field: `${at}.${name}-data`, text: Buffer.from(encoded, 'base64').toString('latin1') }
    const file = this.path(this.text(from, name, `${at}.${name}`))
    return file === '' ? undefined : { field: `${at}.${name}`, file }
  }
}

function parseServer(text: string, secure: boolean, file: string, field: string): URL {
  const url = text.includes('://') ? text : `${secure ? 'https' : 'http'}://${text}`
  const parsed = URL.canParse(url) ? new URL(url) : undefined
  if (parsed === undefined || (parsed.protocol !== 'http:' && parsed.protocol !== 'https:') || parsed.hostname === '') {
    throw configError(file, field, `is no http or https URL: ${JSON.stringify(text)}`)
  }
  return parsed
}

function environmentProxy({ server, env }: { server: URL; env: NodeJS.ProcessEnv }): URL | undefined {
  try {
    return proxyFromEnvironment(server, env)
  } catch (error) {
    throw configError('environment', 'HTTPS_PROXY', error instanceof Error ? error.message : String(error))
  }
}

/** Finds out at start, not at the first request, that a file is missing or holds something else. */
function checkMaterial({ origin, ca, certificate }: Connection): void {
  const pem = (source: Source) => ('text' in source ? source.text : readText(source.file, origin, source.field))
  const attempt = (source: Source, options: Parameters<typeof createSecureContext>[0]) => {
    try {
      createSecureContext(options)
    } catch (error) {
      const where = 'file' in source ? ` (${source.file})` : ''
      const why = error instanceof Error ? error.message : String(error)
      throw configError(origin, source.field, `cannot be used${where}: ${why}`, error)
    }
  }
  if (ca !== undefined) {
    // OpenSSL takes a bundle without certificates for an empty one.
    if (!pem(ca).includes('-----BEGIN CERTIFICATE-----'))
      throw configError(origin, ca.field, 'holds no PEM certificate')
    attempt(ca, { ca: pem(ca) })
  }
  if (certificate === undefined) return
  attempt(certificate.cert, { cert: pem(certificate.cert) })
  attempt(certificate.key, { cert: pem(certificate.cert), key: pem(certificate.key) })
}

function readText(path: string, file: string, field: string): string {
  try {
    return readFileSync(path, 'utf8')
  } catch (error) {
    const code = (error as NodeJS.ErrnoException).code
    // The system's own message would only say the same again.
    const what = path === file ? 'cannot be read' : `cannot read ${path}`
    throw configError(file, field, `${what}: ${code === 'ENOENT' ? 'no such file' : code}`)
  }
}

function readable(path: string): boolean {
  try {
    accessSync(path, constants.R_OK)
    return true
  } catch {
    return false
  }
}

function configError(file: string, field: string, message: string, cause?: unknown): ProxyError {
  const text = [file, field, message].filter((part) => part !== '').join(': ')
  return new ProxyError('config', text, { cause, fields: { file, field } })
}
