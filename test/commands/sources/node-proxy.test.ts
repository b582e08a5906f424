import { writeFileSync } from 'node:fs'
import { connect } from 'node:net'
import { join } from 'node:path'
import { beforeEach, describe, expect, it, onTestFinished } from 'vitest'
import type { AdminAnswers, ServiceSummary, Summary } from '../../../src/http/admin.ts'
import { listenAdmin } from '../../../src/http/admin-listener.ts'
import { silentLogger } from '../../../src/lib/log.ts'
import { json, refuse, ScriptServer } from '../../kube/script-server.ts'
import { type ExecProgram, serveExec } from '../../support/exec-endpoint.ts'
import { directory, sluice } from '../run-command.ts'

const summary: Summary = {
  node: 'b',
  mode: 'nftables',
  pid: 7,
  version: '0.1.0',
  startedAt: '2026-01-01T00:00:00Z',
  services: 2000,
  families: [],
  conflicts: [],
  quarantined: [],
  drifts: [],
  invalidManifests: [],
  savedState: null,
  reports: [],
  counters: {
    syncs: 0,
    failures: 0,
    puts: 0,
    drops: 0,
    refusals: 0,
    conflicts: 0,
    drifts: 0,
    problems: 0,
    serviceChanges: 0,
    sliceChanges: 0,
  },
  connections: undefined,
}

/** The last has a name with which a hostile node would change the terminal of the person who asks. */
const services: readonly ServiceSummary[] = Array.from({ length: 2000 }, (_, i) => ({
  service: i === 1999 ? 'shop/\x1b[2Jweb' : `shop/web-${i}`,
  family: 4,
  ports: [],
  pending: false,
  entries: 1,
  inKernel: { present: 1, byName: 0, missing: 0, differs: 0, unchecked: 0 },
  wrong: [],
  lost: [],
  quarantine: '',
}))

const pod = (name: string, node: string, image: string, phase = 'Running') => ({
  metadata: { name, namespace: 'kube-system', labels: { 'k8s-app': 'kube-proxy' } },
  spec: { nodeName: node, containers: [{ name: 'kube-proxy', image }] },
  status: { phase },
})

interface FakeCluster {
  readonly kubeconfig: string
  /** The admin socket of node b. */
  readonly socket: string
  readonly executed: { readonly command: readonly string[]; readonly path: string; readonly headers: object }[]
  /** Decides how an exec is answered: with the admin socket, by a refusal, or as by a container without the program. */
  answer: 'socket' | 'forbidden' | 'missing'
}

let cluster: FakeCluster

beforeEach(async () => {
  const folder = directory()
  const socket = join(folder, 'admin.sock')
  const answers = {
    summary: () => summary,
    comparison: async () => ({ base: [], services }),
  } as unknown as AdminAnswers
  const admin = await listenAdmin(socket, answers, silentLogger)
  onTestFinished(() => admin.close())
  const pods = [
    pod('sluice-b', 'b', 'sluice:0.1.0'),
    pod('sluice-c', 'c', 'sluice:0.1.0', 'Pending'),
    { ...pod('other', 'b', 'other'), metadata: { name: 'other' } },
  ]
  const server = await new ScriptServer((response, seen) => {
    const selector = seen.query.get('fieldSelector') ?? ''
    if (seen.path === '/api/v1/nodes') {
      const names = ['b', 'c'].filter((name) => selector === '' || selector === `metadata.name=${name}`)
      const items = names.map((name) => ({ metadata: { name } }))
      return json({ metadata: { resourceVersion: '1' }, items })(response, seen)
    }
    if (seen.path !== '/api/v1/namespaces/kube-system/pods') return refuse(404, 'NotFound')(response, seen)
    json({
      metadata: { resourceVersion: '1' },
      items: pods.filter(({ spec }) => selector.endsWith(`=${spec.nodeName}`)),
    })(response, seen)
  }).start()
  onTestFinished(() => server.stop())
  const kubeconfig = join(folder, 'kubeconfig')
  writeFileSync(kubeconfig, JSON.stringify(kubeconfigOf(server.url)))
  const own: FakeCluster = { kubeconfig, socket, executed: [], answer: 'socket' }
  cluster = own
  server.server.on('upgrade', (request, stream) => {
    onTestFinished(() => void stream.destroy())
    const { pathname, searchParams } = new URL(request.url ?? '', 'http://server')
    own.executed.push({ command: searchParams.getAll('command'), path: pathname, headers: request.headers })
    if (own.answer !== 'forbidden')
      return serveExec(request, stream, () => (own.answer === 'socket' ? open(socket) : undefined))
    const body = JSON.stringify({
      kind: 'Status',
      code: 403,
      reason: 'Forbidden',
      message: 'pods "sluice-b" is forbidden',
    })
    stream.end(
      `HTTP/1.1 403 Forbidden\r\nContent-Type: application/json\r\nContent-Length: ${body.length}\r\n\r\n${body}`,
    )
  })
})

