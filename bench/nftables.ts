// Sluice and the real kube-proxy side by side: one machine, one scripted API server, the same objects, a network namespace each.
//
//   npm run bench:nftables [-- services…]      default 1000 10000 30000
//
// kube-proxy is measured where test/e2e/build-cluster has built it. Each run is bounded in time, and what took longer says so:
// kube-proxy needs minutes for 10,000 services. BENCH_LIMIT (seconds, 80 by default) is how long a cold start may take. All of it takes
// seven minutes. First packets are measured at the end, with all proxies of one size in place, in turns.

import { type ChildProcess, execFileSync, fork, spawn, spawnSync } from 'node:child_process'
import { existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import { rolldown } from 'rolldown'
import { type EnteredNamespace, enterNamespace } from '../test/lab/entered-namespace.ts'
import { nodeFlags, script } from './flags.ts'
import { probeAddress, serviceIp } from './objects.ts'

const root = join(import.meta.dirname, '..')
const limitMs = Number(process.env.BENCH_LIMIT ?? 80) * 1000
const sizes = process.argv.slice(2).map(Number)
if (sizes.length === 0) sizes.push(1_000, 10_000, 30_000)
const endpoints = 5

interface Contender {
  readonly name: string
  readonly program: readonly string[]
  readonly mode: 'nftables' | 'iptables'
  readonly changes: number
  readonly own: boolean
  /** Larger sizes are known to take many minutes. */
  readonly most: number
}

interface Figures {
  readonly coldMs: number | undefined
  readonly coldCpuMs: number
  readonly changeMs: readonly number[]
  readonly changeCpuMicros: number
  /** After thousands of changes, when V8 has compiled what is hot. */
  readonly warmCpuMicros: number
  /** The same, a hundred changes at once. */
  readonly burstCpuMicros: number
  readonly rssMb: number
  readonly rssAfterMb: number
  readonly kernelMb: number
  readonly holds: Holds | undefined
  /** What a program costs that reads and parses the same changes and does nothing with them. */
  readonly readerCpuMicros: number
  readonly table: TableCost | undefined
}

/** CPU ms of a process, of its main thread, and of that in the kernel; see table.ts. */
type Part = Readonly<Record<'all' | 'main' | 'kernel', number>>
type TableCost = Readonly<Record<'written' | 'read', Part>>

/** The longest time for which the event loop was held, ms. */
interface Holds {
  readonly first: number
  readonly steady: number
  readonly adoption: number
  /** One transaction that puts our table in the place of another proxy's. */
  readonly exchange: number
}

/** What `connect` takes, µs; `added` are draws of the difference, for its error. */
interface Latency {
  readonly direct: number
  readonly service: number
  readonly added: readonly number[]
}

/** A contender in its namespace, measured and left in place. */
interface Stage {
  readonly name: string
  readonly figures: Figures
  /** Of the service that is measured, as it is now. */
  readonly endpoint: string
  readonly namespace: string
  close(): Promise<void>
}

const folder = mkdtempSync(join(tmpdir(), 'sluice-bench-'))
const bundles = join(root, 'node_modules/.cache', `sluice-bench-${process.pid}`)
mkdirSync(bundles, { recursive: true })
const contenders = findContenders()
execFileSync('npx', ['rolldown', '-c'], { cwd: root, stdio: ['ignore', 'ignore', 'ignore'] })
const parts = {
  api: await bundle(join(import.meta.dirname, 'apiserver.ts')),
  probe: await bundle(join(import.meta.dirname, 'probe.ts')),
  table: await bundle(join(import.meta.dirname, 'table.ts')),
}
try {
  for (const services of sizes) {
    const stages: (Stage | string)[] = []
    try {
      for (const contender of contenders) {
        const run = services <= contender.most || process.env.BENCH_FULL !== undefined
        if (run) process.stderr.write(`measuring ${contender.name} with ${services} services\n`)
        stages.push(run ? await measure(contender, services) : contender.name)
      }
      print(services, stages)
      printLatencies(stages, await compare(stages, services))
    } finally {
      for (const stage of stages.reverse()) if (typeof stage !== 'string') await stage.close()
    }
  }
} finally {
  rmSync(folder, { recursive: true, force: true })
  rmSync(bundles, { recursive: true, force: true })
}

function findContenders(): readonly Contender[] {
  // With the flags it gives itself.
  const own = {
    program: [process.execPath, ...nodeFlags(), script],
    changes: 400,
    own: true,
    most: Number.POSITIVE_INFINITY,
  }
  const found: Contender[] = [{ name: 'Sluice nftables', mode: 'nftables', ...own }]
  const { stdout } = spawnSync(join(root, 'test/e2e/build-cluster'), ['--where'], { encoding: 'utf8' })
  const theirs = join(stdout.trim(), 'kube-proxy')
  if (!existsSync(theirs)) {
    console.log(`kube-proxy is not built (test/e2e/build-cluster kube-proxy): only Sluice is measured`)
    return found
  }
  const rest = { program: [theirs], changes: 15, own: false, most: 10_000 }
  found.push({ name: 'kube-proxy nftables', mode: 'nftables', ...rest })
  found.push({ name: 'kube-proxy iptables', mode: 'iptables', ...rest })
  return found
}

async function bundle(input: string): Promise<string> {
  const file = join(bundles, `${input.replace(/.*\/|\.ts$/g, '')}.mjs`)
  const made = await rolldown({ input, platform: 'node', external: ['koffi'], logLevel: 'silent' })
  await made.write({ file, format: 'esm', codeSplitting: false })
  await made.close()
  return file
}

async function measure(contender: Contender, services: number): Promise<Stage> {
  const namespace = enterNamespace()
  const children: ChildProcess[] = []
  const close = async () => {
    for (const child of children) child.kill('SIGKILL')
    await wait(200)
    namespace.leave()
  }
  try {
    namespace.exec('ip', ['addr', 'add', '192.0.2.1/32', 'dev', 'lo'])
    namespace.exec('ip', ['route', 'add', 'local', '10.250.0.0/16', 'dev', 'lo'])
    namespace.exec('ip', ['link', 'add', 'out', 'type', 'veth', 'peer', 'name', 'away'])
    for (const name of ['out', 'away']) namespace.exec('ip', ['link', 'set', name, 'up'])
    namespace.exec('ip', ['route', 'add', '10.96.0.0/12', 'dev', 'out'])
    const server = fork(parts.api, [services, endpoints, 1].map(String), {
      stdio: ['ignore', 'pipe', 'inherit', 'ipc'],
    })
    children.push(server)
    const port = Number(await firstLine(server))
    const answering = spawn(process.execPath, [parts.probe, 'server', '8080'], { stdio: ['ignore', 'pipe', 'inherit'] })
    children.push(answering)
    await firstLine(answering)
    const scene: Scene = { services, port, children, kernelBefore: kernelMb() }
    const { figures, turns } = await observe(contender, scene)
    const holds = contender.own ? await holdsOf(contender, scene, namespace) : undefined
    const endpoint = probeAddress(holds === undefined ? turns : 0)
    const readerCpuMicros = contender.own ? await readerCost(contender, scene) : Number.NaN
    const table = contender.own ? await tableCost(contender, services) : undefined
    const all = { ...figures, holds, readerCpuMicros, table }
    return { name: contender.name, figures: all, endpoint, namespace: namespace.name, close }
  } catch (error) {
    await close()
    throw error
  }
}

interface Scene {
  readonly services: number
  readonly port: number
  readonly children: ChildProcess[]
  readonly kernelBefore: number
}

type Observed = Omit<Figures, 'holds' | 'readerCpuMicros' | 'table'>

async function observe(contender: Contender, scene: Scene): Promise<{ figures: Observed; turns: number }> {
  const { services, port, kernelBefore } = scene
  const proxy = startProxy(contender, port)
  scene.children.push(proxy)
  const vip = serviceIp(services - 1)
  const pid = proxy.pid as number
  const took = await probe<number>('until', vip, 80, probeAddress(0), limitMs, Date.now())
  const coldMs = took < 0 ? undefined : took
  process.stderr.write(`  traffic after ${took.toFixed(0)} ms\n`)
  await settled(pid)
  const cold = { coldMs, coldCpuMs: cpuMs(pid), rssMb: rssMb(pid), kernelMb: kernelMb() - kernelBefore }
  const missing = Number.NaN
  const none = { changeCpuMicros: missing, warmCpuMicros: missing, burstCpuMicros: missing, rssAfterMb: missing }
  if (coldMs === undefined) return { figures: { ...cold, ...none, changeMs: [] }, turns: 0 }
  process.stderr.write(`  ${cold.rssMb.toFixed(0)} MB; changing endpoints\n`)
  const pauseMs = contender.own ? 10 : 200
  const changeMs = await probe<number[]>('changes', vip, 80, port, contender.changes, pauseMs, 60_000)
  const changeCpuMicros = await cpuPerChange(contender, pid, port)
  const warmCpuMicros = contender.own ? await cpuPerChange(contender, pid, port) : missing
  const rssAfterMb = rssMb(pid)
  const burstCpuMicros = contender.own ? await cpuPerChange(contender, pid, port, 100) : missing
  const figures = { ...cold, changeMs, changeCpuMicros, warmCpuMicros, burstCpuMicros, rssAfterMb }
  return { figures, turns: changeMs.length }
}

async function cpuPerChange(contender: Contender, pid: number, port: number, atOnce = 1): Promise<number> {
  const [count, everyMs] = contender.own ? [4_000, 2] : [20, 500]
  await settled(pid)
  const before = cpuMs(pid)
  await changeMany(port, count, everyMs, atOnce)
  await settled(pid)
  return ((cpuMs(pid) - before) * 1000) / count
}

async function changeMany(port: number, count: number, everyMs: number, atOnce = 1): Promise<void> {
  const query = `count=${count}&everyMs=${everyMs * atOnce}&atOnce=${atOnce}`
  await fetch(`http://127.0.0.1:${port}/changes?${query}`)
  await wait(count * everyMs + 2_000)
}

/** After the proxy: the API server tells changes to whoever came last. */
async function readerCost(contender: Contender, { port, children }: Scene): Promise<number> {
  const reader = spawn(process.execPath, [join(import.meta.dirname, 'reader.mjs'), String(port)], { stdio: 'ignore' })
  children.push(reader)
  await wait(1_000)
  // As warm as the proxy is.
  await cpuPerChange(contender, reader.pid as number, port)
  const micros = await cpuPerChange(contender, reader.pid as number, port)
  reader.kill('SIGKILL')
  return micros
}

/** The same proxy again, with a look at its event loop: from nothing, with changes, and after a kill. */
async function holdsOf(contender: Contender, scene: Scene, namespace: EnteredNamespace): Promise<Holds | undefined> {
  const vip = serviceIp(scene.services - 1)
  const file = join(folder, 'holds')
  let pid = 0
  const start = async () => {
    scene.children.pop()?.kill('SIGKILL')
    await wait(200)
    const [node = '', ...rest] = contender.program
    const program = [node, '--import', join(import.meta.dirname, 'hold.mjs'), ...rest]
    const proxy = startProxy({ ...contender, program }, scene.port, { SLUICE_HOLDS: file })
    scene.children.push(proxy)
    pid = proxy.pid as number
    // Holds count from when somebody can ask: before that the program is being loaded.
    while (!(await answers('http://127.0.0.1:10256/livez'))) await wait(10)
    await read()
  }
  const read = async () => {
    process.kill(pid, 'SIGUSR2')
    await wait(300)
    return Number(readFileSync(file, 'utf8'))
  }
  scene.children.at(-1)?.kill('SIGKILL')
  await wait(200)
  for (const family of ['ip', 'ip6']) namespace.exec('nft', ['delete', 'table', family, 'kube-proxy'])
  await start()
  const took = await probe<number>('until', vip, 80, probeAddress(0), limitMs, Date.now())
  if (took < 0) return undefined
  await settled(pid, 60)
  const first = await read()
  await changeMany(scene.port, 500, 2)
  const steady = await read()
  await start()
  await wait(1_000)
  await settled(pid, 60)
  const adoption = await read()
  scene.children.at(-1)?.kill('SIGKILL')
  await wait(200)
  for (const family of ['ip', 'ip6']) {
    namespace.exec('nft', ['delete', 'table', family, 'kube-proxy'])
    namespace.exec('nft', ['add', 'table', family, 'kube-proxy'])
  }
  await start()
  await wait(1_000)
  await settled(pid, 60)
  return { first, steady, adoption, exchange: await read() }
}

/** In a namespace of its own, with the flags that the proxy gives itself. */
async function tableCost({ program }: Contender, services: number): Promise<TableCost> {
  const [node = '', ...rest] = program.slice(0, -1)
  const words = [...rest, parts.table, String(services), String(endpoints)]
  return JSON.parse(await firstLine(spawn(node, words, { stdio: ['ignore', 'pipe', 'inherit'] }))) as TableCost
}

async function answers(url: string): Promise<boolean> {
  try {
    await fetch(url)
    return true
  } catch {
    return false
  }
}

/** What no proxy can be below: a table with one rule that translates this one address. */
async function floor(services: number): Promise<Stage> {
  const namespace = enterNamespace()
  const endpoint = probeAddress(0)
  namespace.exec('ip', ['route', 'add', 'local', '10.250.0.0/16', 'dev', 'lo'])
  namespace.exec('ip', ['route', 'add', '10.96.0.0/12', 'dev', 'lo'])
  const rule = `ip daddr ${serviceIp(services - 1)} tcp dport 80 dnat to ${endpoint}:8080`
  const lines = ['table ip t {', 'chain c {', 'type nat hook output priority -100;', rule, '}', '}', '']
  namespace.exec('nft', ['-f', '-'], lines.join('\n'))
  const server = spawn(process.execPath, [parts.probe, 'server', '8080'], { stdio: ['ignore', 'pipe', 'inherit'] })
  await firstLine(server)
  const close = async () => {
    server.kill('SIGKILL')
    await wait(200)
    namespace.leave()
  }
  return { name: 'a single rule', figures: {} as Figures, endpoint, namespace: namespace.name, close }
}

/** Past the service and through it, of all contenders that have traffic, in turns. */
async function compare(stages: readonly (Stage | string)[], services: number): Promise<(Latency | undefined)[]> {
  const least = await floor(services)
  const running = stages.filter((stage) => typeof stage !== 'string' && stage.figures.coldMs !== undefined) as Stage[]
  const ready = [...running, least]
  process.stderr.write('  first packets\n')
  // Not the ports that were used before there were rules: the kernel remembers for two minutes that those were not translated.
  const ports = ['sysctl', '-qw', 'net.ipv4.ip_local_port_range=10000 32000']
  for (const { namespace } of ready) execFileSync('ip', ['netns', 'exec', namespace, ...ports])
  const words = ready.map((stage) => `${stage.namespace},${serviceIp(services - 1)},80,${stage.endpoint},8080`)
  const found = await probe<Latency[]>('latency', 10_000, ...words).finally(() => least.close())
  return [...stages, least].map((stage) => found[ready.indexOf(stage as Stage)])
}

function wait(ms: number): Promise<void> {
  return new Promise((resolve) => setTimeout(resolve, ms))
}

function startProxy({ program, mode }: Contender, port: number, env: NodeJS.ProcessEnv = {}): ChildProcess {
  const kubeconfig = join(folder, 'kubeconfig')
  writeFileSync(
    kubeconfig,
    JSON.stringify({
      apiVersion: 'v1',
      kind: 'Config',
      clusters: [{ name: 'b', cluster: { server: `http://127.0.0.1:${port}` } }],
      contexts: [{ name: 'b', context: { cluster: 'b', user: 'b' } }],
      users: [{ name: 'b', user: {} }],
      'current-context': 'b',
    }),
  )
  const config = join(folder, 'config')
  writeFileSync(
    config,
    JSON.stringify({
      apiVersion: 'kubeproxy.config.k8s.io/v1alpha1',
      kind: 'KubeProxyConfiguration',
      clientConnection: { kubeconfig, contentType: 'application/json', acceptContentTypes: 'application/json' },
      mode,
      clusterCIDR: '10.128.0.0/9',
      // Zero would mean a second.
      nftables: { minSyncPeriod: '1ms' },
      iptables: { minSyncPeriod: '1ms' },
      healthzBindAddress: '127.0.0.1:10256',
      metricsBindAddress: '127.0.0.1:10249',
      conntrack: { maxPerCore: 0, min: 0, tcpEstablishedTimeout: '0s', tcpCloseWaitTimeout: '0s' },
    }),
  )
  const [command = '', ...args] = [...program, `--config=${config}`, '--hostname-override=node-7']
  const stdio = process.env.BENCH_VERBOSE === undefined ? 'ignore' : 'inherit'
  return spawn(command, args, { stdio: ['ignore', stdio, stdio], env: { ...process.env, ...env } })
}

/** Connections by blocking calls in a process of its own; see probe.ts for the words. */
async function probe<T>(...words: readonly (string | number)[]): Promise<T> {
  const child = spawn(process.execPath, [parts.probe, ...words.map(String)], { stdio: ['ignore', 'pipe', 'inherit'] })
  return JSON.parse(await firstLine(child)) as T
}

function firstLine(child: ChildProcess): Promise<string> {
  return new Promise((resolve, reject) => {
    createInterface({ input: child.stdout as NodeJS.ReadableStream }).once('line', resolve)
    child.once('exit', (code) => reject(new Error(`a part of the benchmark ended with ${code}`)))
  })
}

/** User and system time of a process and of the children it has waited for. */
function cpuMs(pid: number): number {
  const fields = readFileSync(`/proc/${pid}/stat`, 'utf8')
    .replace(/^.*\) /s, '')
    .split(' ')
  return fields.slice(11, 15).reduce((sum, ticks) => sum + Number(ticks) * 10, 0)
}

