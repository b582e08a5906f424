// Runs real kubectls against the embedded API server: Debian's, and one built from the modules of Kubernetes.

import { type ChildProcess, execFile, spawn } from 'node:child_process'
import { accessSync, chmodSync, constants, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, afterEach, beforeAll, describe, expect, it } from 'vitest'
import { type ApiServer, startApiServer } from '../../src/apiserver/start.ts'
import { nodeStatus } from '../../src/commands/up/node-status.ts'
import { silentLogger } from '../../src/lib/log.ts'
import { until } from '../support/until.ts'
import { findBinaries } from './binaries.ts'

const built = await findBinaries(['kubectl'])
const kubectls = [
  { name: 'Debian', path: '/usr/bin/kubectl', missing: executable('/usr/bin/kubectl') ? '' : 'no /usr/bin/kubectl' },
  {
    name: 'v1.36.4',
    path: 'directory' in built ? join(built.directory, 'kubectl') : '',
    missing: 'missing' in built ? built.missing : '',
  },
]
for (const { name, missing } of kubectls)
  if (missing !== '') process.stdout.write(`SKIPPED kubectl (${name}): ${missing}\n`)

const web = `apiVersion: v1
kind: Service
metadata:
  name: web
  labels: {team: a}
spec:
  selector: {app: web}
  ports: [{name: http, port: 80, targetPort: 8080}]
---
apiVersion: v1
kind: Pod
metadata: {name: web-1, labels: {app: web}}
spec: {nodeName: node-1, terminationGracePeriodSeconds: 60}
status: {podIP: 10.1.0.1}
---
apiVersion: v1
kind: Pod
metadata: {name: web-2, labels: {app: web}}
spec: {nodeName: node-2}
status: {podIP: 10.1.0.2, conditions: [{type: Ready, status: "False"}]}
`

