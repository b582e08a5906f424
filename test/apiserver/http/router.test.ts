// The API as a protocol: authentication, optimistic concurrency, pages, watches, forms of responses, server-side apply.

import { createHash, X509Certificate } from 'node:crypto'
import { connect } from 'node:net'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { parse } from 'yaml'
import { createSelfSigned, isCertificateUsable } from '../../../src/apiserver/http/certificate.ts'
import { type ApiServer, startApiServer } from '../../../src/apiserver/start.ts'
import { silentLogger } from '../../../src/lib/log.ts'
import { until } from '../../support/until.ts'
import { ask, patch, post, put, service, services, slice, slices, start } from '../test-server.ts'

let server: ApiServer
beforeAll(async () => {
  server = await start()
})
afterAll(() => server.close())

/** Reads `count` events of a watch. */
async function watch(
  query: string,
  count: number,
  path = services,
): Promise<
  {
    type: string
    object: Record<string, never> & {
      metadata: Record<string, never>
      rows?: { cells: string[] }[]
      columnDefinitions?: unknown[] | null
    }
  }[]
> {
  const stop = new AbortController()
  const parameters = Object.fromEntries(new URLSearchParams(query))
  const lines: string[] = []
  for await (const batch of await server.client.stream({
    path,
    query: { watch: 'true', ...parameters },
    signal: stop.signal,
  })) {
    lines.push(...batch)
    if (lines.length >= count) break
  }
  stop.abort()
  return lines.slice(0, count).map((line) => JSON.parse(line))
}

describe('access', () => {
  it('needs the token, except for health and version', async () => {
    for (const token of ['', 'x', `${server.token}x`, server.token.slice(1)]) {
      expect(await ask(server, { path: services, token })).toMatchObject({
        status: 401,
        json: { reason: 'Unauthorized' },
      })
    }
    expect(await ask(server, { path: '/livez', token: '' })).toMatchObject({ status: 200, json: 'ok' })
    expect(await ask(server, { path: '/version', token: '' })).toMatchObject({
      status: 200,
      json: { major: '1', minor: '36' },
    })
  })
  it('is possible on loopback only, unless another address is configured', async () => {
    const attempt = (host: string) =>
      new Promise((resolve) => {
        const socket = connect(server.port, host, () => {
          socket.destroy()
          resolve('open')
        })
        socket.on('error', () => resolve('closed'))
      })
    expect(await attempt('127.0.0.1')).toBe('open')
    expect(await attempt('127.0.0.2')).toBe('closed')
    await expect(startApiServer({ log: silentLogger, tls: false, address: '0.0.0.0' })).rejects.toThrow(/loopback only/)
  })
  it('uses a certificate for exactly the addresses of the server', () => {
    const now = Date.parse('2026-11-16T00:00:00Z')
    const pair = createSelfSigned(['localhost', '127.0.0.1', '::1', 'host.example'], now)
    const certificate = new X509Certificate(pair.cert)
    expect(certificate.verify(certificate.publicKey)).toBe(true)
    expect(certificate.checkIssued(certificate)).toBe(true)
    expect(certificate.subjectAltName).toBe(
      'DNS:localhost, IP Address:127.0.0.1, IP Address:0:0:0:0:0:0:0:1, DNS:host.example',
    )
    expect(isCertificateUsable(pair, ['::1', 'host.example'], now)).toBe(true)
    expect(isCertificateUsable(pair, ['192.0.2.1'], now)).toBe(false)
    expect(isCertificateUsable(pair, ['::1'], now + 3640 * 86_400_000)).toBe(false)
    const config = parse(server.kubeconfig())
    const authority = Buffer.from(config.clusters[0].cluster['certificate-authority-data'], 'base64').toString()
    expect(new X509Certificate(authority).fingerprint256.length).toBe(createHash('sha256').digest().length * 3 - 1)
  })
})