function rssMb(pid: number): number {
  return Number(/VmRSS:\s+(\d+)/.exec(readFileSync(`/proc/${pid}/status`, 'utf8'))?.[1] ?? 0) / 1024
}

/** Of the whole machine: others that work on it show as noise. */
function kernelMb(): number {
  const text = readFileSync('/proc/meminfo', 'utf8')
  const of = (name: string) => Number(new RegExp(`${name}:\\s+(\\d+)`).exec(text)?.[1] ?? 0)
  return (of('Slab') + of('Percpu') + of('VmallocUsed')) / 1024
}

/** Until the process has nothing more to do, or uses no more than so many ms of CPU in 300 ms. */
async function settled(pid: number, idleMs = 10): Promise<void> {
  for (let quiet = 0, last = cpuMs(pid), i = 0; quiet < 3 && i < 100; i++) {
    await wait(300)
    const now = cpuMs(pid)
    quiet = now - last <= idleMs ? quiet + 1 : 0
    last = now
  }
}

function print(services: number, stages: readonly (Stage | string)[]): void {
  const rows: readonly (readonly [string, (figures: Figures) => number | undefined, string])[] = [
    ['cold start to traffic on the last service', (f) => f.coldMs, 'ms'],
    ['CPU of the cold start, programs it runs included', (f) => f.coldCpuMs, 'ms'],
    ['CPU of writing the table alone', (f) => f.table?.written.all, 'ms'],
    ['  of which the main thread', (f) => f.table?.written.main, 'ms'],
    ['    of which in the kernel', (f) => f.table?.written.kernel, 'ms'],
    ['CPU of reading it back after a kill', (f) => f.table?.read.all, 'ms'],
    ['endpoint change, API write to first packet, p50', (f) => at(f.changeMs, 0.5), 'ms'],
    ['endpoint change, API write to first packet, p99', (f) => at(f.changeMs, 0.99), 'ms'],
    ['CPU per change, the first ones', (f) => f.changeCpuMicros, 'µs'],
    ['CPU per change, after 4,000', (f) => f.warmCpuMicros, 'µs'],
    ['CPU per change, 100 at once', (f) => f.burstCpuMicros, 'µs'],
    ['CPU per change of a program that only reads and parses it', (f) => f.readerCpuMicros, 'µs'],
    ['RSS after the start', (f) => f.rssMb, 'MB'],
    ['RSS after all changes', (f) => f.rssAfterMb, 'MB'],
    ['kernel memory (machine-wide difference)', (f) => f.kernelMb, 'MB'],
    ['longest hold of the event loop, first sync', (f) => f.holds?.first, 'ms'],
    ['longest hold of the event loop, 500 changes', (f) => f.holds?.steady, 'ms'],
    ['longest hold of the event loop, taking over after a kill', (f) => f.holds?.adoption, 'ms'],
    ["longest hold of the event loop, taking another proxy's table over", (f) => f.holds?.exchange, 'ms'],
  ]
  const names = namesOf(stages)
  console.log(`\n${services} services x ${endpoints} endpoints`)
  console.log(`| | ${names.join(' | ')} |\n| --- |${names.map(() => ' ---: |').join('')}`)
  const own = stages[0]
  for (const [title, read, unit] of rows) {
    const base = typeof own === 'object' ? read(own.figures) : undefined
    const cells = stages.map((stage, i) => {
      if (typeof stage === 'string') return 'not run'
      const value = read(stage.figures)
      if (value === undefined || Number.isNaN(value))
        return stage.figures.coldMs === undefined ? `> ${limitMs / 1000} s` : '-'
      const ratio = i === 0 || base === undefined || base <= 0 ? '' : ` (${(value / base).toFixed(1)}x)`
      return `${value < 10 ? value.toFixed(2) : value.toFixed(0)} ${unit}${ratio}`
    })
    console.log(`| ${title} | ${cells.join(' | ')} |`)
  }
}

