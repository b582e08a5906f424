// Measures what watching connections costs the proxy: at 5,000 new connections per second with ejection off and on, beside kube-proxy, and while
// 10,000 endpoints flap.
//
//   npx tsx bench/ejection-cost.ts [ROW…]      rows by number from 0, all by default; as root; docs/health.md has its figures
//
// Clients, endpoints and the proxy are in one network namespace. In the storm every second endpoint refuses connections for ten seconds,
// then the others do.

import { type ChildProcess, spawn, spawnSync } from 'node:child_process'
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { loadavg, tmpdir } from 'node:os'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import { setTimeout as wait } from 'node:timers/promises'
import { expand } from '../test/kernel/web-service.ts'
import { hasKubeProxy, WholeProxy, type WholeProxyOptions } from '../test/kernel/whole-proxy.ts'
import { serveObjects } from '../test/lab/fixed-api.ts'
import { Namespace, runIp } from '../test/lab/namespace.ts'
import { nodeName } from '../test/scenarios/expand.ts'
import type { Manifest } from '../test/scenarios/format.ts'
import { bundleProgram } from '../test/support/bundle-program.ts'
import { cpuMs, rssMb, waitUntilIdle } from './process-cost.ts'

const rows = process.argv.slice(2).map(Number)
const rate = 5_000
const stormRate = 3_000
const steadySeconds = 10
const stormSeconds = 20
const phaseMs = 10_000
const nodeIp = '192.0.2.1'

interface Scene {
  readonly name: string
  readonly services: number
  readonly endpointsEach: number
  /** Elsewhere: a service wants it to which nobody connects. */
  readonly ejection: 'on' | 'off' | 'elsewhere'
  readonly program?: WholeProxyOptions['program']
  readonly isStorm?: boolean
}

const few = { services: 10, endpointsEach: 10 } as const
const many = { services: 100, endpointsEach: 100 } as const
const scenes: readonly Scene[] = [
  ...(hasKubeProxy
    ? [{ name: 'steady, kube-proxy', ...few, ejection: 'off', program: 'kube-proxy' } as const satisfies Scene]
    : []),
  { name: 'steady, Sluice, nothing set', ...few, ejection: 'off' },
  { name: 'steady, Sluice, ejection', ...few, ejection: 'on' },
  { name: 'steady, Sluice, ejection for another Service', ...few, ejection: 'elsewhere' },
  { name: 'storm, Sluice, nothing set', ...many, ejection: 'off', isStorm: true },
  { name: 'storm, Sluice, ejection', ...many, ejection: 'on', isStorm: true },
]

const clusterIp = (service: number): string => `172.30.1.${service}`

function objects({ services, endpointsEach, ejection }: Scene): readonly Manifest[] {
  const annotations = { 'sluice/outlier-ejection': ejection === 'on' ? 'on' : 'off' }
  const other = ejection === 'elsewhere' ? unusedService() : []
  const used = Array.from({ length: services }, (_, i) => {
    const key = `ns1/svc-${i}`
    const endpoints = Array.from({ length: endpointsEach }, (__, n) => `10.250.${i}.${n + 1} remote`)
    return [
      expand({ service: key, clusterIP: clusterIp(i), ports: ['http 80/tcp'], annotations }, 2 * i),
      expand({ slice: key, ports: ['http 8080/tcp'], endpoints }, 2 * i + 1),
    ]
  }).flat()
  return [...used, ...other]
}

/** Its endpoints have another port than those of the other services. */
const unusedService = (): readonly Manifest[] => [
  expand(
    {
      service: 'ns1/unused',
      clusterIP: '172.30.2.1',
      ports: ['http 80/tcp'],
      annotations: { 'sluice/outlier-ejection': 'on' },
    },
    1_000,
  ),
  expand(
    { slice: 'ns1/unused', ports: ['http 9090/tcp'], endpoints: ['10.250.0.1 remote', '10.250.0.2 remote'] },
    1_001,
  ),
]

interface Figures {
  readonly answered: number
  readonly failed: number
  readonly cpuMs: number
  readonly seconds: number
  readonly rssMb: number
  readonly livezMs: number
  readonly syncs: number
  readonly ejections: number
  readonly lost: number
}

const folder = mkdtempSync(join(tmpdir(), 'sluice-bench-'))
const programs = await Promise.all(
  ['connect-load', 'connect-probe'].map((name) => bundleProgram(join(import.meta.dirname, `${name}.ts`))),
)
const [loadFile = '', serverFile = ''] = programs.map(({ file }) => file)
try {
  console.log(`load of the machine: ${loadavg()[0]?.toFixed(1)}; nftables mode\n`)
  console.log(
    '| | connections per second | of these failed | CPU of the proxy, % of a core | per connection, µs | memory, MB | slowest /livez, ms | syncs | ejections | losses of events | load |',
  )
  console.log(`| --- |${' ---: |'.repeat(10)}`)
  for (const [i, scene] of scenes.entries()) {
    if (rows.length === 0 || rows.includes(i)) show(scene, await measure(scene))
  }
} finally {
  rmSync(folder, { recursive: true, force: true })
  for (const { remove } of programs) remove()
}
process.exit(0)

function show({ name }: Scene, figures: Figures): void {
  const { seconds } = figures
  const cells = [
    Math.round((figures.answered + figures.failed) / seconds),
    Math.round(figures.failed / seconds),
    (figures.cpuMs / seconds / 10).toFixed(1),
    ((1000 * figures.cpuMs) / (figures.answered + figures.failed)).toFixed(1),
    figures.rssMb.toFixed(0),
    figures.livezMs === 0 ? '–' : figures.livezMs.toFixed(0),
    figures.syncs,
    figures.ejections,
    figures.lost,
    loadavg()[0]?.toFixed(0),
  ]
  console.log(`| ${name} | ${cells.join(' | ')} |`)
}

