// The fields that the server decides in services: families, addresses, ports. Updates keep or drop them, and nothing leaks.

import fc from 'fast-check'
import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import { Allocations } from '../../../src/apiserver/requests/allocations.ts'
import type { ApiServer } from '../../../src/apiserver/start.ts'
import { Registry } from '../../../src/apiserver/store/registry.ts'
import { createMemoryLog } from '../../../src/apiserver/store/write-ahead-log.ts'
import { ask, type Body, folder, patch, post, put, service, services, start } from '../test-server.ts'

let server: ApiServer
let state: ReturnType<typeof folder>
const range = { first: 30000, last: 30031 }
beforeEach(async () => {
  state = folder()
  server = await start({ stateDir: state.path, nodePortRange: range })
})
afterEach(async () => {
  await server.close()
  state.remove()
})

const create = async (name: string, spec: Body = {}) => {
  const { status, json } = await post(server, services, service(name, spec))
  return status === 201 ? json.spec : json.message
}
const change = async (name: string, spec: Body) => {
  const { status, json } = await patch(
    server,
    `${services}/${name}`,
    { spec },
    'application/strategic-merge-patch+json',
  )
  return status === 200 ? json.spec : json.message
}
const v4 = expect.stringMatching(/^10\.96\./)
const v6 = expect.stringMatching(/^fd00:10:96::/)

