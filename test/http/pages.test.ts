// Checks the pages of the metrics server byte for byte.

import { afterEach, describe, expect, it } from 'vitest'
import { parse } from 'yaml'
import { findMode } from '../../src/backend/modes.ts'
import { createMetrics, type Metrics } from '../../src/http/metrics.ts'
import { makeMetricsPages, type PagesOptions } from '../../src/http/pages/pages.ts'
import { routeRequests } from '../../src/http/routing.ts'
import { type HttpListener, listen } from '../../src/http/server.ts'
import { silentLogger as log } from '../../src/lib/log.ts'
import { systemClock } from '../../src/lib/time.ts'
import { FakeClock } from '../support/fake-clock.ts'
import { until } from '../support/until.ts'
import { parseExposition } from './exposition.ts'
import { type Answer, type Ask, ask, hasIpv6 } from './http-probe.ts'

const version = { kubernetes: 'v1.36.4', sluice: '0.1.0' }
let listener: HttpListener | undefined
let verbosity: number[] = []
afterEach(() => listener?.close(0))

type Probe = (path: string, request?: Ask) => Promise<Answer>

async function start(more: Partial<PagesOptions> = {}): Promise<{ probe: Probe; clock: FakeClock; metrics: Metrics }> {
  verbosity = []
  const clock = new FakeClock(Date.UTC(2026, 0, 2, 3, 4, 5))
  const metrics = createMetrics({ mode: findMode('nftables'), version, log, processMetrics: false })
  const routes = makeMetricsPages({
    mode: 'nftables',
    metrics,
    configz: () => ({
      apiVersion: 'kubeproxy.config.k8s.io/v1alpha1',
      kind: 'KubeProxyConfiguration',
      mode: 'nftables',
    }),
    flags: new Map([
      ['v', '2'],
      ['config', '/var/lib/kube-proxy/config.conf'],
      ['bind-address', '0.0.0.0'],
    ]),
    gates: { flagz: true, statusz: true },
    version,
    startedAt: clock.now() - 3_723_000,
    profiling: false,
    setVerbosity: (level) => verbosity.push(level),
    clock,
    hostNames: new Set(['node-1']),
    ...more,
  })
  listener = await listen({ address: '0.0.0.0:0', handler: routeRequests(routes, log), log })
  const port = listener.port
  return { probe: (path, request) => ask(`127.0.0.1:${port}${path}`, request), clock, metrics }
}

const plain = { 'content-type': 'text/plain; charset=utf-8', 'x-content-type-options': 'nosniff' }

describe('/healthz', () => {
  it.each([
    ['/healthz', 'ok'],
    ['/healthz/ping', 'ok'],
    ['/healthz?verbose', '[+]ping ok\nhealthz check passed\n'],
    ['/healthz?verbose=true&exclude=ping', '[+]ping excluded: ok\nhealthz check passed\n'],
    ['/healthz?exclude=ping', 'ok'],
    [
      '/healthz?verbose&exclude=etcd',
      '[+]ping ok\nwarn: some health checks cannot be excluded: no matches for "etcd"\nhealthz check passed\n',
    ],
  ])('%s', async (path, body) => {
    const { probe } = await start()
    expect(await probe(path)).toMatchObject({ status: 200, body, headers: plain })
  })

  it('has no other check', async () => {
    const { probe } = await start()
    expect((await probe('/healthz/etcd')).status).toBe(404)
  })
})

