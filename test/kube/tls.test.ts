import { copyFileSync, writeFileSync } from 'node:fs'
import { createServer, type IncomingMessage } from 'node:http'
import { type AddressInfo, connect } from 'node:net'
import { join } from 'node:path'
import type { TLSSocket } from 'node:tls'
import { afterAll, afterEach, beforeAll, describe, expect, it } from 'vitest'
import type { Connection } from '../../src/kube/connection.ts'
import { DialedAddresses } from '../../src/kube/dialed-addresses.ts'
import { loadConnection } from '../../src/kube/kubeconfig.ts'
import { ProxyError } from '../../src/lib/errors.ts'
import { systemClock } from '../../src/lib/time.ts'
import type { SocketAddress } from '../../src/model/types.ts'
import { fastClock } from '../support/fast-clock.ts'
import { CertificateShop, type Pair } from './certificates.ts'
import { type Answer, clientTo, connectionTo, json, lines, ScriptServer } from './script-server.ts'

let shop: CertificateShop
let ca: Pair
let otherCa: Pair
let serverPair: Pair
let clientPair: Pair
const cleanups: (() => unknown)[] = []

beforeAll(() => {
  shop = new CertificateShop()
  ca = shop.authority('ca')
  otherCa = shop.authority('other-ca')
  serverPair = shop.issue('server', ca, 'IP:127.0.0.1,DNS:kubernetes.default')
  clientPair = shop.issue('client', ca, '')
})
afterAll(() => shop.close())
afterEach(async () => {
  for (const cleanup of cleanups.splice(0).reverse()) await cleanup()
})

/** Answers with the name in the client certificate. */
const whoAreYou: Answer = (response, seen) => {
  const subject = (seen.raw.socket as TLSSocket).getPeerCertificate().subject
  json({ you: subject?.CN ?? 'anonymous' })(response, seen)
}

async function serve(
  pair = serverPair,
  answer: Answer | readonly Answer[] = whoAreYou,
  clientCa = ca,
): Promise<ScriptServer> {
  const server = await new ScriptServer(answer, {
    ...tlsOptions(pair),
    requestCert: true,
    rejectUnauthorized: false,
    ca: clientCa.cert,
  }).start()
  cleanups.push(() => server.stop())
  return server
}

const tlsOptions = (pair: Pair) => ({ cert: pair.cert, key: pair.key })
const text = (value: string) => ({ field: 'test', text: value })
const file = (value: string) => ({ field: 'test', file: value })

function open(url: string, more: Partial<Connection>, clock = fastClock(1)) {
  const client = clientTo(connectionTo(url, more), clock)
  cleanups.push(() => client.close())
  return client
}

const ask = async (client: ReturnType<typeof open>) => (await client.request({ path: '/' })).json
const codeOf = (client: ReturnType<typeof open>) =>
  client.request({ path: '/' }).then(
    () => 'no error',
    (error) => (error instanceof ProxyError ? `${error.code}: ${error.message}` : `not ours: ${error}`),
  )

