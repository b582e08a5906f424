import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { stringify } from 'yaml'
import { findEnvironmentProxy } from '../../src/kube/http-proxy.ts'
import { loadConnection } from '../../src/kube/kubeconfig.ts'
import { ProxyError } from '../../src/lib/errors.ts'
import { CertificateShop, type Pair } from './certificates.ts'

let dir: string
let shop: CertificateShop
let ca: Pair
let pair: Pair

beforeAll(() => {
  dir = mkdtempSync(join(tmpdir(), 'kubeconfig-'))
  shop = new CertificateShop()
  ca = shop.authority('ca')
  pair = shop.issue('client', ca, '')
})
afterAll(() => {
  shop.close()
  rmSync(dir, { recursive: true })
})

type Fields = Record<string, unknown>
const base64 = (text: string) => Buffer.from(text).toString('base64')

function load(
  cluster: Fields,
  user: Fields = {},
  more: { master?: string; env?: NodeJS.ProcessEnv; root?: Fields } = {},
) {
  const kubeconfig = join(dir, 'config')
  const document = {
    'current-context': 'ctx',
    contexts: [{ name: 'other' }, { name: 'ctx', context: { cluster: 'c1', user: 'u1' } }],
    clusters: [{ name: 'c1', cluster: { server: 'https://api:6443', ...cluster } }],
    users: [{ name: 'u1', user }],
    ...more.root,
  }
  writeFileSync(kubeconfig, stringify(document))
  return loadConnection({ kubeconfig, master: more.master ?? '', env: more.env ?? {} })
}

const failure = (run: () => unknown): string => {
  try {
    run()
  } catch (error) {
    if (!(error instanceof ProxyError)) throw error
    expect(error.code).toBe('config')
    return error.message
  }
  throw new Error('it should have complained')
}