describe('a write', () => {
  it('from an old version is a conflict; a write without a version is not', async () => {
    const { json: first } = await post(server, services, service('w1'))
    const stale = { ...service('w1'), metadata: { name: 'w1', resourceVersion: first.metadata.resourceVersion } }
    const second = await put(server, `${services}/w1`, {
      ...stale,
      metadata: { ...stale.metadata, labels: { a: 'b' } },
    })
    expect(second.status).toBe(200)
    expect(Number(second.json.metadata.resourceVersion)).toBeGreaterThan(Number(first.metadata.resourceVersion))
    expect(await put(server, `${services}/w1`, stale)).toMatchObject({ status: 409, json: { reason: 'Conflict' } })
    expect(
      await patch(server, `${services}/w1`, {
        metadata: { resourceVersion: first.metadata.resourceVersion, labels: { c: 'd' } },
      }),
    ).toMatchObject({ status: 409 })
    expect(await patch(server, `${services}/w1`, { metadata: { labels: { c: 'd' } } })).toMatchObject({
      status: 200,
      json: { metadata: { labels: { a: 'b', c: 'd' } } },
    })
    const other = await ask(server, { method: 'DELETE', path: `${services}/w1`, body: { preconditions: { uid: 'x' } } })
    expect(other).toMatchObject({ status: 409, json: { reason: 'Conflict' } })
  })
  it('that changes nothing makes no new version', async () => {
    const { json } = await post(server, services, service('w2'))
    const again = await put(server, `${services}/w2`, json)
    expect(again.json.metadata.resourceVersion).toBe(json.metadata.resourceVersion)
  })
  it('with dryRun stores nothing', async () => {
    const { status, json } = await post(server, `${services}?dryRun=All`, service('w3'))
    expect([status, json.spec.clusterIP]).toEqual([201, expect.stringMatching(/^10\.96/)])
    expect((await ask(server, { path: `${services}/w3` })).status).toBe(404)
  })
  it('cannot change the identity of an object, or its status without /status', async () => {
    const { json } = await post(server, services, {
      ...service('w4', { type: 'LoadBalancer' }),
      status: { loadBalancer: { ingress: [{ ip: '192.0.2.1' }] } },
    })
    expect(json.status).toEqual({ loadBalancer: {} })
    expect(
      await put(server, `${services}/w4`, { ...json, metadata: { ...json.metadata, uid: 'other' } }),
    ).toMatchObject({ status: 409 })
    const changed = await put(server, `${services}/w4/status`, {
      ...json,
      spec: { ports: [{ port: 1 }] },
      status: { loadBalancer: { ingress: [{ ip: '192.0.2.1' }] } },
    })
    expect(changed.json).toMatchObject({
      spec: { ports: [{ port: 80 }] },
      status: { loadBalancer: { ingress: [{ ip: '192.0.2.1' }] } },
    })
  })
  it('deletes an object with finalizers when the last one is removed', async () => {
    await post(server, services, service('w5', {}, { finalizers: ['a.b/c'] }))
    const marked = await ask(server, { method: 'DELETE', path: `${services}/w5` })
    expect(marked.json.metadata.deletionTimestamp).toBeDefined()
    expect(await patch(server, `${services}/w5`, { metadata: { finalizers: ['a.b/c', 'd.e/f'] } })).toMatchObject({
      status: 422,
    })
    await patch(server, `${services}/w5`, { metadata: { finalizers: null } })
    expect((await ask(server, { path: `${services}/w5` })).status).toBe(404)
  })
  it('generates a name from generateName', async () => {
    const { json } = await post(server, services, {
      metadata: { generateName: 'gen-' },
      spec: { ports: [{ port: 80 }] },
    })
    expect(json.metadata.name).toMatch(/^gen-[a-z0-9]{5}$/)
  })
  it('of Endpoints is not allowed, because only the server writes them', async () => {
    expect(await post(server, '/api/v1/namespaces/default/endpoints', { metadata: { name: 'x' } })).toMatchObject({
      status: 405,
    })
  })
  it('to a namespace that does not exist is refused', async () => {
    expect(await post(server, '/api/v1/namespaces/nowhere/services', service('x'))).toMatchObject({
      status: 404,
      json: { message: 'namespaces "nowhere" not found' },
    })
  })
})