describe('/metrics and /metrics/slis', () => {
  it('serves the text format', async () => {
    const { probe } = await start()
    const answer = await probe('/metrics')
    expect(answer).toMatchObject({
      status: 200,
      headers: { 'content-type': 'text/plain; version=0.0.4; charset=utf-8' },
    })
    expect(parseExposition(answer.body).get('kubernetes_build_info')?.type).toBe('gauge')
  })

  it('counts health checks separately, until reset', async () => {
    const { probe } = await start()
    await probe('/healthz')
    await probe('/healthz?exclude=ping')
    await probe('/healthz')
    const { body } = await probe('/metrics/slis')
    expect([...parseExposition(body).keys()]).toEqual([
      'kubernetes_healthcheck',
      'kubernetes_healthchecks_total',
      'process_start_time_seconds',
    ])
    expect(body).toContain('kubernetes_healthcheck{name="ping",type="healthz"} 1\n')
    expect(body).toContain('kubernetes_healthchecks_total{name="ping",type="healthz",status="success"} 2\n')
    expect((await probe('/metrics')).body).not.toContain('kubernetes_healthcheck')
    expect(await probe('/metrics/slis', { method: 'DELETE' })).toMatchObject({ status: 200, body: 'metrics reset\n' })
    const after = parseExposition((await probe('/metrics/slis')).body)
    expect(after.get('kubernetes_healthchecks_total')?.samples).toEqual([])
  })

  it('answers 500, and keeps running, if the metrics cannot be read', async () => {
    const { metrics } = await start()
    await listener?.close(0)
    const { probe } = await start({ metrics: { ...metrics, text: () => Promise.reject(new Error('broken')) } })
    expect((await probe('/metrics')).status).toBe(500)
    expect((await probe('/healthz')).status).toBe(200)
  })
})

describe('/proxyMode and /configz', () => {
  it('I21: returns only the mode, on localhost too', async () => {
    const { probe } = await start()
    expect(await probe('/proxyMode')).toMatchObject({ status: 200, body: 'nftables', headers: plain })
    for (const host of ['localhost', ...(hasIpv6 ? ['[::1]'] : [])]) {
      expect((await ask(`${host}:${listener?.port}/proxyMode`)).body).toBe('nftables')
    }
  })

  it('shows the configuration under its group', async () => {
    const { probe } = await start()
    expect(await probe('/configz')).toMatchObject({
      status: 200,
      headers: { 'content-type': 'application/json', 'x-content-type-options': 'nosniff' },
      body: '{"kubeproxy.config.k8s.io":{"apiVersion":"kubeproxy.config.k8s.io/v1alpha1","kind":"KubeProxyConfiguration","mode":"nftables"}}',
    })
  })
})

