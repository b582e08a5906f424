// Two nodes with a proxy each, one in nftables and one in iptables mode, the embedded API server, and a Prometheus that scrapes both. Every
// part is in a network namespace: the test process with the API server and Prometheus in one, each proxy in another.

import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { get } from 'node:http'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { stringify } from 'yaml'
import { type ApiServer, startApiServer } from '../../src/apiserver/start.ts'
import { Closers } from '../../src/lib/closers.ts'
import { silentLogger } from '../../src/lib/log.ts'
import { type EnteredNamespace, enterNamespace } from '../lab/entered-namespace.ts'
import { discoveredLabels, readRelabelling } from '../support/monitoring-queries.ts'
import { until } from '../support/until.ts'
import { type Child, startChild } from './child.ts'
import type { NodeNamespace } from './node-namespace.ts'
import { startProxy } from './start-proxy.ts'

const API_ADDRESS = '198.18.0.1'
const API_PORT = 6443
/** No Service has it. */
const CANARY_ADDRESS = '10.96.255.254'
const PROMETHEUS = '127.0.0.1:9090'
const MODES = ['nftables', 'iptables'] as const

export interface Sample {
  readonly metric: Readonly<Record<string, string>>
  readonly value: readonly [time: number, value: string]
}

export interface RuleState {
  readonly name: string
  readonly health: string
  /** `pending` while the condition holds for less than the `for` of the rule. */
  readonly state: 'inactive' | 'pending' | 'firing'
  readonly lastError?: string
}

export interface MonitoringFixture {
  /** Addresses of the nodes. */
  readonly nodes: readonly string[]
  api(): ApiServer['client']
  /** Stops the API server until `whileAway` is done, and starts it again with the same state. */
  restartApi(whileAway: () => Promise<unknown>): Promise<void>
  /** Runs a program on a node. */
  exec(node: number, program: string, args: readonly string[]): string
  fetch(url: string): Promise<{ readonly status: number; readonly body: string }>
  /** Throws the error that Prometheus answers. */
  query(expression: string): Promise<readonly Sample[]>
  rules(): Promise<readonly RuleState[]>
  /** The types that targets declared for a family of metrics. */
  types(family: string): Promise<readonly string[]>
  stop(): Promise<void>
}

/** `rules` is the path of the file of alert rules. */
export async function startMonitoringFixture(rules: string): Promise<MonitoringFixture> {
  const closers = new Closers()
  try {
    return await start(rules, closers)
  } catch (error) {
    await closers.closeAll()
    throw error
  }
}

async function start(rules: string, closers: Closers): Promise<MonitoringFixture> {
  const directory = mkdtempSync(join(tmpdir(), 'sluice-monitoring-'))
  closers.push(() => rmSync(directory, { recursive: true, force: true }))
  const space = enterNamespace()
  closers.push(() => space.leave())
  space.exec('ip', ['address', 'add', `${API_ADDRESS}/32`, 'dev', 'lo'])
  const startApi = () =>
    startApiServer({ log: silentLogger, address: API_ADDRESS, port: API_PORT, stateDir: join(directory, 'api') })
  let api = await startApi()
  closers.push(() => api.close())
  const spaces: string[] = []
  const nodes: string[] = []
  for (const [i, mode] of MODES.entries()) {
    const name = addNode(space, i + 1, closers)
    const address = `198.18.${i + 1}.2`
    await api.client.request({ method: 'POST', path: '/api/v1/nodes', body: nodeObject(`node-${i + 1}`, address) })
    await startNodeProxy({ directory: join(directory, name), name, address, mode, api, number: i + 1 }, closers)
    spaces.push(name)
    nodes.push(address)
  }
  await startPrometheus(directory, rules, nodes, closers)
  return {
    nodes,
    api: () => api.client,
    async restartApi(whileAway) {
      await api.close()
      await whileAway()
      api = await startApi()
    },
    exec: (node, program, args) => space.exec('ip', ['netns', 'exec', spaces[node] ?? '', program, ...args]),
    fetch,
    query: async (expression) =>
      (await askPrometheus<{ result: Sample[] }>(`query?query=${encodeURIComponent(expression)}`)).result,
    rules: async () =>
      (await askPrometheus<{ groups: { rules: RuleState[] }[] }>('rules')).groups.flatMap((group) => group.rules),
    types: async (family) =>
      ((await askPrometheus<Record<string, { type: string }[]>>(`metadata?metric=${family}`))[family] ?? []).map(
        ({ type }) => type,
      ),
    stop: async () => closers.closeAll(),
  }
}