describe('TLS', () => {
  it('accepts a server whose certificate the CA signed', async () => {
    const server = await serve()
    expect(await ask(open(server.url, { ca: text(ca.cert) }))).toEqual({ you: 'anonymous' })
  })

  it('refuses a server of another CA, and one that only the system could trust', async () => {
    const server = await serve()
    expect(await codeOf(open(server.url, { ca: text(otherCa.cert) }))).toMatch(
      /^tls: GET https:.*(unable to|self.signed)/i,
    )
    expect(await codeOf(open(server.url, {}))).toMatch(/^tls: /)
    expect(server.seen).toHaveLength(0)
  })

  it('accepts any server without verification', async () => {
    const server = await serve()
    expect(await ask(open(server.url, { insecure: true }))).toEqual({ you: 'anonymous' })
  })

  it('refuses a certificate for another name, unless the kubeconfig expects that name', async () => {
    const server = await serve(shop.issue('named', ca, 'DNS:kubernetes.default'))
    expect(await codeOf(open(server.url, { ca: text(ca.cert) }))).toMatch(/^tls: .*IP: 127\.0\.0\.1 is not in the cert/)
    expect(await ask(open(server.url, { ca: text(ca.cert), serverName: 'kubernetes.default' }))).toEqual({
      you: 'anonymous',
    })
    expect(await codeOf(open(server.url, { ca: text(ca.cert), serverName: 'elsewhere' }))).toMatch(/^tls: /)
    expect(await codeOf(open(server.url, { ca: text(ca.cert), serverName: '10.0.0.1' }))).toMatch(/^tls: /)
  })

  it('accepts an intermediate CA of the bundle as a root, as Go does', async () => {
    const middle = shop.intermediate('middle', ca)
    const server = await serve(shop.issue('below', middle, 'IP:127.0.0.1'))
    expect(await ask(open(server.url, { ca: text(middle.cert) }))).toEqual({ you: 'anonymous' })
  })

  it('sends its client certificate', async () => {
    const server = await serve()
    const certificate = { cert: text(clientPair.cert), key: text(clientPair.key) }
    expect(await ask(open(server.url, { ca: text(ca.cert), certificate }))).toEqual({ you: 'client' })
  })

  it('reports that the server requires a certificate', async () => {
    const server = await new ScriptServer(whoAreYou, {
      ...tlsOptions(serverPair),
      requestCert: true,
      ca: ca.cert,
    }).start()
    cleanups.push(() => server.stop())
    expect(await codeOf(open(server.url, { ca: text(ca.cert) }))).toMatch(/^(tls|connection): /)
  })

  it('uses rotated files: the CA, the certificate and its key', async () => {
    const [caFile, certFile, keyFile] = ['live-ca', 'live-cert', 'live-key'].map((name) => join(shop.dir, name)) as [
      string,
      string,
      string,
    ]
    copyFileSync(ca.certFile, caFile)
    copyFileSync(clientPair.certFile, certFile)
    copyFileSync(clientPair.keyFile, keyFile)
    let at = 0
    const clock = { ...fastClock(1), monotonic: () => at }
    const server = await serve()
    const client = open(
      server.url,
      { ca: file(caFile), certificate: { cert: file(certFile), key: file(keyFile) } },
      clock,
    )
    expect(await ask(client)).toEqual({ you: 'client' })

    const renamed = shop.issue('client-two', ca, '')
    copyFileSync(renamed.certFile, certFile)
    at += 61_000
    // The key has not been replaced yet: the pair does not match, so the old pair stays in use.
    expect(await ask(client)).toEqual({ you: 'client' })
    copyFileSync(renamed.keyFile, keyFile)
    at += 61_000
    expect(await ask(client)).toEqual({ you: 'client-two' })

    // The server changes its CA; the first failure makes the client read the file again.
    const moved = await serve(shop.issue('server-two', otherCa, 'IP:127.0.0.1'))
    const second = open(moved.url, { ca: file(caFile) }, clock)
    expect(await codeOf(second)).toMatch(/^tls: /)
    copyFileSync(otherCa.certFile, caFile)
    expect(await ask(second)).toEqual({ you: 'anonymous' })
  })

  it('keeps a running watch while certificates rotate', async () => {
    const caFile = join(shop.dir, 'rotating-ca')
    copyFileSync(ca.certFile, caFile)
    let at = 0
    const server = await serve(serverPair, [lines(['a\n'], 'open'), json({})])
    const client = open(server.url, { ca: file(caFile) }, { ...fastClock(1), monotonic: () => at })
    const stream = await client.stream({ path: '/' })
    expect((await stream.next()).value).toEqual(['a'])
    writeFileSync(caFile, `${ca.cert}${otherCa.cert}`)
    at += 61_000
    await client.request({ path: '/' })
    const pending = stream.next()
    const raced = await Promise.race([
      pending.then(
        () => 'broken',
        () => 'broken',
      ),
      new Promise((r) => setTimeout(() => r('alive'), 50)),
    ])
    expect(raced).toBe('alive')
    client.close()
    await pending.catch(() => {})
  })

  it('uses the certificate of an exec plugin', async () => {
    const command = join(shop.dir, 'plugin')
    const status = { clientCertificateData: clientPair.cert, clientKeyData: clientPair.key }
    const credential = JSON.stringify({ kind: 'ExecCredential', apiVersion: 'client.authentication.k8s.io/v1', status })
    writeFileSync(join(shop.dir, 'credential'), credential)
    writeFileSync(command, `#!/bin/sh\ncat ${join(shop.dir, 'credential')}\n`, { mode: 0o755 })
    const plugin = {
      apiVersion: 'client.authentication.k8s.io/v1',
      command,
      args: [],
      env: {},
      installHint: '',
      cluster: undefined,
    }
    const server = await serve()
    const client = open(server.url, { ca: text(ca.cert), auth: { kind: 'exec', plugin } })
    expect(await ask(client)).toEqual({ you: 'client' })
    expect(await ask(client)).toEqual({ you: 'client' })
    expect(new Set(server.seen.map((seen) => seen.raw.socket.remotePort)).size).toBe(1)
  })

  it('does all of this from a kubeconfig', async () => {
    const server = await serve()
    const path = join(shop.dir, 'kubeconfig')
    writeFileSync(
      path,
      `
current-context: a
contexts: [{ name: a, context: { cluster: c, user: u } }]
clusters: [{ name: c, cluster: { server: "${server.url}", certificate-authority: ca.pem } }]
users: [{ name: u, user: { client-certificate: client.pem.signed, client-key: client.key } }]
`,
    )
    const client = clientTo(loadConnection({ kubeconfig: path, master: '', env: {} }))
    cleanups.push(() => client.close())
    expect(await ask(client)).toEqual({ you: 'client' })
  })
})