describe('a service', () => {
  it('gets one address of the first family unless it asks for more', async () => {
    expect(await create('a')).toMatchObject({
      clusterIP: v4,
      clusterIPs: [v4],
      ipFamilies: ['IPv4'],
      ipFamilyPolicy: 'SingleStack',
    })
    expect(await create('b', { ipFamilyPolicy: 'PreferDualStack' })).toMatchObject({
      clusterIP: v4,
      clusterIPs: [v4, v6],
      ipFamilies: ['IPv4', 'IPv6'],
    })
    expect(await create('c', { ipFamilies: ['IPv6'] })).toMatchObject({
      clusterIP: v6,
      clusterIPs: [v6],
      ipFamilyPolicy: 'SingleStack',
    })
    expect(await create('d', { ipFamilies: ['IPv6', 'IPv4'], ipFamilyPolicy: 'RequireDualStack' })).toMatchObject({
      clusterIPs: [v6, v4],
      ipFamilyPolicy: 'RequireDualStack',
    })
    expect(await create('e', { clusterIP: 'fd00:10:96::77' })).toMatchObject({
      clusterIPs: ['fd00:10:96::77'],
      ipFamilies: ['IPv6'],
    })
    expect(await create('f', { clusterIP: 'None', selector: { a: 'b' } })).toMatchObject({
      clusterIPs: ['None'],
      ipFamilies: ['IPv4'],
    })
    expect(await create('g', { clusterIP: 'None' })).toMatchObject({
      ipFamilies: ['IPv4', 'IPv6'],
      ipFamilyPolicy: 'RequireDualStack',
    })
  })

  it('cannot have an address that is taken, out of range, or of the wrong family', async () => {
    expect(await create('a', { clusterIP: '10.96.0.77' })).toMatchObject({ clusterIP: '10.96.0.77' })
    expect(await create('b', { clusterIP: '10.96.0.77' })).toMatch(/already allocated/)
    expect(await create('b', { clusterIP: '10.99.0.1' })).toMatch(/does not match the current range/)
    expect(await create('b', { clusterIP: '10.96.0.78', ipFamilies: ['IPv6'] })).toMatch(
      /expected an IPv6 value as indicated by `ipFamilies\[0\]`/,
    )
    expect(await create('b', { clusterIPs: ['10.96.0.78'] })).toMatch(/must be empty when `clusterIP` is not specified/)
    expect(await create('b', { clusterIP: '10.96.0.78', clusterIPs: ['10.96.0.78', '10.96.0.79'] })).toMatch(
      /may specify no more than one IP for each IP family/,
    )
    await ask(server, { method: 'DELETE', path: `${services}/a` })
    expect(await create('b', { clusterIP: '10.96.0.77' })).toMatchObject({ clusterIP: '10.96.0.77' })
  })

  it('changes from one stack to two and back, and keeps its first address', async () => {
    const { clusterIP } = await create('a')
    const dual = await change('a', { ipFamilyPolicy: 'RequireDualStack' })
    expect(dual).toMatchObject({ clusterIPs: [clusterIP, v6], ipFamilies: ['IPv4', 'IPv6'] })
    expect(await change('a', { ipFamilyPolicy: 'SingleStack' })).toMatchObject({
      clusterIPs: [clusterIP],
      ipFamilies: ['IPv4'],
    })
    expect(await create('b', { clusterIP: dual.clusterIPs[1] })).toMatchObject({ clusterIP: dual.clusterIPs[1] })
    expect(await change('a', { clusterIP: '10.96.1.1' })).toMatch(/may not change once set/)
  })

  it('gets node ports with its type, and loses them with it', async () => {
    const { ports } = await create('a', {
      type: 'NodePort',
      ports: [
        { name: 'a', port: 80 },
        { name: 'b', port: 53, protocol: 'UDP' },
        { name: 'c', port: 53 },
      ],
    })
    expect(ports[1].nodePort).toBe(ports[2].nodePort)
    expect(ports[0].nodePort).not.toBe(ports[1].nodePort)
    const cluster = await change('a', { type: 'ClusterIP' })
    expect(cluster.ports.map((port: Body) => port.nodePort)).toEqual([undefined, undefined, undefined])
    expect(cluster.externalTrafficPolicy).toBeUndefined()
    expect(await create('b', { type: 'NodePort', ports: [{ port: 80, nodePort: ports[0].nodePort }] })).toMatchObject({
      type: 'NodePort',
    })
    const again = await put(server, `${services}/b`, service('b', { type: 'NodePort' }))
    expect(again.json.spec.ports[0].nodePort).toBe(ports[0].nodePort)
    expect(await create('c', { type: 'NodePort', ports: [{ port: 80, nodePort: 29999 }] })).toMatch(
      /not in the valid range. The range of valid ports is 30000-30031/,
    )
  })

  it('keeps the node port of a port with the same name, and an address that a file no longer names', async () => {
    const path = `${services}/a?fieldManager=file&force=true`
    const apply = async (spec: Body) =>
      (await patch(server, path, service('a', { type: 'NodePort', ...spec }), 'application/apply-patch+yaml')).json.spec
    const had = await apply({ clusterIP: '10.96.0.50', ports: [{ name: 'http', port: 80 }] })
    const has = await apply({ ports: [{ name: 'http', port: 81 }] })
    expect(has).toMatchObject({ clusterIP: '10.96.0.50', clusterIPs: ['10.96.0.50'] })
    expect(has.ports).toMatchObject([{ port: 81, nodePort: had.ports[0].nodePort }])
  })

  it('gets a health check port when it needs one', async () => {
    const spec = await create('a', { type: 'LoadBalancer', externalTrafficPolicy: 'Local' })
    expect(spec.healthCheckNodePort).toBeGreaterThanOrEqual(range.first)
    expect(await create('b', { type: 'NodePort', ports: [{ port: 1, nodePort: spec.healthCheckNodePort }] })).toMatch(
      /already allocated/,
    )
    expect((await change('a', { externalTrafficPolicy: 'Cluster' })).healthCheckNodePort).toBeUndefined()
    expect(
      await create('b', { type: 'NodePort', ports: [{ port: 1, nodePort: spec.healthCheckNodePort }] }),
    ).toMatchObject({ type: 'NodePort' })
    expect(
      (await create('c', { type: 'LoadBalancer', allocateLoadBalancerNodePorts: false })).ports[0].nodePort,
    ).toBeUndefined()
  })

  it('is refused when all node ports are in use, and gets one that another service returns', async () => {
    for (let i = 0; i < 32; i++) expect(await create(`n${i}`, { type: 'NodePort' })).toMatchObject({ type: 'NodePort' })
    expect(await create('late', { type: 'NodePort' })).toMatch(/range is full/)
    await ask(server, { method: 'DELETE', path: `${services}/n7` })
    expect(await create('late', { type: 'NodePort' })).toMatchObject({ type: 'NodePort' })
  })

  it('loses its addresses and ports when it becomes an external name', async () => {
    await create('a', { type: 'NodePort' })
    const { json } = await put(server, `${services}/a`, {
      ...service('a'),
      spec: { type: 'ExternalName', externalName: 'example.org' },
    })
    expect(json.spec).toEqual({ type: 'ExternalName', externalName: 'example.org', sessionAffinity: 'None' })
  })

  it('gets addresses of an added range, which stays while a service uses it', async () => {
    const cidrs = '/apis/networking.k8s.io/v1/servicecidrs'
    expect(await create('a', { clusterIP: '10.97.0.5' })).toMatch(/does not match/)
    expect((await post(server, cidrs, { metadata: { name: 'more' }, spec: { cidrs: ['10.97.0.0/24'] } })).status).toBe(
      201,
    )
    expect(await create('a', { clusterIP: '10.97.0.5' })).toMatchObject({ clusterIP: '10.97.0.5' })
    await ask(server, { method: 'DELETE', path: `${cidrs}/more` })
    const { json } = await ask(server, { path: `${cidrs}/more` })
    expect(json.metadata.deletionTimestamp).toBeDefined()
    expect(await create('b', { clusterIP: '10.97.0.6' })).toMatch(/does not match/)
    await ask(server, { method: 'DELETE', path: `${services}/a` })
    await new Promise((resolve) => setTimeout(resolve, 50))
    expect((await ask(server, { path: `${cidrs}/more` })).status).toBe(404)
  })
})

