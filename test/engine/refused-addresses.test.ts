// Checks that the engine programs no frontend on reserved addresses and on endpoints of other services, and reports who wanted one.

import { describe, expect, it } from 'vitest'
import type { Conflict } from '../../src/engine/journal.ts'
import type { NodeView } from '../../src/model/types.ts'
import { tcp } from '../support/builders.ts'
import { EngineHarness, service, slice, view } from './engine-harness.ts'

const apiServer = {
  apiServers: [{ ip: '192.0.2.9', port: 6443 }],
  reserved: { '192.0.2.9:6443/tcp': 'the API server' },
}
const frontends = (harness: EngineHarness): string[] =>
  harness.kernel
    .ids()
    .filter((id) => id.startsWith('frontend '))
    .map((id) => id.slice('frontend '.length))
const conflicts = (harness: EngineHarness) =>
  harness.engine.conflicts().map(({ frontend, winner, loser, reason }) => `${frontend} ${winner} ${loser} ${reason}`)

async function synced(given: Partial<NodeView>, ...records: Parameters<EngineHarness['put']>): Promise<EngineHarness> {
  const harness = new EngineHarness()
  harness.engine.setView(4, view(4, given))
  return harness.synced(...records)
}

describe('reserved addresses', () => {
  it.each([
    ['externalIps', [slice('ns/a', ['10.0.0.1'])]],
    ['externalIps', []],
    ['loadBalancerIps', [slice('ns/a', ['10.0.0.1'])]],
    ['loadBalancerIps', []],
    ['clusterIps', [slice('ns/a', ['10.0.0.1'])]],
  ] as const)('%s: the address of the API server is not programmed (slices: %j)', async (field, slices) => {
    const thief = service('ns/a', {
      clusterIps: ['10.96.0.1'],
      [field]: ['192.0.2.9'],
      ports: [tcp(6443, 'http'), tcp(80, 'other')],
    })
    const harness = await synced(apiServer, thief, ...slices)
    expect(frontends(harness)).not.toContain('192.0.2.9:6443/tcp')
    expect(frontends(harness)).toContain('192.0.2.9:80/tcp')
    expect(conflicts(harness)).toEqual(['192.0.2.9:6443/tcp the API server ns/a reserved'])
    expect(harness.engine.status('ns/a').families[0]?.lost).toHaveLength(1)
  })

  it('neither is a node port or a health check node port of a listener of this proxy', async () => {
    const reserved = { ':30080/tcp': 'the health server', ':30100/tcp': 'the metrics server' }
    const checked = service('ns/a', {
      type: 'LoadBalancer',
      externalPolicy: 'Local',
      healthCheckNodePort: 30100,
      loadBalancerIps: ['203.0.113.1'],
      ports: [tcp(80, 'http', 30080)],
    })
    const harness = await synced({ reserved }, checked)
    expect(frontends(harness)).toEqual(['10.96.0.10:80/tcp', '203.0.113.1:80/tcp'])
    expect([...harness.engine.health(4)]).toEqual([])
    expect(conflicts(harness).sort()).toEqual([
      ':30080/tcp the health server ns/a reserved',
      ':30100/tcp the metrics server ns/a reserved',
    ])
  })

  it('a service loses the address when the API server moves there, gets it back, and nothing else is resolved', async () => {
    const seen: Conflict[] = []
    const over: Conflict[] = []
    const harness = await synced(
      {},
      service('ns/a', { clusterIps: ['10.96.0.1'], externalIps: ['192.0.2.9'], ports: [tcp(6443, 'http')] }),
      service('ns/b', { clusterIps: ['10.96.0.2'], ports: [tcp(6443, 'http')] }),
    )
    harness.journal.subscribe({ conflict: (one) => seen.push(one), resolved: (one) => over.push(one) })
    expect(frontends(harness)).toContain('192.0.2.9:6443/tcp')
    harness.kernel.writes.clear()
    harness.engine.setView(4, view(4, apiServer))
    await harness.tick()
    expect([...harness.kernel.writes.keys()]).toEqual(['frontend 192.0.2.9:6443/tcp'])
    expect(seen.map(({ loser, reason }) => `${loser} ${reason}`)).toEqual(['ns/a reserved'])
    harness.engine.setView(4, view(4))
    await harness.tick()
    expect(frontends(harness)).toContain('192.0.2.9:6443/tcp')
    expect(over).toEqual(seen)
    expect(harness.engine.conflicts()).toEqual([])
  })

  it('all services that want a reserved address are named', async () => {
    const want = (key: string, ip: string) =>
      service(key, { clusterIps: [ip], externalIps: ['127.0.0.1', '127.0.0.2', '127.0.0.3'] })
    const harness = await synced({}, want('ns/a', '10.96.0.1'), want('ns/b', '10.96.0.2'))
    const losers = harness.engine.conflicts().map(({ loser }) => loser)
    expect(losers.sort()).toEqual(['ns/a', 'ns/a', 'ns/a', 'ns/b', 'ns/b', 'ns/b'])
    expect(frontends(harness)).toEqual(['10.96.0.1:80/tcp', '10.96.0.2:80/tcp'])
  })
})