function at(list: readonly number[], share: number): number | undefined {
  return list.toSorted((a, b) => a - b)[Math.floor((list.length - 1) * share)]
}

function namesOf(stages: readonly (Stage | string)[]): readonly string[] {
  return stages.map((stage) => (typeof stage === 'string' ? stage : stage.name))
}

function printLatencies(stages: readonly (Stage | string)[], latencies: readonly (Latency | undefined)[]): void {
  const shown = (of: (latency: Latency) => string) =>
    latencies.map((latency) => (latency === undefined ? '-' : of(latency))).join(' | ')
  console.log(`\n| first packet | ${namesOf(stages).join(' | ')} | one DNAT rule |`)
  console.log(`| --- |${latencies.map(() => ' ---: |').join('')}`)
  const between = (draws: readonly number[], digits: number) =>
    `${at(draws, 0.5)?.toFixed(digits)} (${at(draws, 0.025)?.toFixed(digits)} to ${at(draws, 0.975)?.toFixed(digits)})`
  console.log(`| handshake past the service, p50 | ${shown(({ direct }) => `${direct.toFixed(1)} µs`)} |`)
  console.log(`| handshake through it, p50 | ${shown(({ service }) => `${service.toFixed(1)} µs`)} |`)
  console.log(`| added, with 95 % interval | ${shown(({ added }) => `${between(added, 1)} µs`)} |`)
  const ours = latencies[0]?.added ?? []
  const ratio = ({ added }: Latency) =>
    between(
      ours.map((value, i) => value / (added[i] as number)),
      2,
    )
  console.log(`| what Sluice adds as a share of it | ${shown(ratio)} |`)
}