async function measure(scene: Scene): Promise<Figures> {
  const name = `sluice-cost-${process.pid}`
  runIp([], [`netns add ${name}`])
  const node = new Namespace(name)
  const children: ChildProcess[] = []
  try {
    node.configure([
      'link set lo up',
      `addr add ${nodeIp}/32 dev lo`,
      'route add local 10.250.0.0/16 dev lo',
      'link add out type veth peer name away',
      'link set out up',
      'link set away up',
      'route add 172.30.0.0/16 dev out',
    ])
    const api = await serveObjects(node, nodeName, nodeIp, objects(scene))
    const server = run(node, [serverFile, 'server', '8080'])
    children.push(server)
    await firstLine(server)
    const file = join(folder, 'sluice.yaml')
    writeFileSync(file, 'apiVersion: sluice/v1alpha1\nkind: SluiceConfiguration\nstate:\n  directory: ""\n')
    const { program = 'ours' } = scene
    // kube-proxy 1.36 panics if the address is given twice, and WholeProxy gives an empty one.
    const own = [`--sluice-config=${file}`, '--healthz-bind-address=127.0.0.1:10256']
    const flags = program === 'ours' ? own : []
    const proxy = await WholeProxy.start({ network: { node }, api, mode: 'nftables', program, flags })
    children.push(proxy.child)
    await proxy.waitUntilSynced()
    await waitUntilIdle(proxy.child.pid as number)
    const figures = await load(scene, node, proxy)
    api.close()
    return figures
  } finally {
    for (const child of children) child.kill('SIGKILL')
    await wait(300)
    node.close()
    spawnSync('ip', ['netns', 'del', name])
  }
}

async function load({ services, isStorm = false }: Scene, node: Namespace, proxy: WholeProxy): Promise<Figures> {
  const pid = proxy.child.pid as number
  const seconds = isStorm ? stormSeconds : steadySeconds
  const ips = Array.from({ length: services }, (_, i) => clusterIp(i))
  const before = await readMetrics(proxy)
  const cpuBefore = cpuMs(pid)
  const client = run(node, [loadFile, ...[isStorm ? stormRate : rate, seconds, 80].map(String), ...ips])
  const storm = isStorm ? flap(node) : undefined
  const livez = watchLivez(node)
  const line = await firstLine(client)
  const cpu = cpuMs(pid) - cpuBefore
  await storm?.stop()
  const after = await readMetrics(proxy)
  return {
    ...(JSON.parse(line) as { answered: number; failed: number }),
    cpuMs: cpu,
    seconds,
    rssMb: rssMb(pid),
    livezMs: await livez.stop(),
    syncs: after.syncs - before.syncs,
    ejections: after.ejections - before.ejections,
    lost: after.lost - before.lost,
  }
}

/** Lets the endpoints with even addresses refuse connections, then the others, by turns. */
function flap(node: Namespace): { stop(): Promise<unknown> } {
  let turn = 0
  const change = () =>
    node.exec('sh', [
      '-c',
      `nft 'add table ip storm; flush table ip storm; add chain ip storm c { type filter hook input priority 0; };
       add rule ip storm c tcp dport 8080 ip daddr & 0.0.0.1 == 0.0.0.${turn++ % 2} reject with tcp reset'`,
    ])
  let last = change()
  const timer = setInterval(() => {
    last = change()
  }, phaseMs)
  return {
    async stop() {
      clearInterval(timer)
      return last
    },
  }
}

/** Asks for /livez four times a second. */
function watchLivez(node: Namespace): { stop(): Promise<number> } {
  let [isStopped, worst] = [false, 0]
  const ask = async () => {
    while (!isStopped) {
      const url = 'http://127.0.0.1:10256/livez'
      const { code, stdout } = await node.exec('curl', [
        '-s',
        '-m',
        '20',
        '-o',
        '/dev/null',
        '-w',
        '%{time_total}',
        url,
      ])
      if (code === 0) worst = Math.max(worst, 1000 * Number(stdout))
      await wait(250)
    }
  }
  const done = ask()
  return {
    async stop() {
      isStopped = true
      await done
      return worst
    },
  }
}

async function readMetrics(proxy: WholeProxy): Promise<{ syncs: number; ejections: number; lost: number }> {
  const text = await proxy.metrics()
  const sum = (name: string) =>
    [...text.matchAll(new RegExp(`^${name}(?:\\{.*\\})? (\\S+)$`, 'gm'))].reduce((all, [, n]) => all + Number(n), 0)
  return {
    syncs: sum('kubeproxy_sync_proxy_rules_duration_seconds_count'),
    ejections: sum('sluice_ejections_total'),
    lost: sum('sluice_connection_events_lost_total'),
  }
}

function run(node: Namespace, args: readonly string[]): ChildProcess {
  const stdio = ['ignore', 'pipe', 'inherit'] as const
  return spawn('ip', ['netns', 'exec', node.name, process.execPath, ...args], { stdio: [...stdio] })
}

function firstLine(child: ChildProcess): Promise<string> {
  return new Promise((resolve, reject) => {
    createInterface({ input: child.stdout as NodeJS.ReadableStream }).once('line', resolve)
    child.once('exit', (code) => reject(new Error(`a part of the benchmark ended with ${code}`)))
  })
}