describe('a list', () => {
  it('has pages of one version, whatever changes between them', async () => {
    const own = await start()
    for (let i = 0; i < 25; i++)
      await own.client.request({
        method: 'POST',
        path: slices,
        body: slice(`p${String(i).padStart(2, '0')}`, 'web', ['10.0.0.1']),
      })
    const names: string[] = []
    let next = ''
    const versions = new Set<string>()
    do {
      const { json } = await ask(own, { path: `${slices}?limit=10&continue=${next}` })
      names.push(...json.items.map((item: { metadata: { name: string } }) => item.metadata.name))
      versions.add(json.metadata.resourceVersion)
      next = json.metadata.continue ?? ''
      await ask(own, { method: 'DELETE', path: `${slices}/p${String(names.length + 3).padStart(2, '0')}` })
      await post(own, slices, slice(`p${names.length}x`, 'web', ['10.0.0.1']))
    } while (next !== '')
    expect(names).toEqual(Array.from({ length: 25 }, (_, i) => `p${String(i).padStart(2, '0')}`))
    expect(versions.size).toBe(1)
    const { json } = await ask(own, { path: `${slices}?limit=10` })
    expect(json.metadata.remainingItemCount).toBe(16) // two were deleted, three were created
    own.registry.compactHistory()
    await post(own, slices, slice('last', 'web', ['10.0.0.1']))
    own.registry.compactHistory()
    expect(await ask(own, { path: `${slices}?limit=10&continue=${json.metadata.continue}` })).toMatchObject({
      status: 410,
      json: { reason: 'Expired' },
    })
    await own.close()
  })
  it('can be a table or metadata only, and refuses other forms', async () => {
    await post(server, services, service('t1'))
    const table = await ask(server, {
      path: services,
      accept: 'application/json;as=Table;v=v1;g=meta.k8s.io,application/json',
    })
    expect(table.json.kind).toBe('Table')
    expect(table.json.columnDefinitions.map((column: { name: string }) => column.name)).toEqual([
      'Name',
      'Type',
      'Cluster-IP',
      'External-IP',
      'Port(s)',
      'Age',
      'Selector',
    ])
    expect(table.json.rows[0].object.kind).toBe('PartialObjectMetadata')
    const bare = await ask(server, {
      path: `${services}/t1`,
      accept: 'application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io',
    })
    expect(Object.keys(bare.json)).toEqual(['kind', 'apiVersion', 'metadata'])
    expect(await ask(server, { path: services, accept: 'application/cbor' })).toMatchObject({
      status: 406,
    })
  })
})

