// Holds thousands of half-open and idle connections, and checks that a load balancer still gets its answer.

import { afterEach, describe, expect, it } from 'vitest'
import { ProxyHealth } from '../../src/http/health.ts'
import { replyText, routeRequests } from '../../src/http/routing.ts'
import { healthLimits, listen, makeConnectionLimit } from '../../src/http/server.ts'
import { ServiceHealth } from '../../src/http/service-health.ts'
import { silentLogger as log } from '../../src/lib/log.ts'
import { systemClock } from '../../src/lib/time.ts'
import { until } from '../support/until.ts'
import { ask, freePort, type HeldConnections, hold } from './http-probe.ts'

const count = 2_000
const closers: (() => unknown)[] = []
afterEach(async () => {
  for (const close of closers.splice(0).reverse()) await close()
})

/** What a quarter of the connections each sends: nothing, half a request, a request after which it stays idle, a body that never comes. */
const openings = [
  '',
  'GET /livez HTTP/1.1\r\nHost: x\r\n',
  'GET /livez HTTP/1.1\r\nHost: x\r\n\r\n',
  'POST /livez HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n',
]

async function flood(port: number): Promise<void> {
  for (const bytes of openings) await holdSome(port, count / openings.length, bytes)
}

async function holdSome(port: number, some: number, bytes: string): Promise<HeldConnections> {
  const held = await hold({ port, count: some, bytes })
  closers.push(() => held.release())
  return held
}

async function startHealth(): Promise<number> {
  const health = new ProxyHealth({ timeoutMs: 60_000, clock: systemClock })
  const handler = routeRequests(health.routes, log)
  const listener = await listen({ address: '127.0.0.1:0', handler, log, limits: healthLimits })
  closers.push(() => listener.close(0))
  return listener.port
}

describe(`${count} connections to the health port`, () => {
  it('do not keep a load balancer out', async () => {
    const port = await startHealth()
    await flood(port)
    for (let i = 0; i < 5; i++) expect((await ask(`127.0.0.1:${port}/livez`)).status).toBe(200)
  })

  it('lose their place after two seconds without a request', async () => {
    const port = await startHealth()
    const held = await holdSome(port, 200, 'GET /livez HTTP/1.1\r\n')
    await until('all are closed', () => held.open() === 0, { limitMs: 8_000 })
  })
})

describe(`${count} connections to a health check node port`, () => {
  it('do not keep a load balancer out, there or at another port', async () => {
    const [port, other] = [await freePort(), await freePort()]
    const checks = new ServiceHealth({
      addresses: () => ({ all: false, addresses: ['127.0.0.1'] }),
      health: undefined,
      onBindFailure: (service) => expect.fail(`cannot bind for ${service}`),
      log,
    })
    closers.push(() => checks.close())
    await checks.sync(
      new Map([
        ['ns/a', { port, localEndpoints: 1 }],
        ['ns/b', { port: other, localEndpoints: 1 }],
      ]),
      4,
    )
    await flood(port)
    expect((await ask(`127.0.0.1:${port}/`)).status).toBe(200)
    expect((await ask(`127.0.0.1:${other}/`)).status).toBe(200)
  })
})

describe(`${count} connections to the metrics port`, () => {
  it('do not keep a scraper out', async () => {
    const handler = routeRequests({ '/metrics': ({ response }) => replyText(response, 200, 'up 1\n') }, log)
    const listener = await listen({ address: '127.0.0.1:0', handler, log })
    closers.push(() => listener.close(0))
    await flood(listener.port)
    expect((await ask(`127.0.0.1:${listener.port}/metrics`)).body).toBe('up 1\n')
  })

  it('are closed one by one even if all wait for an answer', async () => {
    const handler = routeRequests(
      { '/slow': () => new Promise(() => {}), '/metrics': ({ response }) => replyText(response, 200, 'up 1\n') },
      log,
    )
    const listener = await listen({ address: '127.0.0.1:0', handler, log, connections: makeConnectionLimit(100) })
    closers.push(() => listener.close(0))
    await holdSome(listener.port, 200, 'GET /slow HTTP/1.1\r\nHost: x\r\n\r\n')
    expect((await ask(`127.0.0.1:${listener.port}/metrics`)).body).toBe('up 1\n')
  })
})
