// Tests health check node ports over real sockets.

import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import { type ServiceCheck, ServiceHealth } from '../../src/http/service-health.ts'
import { type Family, hostPort } from '../../src/lib/ip.ts'
import { silentLogger as log } from '../../src/lib/log.ts'
import { ask, freePort, hasIpv6, occupy } from './http-probe.ts'

interface Where {
  all: boolean
  addresses: string[]
}

let where: Record<Family, Where>
let healthy: boolean
let failures: string[]
let checks: ServiceHealth
let port: number

beforeEach(async () => {
  where = { 4: { all: false, addresses: ['127.0.0.1'] }, 6: { all: false, addresses: ['::1'] } }
  healthy = true
  failures = []
  checks = new ServiceHealth({
    addresses: (family) => where[family],
    health: { healthy: () => healthy },
    onBindFailure: (service, port, error) => failures.push(`${service} ${port} ${error.message}`),
    log,
  })
  port = await freePort()
})
afterEach(() => checks.close())

const want = (...services: [string, ServiceCheck][]) => checks.sync(new Map(services), 4)
const probe = (at: number, path = '/', method = 'GET') => ask(`127.0.0.1:${at}${path}`, { method })
const closed = (at: number) => expect(probe(at)).rejects.toThrow('ECONNREFUSED')