describe('/flagz and /statusz', () => {
  const accept = (value: string): Ask => ({ headers: { Accept: value } })
  const structured = (type: string, kind: string, v: string) => accept(`${type};as=${kind};g=config.k8s.io;v=${v}`)

  it('lists the flags, sorted, as text', async () => {
    const { probe } = await start()
    const answer = await probe('/flagz')
    expect(answer).toMatchObject({ status: 200, headers: { 'content-type': 'text/plain; charset=utf-8' } })
    expect(answer.body).toMatch(/^\nkube-proxy flags\n[^\n]+\n\n/)
    expect(answer.body.split('\n').slice(4)).toEqual([
      'bind-address=0.0.0.0',
      'config=/var/lib/kube-proxy/config.conf',
      'v=2',
      '',
    ])
  })

  it('shows the state of the process as text', async () => {
    const { probe } = await start()
    const answer = await probe('/statusz')
    expect(answer.body).toMatch(/^\nkube-proxy statusz\n[^\n]+\n\n/)
    expect(answer.body.split('\n').slice(4)).toEqual([
      'Started: Fri Jan  2 02:02:02 UTC 2026',
      'Up: 1 hr 02 min 03 sec',
      `Go version: none, Node.js ${process.version}`,
      'Binary version: 1.36.4',
      'Sluice version: 0.1.0',
      'Paths: /configz /flagz /healthz /metrics /proxyMode /statusz',
      '',
    ])
  })

  it.each(['v1alpha1', 'v1beta1'])('returns objects of %s on request', async (v) => {
    const { probe } = await start()
    const flags = await probe('/flagz', structured('application/json', 'Flagz', v))
    expect(flags.headers['content-type']).toBe('application/json')
    expect(JSON.parse(flags.body)).toEqual({
      kind: 'Flagz',
      apiVersion: `config.k8s.io/${v}`,
      metadata: { name: 'kube-proxy' },
      flags: { 'bind-address': '0.0.0.0', config: '/var/lib/kube-proxy/config.conf', v: '2' },
    })
    const status = await probe('/statusz', structured('application/yaml', 'Statusz', v))
    expect(status.headers['content-type']).toBe('application/yaml')
    expect(parse(status.body)).toEqual({
      kind: 'Statusz',
      apiVersion: `config.k8s.io/${v}`,
      metadata: { name: 'kube-proxy' },
      startTime: '2026-01-02T02:02:02Z',
      uptimeSeconds: 3723,
      goVersion: `Node.js ${process.version}`,
      binaryVersion: '1.36.4',
      paths: ['/configz', '/flagz', '/healthz', '/metrics', '/proxyMode', '/statusz'],
    })
  })

  it.each([
    '*/*',
    'text/plain',
    'text/*;q=0.5',
    'text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8',
    'application/json, text/plain;q=0.1',
    'application/cbor;as=Flagz;g=config.k8s.io;v=v1alpha1, */*;q=0.1',
  ])('gives text to %s', async (value) => {
    const { probe } = await start()
    expect((await probe('/flagz', accept(value))).headers['content-type']).toBe('text/plain; charset=utf-8')
  })

  it.each([
    'application/json',
    'application/yaml',
    'application/cbor;as=Flagz;g=config.k8s.io;v=v1alpha1',
    'application/vnd.kubernetes.protobuf',
    'application/json;as=Flagz;g=config.k8s.io;v=v1',
    'application/json;as=Flagz;g=config.k8s.io',
    'application/json;as=Statusz;g=config.k8s.io;v=v1alpha1',
    'application/json;as=Flagz;g=other;v=v1alpha1',
    'image/png',
    'text/plain;q=0',
    ';;;,,=',
  ])('refuses %s', async (value) => {
    const { probe } = await start()
    const answer = await probe('/flagz', accept(value))
    expect(answer).toMatchObject({ status: 406, headers: { 'content-type': 'application/json' } })
    expect(JSON.parse(answer.body)).toMatchObject({
      kind: 'Status',
      status: 'Failure',
      reason: 'NotAcceptable',
      code: 406,
    })
  })

  it('follows the preferences of the client', async () => {
    const { probe } = await start()
    const type = async (value: string) => (await probe('/flagz', accept(value))).headers['content-type']
    const json = 'application/json;as=Flagz;g=config.k8s.io;v=v1alpha1'
    expect(await type(`text/plain, ${json}`)).toBe('text/plain; charset=utf-8')
    expect(await type(`text/plain;q=0.5, ${json}`)).toBe('application/json')
    expect(await type(`*/*, ${json}`)).toBe('application/json')
  })

  it('do not exist if their feature gates are off', async () => {
    const { probe } = await start({ gates: { flagz: false, statusz: true } })
    expect((await probe('/flagz')).status).toBe(404)
    expect((await probe('/statusz')).body).not.toContain('/flagz')
    await listener?.close(0)
    const other = await start({ gates: { flagz: true, statusz: false } })
    expect((await other.probe('/statusz')).status).toBe(404)
  })
})

