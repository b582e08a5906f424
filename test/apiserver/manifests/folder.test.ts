// A directory of manifests: objects follow the files. An invalid file changes nothing, and is reported with line and field.

import { execFileSync } from 'node:child_process'
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
let logged: string[]
const log: Logger = { ...silentLogger, error: (message, fields) => logged.push(`${message} ${JSON.stringify(fields)}`) }

beforeEach(() => {
  base = folder()
  directory = join(base.path, 'manifests')
  mkdirSync(directory)
  logged = []
})
afterEach(async () => {
  await server?.close()
  base.remove()
})
const startServer = async () => {
  server = await start({ stateDir: join(base.path, 'state'), manifests: directory, log })
}
const write = (name: string, text: string) => {
  // Replaces the file at once, as editors do.
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

describe('a directory of manifests', () => {
  it('tells its listeners what is wrong after each reading, until it is mended', async () => {
    write('a.yaml', web(99_999))
    await startServer()
    const seen: string[] = []
    const stop = server.manifests?.subscribe((problems) =>
      seen.push(problems.map(({ file, line, field }) => `${file}:${line} ${field}`).join()),
    )
    expect(seen).toEqual(['a.yaml:9 spec.ports[0].port,a.yaml:8 spec.ports[0].targetPort'])
    await server.manifests?.rescan()
    expect(seen).toHaveLength(2)
    expect(seen[1]).toBe(seen[0])
    write('a.yaml', web(80))
    await server.manifests?.rescan()
    expect(seen.at(-1)).toBe('')
    stop?.()
    const { length } = seen
    await server.manifests?.rescan()
    expect(seen).toHaveLength(length)
  })

  it('is applied at the start, and then whenever a file changes', async () => {
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
    await startServer()
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
    {
      what: 'a syntax error',
      text: 'apiVersion: v1\nkind: Service\nmetadata: {name: [}\n',
      problem: { line: 3, field: '', message: /.+/ },
    },
    {
      what: 'an unknown field',
      text: web(80, '  nonsense: 1\n'),
      problem: { line: 10, field: 'spec.nonsense', message: /unknown field/ },
    },
    {
      what: 'a wrong type',
      text: web(80).replace('port: 80', 'port: "80"'),
      problem: { line: 9, field: 'spec.ports[0].port', message: /cannot unmarshal string/ },
    },
    {
      what: 'a value out of range',
      text: web(70000),
      problem: { line: 9, field: 'spec.ports[0].port', message: /must be between 1 and 65535/ },
    },
    {
      what: 'a missing field',
      text: 'apiVersion: v1\nkind: Service\nmetadata:\n  labels: {a: b}\n',
      problem: { line: 4, field: 'metadata.name', message: /Required value/ },
    },
    {
      what: 'a kind that is not served',
      text: '---\napiVersion: apps/v1\nkind: Deployment\nmetadata: {name: x}\n',
      problem: { line: 3, field: 'kind', message: /not served here/ },
    },
    {
      what: 'a wrong second document',
      text: `${web(80)}---\napiVersion: v1\nkind: Service\nmetadata: {name: second}\nspec:\n  type: Nonsense\n  ports: [{port: 1}]\n`,
      problem: { line: 15, field: 'spec.type', message: /Unsupported value: "Nonsense"/ },
    },
    {
      what: 'an address that may not change',
      text: web(80, '  clusterIP: 10.96.0.1\n'),
      problem: { line: 10, field: 'spec.clusterIPs[0]', message: /may not change once set/ },
    },
    {
      what: 'a namespace that does not exist',
      text: web(80).replace('name: web', 'name: web\n  namespace: nowhere'),
      problem: { line: 4, field: '', message: /namespaces "nowhere" not found/ },
    },
  ])('a file with $what changes nothing, and is reported with line and field', async ({ text, problem: wanted }) => {
    write('web.yaml', web(80))
    await startServer()
    const before = server.registry.find('services', 'default', 'web')
    expect(before).toBeDefined()
    write('web.yaml', text)
    await server.manifests?.rescan()
    expect(server.registry.find('services', 'default', 'web')).toEqual(before)
    expect(names()).toEqual(['default/web'])
    const [problem] = server.manifests?.problems() ?? []
    const { line, field, message } = wanted
    expect(problem).toMatchObject({ file: 'web.yaml', field, message: expect.stringMatching(message) })
    // A field that the file lacks has the line of the next field above it.
    expect([line, line - 1]).toContain(problem?.line)
    const count = server.manifests?.problems().length
    await server.manifests?.rescan()
    expect(logged, 'each problem is logged once').toHaveLength(count as number)
    write('web.yaml', web(8080))
    await server.manifests?.rescan()
    expect(server.manifests?.problems()).toEqual([])
    expect(server.registry.find('services', 'default', 'web')?.object.spec).toMatchObject({ ports: [{ port: 8080 }] })
  })

  it('applies a file as a whole: a late failure undoes the objects before it', async () => {
    const nodePort = (name: string) =>
      `apiVersion: v1\nkind: Service\nmetadata: {name: ${name}}\nspec: {type: NodePort, ports: [{port: 1, nodePort: 30007}]}\n`
    write('a.yaml', `${nodePort('one')}---\n${nodePort('two')}`)
    await startServer()
    expect(names()).toEqual([])
    expect(server.manifests?.problems()).toMatchObject([
      { field: 'spec.ports[0].nodePort', message: expect.stringMatching(/already allocated/) },
    ])
  })

  it('loses the objects of a file that was removed while the server was down, and keeps those of other clients', async () => {
    write('a.yaml', web(80))
    await startServer()
    await server.client.request({
      method: 'POST',
      path: services,
      body: { metadata: { name: 'mine' }, spec: { ports: [{ port: 1 }] } },
    })
    await server.close()
    rmSync(join(directory, 'a.yaml'))
    await startServer()
    expect(names()).toEqual(['default/mine'])
  })

  it('refuses an object that another file contains', async () => {
    write('a.yaml', web(80))
    write('b.yaml', web(81))
    await startServer()
    expect(server.manifests?.problems()).toMatchObject([
      { file: 'b.yaml', line: 4, message: 'services default web is already in a.yaml' },
    ])
    rmSync(join(directory, 'a.yaml'))
    await server.manifests?.rescan()
    expect(server.registry.find('services', 'default', 'web')?.object.spec).toMatchObject({ ports: [{ port: 81 }] })
  })

  it('keeps the objects of a file that becomes invalid, even if another file contains them too', async () => {
    write('a.yaml', web(80))
    await startServer()
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
    // An invalid file also keeps the objects that its new content lacks.
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

  it('sets the addresses of a load balancer, and removes them', async () => {
    const balanced = (ip: string) =>
      web(80, `  type: LoadBalancer\nstatus:\n  loadBalancer:\n    ingress:\n      - ip: ${ip}\n`)
    const ingress = () => server.registry.find('services', 'default', 'web')?.object.status
    write('a.yaml', balanced('192.0.2.7'))
    await startServer()
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

  it('reports an unreadable file, and applies the others', async () => {
    write('b.yaml', web(80))
    symlinkSync(base.path, join(directory, 'a.yaml'))
    await startServer()
    expect(names()).toEqual(['default/web'])
    expect(server.manifests?.problems()).toMatchObject([{ file: 'a.yaml', message: 'is not a regular file' }])
  })

  it('reports a file that is too large or not a regular file without reading it, and applies the others', async () => {
    write('a.yaml', web(80))
    writeFileSync(join(directory, 'big.yaml'), `${web(81)}${'# padding\n'.repeat(320_000)}`)
    execFileSync('mkfifo', [join(directory, 'pipe.yaml')])
    await startServer()
    expect(names()).toEqual(['default/web'])
    expect(logged.map((line) => /"file":"(\S+?)".*"error":"(.*?)"/.exec(line)?.slice(1))).toEqual([
      ['big.yaml', expect.stringMatching(/has \d+ bytes, more than 3145728; split the file/)],
      ['pipe.yaml', 'is not a regular file'],
    ])
  })

  it('keeps its objects while the directory is gone', async () => {
    write('a.yaml', web(80))
    await startServer()
    renameSync(directory, `${directory}.away`)
    await server.manifests?.rescan()
    expect(names()).toEqual(['default/web'])
    expect(server.manifests?.problems()).toHaveLength(1)
    renameSync(`${directory}.away`, directory)
    await server.manifests?.rescan()
    expect(server.manifests?.problems()).toEqual([])
  })
})
