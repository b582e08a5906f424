import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import type { ApiServer } from '../../../src/apiserver/start.ts'
import { ask, type Body, start } from '../test-server.ts'

let server: ApiServer
beforeAll(async () => {
  server = await start()
})
afterAll(() => server.close())

const review = (group: string, plural: string, body: Body) =>
  ask(server, { method: 'POST', path: `/apis/${group}.k8s.io/v1/${plural}`, body })
const mayI = async (resourceAttributes: Body) =>
  (await review('authorization', 'selfsubjectaccessreviews', { spec: { resourceAttributes } })).json.status
const mayIPath = async (path: string, verb: string) =>
  (await review('authorization', 'selfsubjectaccessreviews', { spec: { nonResourceAttributes: { path, verb } } })).json
    .status

describe('access reviews', () => {
  it('allow what is served', async () => {
    const served = [
      { verb: 'list', resource: 'services' },
      { verb: 'create', resource: 'services', namespace: 'work', name: 'web' },
      { verb: 'patch', resource: 'nodes', subresource: 'status' },
      { verb: 'watch', group: 'discovery.k8s.io', resource: 'endpointslices' },
      { verb: 'create', group: 'authorization.k8s.io', resource: 'selfsubjectaccessreviews' },
      { verb: '*', group: '*', resource: '*' },
    ]
    for (const attributes of served)
      expect(await mayI(attributes), JSON.stringify(attributes)).toEqual({ allowed: true })
    expect(await mayIPath('/healthz', 'get')).toEqual({ allowed: true })
    expect(await mayIPath('/openapi/*', 'get')).toEqual({ allowed: true })
  })

  it('refuse what is not served, and say why', async () => {
    const refused = [
      [{ verb: 'list', group: 'apps', resource: 'deployments' }, 'apply pods or manifests'],
      [{ verb: 'delete', resource: 'endpoints' }, 'does not serve the verb delete for endpoints'],
      [{ verb: 'get', resource: 'pods', subresource: 'log' }, 'pods/log is not served by this API server'],
      [{ verb: 'get', group: 'example.org', resource: 'widgets' }, 'widgets.example.org is not served'],
      // Services of another group are not services.
      [{ verb: 'get', group: 'example.org', resource: 'services' }, 'services.example.org is not served'],
    ] as const
    for (const [attributes, why] of refused) {
      expect(await mayI(attributes)).toEqual({ allowed: false, reason: expect.stringContaining(why) })
    }
    expect(await mayIPath('/nowhere', 'get')).toMatchObject({ allowed: false })
    expect(await mayIPath('/healthz', 'post')).toMatchObject({ allowed: false })
  })

  it('agree with what the server then does', async () => {
    for (const { group, resource } of [
      { group: '', resource: 'pods' },
      { group: 'apps', resource: 'deployments' },
      { group: '', resource: 'configmaps' },
    ]) {
      const root = group === '' ? '/api/v1' : `/apis/${group}/v1`
      const { status } = await ask(server, { path: `${root}/${resource}` })
      expect((await mayI({ verb: 'list', group, resource })).allowed, resource).toBe(status === 200)
    }
  })

  it('name the user and all rules', async () => {
    const who = await review('authentication', 'selfsubjectreviews', {})
    expect(who).toMatchObject({
      status: 201,
      json: { kind: 'SelfSubjectReview', apiVersion: 'authentication.k8s.io/v1' },
    })
    expect(who.json.status.userInfo).toEqual({
      username: 'sluice-admin',
      groups: ['system:masters', 'system:authenticated'],
    })
    const rules = await review('authorization', 'selfsubjectrulesreviews', { spec: { namespace: 'default' } })
    expect(rules.json.status).toMatchObject({ incomplete: false })
    expect(rules.json.status.resourceRules).toContainEqual({
      verbs: ['get', 'list', 'watch'],
      apiGroups: [''],
      resources: ['endpoints'],
    })
  })

  it('refuse questions that are not complete, and other verbs', async () => {
    const incomplete = await review('authorization', 'selfsubjectaccessreviews', { spec: {} })
    expect(incomplete).toMatchObject({ status: 422, json: { reason: 'Invalid' } })
    expect(await review('authorization', 'selfsubjectrulesreviews', {})).toMatchObject({ status: 400 })
    expect(await review('authorization', 'selfsubjectaccessreviews', { spec: 1 })).toMatchObject({ status: 400 })
    expect(await ask(server, { path: '/apis/authorization.k8s.io/v1/selfsubjectaccessreviews' })).toMatchObject({
      status: 405,
    })
  })
})

describe('resources that are not served', () => {
  const read = async (path: string, method = 'GET') => (await ask(server, { method, path })).json

  it('are refused with the reason and what to do instead', async () => {
    const deployments = 'deployments.apps are not served by this API server: apply pods or manifests'
    for (const path of ['/apis/apps/v1/deployments', '/apis/apps/v1/namespaces/default/deployments/web/scale']) {
      expect(await read(path)).toMatchObject({ kind: 'Status', code: 404, reason: 'NotFound', message: deployments })
    }
    expect((await read('/apis/apps/v1/namespaces/default/deployments', 'POST')).message).toBe(deployments)
    expect((await read('/api/v1/namespaces/default/configmaps')).message).toMatch(/^configmaps are not served/)
    expect((await read('/apis/networking.k8s.io/v1/ingresses')).message).toMatch(/: apply services$/)
    for (const name of ['log', 'exec', 'portforward', 'attach']) {
      expect((await read(`/api/v1/namespaces/default/pods/p/${name}`)).message).toBe(
        `pods/${name} is not served by this API server: pods are records here, and no container runs`,
      )
    }
  })

  it('are in discovery without verbs, so that clients ask for them', async () => {
    const { resources } = await read('/apis/apps/v1')
    expect(resources.find(({ name }: Body) => name === 'deployments')).toMatchObject({ kind: 'Deployment', verbs: [] })
    const aggregated = await ask(server, {
      path: '/apis',
      accept: 'application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList',
    })
    const apps = aggregated.json.items.find(({ metadata }: { metadata: Body }) => metadata.name === 'apps')
    expect(apps.versions[0].resources.map(({ verbs }: Body) => verbs)).toEqual([[], [], [], []])
  })

  it('leave what nobody knows as the real server answers it', async () => {
    expect((await read('/api/v1/foos')).message).toBe('the server could not find the requested resource')
  })
})
