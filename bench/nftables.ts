// Measures Sluice and the real kube-proxy side by side: one machine, one scripted API server, the same objects, a network namespace each.
//
//   npm run bench:nftables [-- services…]      default 1000 10000 30000
//
// Sluice runs from its bundle with this Node, and as the single executable if `npm run package` has made it. kube-proxy is measured if
// test/e2e/build-cluster has built it. A cold start may take BENCH_LIMIT seconds (80 by default); the report says so if it took longer, as
// kube-proxy does with 10,000 services. First packets are measured at the end of each size, with all proxies in place, by turns.

import { type ChildProcess, execFileSync, fork, spawn } from 'node:child_process'
import { existsSync, mkdtempSync, readFileSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import { type EnteredNamespace, enterNamespace } from '../test/lab/entered-namespace.ts'
import { bundleProgram } from '../test/support/bundle-program.ts'
import { probeAddress, serviceIp } from './api-objects.ts'
import {
  type Figures,
  type Holds,
  type Latency,
  printFigures,
  printLatencies,
  type TableCost,
} from './nftables-report.ts'
import { cpuMs, kernelMb, rssMb, waitUntilIdle } from './process-cost.ts'
import { findKubeProxy, findOwnPrograms, type OwnProgram, startProxy } from './start-proxy.ts'

const root = join(import.meta.dirname, '..')
const limitMs = Number(process.env.BENCH_LIMIT ?? 80) * 1000
const sizes = process.argv.slice(2).map(Number)
if (sizes.length === 0) sizes.push(1_000, 10_000, 30_000)
const endpoints = 5
/** The time after all changes before memory is read. */
const restMs = 16_000

interface Competitor extends OwnProgram {
  readonly mode: 'nftables' | 'iptables'
  readonly changes: number
  readonly own: boolean
  /** The largest number of services to measure; more take many minutes. */
  readonly most: number
}

/** A competitor that was measured and still runs in its namespace. */
interface MeasuredProxy {
  readonly name: string
  readonly figures: Figures
  /** The present endpoint of the measured service. */
  readonly endpoint: string
  readonly namespace: string
  close(): Promise<void>
}

const folder = mkdtempSync(join(tmpdir(), 'sluice-bench-'))
const competitors = findCompetitors()
execFileSync('npx', ['rolldown', '-c'], { cwd: root, stdio: ['ignore', 'ignore', 'ignore'] })
const bundles = await Promise.all(
  ['scripted-apiserver', 'connect-probe', 'nftables-table'].map((name) =>
    bundleProgram(join(import.meta.dirname, `${name}.ts`)),
  ),
)
const [api = '', probeFile = '', table = ''] = bundles.map(({ file }) => file)
try {
  for (const services of sizes) {
    const measured: (MeasuredProxy | string)[] = []
    try {
      for (const competitor of competitors) {
        const run = services <= competitor.most || process.env.BENCH_FULL !== undefined
        if (run) process.stderr.write(`measuring ${competitor.name} with ${services} services\n`)
        measured.push(run ? await measure(competitor, services) : competitor.name)
      }
      printFigures({ services, endpoints, limitMs }, measured)
      printLatencies(measured, await measureFirstPackets(measured, services))
    } finally {
      for (const proxy of measured.reverse()) if (typeof proxy !== 'string') await proxy.close()
    }
  }
} finally {
  rmSync(folder, { recursive: true, force: true })
  for (const { remove } of bundles) remove()
}

function findCompetitors(): readonly Competitor[] {
  const own = { mode: 'nftables', changes: 400, own: true, most: Number.POSITIVE_INFINITY } as const
  const found: Competitor[] = findOwnPrograms().map((program) => ({ ...program, ...own }))
  const theirs = findKubeProxy()
  if (!existsSync(theirs)) {
    console.log(`kube-proxy is not built (test/e2e/build-cluster kube-proxy): only Sluice is measured`)
    return found
  }
  const rest = { program: [theirs], node: [], changes: 15, own: false, isScript: false, most: 10_000 }
  found.push({ name: 'kube-proxy nftables', mode: 'nftables', ...rest })
  found.push({ name: 'kube-proxy iptables', mode: 'iptables', ...rest })
  return found
}

async function measure(competitor: Competitor, services: number): Promise<MeasuredProxy> {
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
    const server = fork(api, [services, endpoints, 1].map(String), {
      stdio: ['ignore', 'pipe', 'inherit', 'ipc'],
    })
    children.push(server)
    const port = Number(await firstLine(server))
    const answering = spawn(process.execPath, [probeFile, 'server', '8080'], { stdio: ['ignore', 'pipe', 'inherit'] })
    children.push(answering)
    await firstLine(answering)
    const setup: Setup = { services, port, children, kernelBefore: kernelMb() }
    const { figures, turns } = await observe(competitor, setup)
    const holds = competitor.isScript ? await holdsOf(competitor, setup, namespace) : undefined
    const endpoint = probeAddress(holds === undefined ? turns : 0)
    const readerCpuMicros = competitor.isScript ? await readerCost(competitor, setup) : Number.NaN
    const table = competitor.own ? await tableCost(competitor, services) : undefined
    const all = { ...figures, holds, readerCpuMicros, table }
    return { name: competitor.name, figures: all, endpoint, namespace: namespace.name, close }
  } catch (error) {
    await close()
    throw error
  }
}

