// Tests /healthz and /livez over real sockets: codes, headers and every byte of the body.

import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import { findMode } from '../../src/backend/modes.ts'
import { type DataPathHealth, ProxyHealth } from '../../src/http/health.ts'
import { createMetrics } from '../../src/http/metrics.ts'
import { routeRequests } from '../../src/http/routing.ts'
import { type HttpListener, listen } from '../../src/http/server.ts'
import { silentLogger as log } from '../../src/lib/log.ts'
import type { NodeRecord } from '../../src/model/types.ts'
import { FakeClock } from '../support/fake-clock.ts'
import { type Answer, ask, hasIpv6 } from './http-probe.ts'

const node: NodeRecord = { name: 'n', addresses: [], podCidrs: [], zone: '', deleting: false, taints: [] }

let clock: FakeClock
let health: ProxyHealth
let listener: HttpListener
let answers: string[]
let silentMs: number
let dataPath: DataPathHealth | undefined

beforeEach(async () => {
  clock = new FakeClock(Date.UTC(2026, 0, 2, 3, 4, 5))
  answers = []
  silentMs = 0
  dataPath = undefined
  health = new ProxyHealth({
    timeoutMs: 10_000,
    clock,
    apiServer: { silentMs: () => silentMs, maxSilentMs: 300_000 },
    dataPath: () => dataPath,
    onAnswer: (endpoint, code) => answers.push(`${endpoint} ${code}`),
  })
  health.setNode(node)
  listener = await listen({ address: '0.0.0.0:0', handler: routeRequests(health.routes, log), log })
})
afterEach(() => listener.close(0))

const probe = (path: string, method = 'GET'): Promise<Answer> => ask(`127.0.0.1:${listener.port}${path}`, { method })
const codes = async () => [(await probe('/healthz')).status, (await probe('/livez')).status]
const json = async (path: string) => JSON.parse((await probe(path)).body)

const late = () => {
  health.updated(4)
  health.updated(6)
  clock.advanceSync(1_000)
  health.queued(4)
  clock.advanceSync(25_000)
}

describe('a broken data path', () => {
  const broken = new Map([[4 as const, 'no answer within 1000 ms']])

  it('is a field of the body, and a code of /healthz only if it counts', async () => {
    health.updated(4)
    dataPath = { broken, counts: false }
    expect(await codes()).toEqual([200, 200])
    expect((await json('/healthz')).dataPath).toEqual({
      healthy: false,
      broken: { IPv4: 'no answer within 1000 ms' },
    })
    expect(health.healthy()).toBe(true)
    dataPath = { broken, counts: true }
    expect(await codes()).toEqual([503, 200])
    expect(health.healthy()).toBe(false)
    dataPath = { broken: new Map(), counts: true }
    expect(await codes()).toEqual([200, 200])
    dataPath = undefined
    expect(await json('/healthz')).not.toHaveProperty('dataPath')
  })
})

