// The controllers: slices of services with a selector, and objects that end by themselves (pods, namespaces, dependents, events).

import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import { findEndpoints, planSlices } from '../../../src/apiserver/controllers/endpoint-slices.ts'
import type { ApiServer } from '../../../src/apiserver/start.ts'
import { type Clock, systemClock } from '../../../src/lib/time.ts'
import { until } from '../../support/until.ts'
import { ask, type Body, patch, pod, pods, post, put, service, services, slice, slices, start } from '../test-server.ts'

let server: ApiServer
/** Added to the time of the system: tests do not wait for hours. */
let ahead: number
let timers: { at: number; run: () => void; done: boolean }[]
const clock: Clock = {
  now: () => systemClock.now() + ahead,
  monotonic: () => systemClock.monotonic() + ahead,
  after(ms, run) {
    const timer = { at: clock.monotonic() + ms, run, done: false }
    timers.push(timer)
    return {
      cancel() {
        timer.done = true
      },
    }
  },
}
const pass = (ms: number) => {
  ahead += ms
  for (const timer of [...timers].sort((a, b) => a.at - b.at)) {
    if (timer.done || timer.at > clock.monotonic()) continue
    timer.done = true
    timer.run()
  }
}

beforeEach(async () => {
  ahead = 0
  timers = []
  server = await start({ clock })
})
afterEach(() => server.close())

interface Slice {
  readonly metadata: { name: string; labels: Record<string, string>; resourceVersion: string; ownerReferences: Body[] }
  readonly addressType: string
  readonly endpoints: {
    addresses: string[]
    conditions: Record<string, boolean>
    nodeName?: string
    zone?: string
    hints?: Body
  }[]
  readonly ports?: Body[]
}
const slicesOf = async (name = 'web'): Promise<Slice[]> =>
  (await ask(server, { path: `${slices}?labelSelector=kubernetes.io/service-name%3D${name}` })).json.items
const endpoints = async (name = 'web') =>
  (await slicesOf(name))
    .flatMap((each) =>
      each.endpoints.map(
        ({ addresses, conditions: { ready, serving, terminating } }) =>
          `${addresses[0]} ${ready ? 'ready' : '-'} ${serving ? 'serving' : '-'} ${terminating ? 'terminating' : '-'}`,
      ),
    )
    .sort()
const expectEndpoints = (wanted: string[], name?: string) =>
  until(`${wanted}`, async () => JSON.stringify(await endpoints(name)) === JSON.stringify(wanted)).catch(
    async (error) => {
      throw new Error(`${error.message}; there is ${await endpoints(name)}`)
    },
  )