const kubeconfigOf = (server: string) => ({
  'current-context': 'nowhere',
  contexts: [
    { name: 'nowhere', context: { cluster: 'nowhere', user: 'me' } },
    { name: 'here', context: { cluster: 'here', user: 'me' } },
  ],
  clusters: [
    { name: 'nowhere', cluster: { server: 'http://127.0.0.1:1' } },
    { name: 'here', cluster: { server } },
  ],
  users: [{ name: 'me', user: { token: 'secret' } }],
})

/** What `sluice connect` does, without its process. */
function open(path: string): ExecProgram {
  const socket = connect(path)
  const ended = new Promise<string>((resolve) => socket.on('close', () => resolve('')))
  return { input: socket, output: socket, ended, kill: () => socket.destroy() }
}

const ask = (node: string, ...more: readonly string[]) =>
  sluice('status', '--node', node, '--kubeconfig', cluster.kubeconfig, '--context', 'here', ...more)

describe('status --node', () => {
  it('asks the proxy of that node by exec in its pod, and shows thousands of services without control characters', async () => {
    const { status, stdout, stderr } = await ask('b')
    expect(stderr).toBe('')
    expect(status).toBe(0)
    expect(stdout).toContain('Proxy on b: mode nftables, pid 7')
    expect(stdout).toContain('shop/web-1998')
    expect(stdout).toContain('shop/ [2Jweb')
    expect(cluster.executed[0]).toMatchObject({
      command: ['sluice', 'connect', 'b'],
      path: '/api/v1/namespaces/kube-system/pods/sluice-b/exec',
      headers: { authorization: 'Bearer secret', 'sec-websocket-protocol': 'v4.channel.k8s.io' },
    })
    // One program in the pod answers all questions of the command.
    expect(cluster.executed).toHaveLength(1)
  })

  it('says that the node does not exist, and which nodes do', async () => {
    expect(await ask('z')).toMatchObject({ status: 1, stderr: 'sluice status: there is no node z; there is b, c\n' })
  })

  it('says that the pod of the proxy does not run, and how to compute the answer', async () => {
    const { status, stderr } = await ask('c')
    expect(status).toBe(1)
    expect(stderr).toContain('the proxy on c cannot be asked: pod sluice-c does not run')
    expect(stderr).toContain('--simulate computes')
  })

  it('says which right is missing', async () => {
    cluster.answer = 'forbidden'
    const { status, stderr } = await ask('b')
    expect(status).toBe(1)
    expect(stderr).toContain('pods "sluice-b" is forbidden')
    expect(stderr).toContain('docs/fleet.md has the role')
  })

  it('says that the pod is of another proxy', async () => {
    cluster.answer = 'missing'
    const { status, stderr } = await ask('b')
    expect(status).toBe(1)
    expect(stderr).toContain('b does not run Sluice')
    expect(stderr).toContain('pod sluice-b has the image sluice:0.1.0')
  })

  it('never answers for another node than the one asked about', async () => {
    for (const command of [['status'], ['explain', 'shop/web']]) {
      const other = await sluice(...command, '--node', 'c', '--socket', cluster.socket)
      const refusal = `sluice ${command[0]}: the proxy at ${cluster.socket} is of node b, not of c\n`
      expect(other).toEqual({ status: 1, stdout: '', stderr: refusal })
      const nowhere = await sluice(
        ...[...command, '--node', 'z', '--simulate', '--kubeconfig', cluster.kubeconfig, '--context', 'here'],
      )
      expect([nowhere.status, nowhere.stdout]).toEqual([1, ''])
      expect(nowhere.stderr).toContain('there is no node z: choose one with --node (there is b, c)')
    }
    expect((await sluice('status', '--node', 'b', '--socket', cluster.socket)).status).toBe(0)
  })

  it('computes the answer with --simulate, and asks no proxy', async () => {
    const { status, stderr } = await ask('b', '--simulate')
    expect(status).toBe(1)
    expect(stderr).toContain('/endpointslices: 404') // this server has none
    expect(cluster.executed).toEqual([])
  })
})