describe('a kubeconfig', () => {
  it('needs a server, but no user', () => {
    expect(load({})).toMatchObject({
      server: new URL('https://api:6443'),
      auth: { kind: 'none' },
      ca: undefined,
      insecure: false,
    })
  })

  it('may contain certificates and keys as data', () => {
    const connection = load(
      { 'certificate-authority-data': base64(ca.cert), 'tls-server-name': 'kubernetes', 'disable-compression': true },
      {
        'client-certificate-data': base64(pair.cert),
        'client-key-data': base64(pair.key),
        as: 'jane',
        'as-groups': ['g'],
        'as-user-extra': { Why: ['x'] },
      },
    )
    expect(connection.ca).toMatchObject({ text: ca.cert })
    expect(connection.certificate).toMatchObject({ cert: { text: pair.cert }, key: { text: pair.key } })
    expect(connection).toMatchObject({ serverName: 'kubernetes', compression: false })
    expect(connection.headers).toEqual({
      'impersonate-user': 'jane',
      'impersonate-group': ['g'],
      'impersonate-extra-why': ['x'],
    })
  })

  it('may name files, relative to itself', () => {
    mkdirSync(join(dir, 'pki'), { recursive: true })
    writeFileSync(join(dir, 'pki', 'ca.pem'), ca.cert)
    writeFileSync(join(dir, 'token'), 'secret\n')
    const connection = load({ 'certificate-authority': 'pki/ca.pem' }, { tokenFile: './token', token: 'first' })
    expect(connection.ca).toMatchObject({ file: join(dir, 'pki', 'ca.pem') })
    expect(connection.auth).toEqual({ kind: 'token-file', file: join(dir, 'token'), token: 'first' })
    expect(load({}, { tokenFile: 'token' }).auth).toMatchObject({ token: 'secret\n' })
  })

  it('reads tokens and passwords', () => {
    expect(load({}, { token: 't' }).auth).toEqual({ kind: 'token', token: 't' })
    expect(load({}, { token: 12345 }).auth).toEqual({ kind: 'token', token: '12345' })
    expect(load({}, { username: 'u', password: 'p' }).auth).toEqual({ kind: 'basic', username: 'u', password: 'p' })
  })

  it('reads exec plugins', () => {
    const exec = {
      apiVersion: 'client.authentication.k8s.io/v1',
      command: './bin/plugin',
      args: ['a', 1],
      env: [{ name: 'A', value: 'b' }],
      interactiveMode: 'IfAvailable',
      provideClusterInfo: true,
      installHint: 'get it',
    }
    const extensions = [{ name: 'client.authentication.k8s.io/exec', extension: { audience: 'x' } }]
    const { auth } = load({ extensions, 'certificate-authority-data': base64(ca.cert) }, { exec })
    expect(auth).toEqual({
      kind: 'exec',
      plugin: {
        apiVersion: 'client.authentication.k8s.io/v1',
        command: join(dir, 'bin', 'plugin'),
        args: ['a', '1'],
        env: { A: 'b' },
        installHint: 'get it',
        cluster: expect.objectContaining({
          server: 'https://api:6443',
          'certificate-authority-data': base64(ca.cert),
          config: { audience: 'x' },
        }),
      },
    })
    const beta = { apiVersion: 'client.authentication.k8s.io/v1beta1', command: 'aws' }
    expect(load({}, { exec: beta }).auth).toMatchObject({ plugin: { command: 'aws', cluster: undefined } })
  })

  it('is overridden by --master, which also discards the TLS name of the other server', () => {
    const connection = load(
      { 'tls-server-name': 'x', 'insecure-skip-tls-verify': true },
      { token: 't' },
      { master: 'other:8443' },
    )
    expect(connection).toMatchObject({ server: new URL('https://other:8443'), serverName: '', auth: { kind: 'token' } })
    expect(load({}, {}, { master: 'plain:8080' }).server.href).toBe('http://plain:8080/')
    expect(load({}, {}, { master: 'http://m', root: { 'current-context': '' } }).server.href).toBe('http://m/')
  })

  it('may name a proxy; otherwise the environment names it', () => {
    expect(load({ 'proxy-url': 'http://p:3128' }).proxy?.host).toBe('p:3128')
    expect(load({}, {}, { env: { HTTPS_PROXY: 'http://e:1' } }).proxy?.host).toBe('e:1')
    expect(load({ 'proxy-url': 'http://p:3128' }, {}, { env: { HTTPS_PROXY: 'http://e:1' } }).proxy?.host).toBe(
      'p:3128',
    )
  })

  it.each<[string, Fields, Fields, string]>([
    ['no server', { server: '' }, {}, 'clusters[c1].cluster.server: is not set'],
    [
      'a server with another scheme',
      { server: 'ftp://x' },
      {},
      'clusters[c1].cluster.server: is not a valid http or https URL: "ftp://x"',
    ],
    ['a wrong type', { server: ['x'] }, {}, 'clusters[c1].cluster.server: must be a string'],
    [
      'socks',
      { 'proxy-url': 'socks5://p' },
      {},
      'clusters[c1].cluster.proxy-url: only http and https proxies are supported, not socks5',
    ],
    [
      'no CA file',
      { 'certificate-authority': 'none.pem' },
      {},
      'clusters[c1].cluster.certificate-authority: cannot read',
    ],
    [
      'a CA without a certificate',
      { 'certificate-authority-data': base64('x') },
      {},
      'clusters[c1].cluster.certificate-authority-data: holds no PEM certificate',
    ],
    ['no key', {}, { 'client-certificate-data': 'eA==' }, 'users[u1].user.client-key: is not set'],
    ['no certificate', {}, { 'client-key-data': 'eA==' }, 'users[u1].user.client-certificate: is not set'],
    [
      'an invalid certificate',
      {},
      { 'client-certificate-data': base64('x'), 'client-key-data': base64('x') },
      'users[u1].user.client-certificate-data: cannot be used',
    ],
    ['no token file', {}, { tokenFile: 'none' }, 'users[u1].user.tokenFile: cannot read'],
    ['two kinds of credentials', {}, { token: 't', username: 'u' }, 'users[u1].user: has more than one of'],
    [
      'an auth provider',
      {},
      { 'auth-provider': { name: 'gcp' } },
      'users[u1].user.auth-provider: is no longer supported',
    ],
    [
      'an unknown plugin version',
      {},
      { exec: { apiVersion: 'v0', command: 'x' } },
      'users[u1].user.exec.apiVersion: must be',
    ],
    [
      'no plugin',
      {},
      { exec: { apiVersion: 'client.authentication.k8s.io/v1' } },
      'users[u1].user.exec.command: is not set',
    ],
    [
      'no mode',
      {},
      { exec: { apiVersion: 'client.authentication.k8s.io/v1', command: 'x' } },
      'users[u1].user.exec.interactiveMode: must be',
    ],
    [
      'a terminal',
      {},
      { exec: { apiVersion: 'client.authentication.k8s.io/v1', command: 'x', interactiveMode: 'Always' } },
      'a daemon has no terminal',
    ],
  ])('is refused with file and field: %s', (_, cluster, user, message) => {
    const text = failure(() => load(cluster, user))
    expect(text.startsWith(join(dir, 'config'))).toBe(true)
    expect(text).toContain(message)
  })

  it('is refused if a key does not belong to its certificate', () => {
    const user = { 'client-certificate-data': base64(pair.cert), 'client-key-data': base64(ca.key) }
    expect(failure(() => load({}, user))).toContain('users[u1].user.client-key-data: cannot be used')
    const insecure = { 'insecure-skip-tls-verify': true, 'certificate-authority-data': base64(ca.cert) }
    expect(failure(() => load(insecure))).toContain('exclude each other')
  })

  it('is refused if a part of its structure is missing', () => {
    expect(failure(() => load({}, {}, { root: { 'current-context': '' } }))).toContain('current-context: is not set')
    expect(failure(() => load({}, {}, { root: { 'current-context': 'x' } }))).toContain(
      'contexts: has no entry named "x"',
    )
    expect(failure(() => load({}, {}, { root: { clusters: [] } }))).toContain('clusters: has no entry named "c1"')
    expect(failure(() => load({}, {}, { root: { users: null } }))).toContain('users: has no entry named "u1"')
    expect(failure(() => loadConnection({ kubeconfig: join(dir, 'none'), master: '', env: {} }))).toContain(
      'no such file',
    )
    writeFileSync(join(dir, 'bad'), 'a: [b\nc: d')
    expect(failure(() => loadConnection({ kubeconfig: join(dir, 'bad'), master: '', env: {} }))).toMatch(
      /bad: is not valid YAML: .* at line 2/,
    )
    writeFileSync(join(dir, 'bad'), '')
    expect(failure(() => loadConnection({ kubeconfig: join(dir, 'bad'), master: '', env: {} }))).toContain('is empty')
  })
})