interface Step {
  readonly name: string
  readonly type: string
  readonly dual: boolean
  readonly local: boolean
}

async function takeStep({ name, type, dual, local }: Step): Promise<void> {
  const path = `${services}/${name}`
  if (type === 'delete') await ask(server, { method: 'DELETE', path })
  else if (type === 'ExternalName')
    await put(server, path, service(name, { type, externalName: 'x.y', ports: undefined }))
  else {
    const policy = { externalTrafficPolicy: local ? 'Local' : 'Cluster' }
    await put(
      server,
      path,
      service(name, {
        type,
        ipFamilyPolicy: dual ? 'PreferDualStack' : 'SingleStack',
        ...(type === 'ClusterIP' ? {} : policy),
      }),
    )
  }
}

describe('allocations', () => {
  it('equal the fields of the services after any history and after every restart', async () => {
    const step = fc.record({
      name: fc.constantFrom('a', 'b', 'c'),
      type: fc.constantFrom('ClusterIP', 'NodePort', 'LoadBalancer', 'ExternalName', 'delete'),
      dual: fc.boolean(),
      local: fc.boolean(),
    })
    await fc.assert(
      fc.asyncProperty(fc.array(step, { minLength: 1, maxLength: 12 }), async (steps) => {
        for (const each of steps) await takeStep(each)
        const before = new Allocations(range, Math.random)
        server.registry.index((each) => before.observe(each))
        const held = [...server.registry.list('services')].map(({ object }) => object.spec as Body)
        const ips = held.flatMap((spec) => (spec.clusterIPs ?? []) as string[])
        expect(before.counts().ips).toBe(ips.length)
        expect(new Set(ips).size).toBe(ips.length)
        await server.close()
        server = await start({ stateDir: state.path, nodePortRange: range })
        const after = new Allocations(range, Math.random)
        server.registry.index((each) => after.observe(each))
        expect(after.counts()).toEqual(before.counts())
      }),
      { numRuns: 15 },
    )
  }, 60_000)

  it('find every free address of a small range, and no other', () => {
    const allocations = new Allocations(range, Math.random)
    const registry = new Registry({ writeAheadLog: createMemoryLog() })
    registry.index((each) => allocations.observe(each))
    registry.put('servicecidrs', { metadata: { name: 'kubernetes' }, spec: { cidrs: ['10.0.0.0/28', 'fd00::/124'] } })
    const given = new Set<string>()
    for (const family of [4, 6] as const) {
      for (let ip = allocations.findFreeIp(family); ip !== undefined; ip = allocations.findFreeIp(family)) {
        expect(given).not.toContain(ip)
        given.add(ip)
        registry.put('services', {
          metadata: { name: `s${given.size}`, namespace: 'x' },
          spec: { clusterIP: ip, clusterIPs: [ip] },
        })
      }
    }
    expect(given.size).toBe(14 + 15)
  })
})
