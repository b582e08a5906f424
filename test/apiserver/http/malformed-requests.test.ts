// Ten thousand malformed bodies, paths and queries: none crashes the server or gets a 500; each gets a Status or a plain 404.

import { Agent, request } from 'node:https'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import type { ApiServer } from '../../../src/apiserver/start.ts'
import { folder, pod, service, slice, start } from '../test-server.ts'

let server: ApiServer
let state: ReturnType<typeof folder>
const agent = new Agent({ keepAlive: true, maxSockets: 16, rejectUnauthorized: false })
beforeAll(async () => {
  state = folder()
  server = await start({ stateDir: state.path })
})
afterAll(async () => {
  agent.destroy()
  await server.close()
  state.remove()
})

/** Generates the same requests in every run, so that a failure can be repeated. */
function generator(seed: number): () => number {
  let at = seed
  return () => {
    at = (at + 0x6d2b79f5) | 0
    let mixed = Math.imul(at ^ (at >>> 15), 1 | at)
    mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), 61 | mixed)) ^ mixed
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32
  }
}
const random = generator(20261116)
const pick = <T>(list: readonly T[]): T => list[Math.floor(random() * list.length)] as T
const chance = (part: number) => random() < part

const junk: readonly unknown[] = [
  null,
  true,
  -1,
  0,
  1.5,
  1e300,
  '',
  'x',
  '\u0000',
  '😀',
  'x'.repeat(300),
  [],
  {},
  [[]],
  { a: null },
  [null],
  '__proto__',
  '127.0.0.1',
  '::',
  '300.1.1.1',
  '10.96.0.1',
  65536,
  'None',
  { $patch: 'delete' },
]
const paths = [
  '/api/v1/namespaces/default/services',
  '/api/v1/namespaces/default/pods',
  '/api/v1/nodes',
  '/api/v1/namespaces',
  '/api/v1/namespaces/default/events',
  '/apis/events.k8s.io/v1/namespaces/default/events',
  '/apis/discovery.k8s.io/v1/namespaces/default/endpointslices',
  '/apis/networking.k8s.io/v1/servicecidrs',
  '/api/v1/namespaces/default/endpoints',
]
const types = [
  'application/json',
  'application/yaml',
  'application/json-patch+json',
  'application/merge-patch+json',
  'application/strategic-merge-patch+json',
  'application/apply-patch+yaml',
  'application/vnd.kubernetes.protobuf',
  'text/plain',
  '',
  ';',
  'application/json; charset=x',
]
const methods = ['GET', 'POST', 'PUT', 'PATCH', 'DELETE', 'HEAD', 'OPTIONS', 'TRACE']
const parameters = [
  'labelSelector',
  'fieldSelector',
  'limit',
  'continue',
  'resourceVersion',
  'resourceVersionMatch',
  'sendInitialEvents',
  'dryRun',
  'fieldValidation',
  'fieldManager',
  'force',
  'gracePeriodSeconds',
  'includeObject',
  'watch',
  'timeoutSeconds',
]
const values = [
  '',
  'x',
  '0',
  '-1',
  '1',
  '99999999999999999999',
  'true',
  'All',
  'Exact',
  'NotOlderThan',
  'a in (',
  '%00',
  'metadata.name=x',
  'eyJ2IjoxfQ',
  '{',
  '=',
  '!',
  'Strict',
  '1e9',
]
const accepts = [
  '',
  'application/json',
  '*/*',
  'application/json;as=Table;v=v1;g=meta.k8s.io',
  'application/json;as=Table;v=v9;g=x',
  'application/vnd.kubernetes.protobuf',
  'text/html',
  ';;,,',
  'application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io',
]
const segments = [
  '..',
  '%2e%2e',
  '%',
  '%zz',
  '%00',
  '',
  'status',
  'a%2fb',
  'x'.repeat(500),
  '😀',
  'namespaces',
  'services',
  'kubernetes',
  'proxy',
  '.',
  'default',
]

