// Sends the same requests to the embedded API server and to a real one: the answers are equal, or the difference is listed here.

import { readFileSync } from 'node:fs'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { parse } from 'yaml'
import { type ApiServer, startApiServer } from '../../src/apiserver/start.ts'
import { silentLogger } from '../../src/lib/log.ts'
import { findBinaries } from './binaries.ts'
import { type Cluster, startCluster } from './cluster.ts'
import { ask, type Body, type Question } from './compare-answers.ts'

const found = await findBinaries(['etcd', 'kube-apiserver', 'kubectl'])
if ('missing' in found) process.stdout.write(`SKIPPED the reference of the embedded API server: ${found.missing}\n`)

/** A question, and the reason why the answers may differ; their codes and reasons are still compared. */
interface ReferenceQuestion extends Question {
  readonly words?: string
}

const services = '/api/v1/namespaces/default/services'
const slices = '/apis/discovery.k8s.io/v1/namespaces/default/endpointslices'
const cidrs = '/apis/networking.k8s.io/v1/servicecidrs'
const events = '/apis/events.k8s.io/v1/namespaces/default/events'
const service = (name: string, spec: Body = {}, metadata: Body = {}): Body => ({
  apiVersion: 'v1',
  kind: 'Service',
  metadata: { name, ...metadata },
  spec: { ports: [{ port: 80 }], ...spec },
})
const create = (name: string, spec: Body = {}, metadata: Body = {}): ReferenceQuestion => ({
  method: 'POST',
  path: services,
  body: service(name, spec, metadata),
})
const change = (name: string, spec: Body, type = 'application/strategic-merge-patch+json'): ReferenceQuestion => ({
  method: 'PATCH',
  path: `${services}/${name}`,
  body: { spec },
  type,
})
const balance = (name: string, ingress: readonly Body[]): ReferenceQuestion => ({
  method: 'PATCH',
  path: `${services}/${name}/status`,
  body: { status: { loadBalancer: { ingress } } },
  type: 'application/merge-patch+json',
})
/** Server-side apply, as for a file that is edited. */
const apply = (name: string, spec: Body): ReferenceQuestion => ({
  method: 'PATCH',
  path: `${services}/${name}?fieldManager=file&force=true`,
  body: service(name, spec),
  type: 'application/apply-patch+yaml',
})
const slice = (name: string, more: Body): ReferenceQuestion => ({
  method: 'POST',
  path: slices,
  body: { metadata: { name }, addressType: 'IPv4', endpoints: [{ addresses: ['10.0.0.1'] }], ...more },
})
const table = 'application/json;as=Table;v=v1;g=meta.k8s.io'
const parser = 'the parser of another language uses other words'