describe('endpoints of other services', () => {
  const thief = service('a/thief', { clusterIps: ['10.96.0.1'], externalIps: ['10.0.0.7'], ports: [tcp(8080, 'http')] })
  const victim = service('ns/victim', { clusterIps: ['10.96.0.2'] })
  const pods = slice('ns/victim', ['10.0.0.7'])
  const podNetwork: Partial<NodeView> = { local: { kind: 'cidr', cidr: '10.0.0.0/16' } }

  it.each([
    ['the thief first', [thief, victim, pods]],
    ['the pods first', [pods, victim, thief]],
    ['the pods have no service', [pods, thief]],
  ] as const)('an external IP and port that is a pod of another service is not programmed; %s', async (_, records) => {
    const harness = await synced(podNetwork)
    for (const record of records) {
      harness.put(record)
      await harness.tick()
    }
    expect(frontends(harness)).not.toContain('10.0.0.7:8080/tcp')
    expect(conflicts(harness)).toEqual(['10.0.0.7:8080/tcp ns/victim a/thief endpoint'])
    harness.slices.drop(pods.key)
    await harness.tick()
    expect(frontends(harness)).toContain('10.0.0.7:8080/tcp')
    expect(conflicts(harness)).toEqual([])
    harness.put(pods)
    await harness.tick()
    expect(frontends(harness)).not.toContain('10.0.0.7:8080/tcp')
    harness.services.drop(thief.key)
    await harness.tick()
    expect(conflicts(harness)).toEqual([])
  })

  it('other ports of the pod, endpoints outside the pod network, and the service’s own endpoints are no conflict', async () => {
    const own = slice('a/thief', ['10.0.0.7'])
    for (const records of [
      [service('a/thief', { ...thief, ports: [tcp(80, 'http')] }), pods],
      [service('a/lb', { ...thief, loadBalancerIps: ['203.0.113.1'] }), slice('ns/victim', ['203.0.113.1'])],
      [thief, own, pods],
    ]) {
      const harness = await synced(podNetwork, ...records)
      expect(conflicts(harness)).toEqual([])
    }
  })

  it('a pod network that becomes known takes the address from the service', async () => {
    const harness = await synced({}, thief, pods)
    expect(conflicts(harness)).toEqual([])
    harness.engine.setView(4, view(4, podNetwork))
    await harness.tick()
    expect(conflicts(harness)).toEqual(['10.0.0.7:8080/tcp ns/victim a/thief endpoint'])
  })

  it.each([
    ['of a service', [victim]],
    ['of no service', []],
  ])('the service gets the address back if the pod network changes; the pods are %s', async (_, services) => {
    const harness = await synced(podNetwork, thief, pods, ...services)
    expect(frontends(harness)).not.toContain('10.0.0.7:8080/tcp')
    harness.engine.setView(4, view(4, { local: { kind: 'cidr', cidr: '10.1.0.0/16' } }))
    await harness.tick()
    expect(frontends(harness)).toContain('10.0.0.7:8080/tcp')
    expect(conflicts(harness)).toEqual([])
    harness.engine.setView(4, view(4, podNetwork))
    await harness.tick()
    expect(conflicts(harness)).toEqual(['10.0.0.7:8080/tcp ns/victim a/thief endpoint'])
    harness.engine.setView(4, view(4, {}))
    await harness.tick()
    expect(frontends(harness)).toContain('10.0.0.7:8080/tcp')
  })

  it('with precedence age they are no conflict, and reserved addresses still are', async () => {
    const harness = new EngineHarness({ precedence: 'age' })
    harness.engine.setView(4, view(4, { ...podNetwork, reserved: { '192.0.2.9:8080/tcp': 'the API server' } }))
    await harness.synced({ ...thief, externalIps: ['10.0.0.7', '192.0.2.9'] }, pods)
    expect(conflicts(harness)).toEqual(['192.0.2.9:8080/tcp the API server a/thief reserved'])
  })
})