interface Setup {
  readonly services: number
  readonly port: number
  readonly children: ChildProcess[]
  readonly kernelBefore: number
}

type Observed = Omit<Figures, 'holds' | 'readerCpuMicros' | 'table'>

async function observe(competitor: Competitor, setup: Setup): Promise<{ figures: Observed; turns: number }> {
  const { services, port, kernelBefore } = setup
  const proxy = startProxy(competitor, { port, folder })
  setup.children.push(proxy)
  const vip = serviceIp(services - 1)
  const pid = proxy.pid as number
  const took = await probe<number>('until', vip, 80, probeAddress(0), limitMs, Date.now())
  const coldMs = took < 0 ? undefined : took
  process.stderr.write(`  traffic after ${took.toFixed(0)} ms\n`)
  await waitUntilIdle(pid)
  const cold = { coldMs, coldCpuMs: cpuMs(pid), rssMb: rssMb(pid), kernelMb: kernelMb() - kernelBefore }
  const missing = Number.NaN
  const none = { changeCpuMicros: missing, warmCpuMicros: missing, burstCpuMicros: missing, rssAfterMb: missing }
  if (coldMs === undefined) return { figures: { ...cold, ...none, changeMs: [] }, turns: 0 }
  process.stderr.write(`  ${cold.rssMb.toFixed(0)} MB; changing endpoints\n`)
  const pauseMs = competitor.own ? 10 : 200
  const changeMs = await probe<number[]>('changes', vip, 80, port, competitor.changes, pauseMs, 60_000)
  const changeCpuMicros = await cpuPerChange(competitor, pid, port)
  const warmCpuMicros = competitor.own ? await cpuPerChange(competitor, pid, port) : missing
  // Every proxy gets the time in which Sluice returns memory to the system, and Go does.
  await wait(restMs)
  const rssAfterMb = rssMb(pid)
  const burstCpuMicros = competitor.own ? await cpuPerChange(competitor, pid, port, 100) : missing
  const figures = { ...cold, changeMs, changeCpuMicros, warmCpuMicros, burstCpuMicros, rssAfterMb }
  return { figures, turns: changeMs.length }
}

async function cpuPerChange(competitor: Competitor, pid: number, port: number, atOnce = 1): Promise<number> {
  const [count, everyMs] = competitor.own ? [4_000, 2] : [20, 500]
  await waitUntilIdle(pid)
  const before = cpuMs(pid)
  await changeMany(port, count, everyMs, atOnce)
  await waitUntilIdle(pid)
  return ((cpuMs(pid) - before) * 1000) / count
}

async function changeMany(port: number, count: number, everyMs: number, atOnce = 1): Promise<void> {
  const query = `count=${count}&everyMs=${everyMs * atOnce}&atOnce=${atOnce}`
  await fetch(`http://127.0.0.1:${port}/changes?${query}`)
  await wait(count * everyMs + 2_000)
}

/** Called after the proxy was measured: the API server sends changes to the client that connected last. */
async function readerCost(competitor: Competitor, { port, children }: Setup): Promise<number> {
  const reader = spawn(process.execPath, [join(import.meta.dirname, 'watch-reader.mjs'), String(port)], {
    stdio: 'ignore',
  })
  children.push(reader)
  await wait(1_000)
  // The reader runs as long as the proxy did before it is measured, so that its code is as warm.
  await cpuPerChange(competitor, reader.pid as number, port)
  const micros = await cpuPerChange(competitor, reader.pid as number, port)
  reader.kill('SIGKILL')
  return micros
}