const conversation: readonly ReferenceQuestion[] = [
  create('a'),
  create('a'),
  create('A_b'),
  create('no-ports', { ports: [] }),
  create('bad', {
    ports: [{ port: 0 }, { port: 80, name: 'x' }, { port: 80, name: 'x', protocol: 'FOO' }],
    type: 'Foo',
    sessionAffinity: 'x',
  }),
  create('taken', { clusterIP: '10.96.0.1' }),
  create('outside', { clusterIP: '1.2.3.4' }),
  create('no-ip', { clusterIP: 'zz' }),
  create('np-on-cluster', { ports: [{ port: 80, nodePort: 30000 }] }),
  create('np', { type: 'NodePort', ports: [{ port: 80, nodePort: 30000 }] }),
  create('np2', { type: 'NodePort', ports: [{ port: 80, nodePort: 30000 }] }),
  create('np2', { type: 'NodePort', ports: [{ port: 80, nodePort: 100 }] }),
  create('dual', { ipFamilyPolicy: 'PreferDualStack' }),
  create('v6', { ipFamilies: ['IPv6'] }),
  create('both', { ipFamilies: ['IPv6', 'IPv4'] }),
  create('two-families', { ipFamilyPolicy: 'SingleStack', ipFamilies: ['IPv4', 'IPv6'] }),
  create('headless', { clusterIP: 'None' }),
  create('headless-selecting', { clusterIP: 'None', selector: { a: 'b' } }),
  create('external', { type: 'ExternalName', externalName: 'foo.example', ports: undefined }),
  create('local', { type: 'LoadBalancer', externalTrafficPolicy: 'Local' }),
  create('sticky', { sessionAffinity: 'ClientIP' }),
  create('labelled', {}, { labels: { 'a b': 'c' } }),
  create('policy', { externalTrafficPolicy: 'Local' }),
  { ...create('ranges', { loadBalancerSourceRanges: ['10.0.0.0/8'] }), words: 'the real one misspells the field' },
  { method: 'PUT', path: `${services}/a`, body: service('a', {}, { resourceVersion: '1' }) },
  { method: 'PUT', path: `${services}/a`, body: service('b') },
  { method: 'PUT', path: `${services}/put`, body: service('put') },
  { method: 'PUT', path: `${services}/a`, body: service('a', { clusterIP: '10.96.9.9' }) },
  { method: 'PUT', path: `${services}/a`, body: service('a', { ports: [{ port: 81 }] }) },
  { path: `${services}/nope` },
  { path: '/api/v1/foos' },
  { path: '/apis/nope/v1/x' },
  { path: '/nope' },
  { method: 'POST', path: '/api/v1/namespaces/nowhere/services', body: service('x') },
  { method: 'POST', path: services, body: '{nope', words: parser },
  { method: 'POST', path: services, body: '[]', words: parser },
  { method: 'POST', path: services, body: 'zz', type: 'text/plain', words: 'binary bodies are not named' },
  {
    method: 'POST',
    path: services,
    body: { apiVersion: 'v1', kind: 'Pod', metadata: { name: 'x' } },
    words: 'there is no conversion to speak of',
  },
  { method: 'POST', path: services, body: service('typed', { ports: [{ port: '80' }] }) },
  {
    method: 'POST',
    path: `${services}?fieldValidation=Strict`,
    body: service('strict', { ports: [{ port: 80, x: 1 }], foo: 1 }),
  },
  { method: 'POST', path: `${services}?dryRun=All`, body: service('tried', { clusterIP: '10.96.200.200' }) },
  change('a', { type: 'NodePort' }),
  change('a', { type: 'ClusterIP' }),
  change('a', { ipFamilyPolicy: 'RequireDualStack' }),
  change('a', { ipFamilyPolicy: 'SingleStack' }),
  change('a', { ports: null }, 'application/merge-patch+json'),
  change('np', { ports: [{ port: 90, name: 'x' }] }),
  change('sticky', { sessionAffinity: 'None' }),
  apply('filed', { type: 'NodePort', clusterIP: '10.96.0.200', ports: [{ name: 'http', port: 80, nodePort: 30100 }] }),
  apply('filed', { type: 'NodePort', ports: [{ name: 'http', port: 80, nodePort: 30100 }] }),
  apply('filed', { type: 'NodePort', ports: [{ name: 'http', port: 88 }] }),
  {
    method: 'PUT',
    path: `${services}/filed`,
    body: service('filed', { type: 'NodePort', ports: [{ name: 'http', port: 90 }] }),
  },
  change('filed', { clusterIP: null }, 'application/merge-patch+json'),
  change('filed', { clusterIPs: null }, 'application/merge-patch+json'),
  change('filed', { clusterIP: '' }, 'application/merge-patch+json'),
  change('filed', { clusterIP: '10.96.0.201' }, 'application/merge-patch+json'),
  {
    ...change('filed', { clusterIP: 'None', clusterIPs: ['None'] }, 'application/merge-patch+json'),
    words: 'two reasons come in another order',
  },
  balance('local', [{ ip: '192.0.2.1' }, { hostname: 'lb.example' }]),
  balance('local', [{ ip: 'zz', ipMode: 'Foo' }, { hostname: '1.2.3.4' }, { hostname: 'a_b', ipMode: 'VIP' }]),
  balance('a', [{ ip: '192.0.2.1' }]),
  change('local', { externalTrafficPolicy: 'Cluster' }),
  {
    method: 'PATCH',
    path: `${services}/a`,
    body: [{ op: 'remove', path: '/spec/x' }],
    type: 'application/json-patch+json',
    words: 'ours says which operation failed',
  },
  {
    method: 'PATCH',
    path: `${services}/a`,
    body: [{ op: 'add', path: '/metadata/labels', value: { x: 'y' } }],
    type: 'application/json-patch+json',
  },
  { path: `${services}?labelSelector=x%3Dy` },
  { path: `${services}?fieldSelector=spec.clusterIP%3DNone` },
  { path: `${services}?fieldSelector=foo%3Db` },
  { path: `${services}?limit=x` },
  { path: `${services}?resourceVersion=x` },
  { path: `${services}?resourceVersionMatch=Exact` },
  { path: `${services}?watch=1&sendInitialEvents=true` },
  { path: `${services}?watch=1&resourceVersionMatch=NotOlderThan` },
  { path: `${services}?sendInitialEvents=true` },
  { method: 'POST', path: `${services}/a`, body: service('a') },
  { method: 'DELETE', path: `${services}/np`, body: { preconditions: { uid: 'x' } } },
  { method: 'DELETE', path: `${services}/np` },
  { method: 'DELETE', path: '/api/v1/namespaces/default' },
  { method: 'POST', path: '/api/v1/namespaces', body: { metadata: { name: 'A' } } },
  { method: 'POST', path: '/api/v1/namespaces', body: { metadata: { name: 'fine' } } },
  {
    method: 'POST',
    path: '/api/v1/nodes',
    body: { metadata: { name: 'n1' }, spec: { podCIDR: '10.0.0.0/24' } },
    words: 'nodes are records: no taint, no empty facts',
  },
  slice('s1', { ports: [{ port: 80 }] }),
  slice('s2', { endpoints: [{ addresses: ['1.2.3.x'] }] }),
  slice('s2', { endpoints: [{ addresses: ['127.0.0.1'] }] }),
  slice('s2', { endpoints: [{ addresses: [] }] }),
  slice('s2', { addressType: 'IPv5', endpoints: [] }),
  { method: 'PUT', path: `${slices}/s1`, body: { metadata: { name: 's1' }, addressType: 'IPv6', endpoints: [] } },
  { method: 'POST', path: cidrs, body: { metadata: { name: 'c' }, spec: { cidrs: ['10.9.8.7/8'] } } },
  { method: 'POST', path: cidrs, body: { metadata: { name: 'c' }, spec: { cidrs: [] } } },
  {
    method: 'POST',
    path: events,
    body: {
      metadata: { name: 'e' },
      eventTime: '2026-11-16T00:00:00.000000Z',
      reportingController: 'c',
      reportingInstance: 'i',
      action: 'a',
      reason: 'r',
      type: 'Normal',
      note: 'n',
      regarding: { kind: 'Service', name: 'a', namespace: 'default' },
    },
  },
  { path: '/api/v1/namespaces/default/events/e' },
  { path: `${events}/e` },
  { path: services, accept: table },
  { path: `${slices}/s1`, accept: table },
  { path: '/api/v1/nodes', accept: table },
  { path: '/api/v1/namespaces/fine', accept: table },
  { path: cidrs, accept: table },
  { path: '/api/v1/namespaces/default/events', accept: table },
  { path: '/api/v1/namespaces/default/pods', accept: table },
]

describe.skipIf('missing' in found)('the embedded API server and the real one', () => {
  let cluster: Cluster
  let server: ApiServer
  beforeAll(async () => {
    cluster = await startCluster({ binaries: (found as { directory: string }).directory })
    server = await startApiServer({ log: silentLogger, serviceCidrs: ['10.96.0.0/16', 'fd00:96::/112'] })
  })
  afterAll(async () => {
    await server?.close()
    await cluster?.stop()
  })

  it.each(
    conversation.map(
      (question, i) =>
        [
          `${i}: ${question.method ?? 'GET'} ${question.path} ${JSON.stringify(question.body ?? '').slice(0, 120)}`,
          question,
        ] as const,
    ),
  )('%s', async (_, question) => {
    const token = parse(readFileSync(cluster.kubeconfig, 'utf8')).users[0].user.token as string
    const real = await ask(cluster.port, token, question)
    const own = await ask(server.port, server.token, question)
    if (question.words !== undefined) expect([own.http, own.reason]).toEqual([real.http, real.reason])
    else expect(own).toEqual(real)
  })
})
