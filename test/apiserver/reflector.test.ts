// The client and the reflector of the proxy against the embedded API server.

import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import { createSelfSigned } from '../../src/apiserver/http/certificate.ts'
import type { ApiServer } from '../../src/apiserver/start.ts'
import { Client, defaultUserAgent } from '../../src/kube/client.ts'
import { EventRecorder } from '../../src/kube/events.ts'
import { loadConnection } from '../../src/kube/kubeconfig.ts'
import { protobufType } from '../../src/kube/protobuf/read-body.ts'
import { Reflector, type ReflectorOptions } from '../../src/kube/reflect/reflector.ts'
import {
  describeOwnNode,
  endpointSlices,
  serviceCidrs,
  services as serviceResource,
} from '../../src/kube/reflect/watched-resources.ts'
import { silentLogger } from '../../src/lib/log.ts'
import { systemClock } from '../../src/lib/time.ts'
import type { SliceRecord } from '../../src/model/types.ts'
import { type Gate, startGate } from '../e2e/gate.ts'
import { until } from '../support/until.ts'
import { ask, patch, post, put, service, services, slice, slices, start } from './test-server.ts'

let directory: string
let server: ApiServer
let gate: Gate
let client: Client
let stopped: AbortController
let running: Promise<void>[]
let reported: string[]

beforeEach(async () => {
  directory = mkdtempSync(join(tmpdir(), 'sluice-reflect-'))
  server = await start({ stateDir: join(directory, 'state') })
  gate = await startGate(server.port)
  writeFileSync(join(directory, 'kubeconfig'), server.kubeconfig().replace(`:${server.port}`, `:${gate.port}`))
  client = connect('application/json')
  stopped = new AbortController()
  running = []
  reported = []
})

const connect = (accept: string): Client => {
  const kubeconfig = join(directory, 'kubeconfig')
  const options = { qps: 1000, burst: 1000, userAgent: defaultUserAgent, log: silentLogger, clock: systemClock, accept }
  return new Client(loadConnection({ kubeconfig, master: '', env: {} }), options)
}

afterEach(async () => {
  stopped.abort()
  await Promise.all(running)
  client.close()
  await gate.stop()
  await server.close()
  rmSync(directory, { recursive: true, force: true })
})

const reflect = async (through: ReflectorOptions<SliceRecord>['client'] = client) => {
  const reflector = new Reflector<SliceRecord>({
    ...endpointSlices,
    client: through,
    clock: systemClock,
    log: silentLogger,
    random: () => 0,
    sink: {
      put: (key, record) => reported.push(`put ${key} ${Array.from(record.endpoints, ({ ip }) => ip).join(',')}`),
      drop: (key) => reported.push(`drop ${key}`),
      synced: () => reported.push('synced'),
      problem: (problem) => reported.push(`problem ${problem.message}`),
    },
  })
  running.push(reflector.run(stopped.signal))
  await until('synced', () => reflector.status().synced)
  return reflector
}
const nextReports = async (last: string) => {
  await until(`${last}; reported so far: ${reported}`, () => reported.includes(last))
  await new Promise((resolve) => setTimeout(resolve, 50)) // a change that is reported twice would come now
  return reported.splice(0).sort()
}
const changeBehindTheGate = async (between: () => Promise<unknown>) => {
  for (const [name, ip] of [
    ['keep', '10.0.0.1'],
    ['change', '10.0.0.2'],
    ['leave', '10.0.0.3'],
  ] as const)
    await post(server, slices, slice(name, 'web', [ip]))
  await until('all three', () => reported.length >= 4)
  reported.length = 0
  gate.shut()
  await ask(server, { method: 'DELETE', path: `${slices}/leave` })
  await put(server, `${slices}/change`, slice('change', 'web', ['10.0.0.22']))
  await post(server, slices, slice('come', 'web', ['10.0.0.4']))
  await between()
  gate.open()
}
const difference = ['drop default/leave', 'put default/change 10.0.0.22', 'put default/come 10.0.0.4']