describe.each(kubectls)('kubectl ($name)', ({ path, missing }) => {
  describe.skipIf(missing !== '')('and the embedded API server', () => {
    let directory: string
    let server: ApiServer
    const children: ChildProcess[] = []
    const common = () => ['--kubeconfig', join(directory, 'kubeconfig'), '--cache-dir', join(directory, 'cache')]

    beforeAll(async () => {
      directory = mkdtempSync(join(tmpdir(), 'sluice-kubectl-'))
      server = await startApiServer({ log: silentLogger, stateDir: join(directory, 'state') })
      writeFileSync(join(directory, 'kubeconfig'), server.kubeconfig(), { mode: 0o600 })
    })
    afterEach(async () => {
      for (const child of children.splice(0)) child.kill('SIGKILL')
      await kubectl(['delete', 'service,pod,endpointslice', '--all', '--force', '--wait=false'])
    })
    afterAll(async () => {
      await server?.close()
      rmSync(directory, { recursive: true, force: true })
    })

    const run = (args: readonly string[], stdin = '', env: NodeJS.ProcessEnv = {}) =>
      new Promise<{ code: number; stdout: string; stderr: string }>((resolve) => {
        const child = execFile(
          path,
          [...common(), ...args],
          { timeout: 60_000, env: { ...process.env, ...env } },
          (error, stdout, stderr) => resolve({ code: error === null ? 0 : Number(error.code ?? 1), stdout, stderr }),
        )
        child.stdin?.on('error', () => {})
        child.stdin?.end(stdin)
      })
    const kubectl = async (args: readonly string[], stdin = '', env: NodeJS.ProcessEnv = {}) => {
      const { code, stdout, stderr } = await run(args, stdin, env)
      if (code !== 0) throw new Error(`kubectl ${args.join(' ')}: ${stderr}`)
      return stdout
    }
    // biome-ignore lint/suspicious/noExplicitAny: objects are picked apart by the tests that know them
    const json = async (...args: string[]): Promise<any> => JSON.parse(await kubectl(['get', ...args, '-o', 'json']))

    it('reads why something is not served, and what to do instead', async () => {
      await kubectl(
        ['apply', '-f', '-'],
        web.replaceAll('spec: {nodeName', 'spec: {containers: [{name: c, image: x}], nodeName'),
      )
      const deployment = 'apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: web}\n'
      const noDeployments = 'deployments.apps are not served by this API server: apply pods or manifests'
      const noContainers = 'is not served by this API server: pods are records here, and no container runs'
      const refused = [
        [['apply', '-f', '-'], noDeployments],
        [['create', 'deployment', 'web', '--image=x'], noDeployments],
        [['get', 'deployments'], noDeployments],
        [['scale', 'deployment/web', '--replicas=2'], noDeployments],
        [['rollout', 'status', 'deployment/web'], noDeployments],
        [['expose', 'deployment', 'web', '--port=80'], noDeployments],
        [['get', 'configmaps'], 'configmaps are not served by this API server'],
        [['logs', 'web-1'], `pods/log ${noContainers}`],
        [['exec', 'web-1', '--', 'ls'], `pods/exec ${noContainers}`],
        [['attach', 'web-1'], `pods/attach ${noContainers}`],
        [['port-forward', 'pod/web-1', '18080:80'], `pods/portforward ${noContainers}`],
        [['top', 'nodes'], 'Metrics API not available'],
      ] as const
      for (const [args, why] of refused) {
        const { code, stderr } = await run(args, deployment)
        expect(code, args.join(' ')).toBe(1)
        expect(stderr, args.join(' ')).toContain(why)
      }
    })

    it('asks who it is and what it may do', async () => {
      expect(await kubectl(['auth', 'whoami'])).toMatch(/Username +sluice-admin/)
      expect(await kubectl(['auth', 'can-i', 'list', 'services'])).toBe('yes\n')
      expect(await kubectl(['auth', 'can-i', '*', '*'])).toBe('yes\n')
      const no = await run(['auth', 'can-i', 'create', 'deployments'])
      expect(no).toMatchObject({ code: 1, stdout: expect.stringMatching(/^no - deployments\.apps are not served/) })
      expect(await kubectl(['auth', 'can-i', '--list'])).toMatch(/^services +\[\] +\[\] +\[create .*watch\]$/m)
    })

    it('describes a node without absurd figures', async () => {
      const node = { metadata: { name: 'node-9' }, status: nodeStatus(['10.0.0.9']) }
      await server.client.request({ method: 'POST', path: '/api/v1/nodes', body: node })
      await kubectl(['apply', '-f', '-'], web.replaceAll('node-1', 'node-9'))
      const text = await kubectl(['describe', 'node', 'node-9'])
      expect(text).toMatch(/web-1 +0 \(0%\)/)
      expect(text).not.toContain('-9223372036854775808')
    })

    it('lists the kinds that are served', async () => {
      expect(await kubectl(['version'])).toMatch(/Server Version: v1\.36\.4/)
      const rows = (await kubectl(['api-resources', '--no-headers']))
        .trim()
        .split('\n')
        .map((line) => line.split(/\s+/)[0])
      expect(rows.sort()).toEqual([
        'endpoints',
        'endpointslices',
        'events',
        'events',
        'namespaces',
        'nodes',
        'pods',
        'selfsubjectaccessreviews',
        'selfsubjectreviews',
        'selfsubjectrulesreviews',
        'servicecidrs',
        'services',
      ])
      expect(await kubectl(['explain', 'service.spec.ports'])).toMatch(/targetPort\s+<string>\n +Port of the pods/)
      expect(await kubectl(['explain', 'endpointslice'])).toMatch(/DESCRIPTION:\n +Some of the endpoints of a service/)
    })

    it('creates, applies without change, changes, diffs and deletes', async () => {
      expect(await kubectl(['apply', '-f', '-'], web)).toBe(
        'service/web created\npod/web-1 created\npod/web-2 created\n',
      )
      expect(await kubectl(['apply', '-f', '-'], web)).toBe(
        'service/web unchanged\npod/web-1 unchanged\npod/web-2 unchanged\n',
      )
      const changed = web.replace('port: 80,', 'port: 81,')
      const diff = await run(['diff', '-f', '-'], changed)
      expect(diff.code).toBe(1)
      expect(diff.stdout).toMatch(/^\+ {4}port: 81$/m)
      expect(await kubectl(['apply', '-f', '-'], changed)).toMatch(/^service\/web configured\n/)
      const { spec } = await json('service', 'web')
      expect(spec.ports).toEqual([{ name: 'http', port: 81, protocol: 'TCP', targetPort: 8080 }])
      expect(await kubectl(['apply', '--dry-run=server', '-f', '-'], web)).toMatch(
        /service\/web configured \(server dry run\)/,
      )
      expect((await json('service', 'web')).spec.ports[0].port).toBe(81)
      expect(await kubectl(['delete', 'service', 'web'])).toMatch(/^service "web" deleted/)
      expect((await run(['get', 'service', 'web'])).stderr).toBe(
        'Error from server (NotFound): services "web" not found\n',
      )
    })

    it('applies on the server, gives up fields, and reports conflicts', async () => {
      const labels = (text: string) => web.split('---')[0]!.replace('{team: a}', text)
      await kubectl(['apply', '--server-side', '-f', '-'], labels('{team: a, extra: b}'))
      await kubectl(['apply', '--server-side', '-f', '-'], labels('{team: a}'))
      expect((await json('service', 'web')).metadata.labels).toEqual({ team: 'a' })
      const other = await run(['apply', '--server-side', '--field-manager=other', '-f', '-'], labels('{team: z}'))
      expect(other.stderr).toMatch(/Apply failed with 1 conflict: conflict with "kubectl"/)
      await kubectl(
        ['apply', '--server-side', '--field-manager=other', '--force-conflicts', '-f', '-'],
        labels('{team: z}'),
      )
      expect((await json('service', 'web')).metadata.labels).toEqual({ team: 'z' })
    })

    it('prints the columns of the real server', async () => {
      await kubectl(['apply', '-f', '-'], web)
      await until(
        'endpoints',
        async () => (await json('endpoints', 'web')).subsets?.[0]?.notReadyAddresses !== undefined,
      )
      const table = async (...args: string[]) =>
        (await kubectl(['get', ...args]))
          .trimEnd()
          .split('\n')
          .map((line) => line.split(/ {2,}/).map((cell) => cell.trim()))
      const [services, row] = await table('service', 'web', '-o', 'wide')
      expect(services).toEqual(['NAME', 'TYPE', 'CLUSTER-IP', 'EXTERNAL-IP', 'PORT(S)', 'AGE', 'SELECTOR'])
      expect(row).toEqual([
        'web',
        'ClusterIP',
        expect.stringMatching(/^10\.96\./),
        '<none>',
        '80/TCP',
        expect.stringMatching(/^\d+s$/),
        'app=web',
      ])
      const [pods, first, second] = await table('pods', '-o', 'wide')
      expect(pods).toEqual([
        'NAME',
        'READY',
        'STATUS',
        'RESTARTS',
        'AGE',
        'IP',
        'NODE',
        'NOMINATED NODE',
        'READINESS GATES',
      ])
      expect(first?.slice(0, 4)).toEqual(['web-1', '1/1', 'Running', '0'])
      expect(second?.slice(0, 4)).toEqual(['web-2', '0/1', 'Running', '0'])
      expect((await table('endpointslices'))[0]).toEqual(['NAME', 'ADDRESSTYPE', 'PORTS', 'ENDPOINTS', 'AGE'])
      expect((await table('endpoints', 'web'))[1]?.slice(0, 2)).toEqual(['web', '10.1.0.1:8080'])
      expect((await table('namespaces'))[1]?.slice(0, 2)).toEqual(['default', 'Active'])
      expect((await table('servicecidrs'))[1]?.slice(0, 2)).toEqual(['kubernetes', '10.96.0.0/16,fd00:10:96::/112'])
      expect(await kubectl(['get', 'all', '--show-labels', '-A'])).toMatch(/service\/web .* team=a/)
    })

    it('describes a service with its endpoints and events', async () => {
      await kubectl(['apply', '-f', '-'], web)
      await server.client.request({
        method: 'POST',
        path: '/apis/events.k8s.io/v1/namespaces/default/events',
        body: {
          metadata: { name: `web.${Date.now().toString(16)}` },
          eventTime: new Date().toISOString().replace('Z', '000Z'),
          reportingController: 'kube-proxy',
          reportingInstance: 'kube-proxy-node-1',
          action: 'Sync',
          reason: 'PortClaimed',
          type: 'Warning',
          note: 'another service has it',
          regarding: {
            kind: 'Service',
            namespace: 'default',
            name: 'web',
            uid: (await json('service', 'web')).metadata.uid,
          },
        },
      })
      const text = await until('both endpoints', async () => {
        const said = await kubectl(['describe', 'service', 'web'])
        return /Endpoints: +10\.1\.0\.1:8080/.test(said) && said
      })
      expect(text).toMatch(/IP Family Policy: +SingleStack/)
      expect(text).toMatch(/Warning +PortClaimed .* kube-proxy.* another service has it/)
      expect(await kubectl(['describe', 'pod', 'web-1'])).toMatch(/IP: +10\.1\.0\.1/)
      expect(await kubectl(['describe', 'endpointslice'])).toMatch(
        /Addresses: +10\.1\.0\.2\n +Conditions:\n +Ready: +false/,
      )
      expect(await kubectl(['events'])).toMatch(/PortClaimed/)
    })

    it('edits with an editor, and shows what is wrong there', async () => {
      await kubectl(['apply', '-f', '-'], web)
      const editor = join(directory, 'editor')
      const edit = (script: string) => {
        writeFileSync(editor, `#!/bin/sh\n${script}\n`)
        chmodSync(editor, 0o755)
        return run(['edit', 'service', 'web'], '', { EDITOR: editor, KUBE_EDITOR: editor })
      }
      const good = await edit('sed -i "s/type: ClusterIP/type: NodePort/; s/port: 80$/port: 8000/" "$1"')
      expect(good.stdout).toBe('service/web edited\n')
      const { spec } = await json('service', 'web')
      expect(spec).toMatchObject({ type: 'NodePort', ports: [{ port: 8000, nodePort: expect.any(Number) }] })
      const seen = join(directory, 'seen')
      const bad = await edit(
        `grep -q Nonsense "$1" && cp "$1" ${seen} && exit 1; sed -i "s/type: NodePort/type: Nonsense/" "$1"`,
      )
      expect(bad.stderr).toMatch(/services "web" is invalid/)
      expect(readFileSync(seen, 'utf8')).toMatch(/# \* spec\.type: Unsupported value: "Nonsense"/)
      expect((await json('service', 'web')).spec.type).toBe('NodePort')
    })

    it('labels, annotates, and patches in all three ways', async () => {
      await kubectl(['apply', '-f', '-'], web)
      await kubectl(['label', 'service', 'web', 'tier=front', 'team-'])
      await kubectl(['annotate', 'service', 'web', 'note=text'])
      await kubectl([
        'patch',
        'service',
        'web',
        '-p',
        '{"spec":{"ports":[{"port":80,"appProtocol":"http"},{"port":90,"name":"more"}]}}',
      ])
      await kubectl(['patch', 'service', 'web', '--type=merge', '-p', '{"spec":{"sessionAffinity":"ClientIP"}}'])
      await kubectl([
        'patch',
        'service',
        'web',
        '--type=json',
        '-p',
        '[{"op":"replace","path":"/spec/ports/1/port","value":91}]',
      ])
      const { metadata, spec } = await json('service', 'web')
      expect(metadata.labels).toEqual({ tier: 'front' })
      expect(metadata.annotations.note).toBe('text')
      expect(spec.sessionAffinityConfig).toEqual({ clientIP: { timeoutSeconds: 10800 } })
      expect(
        spec.ports.map(({ port, name, appProtocol }: Record<string, unknown>) => [port, name, appProtocol]),
      ).toEqual([
        [80, 'http', 'http'],
        [91, 'more', undefined],
      ])
      expect(await kubectl(['get', 'services', '-l', 'tier=front', '-o', 'name'])).toBe('service/web\n')
      expect(
        await kubectl(['get', 'services', '--field-selector', 'spec.clusterIP!=None,metadata.name=web', '-o', 'name']),
      ).toBe('service/web\n')
      const conflict = await run(
        ['replace', '-f', '-'],
        JSON.stringify({
          ...(await json('service', 'web')),
          metadata: { name: 'web', namespace: 'default', resourceVersion: '1' },
        }),
      )
      expect(conflict.stderr).toMatch(/Conflict.*the object has been modified/)
    })

    it('watches, and sees a pod come, become ready, terminate and go', async () => {
      await kubectl(['apply', '-f', '-'], web)
      const watching = spawn(path, [...common(), 'get', 'pods', '-w', '--output-watch-events'], {
        stdio: ['ignore', 'pipe', 'ignore'],
      })
      children.push(watching)
      let output = ''
      watching.stdout.setEncoding('utf8').on('data', (chunk) => {
        output += chunk
      })
      await until('the state', () => output.includes('web-2'))
      await kubectl([
        'patch',
        'pod',
        'web-2',
        '--subresource=status',
        '-p',
        '{"status":{"conditions":[{"type":"Ready","status":"True"}]}}',
      ])
      await until('ready', () => /MODIFIED +web-2 +1\/1/.test(output))
      await kubectl(['delete', 'pod', 'web-1', '--wait=false'])
      await until('terminating', () => /MODIFIED +web-1 +1\/1 +Terminating/.test(output))
      const { endpoints } = await until('a terminating endpoint', async () => {
        const [slice] = (await json('endpointslices', '-l', 'kubernetes.io/service-name=web')).items
        return slice.endpoints[0].conditions.terminating === true && slice
      })
      expect(endpoints.map(({ addresses, conditions }: Record<string, unknown>) => [addresses, conditions])).toEqual([
        [['10.1.0.1'], { ready: false, serving: true, terminating: true }],
        [['10.1.0.2'], { ready: true, serving: true, terminating: false }],
      ])
      await kubectl(['delete', 'pod', 'web-1', '--grace-period=0', '--force'])
      await until('gone', () => /DELETED +web-1/.test(output))
    })

    it('uses its own commands: namespaces, services, expose, run, wait', async () => {
      await kubectl(['create', 'namespace', 'other'])
      await kubectl(['create', 'service', 'nodeport', 'np', '--tcp=80:8080', '--node-port=30080', '-n', 'other'])
      await kubectl(['create', 'service', 'externalname', 'ex', '--external-name=example.org', '-n', 'other'])
      await kubectl(['run', 'p', '--image=x', '--port=8080', '--labels=app=p', '-n', 'other'])
      await kubectl(['expose', 'pod', 'p', '--port=80', '-n', 'other'])
      expect(
        (await json('service', '-n', 'other')).items.map(({ spec }: { spec: { type: string } }) => spec.type),
      ).toEqual(['ExternalName', 'NodePort', 'ClusterIP'])
      const taken = await run(['create', 'service', 'nodeport', 'np', '--tcp=80:8080', '--node-port=30080'])
      expect(taken.stderr).toMatch(/provided port is already allocated/)
      await kubectl([
        'patch',
        'pod',
        'p',
        '-n',
        'other',
        '--subresource=status',
        '--type=merge',
        '-p',
        '{"status":{"podIP":"10.1.0.9","phase":"Running"}}',
      ])
      await kubectl(['wait', '--for=condition=Ready', 'pod/p', '-n', 'other', '--timeout=20s'])
      await kubectl(['delete', 'pod', 'p', '-n', 'other', '--grace-period=1'])
      await kubectl(['delete', 'namespace', 'other', '--timeout=30s'])
      expect(await kubectl(['get', 'service', '-A', '-o', 'name'])).toBe('service/kubernetes\n')
    })

    it('shows what is wrong before anything is stored', async () => {
      const refused = async (manifest: string) => (await run(['apply', '-f', '-'], manifest)).stderr
      const service = (spec: string) => `apiVersion: v1\nkind: Service\nmetadata: {name: bad}\nspec: ${spec}\n`
      expect(await refused(service('{ports: [{port: 80}], nonsense: 1}'))).toMatch(
        /strict decoding error: unknown field "spec\.nonsense"/,
      )
      expect(await refused(service('{ports: [{port: "80"}]}'))).toMatch(
        /cannot unmarshal string into Go struct field ServicePort\.spec\.ports\.port of type int32/,
      )
      expect(await refused(service('{ports: [{port: 70000}]}'))).toMatch(
        /The Service "bad" is invalid: *\n?\*? ?spec\.ports\[0\]\.port: Invalid value: 70000/,
      )
      expect(await refused(service('{ports: [{port: 80}], clusterIP: 10.96.0.1}'))).toMatch(
        /provided IP is already allocated/,
      )
      expect(await kubectl(['get', 'service', '-o', 'name'])).toBe('service/kubernetes\n')
    })
  })
})

function executable(path: string): boolean {
  try {
    accessSync(path, constants.X_OK)
    return true
  } catch {
    return false
  }
}