describe('proxies', () => {
  async function proxy(allow: (request: IncomingMessage) => boolean) {
    const asked: string[] = []
    const server = createServer((request, response) => {
      asked.push(`${request.method} ${request.url}`)
      response.end('{"by":"proxy"}')
    })
    server.on('connect', (request, socket, head) => {
      asked.push(`CONNECT ${request.url}`)
      if (!allow(request)) return void socket.end('HTTP/1.1 407 Proxy Authentication Required\r\n\r\n')
      const [host, port] = (request.url as string).split(':') as [string, string]
      const onward = connect(Number(port), host, () => {
        socket.write('HTTP/1.1 200 OK\r\n\r\n')
        onward.write(head)
        onward.pipe(socket)
        socket.pipe(onward)
      })
      socket.on('error', () => onward.destroy())
      onward.on('error', () => socket.destroy())
    })
    await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
    cleanups.push(() => {
      server.closeAllConnections()
      return new Promise((resolve) => server.close(resolve))
    })
    return { asked, url: new URL(`http://user:p%40ss@127.0.0.1:${(server.address() as AddressInfo).port}`) }
  }

  it('tunnels to the server, which is still verified', async () => {
    const { asked, url } = await proxy(
      (request) => request.headers['proxy-authorization'] === `Basic ${btoa('user:p@ss')}`,
    )
    const server = await serve()
    const addresses = new DialedAddresses(systemClock)
    let dialed: readonly SocketAddress[] = []
    addresses.subscribe((list) => {
      dialed = list
    })
    const connection = connectionTo(server.url, { ca: text(ca.cert), proxy: url })
    const client = clientTo(connection, fastClock(1), { dialed: addresses })
    cleanups.push(() => client.close())
    expect(await ask(client)).toEqual({ you: 'anonymous' })
    expect(await ask(client)).toEqual({ you: 'anonymous' })
    expect(asked).toEqual([`CONNECT 127.0.0.1:${server.port}`])
    expect(dialed).toEqual([{ ip: '127.0.0.1', port: Number(url.port) }])
    expect(await codeOf(open(server.url, { ca: text(otherCa.cert), proxy: url }))).toMatch(/^tls: /)
    client.close()
  })

  it('reports that the proxy refused or cannot be reached', async () => {
    const { url } = await proxy(() => false)
    expect(await codeOf(open('https://127.0.0.1:1', { insecure: true, proxy: url }))).toMatch(
      /^connection: .*it answered 407/,
    )
    const gone = new URL('http://127.0.0.1:1')
    expect(await codeOf(open('https://127.0.0.1:1', { insecure: true, proxy: gone }))).toMatch(
      /^connection: proxy 127.0.0.1:1 did not/,
    )
  })

  it('sends requests for plain http servers through the proxy', async () => {
    const { asked, url } = await proxy(() => true)
    expect(await ask(open('http://api.example', { proxy: url }))).toEqual({ by: 'proxy' })
    expect(asked).toEqual(['GET http://api.example/'])
  })
})