describe('a watch', () => {
  it('begins with all objects if no version is given, and marks their end if asked to', async () => {
    await post(server, services, service('state'))
    const events = await watch(
      'sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true&fieldSelector=metadata.name=state',
      2,
    )
    expect(events.map(({ type }) => type)).toEqual(['ADDED', 'BOOKMARK'])
    expect(events[1]?.object.metadata).toMatchObject({
      annotations: { 'k8s.io/initial-events-end': 'true' },
      resourceVersion: String(server.registry.version),
    })
  })
  it('reports the changes since a version as events of the selected objects', async () => {
    const from = server.registry.version
    await post(server, services, service('s1', {}, { labels: { see: 'me' } }))
    await patch(server, `${services}/s1`, { metadata: { labels: { more: 'x' } } })
    await patch(server, `${services}/s1`, { metadata: { labels: { see: null } } })
    await patch(server, `${services}/s1`, { metadata: { labels: { see: 'me' } } })
    await ask(server, { method: 'DELETE', path: `${services}/s1` })
    const events = await watch(`resourceVersion=${from}&labelSelector=see=me`, 5)
    expect(events.map(({ type }) => type)).toEqual(['ADDED', 'MODIFIED', 'DELETED', 'ADDED', 'DELETED'])
    const versions = events.map(({ object }) => Number(object.metadata.resourceVersion))
    expect([...versions].sort((a, b) => a - b)).toEqual(versions)
    expect(versions[4]).toBe(server.registry.version)
  })
  it('reports 410 as an event when its version has expired', async () => {
    const own = await start()
    await post(own, services, service('a'))
    own.registry.compactHistory()
    const lines: string[] = []
    for await (const batch of await own.client.stream({ path: services, query: { watch: '1', resourceVersion: '5' } }))
      lines.push(...batch)
    expect(JSON.parse(lines[0] as string)).toMatchObject({ type: 'ERROR', object: { code: 410, reason: 'Expired' } })
    await own.close()
  })
  it('sends the columns of a table once', async () => {
    const from = server.registry.version
    await post(server, services, service('col1'))
    await post(server, services, service('col2'))
    const lines = (
      await new Promise<string>((resolve, reject) => {
        ask(server, {
          path: `${services}?watch=1&timeoutSeconds=1&resourceVersion=${from}`,
          accept: 'application/json;as=Table;v=v1;g=meta.k8s.io',
        }).then(({ json }) => resolve(json), reject)
      })
    )
      .trim()
      .split('\n')
      .map((line) => JSON.parse(line))
    expect(lines.map(({ object }) => [object.rows[0].cells[0], object.columnDefinitions === null])).toEqual([
      ['col1', false],
      ['col2', true],
    ])
  })
  it('ends after its timeout with a last bookmark', async () => {
    const { json } = await ask(server, {
      path: `${services}?watch=1&timeoutSeconds=1&allowWatchBookmarks=true&resourceVersion=${server.registry.version}`,
    })
    expect(json).toMatchObject({
      type: 'BOOKMARK',
      object: { kind: 'Service', metadata: { resourceVersion: String(server.registry.version) } },
    })
  })
  it('ends when its reader aborts', async () => {
    const stop = new AbortController()
    const stream = await server.client.stream({ path: services, query: { watch: '1' }, signal: stop.signal })
    await stream.next()
    stop.abort(new Error('left'))
    await expect(stream.next()).rejects.toThrow('left')
    await until(
      'settled',
      async () => (await post(server, services, service(`gone-${Math.random().toString(36).slice(2)}`))).status === 201,
    )
  })
})

describe('server-side apply', () => {
  const apply = (manager: string, spec: Record<string, unknown>, force = false, labels: Record<string, string> = {}) =>
    patch(
      server,
      `${services}/ssa?fieldManager=${manager}&force=${force}`,
      { apiVersion: 'v1', kind: 'Service', metadata: { name: 'ssa', labels }, spec },
      'application/apply-patch+yaml',
    )

  it('creates, merges, removes fields that the applier gives up, and detects conflicts', async () => {
    expect(
      (await apply('one', { ports: [{ port: 80, protocol: 'TCP' }], selector: { a: 'b' } }, false, { x: 'y' })).status,
    ).toBe(201)
    expect((await apply('two', { ports: [{ port: 90, protocol: 'TCP', name: 'more' }] })).status).toBe(422) // two ports need names
    expect((await apply('one', { ports: [{ port: 80, protocol: 'TCP', name: 'http' }] })).status).toBe(200)
    const merged = await apply('two', {
      ports: [{ port: 90, protocol: 'TCP', name: 'more' }],
      sessionAffinity: 'ClientIP',
    })
    expect(merged.json.spec.ports.map(({ port }: { port: number }) => port)).toEqual([80, 90])
    expect([merged.json.spec.selector, merged.json.metadata.labels]).toEqual([undefined, undefined])
    expect(
      merged.json.metadata.managedFields.map(
        ({ manager, operation }: Record<string, string>) => `${manager} ${operation}`,
      ),
    ).toEqual(['two Apply', 'one Apply'])
    expect(
      await apply('one', { sessionAffinity: 'None', ports: [{ port: 80, protocol: 'TCP', name: 'http' }] }),
    ).toMatchObject({ status: 409, json: { details: { causes: [{ field: '.spec.sessionAffinity' }] } } })
    expect(
      await apply('one', { sessionAffinity: 'None', ports: [{ port: 80, protocol: 'TCP', name: 'http' }] }, true),
    ).toMatchObject({ status: 200, json: { spec: { sessionAffinity: 'None' } } })
    const left = await apply('two', { type: 'ClusterIP' })
    expect(left.json.spec.ports.map(({ port }: { port: number }) => port)).toEqual([80])
    expect(left.json.spec.sessionAffinity).toBe('None')
  })
})