describe('the proxy health server', () => {
  it.each([-7_200_000, 7_200_000])('stays healthy when the wall clock jumps by %s ms', async (jump) => {
    health.updated(4)
    health.queued(4)
    clock.advanceSync(1_000)
    clock.stepWall(jump)
    expect(await codes()).toEqual([200, 200])
    // And a change that is late stays late.
    clock.advanceSync(10_000)
    clock.stepWall(-jump)
    expect(await codes()).toEqual([503, 503])
  })

  it('mentions a silent API server without a change of code', async () => {
    silentMs = 300_000
    expect(await json('/livez')).not.toHaveProperty('apiServer')
    silentMs = 300_999
    expect(await codes()).toEqual([200, 200])
    expect((await probe('/livez')).body).toBe(
      '{"lastUpdated":"2026-01-02T03:04:05Z","currentTime":"2026-01-02T03:04:05Z","healthy":true,' +
        '"apiServer":{"lastHeard":"2026-01-02T02:59:04.001Z","silentSeconds":300}}',
    )
    expect(await json('/healthz')).toMatchObject({ nodeEligible: true, apiServer: { silentSeconds: 300 } })
  })

  it('I1: is healthy before any update, and shows no families', async () => {
    expect(await codes()).toEqual([200, 200])
    expect((await probe('/healthz')).body).toBe(
      '{"lastUpdated":"2026-01-02T03:04:05Z","currentTime":"2026-01-02T03:04:05Z","nodeEligible":true,"healthy":true}',
    )
  })

  it('answers with exactly these headers and bytes', async () => {
    health.updated(6)
    clock.advanceSync(100)
    health.updated(4)
    clock.advanceSync(578)
    const answer = await probe('/healthz')
    expect(answer.body).toBe(
      '{"lastUpdated":"2026-01-02T03:04:05.678Z","currentTime":"2026-01-02T03:04:05.678Z","nodeEligible":true,' +
        '"healthy":true,"status":{"IPv4":{"lastUpdated":"2026-01-02T03:04:05.1Z","healthy":true},' +
        '"IPv6":{"lastUpdated":"2026-01-02T03:04:05Z","healthy":true}}}',
    )
    const { 'content-type': type, 'x-content-type-options': sniff, 'content-length': length } = answer.headers
    expect([type, sniff, length]).toEqual(['application/json', 'nosniff', String(answer.body.length)])
  })

  it('I2: stays healthy while idle, and lastUpdated is now', async () => {
    health.updated(4)
    clock.advanceSync(25_000)
    expect(await codes()).toEqual([200, 200])
    expect(await json('/healthz')).toMatchObject({ lastUpdated: '2026-01-02T03:04:30Z' })
  })

  it('I3: fails when a change waits too long; lastUpdated is the last real update', async () => {
    late()
    expect(await codes()).toEqual([503, 503])
    expect((await probe('/livez')).body).toBe(
      '{"lastUpdated":"2026-01-02T03:04:05Z","currentTime":"2026-01-02T03:04:31Z","healthy":false,' +
        '"status":{"IPv4":{"lastUpdated":"2026-01-02T03:04:05Z","healthy":false},' +
        '"IPv6":{"lastUpdated":"2026-01-02T03:04:05Z","healthy":true}}}',
    )
  })

  it('I3: counts an age of exactly the timeout as late', async () => {
    health.updated(4)
    health.queued(4)
    clock.advanceSync(9_999)
    expect(health.healthy()).toBe(true)
    clock.advanceSync(1)
    expect(health.healthy()).toBe(false)
    expect(await codes()).toEqual([503, 503])
  })

  it('I4: stays failed until every late family has caught up', async () => {
    late()
    health.queued(6)
    clock.advanceSync(25_000)
    health.updated(4)
    expect(await codes()).toEqual([503, 503])
    expect(await json('/healthz')).toMatchObject({ status: { IPv4: { healthy: true }, IPv6: { healthy: false } } })
    health.updated(6)
    expect(await codes()).toEqual([200, 200])
  })

  it('I5: stays failed when only the other family is updated', async () => {
    late()
    health.updated(6)
    expect(await codes()).toEqual([503, 503])
    expect(await json('/healthz')).toMatchObject({ lastUpdated: '2026-01-02T03:04:31Z' })
  })

  it('I6: counts the age from the first of several queued changes', async () => {
    health.updated(4)
    health.queued(4)
    clock.advanceSync(6_000)
    health.queued(4)
    clock.advanceSync(6_000)
    expect(await codes()).toEqual([503, 503])
    health.updated(4)
    health.queued(4)
    clock.advanceSync(6_000)
    expect(await codes()).toEqual([200, 200])
  })

  it('does not consider a family that never synced', async () => {
    health.queued(4)
    clock.advanceSync(60_000)
    expect(await codes()).toEqual([200, 200])
    expect(await json('/healthz')).not.toHaveProperty('status')
  })

  it('I7: fails /healthz only for the taint that announces removal', async () => {
    health.setNode({ ...node, taints: ['other', 'node.kubernetes.io/unschedulable'] })
    expect(await codes()).toEqual([200, 200])
    health.setNode({ ...node, taints: ['other', 'ToBeDeletedByClusterAutoscaler'] })
    expect(await codes()).toEqual([503, 200])
    expect(await json('/healthz')).toMatchObject({ healthy: true, nodeEligible: false })
  })

  it('I8: fails /healthz only for a node that is being deleted or unknown', async () => {
    health.setNode({ ...node, deleting: true })
    expect(await codes()).toEqual([503, 200])
    health.setNode(undefined)
    expect(await codes()).toEqual([503, 200])
    expect((await probe('/healthz')).body).toBe(
      '{"lastUpdated":"0001-01-01T00:00:00Z","currentTime":"2026-01-02T03:04:05Z","nodeEligible":false,"healthy":true}',
    )
    health.setNode(node)
    expect(await codes()).toEqual([200, 200])
  })

  it('I9: does not mention the node on /livez', async () => {
    expect((await probe('/livez')).body).toBe(
      '{"lastUpdated":"2026-01-02T03:04:05Z","currentTime":"2026-01-02T03:04:05Z","healthy":true}',
    )
  })

  it('I10: counts every answer by code', async () => {
    const metrics = createMetrics({
      mode: findMode('nftables'),
      version: { kubernetes: 'v1.36.4', sluice: '0' },
      log,
      processMetrics: false,
    })
    await codes()
    health.setNode(undefined)
    await codes()
    await probe('/elsewhere')
    expect(answers).toEqual(['healthz 200', 'livez 200', 'healthz 503', 'livez 200'])
    for (const answer of answers) {
      const [endpoint, code] = answer.split(' ') as ['healthz' | 'livez', string]
      metrics.answered(endpoint, Number(code))
    }
    const text = await metrics.text()
    expect(text).toContain('kubeproxy_proxy_healthz_total{code="200"} 1\n')
    expect(text).toContain('kubeproxy_proxy_healthz_total{code="503"} 1\n')
    expect(text).toContain('kubeproxy_proxy_livez_total{code="200"} 2\n')
  })

  it('accepts any method, and serves no other path', async () => {
    for (const method of ['POST', 'PUT', 'DELETE', 'OPTIONS']) {
      expect((await probe('/healthz', method)).body, method).toContain('lastUpdated')
    }
    expect((await probe('/healthz?verbose')).status).toBe(200)
    for (const path of ['/', '/healthz/', '/readyz', '/metrics']) {
      expect(await probe(path), path).toMatchObject({ status: 404, body: '404 page not found\n' })
    }
  })

  it('I21: answers on localhost, for either address of localhost', async () => {
    for (const host of ['localhost', '127.0.0.1', ...(hasIpv6 ? ['[::1]'] : [])]) {
      const answer = await ask(`${host}:${listener.port}/healthz`)
      expect([answer.status, answer.body.includes('lastUpdated')], host).toEqual([200, true])
    }
  })

  it('answers while a sync keeps the event loop busy in slices', async () => {
    let syncing = true
    let slices = 0
    const sync = (async () => {
      while (syncing) {
        for (const end = performance.now() + 10; performance.now() < end; );
        slices++
        await new Promise((resolve) => setImmediate(resolve))
      }
    })()
    const statuses: number[] = []
    for (let i = 0; i < 10; i++) statuses.push((await probe(i % 2 ? '/healthz' : '/livez')).status)
    const during = slices
    syncing = false
    await sync
    expect(statuses).toEqual(Array(10).fill(200))
    expect(during).toBeGreaterThan(0)
  })
})