/** Returns the object with some of its parts replaced, removed or repeated. */
function spoil(value: unknown): unknown {
  if (chance(0.15)) return pick(junk)
  if (Array.isArray(value))
    return chance(0.1) ? [...value, ...value] : value.map((each) => (chance(0.4) ? spoil(each) : each))
  if (typeof value !== 'object' || value === null) return chance(0.5) ? pick(junk) : value
  const spoiled: Record<string, unknown> = {}
  for (const [key, inner] of Object.entries(value)) {
    if (chance(0.1)) continue
    spoiled[chance(0.05) ? `${key}x` : key] = chance(0.4) ? spoil(inner) : inner
  }
  if (chance(0.2))
    spoiled[pick(['spec', 'metadata', 'status', 'kind', 'apiVersion', '$patch', '__proto__', 'constructor'])] =
      pick(junk)
  return spoiled
}

const good: readonly unknown[] = [
  service(
    'fuzz',
    {
      selector: { a: 'b' },
      type: 'LoadBalancer',
      externalTrafficPolicy: 'Local',
      ipFamilyPolicy: 'PreferDualStack',
      sessionAffinity: 'ClientIP',
      externalIPs: ['192.0.2.1'],
    },
    { labels: { a: 'b' }, annotations: { c: 'd' }, finalizers: ['x.y/z'] },
  ),
  pod('fuzz', { a: 'b' }, '10.1.0.1', {
    spec: { containers: [{ name: 'c', ports: [{ name: 'p', containerPort: 80 }] }] },
  }),
  slice('fuzz', 'web', ['10.1.0.2', '10.1.0.3']),
  {
    apiVersion: 'v1',
    kind: 'Node',
    metadata: { name: 'fuzz' },
    spec: { podCIDRs: ['10.0.0.0/24'] },
    status: { addresses: [{ type: 'InternalIP', address: '192.0.2.9' }] },
  },
  {
    apiVersion: 'networking.k8s.io/v1',
    kind: 'ServiceCIDR',
    metadata: { name: 'fuzz' },
    spec: { cidrs: ['10.97.0.0/24'] },
  },
  {
    apiVersion: 'events.k8s.io/v1',
    kind: 'Event',
    metadata: { name: 'fuzz' },
    eventTime: '2026-11-16T00:00:00.000000Z',
    reportingController: 'x',
    reportingInstance: 'y',
    action: 'a',
    reason: 'r',
    type: 'Normal',
    note: 'n',
    regarding: { kind: 'Service', name: 's', namespace: 'default' },
  },
  {
    metadata: { labels: { x: null } },
    spec: { ports: [{ port: 80, $patch: 'delete' }], '$setElementOrder/ports': [{ port: 1 }] },
  },
  [
    { op: 'add', path: '/metadata/labels/x', value: 'y' },
    { op: 'move', from: '/spec', path: '/spec/a' },
  ],
]

function body(kind: number): string {
  const text = JSON.stringify(chance(0.2) ? good[kind] : spoil(good[kind])) ?? ''
  if (chance(0.1)) return text.slice(0, Math.floor(random() * text.length))
  if (chance(0.03)) return '['.repeat(100_000)
  if (chance(0.02)) return `{"metadata":${'{"a":'.repeat(3000)}1${'}'.repeat(3000)}}`
  if (chance(0.03))
    return pick([
      'a: &a [*a]',
      '\u0000',
      '%',
      'k8s\u0000\n\u0004',
      '{"a":1}{"b":2}',
      '"x"',
      'nul',
      '- - - -',
      '\ufeff{}',
    ])
  return text
}

/** The index of the path that accepts each good object. */
const pathIndexes = [0, 1, 6, 2, 7, 5, 0, 0]

function path(kind: number): string {
  let made = chance(0.7) ? (paths[pathIndexes[kind] as number] as string) : pick(paths)
  if (chance(0.6))
    made += `/${chance(0.7) ? pick(['fuzz', 'kubernetes', 'default', 'nope']) : encodeURIComponent(String(pick(junk)))}`
  if (chance(0.15)) made += '/status'
  if (chance(0.1))
    made = made
      .split('/')
      .map((part) => (chance(0.2) ? pick(segments) : part))
      .join('/')
  const query = Array.from(
    { length: chance(0.5) ? Math.ceil(random() * 3) : 0 },
    () =>
      `${pick(parameters)}=${chance(0.5) ? encodeURIComponent(pick(values)) : pick(values).replace(/[^\x21-\x7e]/g, '')}`,
  )
  return (
    encodeURI(made)
      .replace(/%25/g, '%')
      .replace(/^(?!\/)/, '/') + (query.length > 0 ? `?${query.join('&')}` : '')
  )
}

