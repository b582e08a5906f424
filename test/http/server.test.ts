// Tests binding, retries, closing, and clients that misbehave.

import { afterEach, describe, expect, it } from 'vitest'
import { readBody, replyText, routeRequests } from '../../src/http/routing.ts'
import { type HttpListener, listen, makeConnectionLimit, serveWithRetry } from '../../src/http/server.ts'
import type { ProxyError } from '../../src/lib/errors.ts'
import { silentLogger } from '../../src/lib/log.ts'
import { FakeClock } from '../support/fake-clock.ts'
import { until } from '../support/until.ts'
import { ask, freePort, hasIpv6, hold, occupy, recordingLogger, sendRaw } from './http-probe.ts'

const open: { close(): Promise<void> }[] = []
afterEach(async () => {
  await Promise.all(open.splice(0).map((one) => one.close()))
})

const log = silentLogger
const hello = routeRequests({ '/hello': ({ response }) => replyText(response, 200, 'hello') }, log)

async function start(options: Partial<Parameters<typeof listen>[0]> = {}): Promise<HttpListener> {
  const listener = await listen({ address: '127.0.0.1:0', handler: hello, log, ...options })
  open.push(listener)
  return listener
}

describe('binding', () => {
  it.each(['0.0.0.0:0', '[::]:0', ':0'])('serves both families on %s', async (address) => {
    const { port } = await start({ address })
    expect((await ask(`127.0.0.1:${port}/hello`)).body).toBe('hello')
    if (hasIpv6) expect((await ask(`[::1]:${port}/hello`)).body).toBe('hello')
  })

  it('serves only the address that is named', async () => {
    const { port, address } = await start()
    expect(address).toBe(`127.0.0.1:${port}`)
    await expect(ask(`127.0.0.2:${port}/hello`)).rejects.toThrow('ECONNREFUSED')
  })

  it.skipIf(!hasIpv6)('lets tcp4 and tcp6 share a port', async () => {
    const port = await freePort()
    const four = await start({ address: `0.0.0.0:${port}`, network: 'tcp4' })
    const six = await start({ address: `[::]:${port}`, network: 'tcp6' })
    expect([four.address, six.address]).toEqual([`0.0.0.0:${port}`, `[::]:${port}`])
    await four.close()
    await expect(ask(`127.0.0.1:${port}/hello`)).rejects.toThrow('ECONNREFUSED')
    expect((await ask(`[::1]:${port}/hello`)).body).toBe('hello')
  })

  it('reports the address that it cannot bind, and why', async () => {
    const taken = await occupy()
    open.push({ close: taken.release })
    const failure = listen({ address: `127.0.0.1:${taken.port}`, handler: hello, log })
    await expect(failure).rejects.toMatchObject({
      code: 'listen',
      message: `cannot listen on 127.0.0.1:${taken.port}`,
      cause: { code: 'EADDRINUSE' },
    })
    await expect(listen({ address: 'nonsense', handler: hello, log })).rejects.toMatchObject({ code: 'listen' })
  })

  it('does not hide a taken wildcard port behind a fallback', async () => {
    const taken = await occupy()
    open.push({ close: taken.release })
    await expect(listen({ address: `0.0.0.0:${taken.port}`, handler: hello, log })).rejects.toMatchObject({
      cause: { code: 'EADDRINUSE' },
    })
  })
})

describe('clients that misbehave', () => {
  it.each([
    ['garbage', '\x16\x03\x01\x02\x00\x01\x00\x01\xfc', /^HTTP\/1\.1 400 /],
    ['a bad header', 'GET /hello HTTP/1.1\r\nHost: x\r\nBad Header\r\n\r\n', /^HTTP\/1\.1 400 /],
    ['no host', 'GET /hello HTTP/1.1\r\n\r\n', /^HTTP\/1\.1 400 /],
    ['huge headers', `GET /hello HTTP/1.1\r\nHost: x\r\nX: ${'y'.repeat(20_000)}\r\n\r\n`, /^HTTP\/1\.1 431 /],
    [
      'two lengths',
      'POST /hello HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\na',
      /^HTTP\/1\.1 400 /,
    ],
    ['CONNECT', 'CONNECT a:1 HTTP/1.1\r\nHost: a\r\n\r\n', /^$/],
  ])('stays up after %s', async (_, bytes, expected) => {
    const { port } = await start()
    expect(await sendRaw(port, bytes)).toMatch(expected)
    expect((await ask(`127.0.0.1:${port}/hello`)).body).toBe('hello')
  })

  it('answers HTTP/1.0, HEAD, and upgrades that it does not support', async () => {
    const { port } = await start()
    expect(await sendRaw(port, 'GET /hello HTTP/1.0\r\n\r\n')).toMatch(/^HTTP\/1\.1 200 OK\r\n[\s\S]*\r\n\r\nhello$/)
    const upgrade = 'GET /hello HTTP/1.1\r\nHost: x\r\nConnection: Upgrade, close\r\nUpgrade: websocket\r\n\r\n'
    expect(await sendRaw(port, upgrade)).toMatch(/^HTTP\/1\.1 200 OK/)
    const head = await ask(`127.0.0.1:${port}/hello`, { method: 'HEAD' })
    expect([head.status, head.headers['content-length'], head.body]).toEqual([200, '5', ''])
  })

  it('disconnects a client that sends its headers slowly', async () => {
    const { port } = await start({ limits: { headersTimeoutMs: 100, requestTimeoutMs: 200 } })
    expect(await sendRaw(port, 'GET /hello HTTP/1.1\r\nHost: x\r\n')).toMatch(/^HTTP\/1\.1 408 /)
  })

  it('disconnects a client that sends its body slowly', async () => {
    const handler = routeRequests(
      { '/': async ({ request, response }) => replyText(response, 200, `${await readBody(request, 9)}`) },
      log,
    )
    const { port } = await start({ handler, limits: { headersTimeoutMs: 100, requestTimeoutMs: 150 } })
    const seen = await sendRaw(port, 'PUT / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\na')
    expect(seen).not.toMatch(/ 200 /)
  })

  it('gives a long answer its time, on a connection that was used before', async () => {
    let finish = () => {}
    const answer = new Promise<void>((resolve) => {
      finish = resolve
    })
    const handler = routeRequests(
      {
        '/short': ({ response }) => replyText(response, 200, 'short'),
        '/long': async ({ response }) => {
          await answer
          replyText(response, 200, 'long')
        },
      },
      log,
    )
    const { port } = await start({ handler, limits: { headersTimeoutMs: 50, requestTimeoutMs: 50 } })
    const seen = sendRaw(
      port,
      'GET /short HTTP/1.1\r\nHost: x\r\n\r\nGET /long HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n',
    )
    await new Promise((resolve) => setTimeout(resolve, 200))
    finish()
    expect(await seen).toMatch(/short[\s\S]* 200 [\s\S]*long$/)
  })

  it('limits connections, so that a flood leaves file descriptors for others', async () => {
    const connections = makeConnectionLimit(2)
    const { port } = await start({ connections })
    const first = await hold({ port, count: 1 })
    const second = await hold({ port, count: 1 })
    expect((await ask(`127.0.0.1:${port}/hello`)).body).toBe('hello')
    await until('the oldest connection is closed', () => first.open() === 0)
    expect([second.open(), connections.size <= 2]).toEqual([1, true])
    second.release()
  })
})