describe.each(['application/json', `${protobufType},application/json`])(
  'the reflector on the embedded server, %s',
  (accept) => {
    beforeEach(() => {
      client.close()
      client = connect(accept)
    })

    it('reports each create, change and delete once, in order', async () => {
      await post(server, slices, slice('old', 'web', ['10.0.0.9']))
      await reflect()
      expect(reported.splice(0)).toEqual(['put default/old 10.0.0.9', 'synced'])
      await post(server, slices, slice('a', 'web', ['10.0.0.1']))
      await put(server, `${slices}/a`, slice('a', 'web', ['10.0.0.1', '10.0.0.2']))
      await ask(server, { method: 'DELETE', path: `${slices}/a` })
      await until('deleted', () => reported.includes('drop default/a'))
      expect(reported).toEqual(['put default/a 10.0.0.1', 'put default/a 10.0.0.1,10.0.0.2', 'drop default/a'])
    })

    it('D19: an object that stops matching the selector is a delete, and comes back as an add', async () => {
      await reflect()
      await post(server, slices, slice('a', 'web', ['10.0.0.1']))
      await nextReports('put default/a 10.0.0.1')
      await patch(server, `${slices}/a`, { metadata: { labels: { 'service.kubernetes.io/headless': '' } } })
      expect(await nextReports('drop default/a')).toEqual(['drop default/a'])
      await patch(server, `${slices}/a`, { metadata: { labels: { 'service.kubernetes.io/headless': null } } })
      expect(await nextReports('put default/a 10.0.0.1')).toEqual(['put default/a 10.0.0.1'])
    })

    it('resumes where it was after a broken connection', async () => {
      const reflector = await reflect()
      await changeBehindTheGate(async () => {})
      expect(await nextReports('put default/come 10.0.0.4')).toEqual(difference)
      expect(reflector.status().connected).toBe(true)
    })

    it('reports the difference after a restart on the same port, and resumes from its version', async () => {
      await reflect()
      await changeBehindTheGate(async () => {
        const { port } = server
        await server.close()
        server = await start({ stateDir: join(directory, 'state'), port })
      })
      expect(await nextReports('put default/come 10.0.0.4')).toEqual(difference)
    })

    it('reports the difference after its version has expired (410)', async () => {
      await reflect()
      await changeBehindTheGate(async () => server.registry.compactHistory())
      expect(await nextReports('put default/come 10.0.0.4')).toEqual(difference)
    })

    it('reports the difference after a restart of a server without stored state', async () => {
      const tls = createSelfSigned(['127.0.0.1'], Date.now())
      const first = await start({ tls, token: 'a-token-that-stays-the-same' })
      const { port, token } = first
      await post(first, slices, slice('old', 'web', ['10.0.0.1']))
      const kubeconfig = join(directory, 'memory')
      writeFileSync(kubeconfig, first.kubeconfig())
      const options = { qps: 100, burst: 100, userAgent: defaultUserAgent, log: silentLogger, clock: systemClock }
      const other = new Client(loadConnection({ kubeconfig, master: '', env: {} }), options)
      await reflect(other)
      reported.length = 0
      await first.close()
      const second = await start({ tls, token, port })
      await post(second, slices, slice('new', 'web', ['10.0.0.2']))
      expect(await nextReports('put default/new 10.0.0.2')).toEqual(['drop default/old', 'put default/new 10.0.0.2'])
      stopped.abort()
      await Promise.all(running)
      other.close()
      await second.close()
    })

    it('reads pages where lists are not streamed, and again when the pages expire between two of them', async () => {
      for (let i = 0; i < 600; i++)
        server.client
          .request({
            method: 'POST',
            path: slices,
            body: slice(`many-${i}`, 'web', [`10.1.${i >> 8}.${i & 255 || 1}`]),
          })
          .catch(() => {})
      await server.registry.settled()
      let pages = 0
      await reflect({
        stream: (call) => {
          if (call.query?.sendInitialEvents !== undefined)
            return client.stream({ ...call, query: { ...call.query, resourceVersionMatch: 'Exact' } })
          return client.stream(call)
        },
        request: async (call) => {
          const answer = await client.request(call)
          if (++pages === 1) {
            await put(server, `${slices}/many-0`, slice('many-0', 'web', ['10.1.9.9']))
            server.registry.compactHistory()
          }
          return answer
        },
      })
      expect(reported.filter((line) => line.startsWith('put '))).toHaveLength(601) // many-0 twice: it did change
      expect(pages).toBe(2)
    })

    it('reads services, ranges and a node with the selectors of the proxy', async () => {
      const seen: string[] = []
      const follow = async (resource: { resource: string; kind: string; decode: (json: unknown) => unknown }) => {
        const reflector = new Reflector({
          ...(resource as typeof serviceResource),
          client,
          clock: systemClock,
          log: silentLogger,
          sink: {
            put: (key) => seen.push(`${resource.kind} ${key}`),
            drop: (key) => seen.push(`no ${resource.kind} ${key}`),
            synced: () => {},
            problem: (problem) => seen.push(`problem ${JSON.stringify(problem)}`),
          },
        })
        running.push(reflector.run(stopped.signal))
        await until('synced', () => reflector.status().synced)
      }
      await post(server, services, service('web'))
      await post(server, services, service('headless', { clusterIP: 'None' }))
      await post(
        server,
        services,
        service('other', {}, { labels: { 'service.kubernetes.io/service-proxy-name': 'x' } }),
      )
      await post(server, '/api/v1/nodes', {
        metadata: { name: 'n1' },
        status: { addresses: [{ type: 'InternalIP', address: '192.0.2.1' }] },
      })
      await post(server, '/api/v1/nodes', { metadata: { name: 'n2' } })
      await follow(serviceResource)
      await follow(serviceCidrs)
      await follow(describeOwnNode('n1'))
      expect(seen).toEqual(['Service default/kubernetes', 'Service default/web', 'ServiceCIDR kubernetes', 'Node n1'])
    })

    it('stores the events that the proxy records, and serves them in both forms', async () => {
      const recorder = new EventRecorder({ client, clock: systemClock, hostname: 'host', log: silentLogger })
      running.push(recorder.run(stopped.signal))
      recorder.record({
        type: 'Warning',
        reason: 'Test',
        action: 'Testing',
        note: 'as it was',
        regarding: { apiVersion: 'v1', kind: 'Service', namespace: 'default', name: 'web', uid: 'u' },
      })
      const found = await until('the event', async () => {
        const { json } = await ask(server, {
          path: '/api/v1/namespaces/default/events?fieldSelector=involvedObject.name%3Dweb,type=Warning',
        })
        return json.items[0]
      })
      expect(found).toMatchObject({
        message: 'as it was',
        involvedObject: { uid: 'u' },
        reportingComponent: 'kube-proxy',
      })
      const { json } = await ask(server, {
        path: '/apis/events.k8s.io/v1/events?fieldSelector=regarding.kind%3DService',
      })
      expect(json).toMatchObject({
        kind: 'EventList',
        apiVersion: 'events.k8s.io/v1',
        items: [{ note: 'as it was', regarding: { name: 'web' }, reportingController: 'kube-proxy' }],
      })
    })

    it('works in the same process without a socket', async () => {
      await reflect(server.client)
      await post(server, slices, slice('a', 'web', ['10.0.0.1']))
      expect(await nextReports('put default/a 10.0.0.1')).toEqual(['put default/a 10.0.0.1', 'synced'])
    })
  },
)