describe('slices of a service with a selector', () => {
  beforeEach(async () => {
    await post(
      server,
      services,
      service('web', { selector: { app: 'web' }, ports: [{ name: 'http', port: 80, targetPort: 'http' }] }),
    )
    const spec = { containers: [{ name: 'c', ports: [{ name: 'http', containerPort: 8080 }] }] }
    await post(server, pods, pod('p1', { app: 'web' }, '10.1.0.1', { spec }))
    await post(
      server,
      pods,
      pod('p2', { app: 'web' }, '10.1.0.2', { spec, status: { conditions: [{ type: 'Ready', status: 'False' }] } }),
    )
    await post(server, pods, pod('other', { app: 'db' }, '10.1.0.3', { spec }))
  })

  it('follow the readiness, labels and termination of pods until the grace period is over', async () => {
    await expectEndpoints(['10.1.0.1 ready serving -', '10.1.0.2 - - -'])
    expect((await slicesOf())[0]).toMatchObject({
      addressType: 'IPv4',
      ports: [{ name: 'http', port: 8080, protocol: 'TCP' }],
      metadata: { labels: { 'endpointslice.kubernetes.io/managed-by': 'endpointslice-controller.k8s.io' } },
    })
    await patch(server, `${pods}/p2/status`, { status: { conditions: [{ type: 'Ready', status: 'True' }] } })
    await expectEndpoints(['10.1.0.1 ready serving -', '10.1.0.2 ready serving -'])
    await patch(server, `${pods}/other`, { metadata: { labels: { app: 'web' } } })
    await expectEndpoints(['10.1.0.1 ready serving -', '10.1.0.2 ready serving -', '10.1.0.3 ready serving -'])
    await patch(server, `${pods}/p2`, { metadata: { labels: { app: 'none' } } })
    await ask(server, { method: 'DELETE', path: `${pods}/p1` })
    await expectEndpoints(['10.1.0.1 - serving terminating', '10.1.0.3 ready serving -'])
    // The real time counts as well: half of the grace period leaves the other half to a slow machine.
    pass(15_000)
    await expectEndpoints(['10.1.0.1 - serving terminating', '10.1.0.3 ready serving -'])
    pass(16_000)
    await expectEndpoints(['10.1.0.3 ready serving -'])
    expect((await ask(server, { path: `${pods}/p1` })).status).toBe(404)
  })

  it('hold endpoints with equal ports, and keep their names', async () => {
    await expectEndpoints(['10.1.0.1 ready serving -', '10.1.0.2 - - -'])
    const [before] = await slicesOf()
    await post(
      server,
      pods,
      pod('p4', { app: 'web' }, '10.1.0.4', {
        spec: { containers: [{ name: 'c', ports: [{ name: 'http', containerPort: 9090 }] }] },
      }),
    )
    await until('two slices', async () => (await slicesOf()).length === 2)
    expect(
      (await slicesOf()).find(({ metadata }) => metadata.name === before?.metadata.name)?.metadata.resourceVersion,
    ).toBe(before?.metadata.resourceVersion)
    await ask(server, { method: 'DELETE', path: `${services}/web` })
    await until('none', async () => (await slicesOf()).length === 0)
    expect((await ask(server, { path: '/api/v1/namespaces/default/endpoints/web' })).status).toBe(404)
  })

  it('are repaired when a user changes or deletes them', async () => {
    await expectEndpoints(['10.1.0.1 ready serving -', '10.1.0.2 - - -'])
    const name = (await slicesOf())[0]?.metadata.name as string
    await patch(server, `${slices}/${name}`, { endpoints: [] })
    await expectEndpoints(['10.1.0.1 ready serving -', '10.1.0.2 - - -'])
    await ask(server, { method: 'DELETE', path: `${slices}/${name}` })
    await expectEndpoints(['10.1.0.1 ready serving -', '10.1.0.2 - - -'])
  })

  it('have the zones of nodes, and hints if the service prefers close endpoints', async () => {
    await post(server, '/api/v1/nodes', {
      metadata: { name: 'node-1', labels: { 'topology.kubernetes.io/zone': 'z1' } },
    })
    await patch(server, `${services}/web`, { spec: { trafficDistribution: 'PreferClose' } })
    await until('hints', async () =>
      (await slicesOf())[0]?.endpoints.some(
        ({ zone, hints }) => zone === 'z1' && JSON.stringify(hints) === '{"forZones":[{"name":"z1"}]}',
      ),
    )
  })

  it('have endpoints that are not ready as ready ones if the service publishes them', async () => {
    await patch(server, `${services}/web`, { spec: { publishNotReadyAddresses: true } })
    await expectEndpoints(['10.1.0.1 ready serving -', '10.1.0.2 ready - -'])
  })

  it('have both families for a dual-stack service', async () => {
    await post(server, services, service('dual', { selector: { app: 'two' }, ipFamilyPolicy: 'RequireDualStack' }))
    await post(
      server,
      pods,
      pod('d', { app: 'two' }, '10.1.0.9', { status: { podIPs: [{ ip: '10.1.0.9' }, { ip: 'fd00::9' }] } }),
    )
    await expectEndpoints(['10.1.0.9 ready serving -', 'fd00::9 ready serving -'], 'dual')
    expect((await slicesOf('dual')).map(({ addressType }) => addressType).sort()).toEqual(['IPv4', 'IPv6'])
  })
})

it('does not touch the slices of a service without a selector', async () => {
  await post(server, services, service('own'))
  await post(server, slices, slice('own-1', 'own', ['10.1.0.1']))
  await patch(server, `${services}/own`, { metadata: { labels: { a: 'b' } } })
  await put(server, `${slices}/own-1`, slice('own-1', 'own', ['10.1.0.1', '10.1.0.2']))
  await ask(server, { method: 'DELETE', path: `${services}/own` })
  await new Promise((resolve) => setTimeout(resolve, 50))
  expect((await slicesOf('own'))[0]?.endpoints).toHaveLength(2)
})

