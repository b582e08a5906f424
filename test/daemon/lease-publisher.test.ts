import { describe, expect, it } from 'vitest'
import { LeasePublisher } from '../../src/daemon/fleet/lease-publisher.ts'
import { parseNodeReport, reportAnnotation } from '../../src/inspect/node-report.ts'
import type { ApiRequest } from '../../src/kube/client.ts'
import { ProxyError } from '../../src/lib/errors.ts'
import { silentLogger } from '../../src/lib/log.ts'
import { FakeClock } from '../support/fake-clock.ts'
import { nodeReport } from '../support/node-reports.ts'

interface Lease {
  readonly metadata: {
    readonly annotations: Readonly<Record<string, string>>
    readonly ownerReferences?: readonly object[]
  }
  readonly spec: { readonly renewTime: string; readonly leaseDurationSeconds: number }
}

/** An API server that knows one Node and keeps Leases. */
class FakeLeases {
  readonly requests: string[] = []
  readonly leases = new Map<string, Lease>()
  refusal: ProxyError | undefined

  async request({ method = 'GET', path, body }: ApiRequest): Promise<{ status: number; json: unknown }> {
    this.requests.push(`${method} ${path}`)
    if (this.refusal !== undefined) throw this.refusal
    if (method === 'GET') return { status: 200, json: { metadata: { name: 'a', uid: 'node-uid' } } }
    if (method === 'PATCH' && !this.leases.has('a')) throw new ProxyError('not-found', 'no such lease')
    const before = this.leases.get('a')
    const given = body as Lease
    this.leases.set('a', { ...before, ...given, metadata: { ...before?.metadata, ...given.metadata } })
    return { status: 200, json: {} }
  }

  report() {
    return parseNodeReport(this.leases.get('a')?.metadata.annotations[reportAnnotation] ?? '')
  }
}

const path = '/apis/coordination.k8s.io/v1/namespaces/sluice-nodes/leases'
const start = Date.parse('2026-01-01T10:00:17Z')

function makePublisher() {
  const clock = new FakeClock(start)
  const api = new FakeLeases()
  let taken = 0
  const publisher = new LeasePublisher({
    client: api,
    clock,
    log: silentLogger,
    node: 'a',
    namespace: 'sluice-nodes',
    intervalMs: 60_000,
    takeSnapshot: async () => ({ hash: `hash-${++taken}`, sketch: '' }),
    describe: async (snapshots) => nodeReport('a', { snapshots }),
  })
  const stop = new AbortController()
  const done = publisher.run(stop.signal)
  return { clock, api, stop, done }
}

describe('the publisher of reports', () => {
  it('creates a Lease that goes with its Node, soon after the start', async () => {
    const { clock, api, stop, done } = makePublisher()
    await clock.advance(2_000)
    expect(api.requests).toEqual([`PATCH ${path}/a`, 'GET /api/v1/nodes/a', `POST ${path}`])
    expect(api.leases.get('a')).toMatchObject({
      metadata: { ownerReferences: [{ apiVersion: 'v1', kind: 'Node', name: 'a', uid: 'node-uid' }] },
      spec: { renewTime: '2026-01-01T10:00:19.000000Z', leaseDurationSeconds: 180 },
    })
    stop.abort()
    await done
  })

  it('looks at whole minutes, and keeps the snapshot before the newest', async () => {
    const { clock, api, stop, done } = makePublisher()
    await clock.advance(240_000)
    expect(api.report()?.snapshots.map(({ at, hash }) => [at, hash])).toEqual([
      ['2026-01-01T10:04:00Z', 'hash-5'],
      ['2026-01-01T10:03:00Z', 'hash-4'],
    ])
    expect(api.requests.filter((one) => one.startsWith('PATCH'))).toHaveLength(5)
    stop.abort()
    await done
  })

  it('goes on after a refusal', async () => {
    const { clock, api, stop, done } = makePublisher()
    api.refusal = new ProxyError('forbidden', 'no')
    await clock.advance(120_000)
    expect(api.leases.size).toBe(0)
    api.refusal = undefined
    await clock.advance(120_000)
    expect(api.report()?.snapshots).toHaveLength(2)
    stop.abort()
    await done
  })
})