/** Measures the holds of the event loop in new processes: first sync, changes, adoption after a kill, and a foreign table. */
async function holdsOf(competitor: Competitor, setup: Setup, namespace: EnteredNamespace): Promise<Holds | undefined> {
  const vip = serviceIp(setup.services - 1)
  const file = join(folder, 'holds')
  let pid = 0
  const start = async () => {
    setup.children.pop()?.kill('SIGKILL')
    await wait(200)
    const [node = '', ...rest] = competitor.program
    const program = [node, '--import', join(import.meta.dirname, 'event-loop-holds.mjs'), ...rest]
    const proxy = startProxy({ ...competitor, program }, { port: setup.port, folder, env: { SLUICE_HOLDS: file } })
    setup.children.push(proxy)
    pid = proxy.pid as number
    // Holds count from when a client can be answered: before that the program is being loaded.
    while (!(await answers('http://127.0.0.1:10256/livez'))) await wait(10)
    await read()
  }
  const read = async () => {
    process.kill(pid, 'SIGUSR2')
    await wait(300)
    return Number(readFileSync(file, 'utf8'))
  }
  setup.children.at(-1)?.kill('SIGKILL')
  await wait(200)
  for (const family of ['ip', 'ip6']) namespace.exec('nft', ['delete', 'table', family, 'kube-proxy'])
  await start()
  const took = await probe<number>('until', vip, 80, probeAddress(0), limitMs, Date.now())
  if (took < 0) return undefined
  await waitUntilIdle(pid, 60)
  const first = await read()
  await changeMany(setup.port, 500, 2)
  const steady = await read()
  await start()
  await wait(1_000)
  await waitUntilIdle(pid, 60)
  const adoption = await read()
  setup.children.at(-1)?.kill('SIGKILL')
  await wait(200)
  for (const family of ['ip', 'ip6']) {
    namespace.exec('nft', ['delete', 'table', family, 'kube-proxy'])
    namespace.exec('nft', ['add', 'table', family, 'kube-proxy'])
  }
  await start()
  await wait(1_000)
  await waitUntilIdle(pid, 60)
  return { first, steady, adoption, exchange: await read() }
}

/** Runs bench/nftables-table.ts with the Node of the proxy and its flags. */
async function tableCost({ node }: Competitor, services: number): Promise<TableCost> {
  const [command = '', ...flags] = node
  const words = [...flags, table, String(services), String(endpoints)]
  return JSON.parse(await firstLine(spawn(command, words, { stdio: ['ignore', 'pipe', 'inherit'] }))) as TableCost
}

async function answers(url: string): Promise<boolean> {
  try {
    await fetch(url)
    return true
  } catch {
    return false
  }
}

/** A table with a single rule that translates the one address: no proxy can add less. */
async function startSingleRule(services: number): Promise<MeasuredProxy> {
  const namespace = enterNamespace()
  const endpoint = probeAddress(0)
  namespace.exec('ip', ['route', 'add', 'local', '10.250.0.0/16', 'dev', 'lo'])
  namespace.exec('ip', ['route', 'add', '10.96.0.0/12', 'dev', 'lo'])
  const rule = `ip daddr ${serviceIp(services - 1)} tcp dport 80 dnat to ${endpoint}:8080`
  const lines = ['table ip t {', 'chain c {', 'type nat hook output priority -100;', rule, '}', '}', '']
  namespace.exec('nft', ['-f', '-'], lines.join('\n'))
  const server = spawn(process.execPath, [probeFile, 'server', '8080'], { stdio: ['ignore', 'pipe', 'inherit'] })
  await firstLine(server)
  const close = async () => {
    server.kill('SIGKILL')
    await wait(200)
    namespace.leave()
  }
  return { name: 'a single rule', figures: {} as Figures, endpoint, namespace: namespace.name, close }
}

/** Measures connections past the service and through it, by turns, for all competitors that have traffic. */
async function measureFirstPackets(
  measured: readonly (MeasuredProxy | string)[],
  services: number,
): Promise<(Latency | undefined)[]> {
  const least = await startSingleRule(services)
  const running = measured.filter(
    (proxy) => typeof proxy !== 'string' && proxy.figures.coldMs !== undefined,
  ) as MeasuredProxy[]
  const ready = [...running, least]
  process.stderr.write('  first packets\n')
  // Other source ports than before: the kernel remembers for two minutes that connections made before the rules were not translated.
  const ports = ['sysctl', '-qw', 'net.ipv4.ip_local_port_range=10000 32000']
  for (const { namespace } of ready) execFileSync('ip', ['netns', 'exec', namespace, ...ports])
  const words = ready.map((proxy) => `${proxy.namespace},${serviceIp(services - 1)},80,${proxy.endpoint},8080`)
  const found = await probe<Latency[]>('latency', 10_000, ...words).finally(() => least.close())
  return [...measured, least].map((proxy) => found[ready.indexOf(proxy as MeasuredProxy)])
}

function wait(ms: number): Promise<void> {
  return new Promise((resolve) => setTimeout(resolve, ms))
}

/** Runs bench/connect-probe.ts, which makes connections with blocking calls, and returns what it prints. */
async function probe<T>(...words: readonly (string | number)[]): Promise<T> {
  const child = spawn(process.execPath, [probeFile, ...words.map(String)], { stdio: ['ignore', 'pipe', 'inherit'] })
  return JSON.parse(await firstLine(child)) as T
}

function firstLine(child: ChildProcess): Promise<string> {
  return new Promise((resolve, reject) => {
    createInterface({ input: child.stdout as NodeJS.ReadableStream }).once('line', resolve)
    child.once('exit', (code) => reject(new Error(`a part of the benchmark ended with ${code}`)))
  })
}