it('puts at most a hundred endpoints into a slice, and moves none without need', () => {
  const spec = { selector: { a: 'b' }, ipFamilies: ['IPv4'], ports: [{ port: 80, targetPort: 80 }] }
  const object = { metadata: { name: 'web', namespace: 'x' }, spec }
  const record = (i: number) => ({
    metadata: { name: `p${i}`, namespace: 'x', uid: `u${i}` },
    status: { podIP: `10.1.${i >> 8}.${i & 255}`, conditions: [{ type: 'Ready', status: 'True' }] },
  })
  const all = Array.from({ length: 250 }, (_, i) => record(i))
  const plan = planSlices(
    object,
    findEndpoints(object, all, () => ''),
    [],
  )
  expect(plan.map((each) => each.endpoints.length)).toEqual([100, 100, 50])
  const existing = plan.map((each, i) => ({
    metadata: { name: `s${i}` },
    addressType: each.addressType,
    ports: each.ports,
    endpoints: each.endpoints,
  }))
  const fewer = planSlices(
    object,
    findEndpoints(
      object,
      all.filter((_, i) => i !== 5),
      () => '',
    ),
    existing,
  )
  expect(fewer.map((each) => [each.name, each.endpoints.length])).toEqual([
    ['s0', 99],
    ['s1', 100],
    ['s2', 50],
  ])
})

describe('the server itself', () => {
  it('removes a namespace with all objects in it', async () => {
    await post(server, '/api/v1/namespaces', { metadata: { name: 'temp' } })
    const path = '/api/v1/namespaces/temp'
    await post(server, `${path}/services`, service('web', { selector: { app: 'web' }, type: 'NodePort' }))
    await post(
      server,
      `${path}/pods`,
      pod('p', { app: 'web' }, '10.1.0.1', { spec: { terminationGracePeriodSeconds: 5 } }),
    )
    await until(
      'a slice',
      async () =>
        (await ask(server, { path: '/apis/discovery.k8s.io/v1/namespaces/temp/endpointslices' })).json.items.length > 0,
    )
    const { json } = await ask(server, { method: 'DELETE', path })
    expect(json.status.phase).toBe('Terminating')
    expect(await post(server, `${path}/services`, service('late'))).toMatchObject({ status: 403 })
    await until('services gone', async () => (await ask(server, { path: `${path}/services` })).json.items.length === 0)
    expect((await ask(server, { path })).status).toBe(200)
    pass(6_000)
    await until('all gone', async () => (await ask(server, { path })).status === 404)
    expect([...server.registry.list('endpointslices', 'temp')]).toEqual([])
  })

  it('removes the dependents of a deleted object', async () => {
    const { json } = await post(server, services, service('owner'))
    const owned = {
      ...slice('owned', 'x', ['10.1.0.1']),
      metadata: {
        name: 'owned',
        ownerReferences: [{ apiVersion: 'v1', kind: 'Service', name: 'owner', uid: json.metadata.uid }],
      },
    }
    expect((await post(server, slices, owned)).status).toBe(201)
    await ask(server, { method: 'DELETE', path: `${services}/owner` })
    await until('gone', async () => (await ask(server, { path: `${slices}/owned` })).status === 404)
  })

  it('removes an event an hour after it was last seen', async () => {
    const event = (name: string) => ({
      metadata: { name },
      eventTime: new Date(clock.now()).toISOString().replace('Z', '000Z'),
      reportingController: 'c',
      reportingInstance: 'i',
      action: 'a',
      reason: 'r',
      type: 'Normal',
      regarding: { kind: 'Service', name: 'x', namespace: 'default' },
    })
    const path = '/apis/events.k8s.io/v1/namespaces/default/events'
    for (const name of ['short', 'long']) expect((await post(server, path, event(name))).status).toBe(201)
    pass(50 * 60_000)
    await patch(server, `${path}/long`, {
      series: { count: 2, lastObservedTime: new Date(clock.now()).toISOString().replace('Z', '000Z') },
    })
    pass(11 * 60_000)
    await until(
      'one',
      async () =>
        (await ask(server, { path: '/api/v1/events' })).json.items
          .map((item: Body) => (item.metadata as Body).name)
          .join() === 'long',
    )
  })

  it('keeps the objects that every cluster has', async () => {
    expect(await ask(server, { method: 'DELETE', path: '/api/v1/namespaces/default' })).toMatchObject({ status: 403 })
    await ask(server, { method: 'DELETE', path: `${services}/kubernetes` })
    await until('back', async () => (await ask(server, { path: `${services}/kubernetes` })).status === 200)
  })
})
