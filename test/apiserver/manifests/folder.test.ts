// A directory of manifests: objects follow the files; a broken file is named by line and field, and changes nothing.

import { mkdirSync, renameSync, rmSync, symlinkSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import type { ApiServer } from '../../../src/apiserver/start.ts'
import type { Logger } from '../../../src/lib/log.ts'
import { silentLogger } from '../../../src/lib/log.ts'
import { until } from '../../support/until.ts'
import { ask, folder, services, start } from '../test-server.ts'

let base: ReturnType<typeof folder>
let directory: string
let server: ApiServer
let said: string[]
const log: Logger = { ...silentLogger, error: (message, fields) => said.push(`${message} ${JSON.stringify(fields)}`) }

beforeEach(() => {
  base = folder()
  directory = join(base.path, 'manifests')
  mkdirSync(directory)
  said = []
})
afterEach(async () => {
  await server?.close()
  base.remove()
})
const begin = async () => {
  server = await start({ stateDir: join(base.path, 'state'), manifests: directory, log })
}
const write = (name: string, text: string) => {
  // As editors do: whole or not at all.
  writeFileSync(join(directory, `.${name}.part`), text)
  renameSync(join(directory, `.${name}.part`), join(directory, name))
}
const names = () =>
  [...server.registry.list('services')]
    .map(
      ({ object }) =>
        `${(object.metadata as { namespace: string }).namespace}/${(object.metadata as { name: string }).name}`,
    )
    .filter((name) => name !== 'default/kubernetes')
const web = (port: number, more = '') => `apiVersion: v1
kind: Service
metadata:
  name: web
spec:
  selector: {app: web}
  ports:
    - name: http
      port: ${port}
${more}`

describe('manifests', () => {
  it('are applied at the start, and then follow the files', async () => {
    write(
      'a.yaml',
      `${web(80)}---
apiVersion: v1
kind: Pod
metadata: {name: p, labels: {app: web}}
status: {podIP: 10.1.0.1}
---
# nothing here
`,
    )
    await begin()
    expect(names()).toEqual(['default/web'])
    await until(
      'a slice',
      async () =>
        (await ask(server, { path: '/apis/discovery.k8s.io/v1/endpointslices' })).json.items[0]?.endpoints.length === 1,
    )
    const before = (await ask(server, { path: `${services}/web` })).json
    write('a.yaml', web(81))
    await until('changed', async () => (await ask(server, { path: `${services}/web` })).json.spec.ports[0].port === 81)
    const after = (await ask(server, { path: `${services}/web` })).json
    expect([after.metadata.uid, after.spec.clusterIP, after.spec.ports.length]).toEqual([
      before.metadata.uid,
      before.spec.clusterIP,
      1,
    ])
    await until('the pod ends', () => server.registry.find('pods', 'default', 'p')?.json.includes('deletionTimestamp'))
    write(
      'b.yml',
      'apiVersion: v1\nkind: List\nitems:\n- {apiVersion: v1, kind: Service, metadata: {name: x, namespace: more}, spec: {ports: [{port: 1}]}}\n',
    )
    write('c.yaml', '{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "more"}}')
    await until('in its own namespace', () => names().includes('more/x'))
    rmSync(join(directory, 'a.yaml'))
    await until('gone', () => !names().includes('default/web'))
    expect(server.manifests?.problems()).toEqual([])
  })

  it.each([
    ['a syntax error', 'apiVersion: v1\nkind: Service\nmetadata: {name: [}\n', 3, '', /.+/],
    ['an unknown field', web(80, '  nonsense: 1\n'), 10, 'spec.nonsense', /unknown field/],
    ['a wrong type', web(80).replace('port: 80', 'port: "80"'), 9, 'spec.ports[0].port', /cannot unmarshal string/],
    ['a value out of range', web(70000), 9, 'spec.ports[0].port', /must be between 1 and 65535/],
    [
      'a missing field',
      'apiVersion: v1\nkind: Service\nmetadata:\n  labels: {a: b}\n',
      4,
      'metadata.name',
      /Required value/,
    ],
    [
      'a kind that is not served',
      '---\napiVersion: apps/v1\nkind: Deployment\nmetadata: {name: x}\n',
      3,
      'kind',
      /not served here/,
    ],
    [
      'a second document that is wrong',
      `${web(80)}---\napiVersion: v1\nkind: Service\nmetadata: {name: second}\nspec:\n  type: Nonsense\n  ports: [{port: 1}]\n`,
      15,
      'spec.type',
      /Unsupported value: "Nonsense"/,
    ],
    [
      'an address that may not change',
      web(80, '  clusterIP: 10.96.0.1\n'),
      10,
      'spec.clusterIPs[0]',
      /may not change once set/,
    ],
    [
      'a namespace that is not there',
      web(80).replace('name: web', 'name: web\n  namespace: nowhere'),
      4,
      '',
      /namespaces "nowhere" not found/,
    ],
  ])('with %s change nothing, and say where', async (_, text, line, field, message) => {
    write('web.yaml', web(80))
    await begin()
    const before = server.registry.find('services', 'default', 'web')
    expect(before).toBeDefined()
    write('web.yaml', text)
    await server.manifests?.rescan()
    expect(server.registry.find('services', 'default', 'web')).toEqual(before)
    expect(names()).toEqual(['default/web'])
    const [problem] = server.manifests?.problems() ?? []
    expect(problem).toMatchObject({ file: 'web.yaml', field, message: expect.stringMatching(message) })
    // A field that is not written is shown where it would be: at what is next above it.
    expect([line, line - 1]).toContain(problem?.line)
    const count = server.manifests?.problems().length
    await server.manifests?.rescan()
    expect(said, 'each thing is said once').toHaveLength(count as number)
    write('web.yaml', web(8080))
    await server.manifests?.rescan()
    expect(server.manifests?.problems()).toEqual([])
    expect(server.registry.find('services', 'default', 'web')?.object.spec).toMatchObject({ ports: [{ port: 8080 }] })
  })

  it('are a whole: what fails late takes back what was done before it', async () => {
    const nodePort = (name: string) =>
      `apiVersion: v1\nkind: Service\nmetadata: {name: ${name}}\nspec: {type: NodePort, ports: [{port: 1, nodePort: 30007}]}\n`
    write('a.yaml', `${nodePort('one')}---\n${nodePort('two')}`)
    await begin()
    expect(names()).toEqual([])
    expect(server.manifests?.problems()).toMatchObject([
      { field: 'spec.ports[0].nodePort', message: expect.stringMatching(/already allocated/) },
    ])
  })

  it('that were removed while nobody looked are noticed after the restart, and those of others stay', async () => {
    write('a.yaml', web(80))
    await begin()
    await server.client.request({
      method: 'POST',
      path: services,
      body: { metadata: { name: 'mine' }, spec: { ports: [{ port: 1 }] } },
    })
    await server.close()
    rmSync(join(directory, 'a.yaml'))
    await begin()
    expect(names()).toEqual(['default/mine'])
  })

  it('that say the same thing twice are told so', async () => {
    write('a.yaml', web(80))
    write('b.yaml', web(81))
    await begin()
    expect(server.manifests?.problems()).toMatchObject([
      { file: 'b.yaml', line: 4, message: 'services default web is already in a.yaml' },
    ])
    rmSync(join(directory, 'a.yaml'))
    await server.manifests?.rescan()
    expect(server.registry.find('services', 'default', 'web')?.object.spec).toMatchObject({ ports: [{ port: 81 }] })
  })

  it('that break keep what they said, even where another file says something else', async () => {
    write('a.yaml', web(80))
    await begin()
    write('b.yaml', web(81))
    await server.manifests?.rescan()
    write('a.yaml', web(82).replace('port: 82', 'port: many'))
    await server.manifests?.rescan()
    const portOf = () => server.registry.find('services', 'default', 'web')?.object.spec
    expect(portOf()).toMatchObject({ ports: [{ port: 80 }] })
    expect(server.manifests?.problems()).toMatchObject([
      { file: 'a.yaml', field: 'spec.ports[0].port' },
      { file: 'b.yaml', message: 'services default web is already in a.yaml' },
    ])
    // Nor do they lose what their new text would have given away.
    write('a.yaml', 'apiVersion: v1\nkind: Service\nmetadata: {name: other}\nspec: {ports: [{port: 99999}]}\n')
    await server.manifests?.rescan()
    expect(names()).toEqual(['default/web'])
    expect(portOf()).toMatchObject({ ports: [{ port: 80 }] })
    write('a.yaml', web(80).replace('name: web', 'name: other'))
    await server.manifests?.rescan()
    expect(names()).toEqual(['default/other', 'default/web'])
    expect(portOf()).toMatchObject({ ports: [{ port: 81 }] })
    expect(server.manifests?.problems()).toEqual([])
  })

  it('give a load balancer its addresses, and take them away', async () => {
    const balanced = (ip: string) =>
      web(80, `  type: LoadBalancer\nstatus:\n  loadBalancer:\n    ingress:\n      - ip: ${ip}\n`)
    const ingress = () => server.registry.find('services', 'default', 'web')?.object.status
    write('a.yaml', balanced('192.0.2.7'))
    await begin()
    expect(ingress()).toMatchObject({ loadBalancer: { ingress: [{ ip: '192.0.2.7' }] } })
    write('a.yaml', balanced('over-there').replace('port: 80', 'port: 81'))
    await server.manifests?.rescan()
    expect(server.manifests?.problems()).toMatchObject([{ line: 14, field: 'status.loadBalancer.ingress[0].ip' }])
    expect(ingress()).toMatchObject({ loadBalancer: { ingress: [{ ip: '192.0.2.7' }] } })
    expect(server.registry.find('services', 'default', 'web')?.object.spec).toMatchObject({ ports: [{ port: 80 }] })
    write('a.yaml', web(80, '  type: LoadBalancer\n'))
    await server.manifests?.rescan()
    expect(server.manifests?.problems()).toEqual([])
    expect(ingress()).toEqual({ loadBalancer: {} })
  })

  it('that cannot be read are named, and the others are applied', async () => {
    write('b.yaml', web(80))
    symlinkSync(base.path, join(directory, 'a.yaml'))
    await begin()
    expect(names()).toEqual(['default/web'])
    expect(server.manifests?.problems()).toMatchObject([{ file: 'a.yaml', message: expect.stringMatching(/EISDIR/) }])
  })

  it('stay in force when the directory is gone for a while', async () => {
    write('a.yaml', web(80))
    await begin()
    renameSync(directory, `${directory}.away`)
    await server.manifests?.rescan()
    expect(names()).toEqual(['default/web'])
    expect(server.manifests?.problems()).toHaveLength(1)
    renameSync(`${directory}.away`, directory)
    await server.manifests?.rescan()
    expect(server.manifests?.problems()).toEqual([])
  })
})