interface Outcome {
  readonly status: number
  readonly text: string
  readonly type: string
}

function send(options: {
  method: string
  path: string
  headers: Record<string, string>
  body: string
}): Promise<Outcome> {
  return new Promise((resolve, reject) => {
    const sent = ['GET', 'HEAD'].includes(options.method) ? '' : options.body
    // Node's client does not set the length for a DELETE or TRACE.
    const headers = { ...options.headers, 'content-length': String(Buffer.byteLength(sent)) }
    const { method, path: target } = options
    const outgoing = request(
      { host: '127.0.0.1', port: server.port, agent, method, path: target, headers },
      (incoming) => {
        let text = ''
        const done = () =>
          resolve({ status: incoming.statusCode ?? 0, text, type: String(incoming.headers['content-type']) })
        // A watch does not end; its beginning is enough.
        const timer = setTimeout(() => incoming.destroy(), 30)
        incoming.on('data', (chunk) => {
          text += chunk
        })
        incoming.on('close', () => {
          clearTimeout(timer)
          done()
        })
      },
    )
    outgoing.on('error', reject)
    outgoing.end(sent)
  })
}

describe('malformed requests', () => {
  it('all get a valid response', async () => {
    const counts = new Map<number, number>()
    const total = 10_000
    let left = total
    const client = async () => {
      while (left-- > 0) {
        const kind = Math.floor(random() * good.length)
        const question = {
          method: pick(methods),
          path: path(kind),
          body: body(kind),
          headers: {
            authorization: `Bearer ${server.token}`,
            'content-type': chance(0.5) ? 'application/json' : pick(types),
            accept: pick(accepts),
          },
        }
        const { status, text, type } = await send(question)
        const shown = JSON.stringify({
          ...question,
          body: question.body.slice(0, 300),
          status,
          text: text.slice(0, 300),
        })
        counts.set(status, (counts.get(status) ?? 0) + 1)
        expect([200, 201, 400, 403, 404, 405, 406, 409, 410, 413, 415, 422, 504], shown).toContain(status)
        if (status < 400 || question.method === 'HEAD' || text === '404 page not found\n') continue
        expect(type, shown).toBe('application/json')
        expect(JSON.parse(text), shown).toMatchObject({
          kind: 'Status',
          status: 'Failure',
          code: status,
          message: expect.stringMatching(/./),
        })
      }
    }
    await Promise.all(Array.from({ length: 16 }, client))
    // The requests must cause every kind of response; otherwise the test would show nothing.
    for (const status of [200, 201, 400, 404, 405, 406, 409, 415, 422])
      expect(counts.get(status) ?? 0, `answers with ${status}`).toBeGreaterThan(5)
    const well = await send({ method: 'GET', path: '/readyz', headers: {}, body: '' })
    expect(well).toMatchObject({ status: 200, text: 'ok' })
    expect(({} as { polluted?: unknown }).polluted).toBeUndefined()
  }, 240_000)

  it('do not disturb other requests when they are too large', async () => {
    const large = await send({
      method: 'POST',
      path: '/api/v1/namespaces',
      headers: { authorization: `Bearer ${server.token}`, 'content-type': 'application/json' },
      body: `"${'x'.repeat(4 << 20)}"`,
    }).catch((error: Error) => error)
    if (!(large instanceof Error)) expect(large.status).toBe(413)
    expect((await send({ method: 'GET', path: '/readyz', headers: {}, body: '' })).status).toBe(200)
  })

  it('leave a state that a restart accepts', async () => {
    const version = server.registry.head
    await server.close()
    server = await start({ stateDir: state.path })
    expect(server.registry.head).toBeGreaterThanOrEqual(version)
  })
})