describe('/debug', () => {
  it('does not exist without profiling', async () => {
    const { probe } = await start()
    for (const path of ['/debug/flags/v', '/debug/pprof/', '/debug/pprof', '/debug/pprof/heap', '/nothing', '/']) {
      expect(await probe(path), path).toMatchObject({ status: 404, body: '404 page not found\n' })
    }
    expect((await probe('/debug/flags/v', { method: 'PUT', body: '4' })).status).toBe(404)
  })

  it('changes the verbosity', async () => {
    const { probe } = await start({ profiling: true })
    expect(await probe('/debug/flags/v', { method: 'PUT', body: '4' })).toMatchObject({
      status: 200,
      body: 'successfully set klog.logging.verbosity to 4\n',
      headers: { 'content-type': 'text/plain', 'x-content-type-options': 'nosniff' },
    })
    expect(verbosity).toEqual([4])
    expect((await probe('/debug/flags/v')).status).toBe(406)
    expect((await probe('/debug/flags/v', { method: 'POST', body: '4' })).status).toBe(406)
    for (const body of ['', 'four', '4.5', '4 ', '99999999999', 'x'.repeat(100_000)]) {
      expect((await probe('/debug/flags/v', { method: 'PUT', body })).status, body.slice(0, 12)).toBe(400)
    }
    expect(verbosity).toEqual([4])
  })

  it('lists the profiles', async () => {
    const { probe } = await start({ profiling: true })
    expect((await probe('/debug/pprof')).headers.location).toBe('/debug/pprof/')
    const index = await probe('/debug/pprof/')
    expect(index.headers['content-type']).toBe('text/html; charset=utf-8')
    for (const page of ['allocs', 'cmdline', 'heap', 'profile']) expect(index.body).toContain(`href="${page}"`)
    expect((await probe('/debug/pprof/trace')).status).toBe(404)
    expect((await probe('/debug/pprof/cmdline')).body).toBe(process.argv.join('\0'))
    expect((await probe('/statusz')).body).toContain(' /debug ')
  })

  it('records a CPU profile, one at a time', async () => {
    const { probe, clock } = await start({ profiling: true })
    const first = probe('/debug/pprof/profile?seconds=7')
    await until('a timer of 7_000 ms is armed', () => clock.waiting().includes(7_000))
    expect((await probe('/debug/pprof/profile')).status).toBe(503)
    clock.advanceSync(7_000)
    const answer = await first
    expect(answer.headers['content-disposition']).toBe('attachment; filename="proxy.cpuprofile"')
    expect(Object.keys(JSON.parse(answer.body))).toEqual(expect.arrayContaining(['nodes', 'samples', 'timeDeltas']))
  })

  it('records an allocation profile and a heap snapshot', async () => {
    const { probe } = await start({ profiling: true, clock: systemClock })
    const allocs = JSON.parse((await probe('/debug/pprof/allocs?seconds=0.01')).body)
    expect(allocs).toHaveProperty('head')
    const heap = await probe('/debug/pprof/heap')
    expect(heap.headers['content-disposition']).toBe('attachment; filename="proxy.heapsnapshot"')
    expect(heap.body.startsWith('{"snapshot"')).toBe(true)
  })

  it('stops a profile whose client has disconnected', async () => {
    const { probe, clock } = await start({ profiling: true })
    const { request } = await import('node:http')
    const leaving = request(`http://127.0.0.1:${listener?.port}/debug/pprof/profile?seconds=60`)
    leaving.on('error', () => {})
    leaving.end()
    await until('a timer of 60_000 ms is armed', () => clock.waiting().includes(60_000))
    leaving.destroy()
    await until('no timer is armed', () => clock.waiting().length === 0)
    const next = probe('/debug/pprof/profile?seconds=1')
    await until('a timer of 1_000 ms is armed', () => clock.waiting().includes(1_000))
    clock.advanceSync(1_000)
    expect((await next).status).toBe(200)
  })
})

describe('the Host header', () => {
  const secret = [
    '/configz',
    '/flagz',
    '/statusz',
    '/metrics',
    '/metrics/slis',
    '/proxyMode',
    '/debug/pprof/',
    '/debug/flags/v',
  ]

  it.each(secret)('%s refuses the name of a page that had its name point here', async (path) => {
    const { probe } = await start({ profiling: true })
    const answer = await probe(path, { headers: { host: 'evil.example:10249' } })
    expect(answer.status).toBe(421)
    expect(answer.body).toBe('the Host header must be an IP address, localhost or the name of this node\n')
  })

  it.each(['127.0.0.1:10249', '192.0.2.7', '[::1]:10249', 'localhost:10249', 'NODE-1:10249', 'node-1.'])(
    '/configz answers %s',
    async (host) => {
      const { probe } = await start()
      expect((await probe('/configz', { headers: { host } })).status).toBe(200)
    },
  )

  it.each([
    'evil.example',
    'node-1.evil.example',
    '127.0.0.1.evil.example',
    'localhost.evil.example',
    '127.0.0.1:1:2',
    '2130706433',
    'evil.example/127.0.0.1',
  ])('/configz refuses "%s"', async (host) => {
    const { probe } = await start()
    expect((await probe('/configz', { headers: { host } })).status).toBe(421)
  })

  it('does not matter to health endpoints', async () => {
    const { probe } = await start()
    for (const path of ['/healthz', '/healthz/ping']) {
      expect((await probe(path, { headers: { host: 'lb.example' } })).status).toBe(200)
    }
  })

  it('may be any if the configuration says so', async () => {
    const { probe } = await start({ hostNames: new Set(['*']) })
    expect((await probe('/configz', { headers: { host: 'metrics.example' } })).status).toBe(200)
  })
})