/** Makes the namespace of a node and connects it with that of the test. Returns its name. */
function addNode(space: EnteredNamespace, number: number, closers: Closers): string {
  const name = `${space.name}-node${number}`
  const ip = (...args: string[]) => space.exec('ip', args)
  ip('netns', 'add', name)
  closers.push(() => space.exec('ip', ['netns', 'delete', name]))
  ip('link', 'add', `node${number}`, 'type', 'veth', 'peer', 'name', 'uplink', 'netns', name)
  ip('address', 'add', `198.18.${number}.1/24`, 'dev', `node${number}`)
  ip('link', 'set', `node${number}`, 'up')
  ip('-netns', name, 'link', 'set', 'lo', 'up')
  ip('-netns', name, 'link', 'set', 'uplink', 'up')
  ip('-netns', name, 'address', 'add', `198.18.${number}.2/24`, 'dev', 'uplink')
  ip('-netns', name, 'route', 'add', 'default', 'via', `198.18.${number}.1`)
  return name
}

const nodeObject = (name: string, address: string): unknown => ({
  apiVersion: 'v1',
  kind: 'Node',
  metadata: { name },
  status: { addresses: [{ type: 'InternalIP', address }] },
})

interface NodeProxyOptions {
  readonly directory: string
  /** Name of the network namespace. */
  readonly name: string
  readonly address: string
  readonly mode: string
  readonly api: ApiServer
  readonly number: number
}

async function startNodeProxy(options: NodeProxyOptions, closers: Closers): Promise<void> {
  const { directory, address, mode } = options
  mkdirSync(directory)
  const kubeconfig = join(directory, 'kubeconfig')
  writeFileSync(kubeconfig, options.api.kubeconfig(), { mode: 0o600 })
  const settings = join(directory, 'sluice.yaml')
  writeFileSync(settings, stringify(settingsOf(directory)))
  const space: NodeNamespace = {
    enter: ['ip', 'netns', 'exec', options.name],
    server: options.api.url,
    dial: () => Promise.reject(new Error('this node has no agent')),
    fetch: (url) => fetch(url.replace('127.0.0.1', address)),
    stop: async () => {},
  }
  const { child } = await startProxy({
    space,
    directory,
    kubeconfig,
    nodeName: `node-${options.number}`,
    env: {
      ...process.env,
      // Not a flag, so that SLUICE_E2E_PROXY may be kube-proxy.
      SLUICE_CONFIG: settings,
      SLUICE_ADMIN_SOCKET: join(directory, 'admin.sock'),
      XTABLES_LOCKFILE: join(directory, 'xtables.lock'),
    },
    fields: { mode, metricsBindAddress: `${address}:10249`, healthzBindAddress: `${address}:10256` },
  })
  closers.push(() => child.end('SIGTERM'))
}

const settingsOf = (directory: string): unknown => ({
  apiVersion: 'sluice/v1alpha1',
  kind: 'SluiceConfiguration',
  state: { directory: join(directory, 'state') },
  history: { directory: join(directory, 'history') },
  canary: { addresses: [CANARY_ADDRESS], interval: '1s' },
  probes: { nodes: 'all', interval: '1s' },
})

async function startPrometheus(
  directory: string,
  rules: string,
  nodes: readonly string[],
  closers: Closers,
): Promise<void> {
  const config = join(directory, 'prometheus.yaml')
  const found = nodes.map((address, i) => ({
    targets: ['kubelet:10250'],
    labels: discoveredLabels(`node-${i + 1}`, address),
  }))
  const job = { job_name: 'kube-proxy', static_configs: found, relabel_configs: readRelabelling() }
  writeFileSync(
    config,
    stringify({
      global: { scrape_interval: '1s', evaluation_interval: '1s' },
      rule_files: [rules],
      scrape_configs: [job],
    }),
  )
  const child: Child = startChild({
    program: 'prometheus',
    args: [
      `--config.file=${config}`,
      `--storage.tsdb.path=${join(directory, 'tsdb')}`,
      `--web.listen-address=${PROMETHEUS}`,
    ],
    log: join(directory, 'prometheus.log'),
  })
  closers.push(() => child.end('SIGTERM'))
  await until(
    'Prometheus is ready',
    async () => {
      if (!child.running) throw new Error(`Prometheus has exited: ${child.output().slice(-2_000)}`)
      return (await fetch(`http://${PROMETHEUS}/-/ready`)).status === 200
    },
    { limitMs: 60_000, everyMs: 200 },
  )
}

async function askPrometheus<T>(path: string): Promise<T> {
  const { body } = await fetch(`http://${PROMETHEUS}/api/v1/${path}`)
  const answer: { status: string; data: T; error?: string } = JSON.parse(body)
  if (answer.status !== 'success') throw new Error(`Prometheus refuses ${decodeURIComponent(path)}: ${answer.error}`)
  return answer.data
}

function fetch(url: string): Promise<{ readonly status: number; readonly body: string }> {
  return new Promise((resolve, reject) => {
    const outgoing = get(url, { agent: false, timeout: 20_000 }, (incoming) => {
      let body = ''
      incoming.setEncoding('utf8')
      incoming.on('data', (chunk) => {
        body += chunk
      })
      incoming.on('error', reject)
      incoming.on('end', () => resolve({ status: incoming.statusCode ?? 0, body }))
    })
    outgoing.on('timeout', () => outgoing.destroy(new Error(`${url} does not answer`)))
    outgoing.on('error', reject)
  })
}
