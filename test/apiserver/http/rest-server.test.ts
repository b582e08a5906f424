// Checks the API server's listener against floods, clients without a token, and pages in a browser.

import { chmodSync, chownSync, mkdirSync, symlinkSync, writeFileSync } from 'node:fs'
import { request } from 'node:http'
import { join } from 'node:path'
import { connect } from 'node:tls'
import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import type { ApiServer } from '../../../src/apiserver/start.ts'
import { hold } from '../../http/http-probe.ts'
import { ask, folder, services, start } from '../test-server.ts'

const closers: (() => unknown)[] = []
afterEach(async () => {
  for (const close of closers.splice(0).reverse()) await close()
})

async function startServer(options: Parameters<typeof start>[0] = {}): Promise<ApiServer> {
  const server = await start(options)
  closers.push(() => server.close())
  return server
}

describe('a flood', () => {
  it('of connections without a handshake does not keep clients out', { timeout: 60_000 }, async () => {
    const server = await startServer({ maxConnections: 500 })
    const held = await hold({ port: server.port, count: 1_200 })
    closers.push(() => held.release())
    for (let i = 0; i < 5; i++) expect((await ask(server, { path: services })).status).toBe(200)
  })

  it('does not end a watch', async () => {
    const server = await startServer({ maxConnections: 50 })
    let isOver = false
    const watching = ask(server, { path: `${services}?watch=true&timeoutSeconds=30` })
    watching.then(
      () => (isOver = true),
      () => (isOver = true),
    )
    await ask(server, { path: services })
    const held = await hold({ port: server.port, count: 200 })
    closers.push(() => held.release())
    expect((await ask(server, { path: services })).status).toBe(200)
    expect(isOver).toBe(false)
  })
})

describe('a client without a token', () => {
  it('cannot fill the memory with the body of a public request', async () => {
    const server = await startServer()
    const answer = await new Promise<string>((resolve, reject) => {
      const socket = connect({ port: server.port, host: '127.0.0.1', rejectUnauthorized: false }, () =>
        socket.write('POST /version HTTP/1.1\r\nHost: x\r\nContent-Length: 3000000\r\n\r\n{'),
      )
      socket.once('data', (chunk) => {
        socket.destroy()
        resolve(chunk.toString('latin1'))
      })
      socket.on('error', reject)
    })
    // The answer comes although the body does not.
    expect(answer).toMatch(/^HTTP\/1\.1 405 /)
  })
})

describe('a page in a browser', () => {
  const askPlain = (server: ApiServer, headers: Record<string, string>, method = 'GET'): Promise<number> =>
    new Promise((resolve, reject) => {
      const outgoing = request(
        { host: '127.0.0.1', port: server.port, path: services, method, headers, agent: false },
        (incoming) => {
          incoming.resume()
          resolve(incoming.statusCode ?? 0)
        },
      )
      outgoing.on('error', reject)
      outgoing.end()
    })

  it('cannot reach a server without a token by a name of its own', async () => {
    const server = await startServer({ tls: false })
    expect(await askPlain(server, { host: `evil.example:${server.port}` })).toBe(421)
    expect(await askPlain(server, {})).toBe(200)
    expect(await askPlain(server, { host: `localhost:${server.port}` })).toBe(200)
  })

  it('cannot write to a server without a token by a request to another site', async () => {
    const server = await startServer({ tls: false })
    expect(await askPlain(server, { origin: 'http://evil.example' }, 'DELETE')).toBe(421)
  })
})

describe('a state directory', () => {
  let state: ReturnType<typeof folder>
  beforeEach(() => {
    state = folder()
  })
  afterEach(() => state.remove())

  const planted = 'a-token-that-another-user-has-planted-here'

  function plantToken(): void {
    mkdirSync(join(state.path, 'credentials'))
    writeFileSync(join(state.path, 'credentials', 'token'), planted)
  }

  it.runIf(process.getuid?.() === 0)('of another user is refused, so that its token opens nothing', async () => {
    plantToken()
    chownSync(state.path, 65_534, 65_534)
    await expect(startServer({ stateDir: state.path })).rejects.toThrow(
      `${state.path} belongs to user 65534, not to root: remove it, or change its owner`,
    )
  })

  it('with a token that others may write is refused', async () => {
    plantToken()
    chmodSync(join(state.path, 'credentials', 'token'), 0o666)
    await expect(startServer({ stateDir: state.path })).rejects.toThrow('other users may write to')
  })

  it('with a log that is a symbolic link is refused', async () => {
    mkdirSync(join(state.path, 'registry'))
    writeFileSync(join(state.path, 'elsewhere'), '', { mode: 0o600 })
    symlinkSync(join(state.path, 'elsewhere'), join(state.path, 'registry', '1.journal'))
    await expect(startServer({ stateDir: state.path })).rejects.toThrow('1.journal is a symbolic link: remove it')
  })
})