describe('closing', () => {
  it('lets a request that is being answered finish', async () => {
    let finish = () => {}
    let inside = false
    const handler = routeRequests(
      {
        '/slow': async ({ response }) => {
          inside = true
          await new Promise<void>((resolve) => {
            finish = resolve
          })
          replyText(response, 200, 'done')
        },
      },
      log,
    )
    const listener = await start({ handler })
    const answer = ask(`127.0.0.1:${listener.port}/slow`)
    await until('the request is inside', () => inside)
    const closed = listener.close(10_000)
    await expect(ask(`127.0.0.1:${listener.port}/slow`)).rejects.toThrow('ECONNREFUSED')
    finish()
    expect((await answer).body).toBe('done')
    await closed
  })

  it('does not wait for a request that never ends', async () => {
    let inside = false
    const listener = await start({
      handler: () => {
        inside = true
      },
    })
    const answer = ask(`127.0.0.1:${listener.port}/`)
    answer.catch(() => {})
    await until('the request is inside', () => inside)
    await listener.close(20)
    await expect(answer).rejects.toThrow()
  })
})

describe('serveWithRetry', () => {
  it('B21: tries again every 5 s while the port is taken, and serves once it is free', async () => {
    const taken = await occupy()
    const clock = new FakeClock(Date.UTC(2026, 0, 2, 3, 4, 5))
    const lines = recordingLogger()
    const address = `127.0.0.1:${taken.port}`
    let listening = false
    let fatal = 0
    const serving = serveWithRetry({
      name: 'health server',
      address,
      handler: hello,
      log: lines,
      clock,
      onListening: () => {
        listening = true
      },
      onFatal: () => {
        fatal++
      },
    })
    open.push(serving)
    await until('a timer is armed', () => clock.waiting().length === 1)
    expect(clock.waiting()).toEqual([5_000])
    clock.advanceSync(4_999)
    expect(lines.lines).toHaveLength(1)
    clock.advanceSync(1)
    await until('two lines are logged', () => lines.lines.length === 2)
    expect(lines.lines[1]).toMatch(/Cannot listen.*health server.*EADDRINUSE/)
    await taken.release()
    await until('a timer is armed', () => clock.waiting().length === 1)
    clock.advanceSync(5_000)
    await until('it listens', () => listening)
    expect((await ask(`${address}/hello`)).body).toBe('hello')
    expect(fatal).toBe(0)
  })

  it('B21: with hard-fail reports the error once and does not try again', async () => {
    const taken = await occupy()
    open.push({ close: taken.release })
    const clock = new FakeClock(Date.UTC(2026, 0, 2, 3, 4, 5))
    const errors: ProxyError[] = []
    const serving = serveWithRetry({
      name: 'health server',
      address: `127.0.0.1:${taken.port}`,
      handler: hello,
      log,
      clock,
      hardFail: true,
      onFatal: (error) => errors.push(error),
    })
    await until('an error is reported', () => errors.length > 0)
    clock.advanceSync(60_000)
    await serving.close()
    expect(errors).toMatchObject([{ code: 'listen' }])
    expect(clock.waiting()).toEqual([])
  })

  it('stops retrying when closed', async () => {
    const taken = await occupy()
    const clock = new FakeClock(Date.UTC(2026, 0, 2, 3, 4, 5))
    const address = `127.0.0.1:${taken.port}`
    const serving = serveWithRetry({ name: 'x', address, handler: hello, log, clock })
    await until('a timer is armed', () => clock.waiting().length === 1)
    await serving.close()
    expect(clock.waiting()).toEqual([])
    await taken.release()
    await expect(ask(`${address}/hello`)).rejects.toThrow('ECONNREFUSED')
  })

  it('frees the port even if closed during the bind', async () => {
    const address = `127.0.0.1:${await freePort()}`
    await serveWithRetry({ name: 'x', address, handler: hello, log }).close()
    await expect(ask(`${address}/hello`)).rejects.toThrow('ECONNREFUSED')
  })
})