describe('health check node ports', () => {
  it('I11: 503 with weight 0, 200 with the count, 503 again at 0', async () => {
    const seen = async () => {
      const answer = await probe(port)
      return [answer.status, answer.headers['x-load-balancing-endpoint-weight']]
    }
    await want(['ns/svc', { port, localEndpoints: 0 }])
    expect(await seen()).toEqual([503, '0'])
    await want(['ns/svc', { port, localEndpoints: 18 }])
    expect(await seen()).toEqual([200, '18'])
    await want(['ns/svc', { port, localEndpoints: 0 }])
    expect(await seen()).toEqual([503, '0'])
  })

  it('opens and closes hundreds of ports, and other tasks run meanwhile', async () => {
    let turns = 0
    const count = setInterval(() => turns++, 0)
    const services = Array.from({ length: 120 }, (_, i): [string, ServiceCheck] => [
      `ns/svc${i}`,
      { port: 41_000 + i, localEndpoints: 1 },
    ])
    await want(...services)
    expect(checks.listening().length + failures.length).toBe(120)
    const opening = turns
    await want()
    clearInterval(count)
    expect(checks.listening()).toEqual([])
    expect(opening).toBeGreaterThan(1)
  })

  it('answers any path and any method with exactly this body', async () => {
    await want(['ns/svc', { port, localEndpoints: 3 }])
    const expected =
      '{\n\t"service": {\n\t\t"namespace": "ns",\n\t\t"name": "svc"\n\t},\n' +
      '\t"localEndpoints": 3,\n\t"serviceProxyHealthy": true\n}'
    for (const [path, method] of [
      ['/', 'GET'],
      ['/healthz', 'GET'],
      ['/any/thing?at=all', 'POST'],
    ] as const) {
      expect((await probe(port, path, method)).body).toBe(expected)
    }
  })

  it('I12: closes the old port and opens the new one when the port changes', async () => {
    const other = await freePort()
    await want(['ns/svc', { port, localEndpoints: 5 }])
    await want(['ns/svc', { port: other, localEndpoints: 0 }])
    await closed(port)
    expect(await probe(other)).toMatchObject({ status: 503, headers: { 'x-load-balancing-endpoint-weight': '0' } })
  })

  it('I12: keeps an unchanged server open, connections included', async () => {
    await want(['ns/svc', { port, localEndpoints: 5 }])
    const { Agent, request } = await import('node:http')
    const agent = new Agent({ keepAlive: true, maxSockets: 1 })
    const localPort = () =>
      new Promise<number | undefined>((resolve, reject) => {
        request({ host: '127.0.0.1', port, agent }, (incoming) => {
          const from = incoming.socket.localPort
          incoming.resume().on('end', () => resolve(from))
        })
          .on('error', reject)
          .end()
      })
    const before = await localPort()
    await want(['ns/svc', { port, localEndpoints: 5 }], ['ns/other', { port: await freePort(), localEndpoints: 1 }])
    expect(await localPort()).toBe(before)
    agent.destroy()
  })

  it('I12: hands a port from one service to another in one sync', async () => {
    await want(['ns/a', { port, localEndpoints: 1 }])
    await want(['ns/b', { port, localEndpoints: 2 }])
    expect(failures).toEqual([])
    expect(JSON.parse((await probe(port)).body)).toMatchObject({ service: { name: 'b' }, localEndpoints: 2 })
  })

  it('I13: fails while the proxy is unhealthy, with an unchanged count', async () => {
    await want(['ns/svc', { port, localEndpoints: 7 }])
    healthy = false
    const answer = await probe(port)
    expect(answer).toMatchObject({ status: 503, headers: { 'x-load-balancing-endpoint-weight': '7' } })
    expect(JSON.parse(answer.body)).toMatchObject({ localEndpoints: 7, serviceProxyHealthy: false })
  })

  it('treats a switched-off health server as healthy', async () => {
    const without = new ServiceHealth({
      addresses: () => where[4],
      health: undefined,
      onBindFailure: () => {},
      log,
    })
    await without.sync(new Map([['ns/svc', { port, localEndpoints: 1 }]]), 4)
    expect((await probe(port)).status).toBe(200)
    await without.close()
  })

  it('I14: ignores the count of a service whose port could not be opened', async () => {
    const taken = await occupy()
    await want(['ns/svc', { port: taken.port, localEndpoints: 4 }])
    expect(checks.listening()).toEqual([])
    await taken.release()
  })

  it('I15: listens on the wildcard, or only on the addresses named', async () => {
    await want(['ns/svc', { port, localEndpoints: 1 }])
    expect(checks.listening()).toEqual([`127.0.0.1:${port}`])
    await expect(ask(`127.0.0.2:${port}/`)).rejects.toThrow('ECONNREFUSED')
    where[4] = { all: true, addresses: [] }
    await want(['ns/svc', { port, localEndpoints: 1 }])
    expect(checks.listening()).toEqual([`0.0.0.0:${port}`])
    expect((await ask(`127.0.0.2:${port}/`)).status).toBe(200)
  })

  it('opens nothing and reports nothing if no address matches', async () => {
    where[4] = { all: false, addresses: [] }
    await want(['ns/svc', { port, localEndpoints: 1 }])
    expect([checks.listening(), failures]).toEqual([[], []])
  })

  it.skipIf(!hasIpv6)('I15: serves both families on one port, each with its own count', async () => {
    where = { 4: { all: true, addresses: [] }, 6: { all: true, addresses: [] } }
    await checks.sync(new Map([['ns/svc', { port, localEndpoints: 4 }]]), 4)
    await checks.sync(new Map([['ns/svc', { port, localEndpoints: 6 }]]), 6)
    expect(checks.listening()).toEqual([`0.0.0.0:${port}`, `[::]:${port}`])
    const weight = async (ip: string) =>
      (await ask(`${hostPort(ip, port)}/`)).headers['x-load-balancing-endpoint-weight']
    expect([await weight('127.0.0.1'), await weight('::1')]).toEqual(['4', '6'])
    await want()
    await closed(port)
    expect(await weight('::1')).toBe('6')
  })

  it('I16: has the three headers on every answer', async () => {
    for (const localEndpoints of [0, 2]) {
      await want(['ns/svc', { port, localEndpoints }])
      expect((await probe(port)).headers).toMatchObject({
        'content-type': 'application/json',
        'x-content-type-options': 'nosniff',
        'x-load-balancing-endpoint-weight': String(localEndpoints),
      })
    }
  })

  it('I17: reports a port that it cannot bind, tries again at each sync, and serves the others', async () => {
    const taken = await occupy()
    const services: [string, ServiceCheck][] = [
      ['ns/a', { port: taken.port, localEndpoints: 1 }],
      ['ns/b', { port, localEndpoints: 1 }],
    ]
    const message = `ns/a ${taken.port} cannot listen on 127.0.0.1:${taken.port}`
    await want(...services)
    expect(failures).toEqual([message])
    expect((await probe(port)).status).toBe(200)
    await want(...services)
    expect(failures).toEqual([message, message])
    await taken.release()
    await want(...services)
    expect(failures).toHaveLength(2)
    expect((await probe(taken.port)).status).toBe(200)
  })

  it('I17: closes all addresses of a service if one is taken', async () => {
    const taken = await occupy()
    where[4].addresses = ['127.0.0.2', '127.0.0.1']
    await want(['ns/svc', { port: taken.port, localEndpoints: 1 }])
    expect(failures).toHaveLength(1)
    await expect(ask(`127.0.0.2:${taken.port}/`)).rejects.toThrow('ECONNREFUSED')
    await taken.release()
  })

  it('I18, I20: closes the port when the service no longer has one, and opens it again', async () => {
    await want(['ns/svc', { port, localEndpoints: 1 }])
    await want()
    await closed(port)
    await want(['ns/svc', { port, localEndpoints: 1 }])
    expect((await probe(port)).status).toBe(200)
  })

  it('runs overlapping syncs one after the other', async () => {
    const syncs = [
      want(['ns/svc', { port, localEndpoints: 1 }]),
      want(),
      want(['ns/svc', { port, localEndpoints: 2 }]),
      checks.sync(new Map(), 6),
    ]
    await Promise.all(syncs)
    expect((await probe(port)).headers['x-load-balancing-endpoint-weight']).toBe('2')
    expect(failures).toEqual([])
  })

  it('closes everything', async () => {
    await want(['ns/svc', { port, localEndpoints: 1 }])
    await checks.close()
    await closed(port)
  })
})