describe('in a pod', () => {
  const env = { KUBERNETES_SERVICE_HOST: 'fd00::1', KUBERNETES_SERVICE_PORT: '443' }

  it('uses the service account', () => {
    const mount = mkdtempSync(join(dir, 'sa-'))
    writeFileSync(join(mount, 'token'), 'tok')
    const inPod = () => loadConnection({ kubeconfig: '', master: '', env, serviceAccountDir: mount })
    expect(inPod().warnings).toHaveLength(1)
    writeFileSync(join(mount, 'ca.crt'), ca.cert)
    expect(inPod()).toMatchObject({
      origin: 'in-cluster',
      server: new URL('https://[fd00::1]:443'),
      auth: { kind: 'token-file', file: join(mount, 'token'), token: 'tok' },
      ca: { file: join(mount, 'ca.crt') },
      warnings: [],
    })
    writeFileSync(join(mount, 'ca.crt'), 'x')
    expect(failure(inPod)).toContain('ca.crt: holds no PEM certificate')
  })

  it('names what is missing', () => {
    expect(failure(() => loadConnection({ kubeconfig: '', master: '', env: {} }))).toContain('KUBERNETES_SERVICE_HOST')
    expect(
      failure(() => loadConnection({ kubeconfig: '', master: '', env, serviceAccountDir: `${dir}/nowhere` })),
    ).toContain('cannot read')
  })

  it('uses --master alone without credentials', () => {
    expect(loadConnection({ kubeconfig: '', master: 'http://127.0.0.1:8080', env })).toMatchObject({
      auth: { kind: 'none' },
    })
  })
})

describe('the environment’s proxy', () => {
  const chosen = (server: string, env: NodeJS.ProcessEnv) => findEnvironmentProxy(new URL(server), env)?.host

  it('depends on the scheme of the server, and needs no scheme itself', () => {
    const env = { HTTPS_PROXY: 'secure:1', http_proxy: 'http://plain:2' }
    expect(chosen('https://api', env)).toBe('secure:1')
    expect(chosen('http://api', env)).toBe('plain:2')
    expect(chosen('https://api', {})).toBeUndefined()
  })

  it.each([
    ['https://api.example.com', '.example.com', true],
    ['https://api.example.com', 'example.com', true],
    ['https://api.example.com', '*.example.com', true],
    ['https://badexample.com', 'example.com', false],
    ['https://api.example.com', 'api.example.com:6443', false],
    ['https://api.example.com:6443', 'api.example.com:6443', true],
    ['https://10.96.0.1', '10.96.0.0/12', true],
    ['https://10.96.0.1', 'foo, 10.96.0.1', true],
    ['https://10.96.0.1', '10.0.0.0/16', false],
    ['https://[fd00::1]', 'fd00::/8', true],
    ['https://x', '*', true],
    ['https://localhost', '', true],
    ['https://127.0.0.9', '', true],
  ])('NO_PROXY: %s by %s', (server, noProxy, bypassed) => {
    expect(chosen(server, { HTTPS_PROXY: 'p:1', NO_PROXY: noProxy })).toBe(bypassed ? undefined : 'p:1')
  })
})
