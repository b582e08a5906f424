// Measures an ordinary node: what Sluice and the real kube-proxy cost with a few dozen services while little happens.
//
//   npm run bench:ordinary [-- mode… services…]      default nftables iptables 20 50
//
// Each proxy runs in its own network namespace against a scripted API server with the same objects, one after the other, twice, with the
// default minSyncPeriod of one second. Measured are the CPU from exec until the last service has traffic, its memory, a quiet time of
// BENCH_SECONDS (60 by default), in which one endpoint changes every ten seconds, /healthz is asked every ten seconds and /metrics every
// fifteen, and then new services, three per second, each as two objects: from the write of the slice, 20 ms after its Service, until
// traffic flows. Sluice runs from its bundle with this Node, and as the single executable if `npm run package` has made it.

import { type ChildProcess, execFileSync, fork } from 'node:child_process'
import { existsSync, mkdtempSync, readdirSync, readFileSync, rmSync } from 'node:fs'
import { connect, createServer, type Socket } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import { setTimeout as wait } from 'node:timers/promises'
import { enterNamespace } from '../test/lab/entered-namespace.ts'
import { bundleProgram } from '../test/support/bundle-program.ts'
import { serviceIp } from './api-objects.ts'
import { cpuMs, rssMb, waitUntilIdle } from './process-cost.ts'
import { findKubeProxy, findOwnPrograms, type ProxyProgram, startProxy } from './start-proxy.ts'

const root = join(import.meta.dirname, '..')
const seconds = Number(process.env.BENCH_SECONDS ?? 60)
const words = process.argv.slice(2)
const sizes = words.filter((word) => /^\d+$/.test(word)).map(Number)
if (sizes.length === 0) sizes.push(20, 50)
const modes = (['nftables', 'iptables'] as const).filter(
  (mode) => words.includes(mode) || words.length === sizes.length || words.length === 0,
)
const endpoints = 5
/** The time after work before memory is read. Go and Sluice return memory to the system some seconds after it. */
const restMs = 20_000

interface Competitor extends ProxyProgram {
  readonly name: string
}

interface Figures {
  readonly startCpuMs: number
  readonly servingMs: number
  readonly rssMb: number
  readonly privateMb: number
  readonly writtenMb: number
  readonly quietCpuMs: number
  readonly wakeUpsPerSecond: number
  readonly syncs: number
  /** From the write of the second object until traffic flows, sorted. */
  readonly pairsMs: readonly number[]
  readonly rssAfterMb: number
}

const columns: readonly [string, (figures: Figures) => string][] = [
  ['CPU until it serves, ms', (f) => f.startCpuMs.toFixed(0)],
  ['time until it serves, ms', (f) => f.servingMs.toFixed(0)],
  ['RSS, MB', (f) => f.rssMb.toFixed(0)],
  ['private memory, MB', (f) => f.privateMb.toFixed(0)],
  ['… without pages of files, MB', (f) => f.writtenMb.toFixed(0)],
  ['quiet: CPU ms per minute', (f) => ((f.quietCpuMs * 60) / seconds).toFixed(0)],
  ['quiet: wake-ups per second', (f) => f.wakeUpsPerSecond.toFixed(1)],
  ['quiet: syncs per minute', (f) => ((f.syncs * 60) / seconds).toFixed(0)],
  ['two objects, p50, ms', (f) => quantile(f.pairsMs, 0.5).toFixed(0)],
  ['two objects, p90, ms', (f) => quantile(f.pairsMs, 0.9).toFixed(0)],
  ['RSS at the end, MB', (f) => f.rssAfterMb.toFixed(0)],
]

const folder = mkdtempSync(join(tmpdir(), 'sluice-bench-'))
execFileSync('npm', ['run', '--silent', 'build'], { cwd: root, stdio: 'ignore' })
const api = await bundleProgram(join(import.meta.dirname, 'scripted-apiserver.ts'))
try {
  for (const services of sizes) {
    for (const mode of modes) await compare(findCompetitors(mode), services)
  }
} finally {
  rmSync(folder, { recursive: true, force: true })
  api.remove()
}

function findCompetitors(mode: ProxyProgram['mode']): readonly Competitor[] {
  const candidates: readonly Competitor[] = [
    ...findOwnPrograms().map(({ name, program }) => ({ name, program, mode })),
    { name: 'kube-proxy', mode, program: [findKubeProxy()] },
  ]
  return candidates.filter(({ program }) => existsSync(program[0] as string))
}

async function compare(competitors: readonly Competitor[], services: number): Promise<void> {
  const rows = new Map<string, Figures[]>()
  for (let round = 0; round < 2; round++) {
    for (const competitor of competitors) {
      process.stderr.write(`measuring ${competitor.name}, ${competitor.mode}, ${services} services\n`)
      rows.set(competitor.name, [...(rows.get(competitor.name) ?? []), await measure(competitor, services)])
    }
  }
  console.log(
    `\n${services} services of ${endpoints} endpoints, ${competitors[0]?.mode}; two runs of ${seconds} s each`,
  )
  console.log(`${''.padEnd(28)}${[...rows.keys()].map((name) => name.padStart(22)).join('')}`)
  for (const [title, show] of columns) {
    const cells = [...rows.values()].map((figures) => figures.map(show).join(', ').padStart(22))
    console.log(title.padEnd(28) + cells.join(''))
  }
}

async function measure(competitor: Competitor, services: number): Promise<Figures> {
  const namespace = enterNamespace()
  const children: ChildProcess[] = []
  const answering = createServer((socket) => socket.end())
  try {
    namespace.exec('ip', ['addr', 'add', '192.0.2.1/32', 'dev', 'lo'])
    for (const net of ['10.96.0.0/12', '10.250.0.0/16'])
      namespace.exec('ip', ['route', 'add', 'local', net, 'dev', 'lo'])
    const server = fork(api.file, [services, endpoints, 1].map(String), { stdio: ['ignore', 'pipe', 'inherit', 'ipc'] })
    children.push(server)
    const port = Number(await firstLine(server))
    answering.listen(8080, '0.0.0.0')
    const began = performance.now()
    const proxy = startProxy(competitor, { port, folder, minSyncPeriod: '1s' })
    children.push(proxy)
    const pid = proxy.pid as number
    await waitForTraffic(serviceIp(services - 1), 5)
    const started = { startCpuMs: cpuMs(pid), servingMs: performance.now() - began }
    await waitUntilIdle(pid)
    await wait(restMs)
    const memory = { rssMb: rssMb(pid), ...readPrivate(pid) }
    const quiet = await measureQuiet(pid, port)
    const pairsMs = await measurePairs(services, port)
    await wait(restMs)
    return { ...started, ...memory, ...quiet, pairsMs, rssAfterMb: rssMb(pid) }
  } finally {
    answering.close()
    for (const child of children) child.kill('SIGKILL')
    await wait(200)
    namespace.leave()
  }
}

async function measureQuiet(pid: number, port: number) {
  const before = { cpu: cpuMs(pid), switches: wakeUps(pid), syncs: await countSyncs() }
  const end = performance.now() + seconds * 1000
  for (let second = 1; performance.now() < end; second++) {
    await wait(1_000)
    if (second % 10 === 0) {
      await fetch(`http://127.0.0.1:${port}/changes?count=1&everyMs=1`)
      await answersOk('http://127.0.0.1:10256/healthz')
    }
    if (second % 15 === 0) await (await fetch('http://127.0.0.1:10249/metrics')).text()
  }
  const after = { cpu: cpuMs(pid), switches: wakeUps(pid), syncs: await countSyncs() }
  return {
    quietCpuMs: after.cpu - before.cpu,
    wakeUpsPerSecond: (after.switches - before.switches) / seconds,
    syncs: after.syncs - before.syncs,
  }
}

/** Adds services as two objects each. */
async function measurePairs(services: number, port: number): Promise<readonly number[]> {
  const found: number[] = []
  for (let n = 0; n < 15; n++) {
    const next = wait(333)
    await fetch(`http://127.0.0.1:${port}/pair?service=${services + n}&gapMs=20`)
    const began = performance.now()
    await waitForTraffic(serviceIp(services + n), 2)
    found.push(performance.now() - began)
    await next
  }
  return found.sort((a, b) => a - b)
}

function quantile(sorted: readonly number[], share: number): number {
  return sorted[Math.min(sorted.length - 1, Math.floor(sorted.length * share))] ?? Number.NaN
}

/**
 * Begins a connection every few milliseconds until one is there. None waits for the one before: a client on this node that is rejected
 * while it dials tries again after a second. Without rules the address is one of this namespace, where nobody listens on port 80.
 */
async function waitForTraffic(host: string, everyMs: number): Promise<void> {
  const sockets: Socket[] = []
  let isThere = false
  while (!isThere) {
    const socket = connect({ host, port: 80 })
    socket.once('connect', () => (isThere = true)).on('error', () => socket.destroy())
    sockets.push(socket)
    await wait(everyMs)
  }
  for (const socket of sockets) socket.destroy()
}

/** The syncs of all families. */
async function countSyncs(): Promise<number> {
  const text = await (await fetch('http://127.0.0.1:10249/metrics')).text()
  const lines = text.matchAll(/^kubeproxy_sync_proxy_rules_duration_seconds_count(?:\{.*\})? (\d+)/gm)
  return [...lines].reduce((sum, match) => sum + Number(match[1]), 0)
}

/** How often a thread of the process stopped waiting: every wait is a voluntary switch. */
function wakeUps(pid: number): number {
  return readdirSync(`/proc/${pid}/task`)
    .map((task) => readFileSync(`/proc/${pid}/task/${task}/status`, 'utf8'))
    .reduce((sum, text) => sum + Number(/^voluntary_ctxt_switches:\s+(\d+)/m.exec(text)?.[1] ?? 0), 0)
}

/** What only this process uses: code of a program that several run is shared. `writtenMb` is without unchanged pages of files. */
function readPrivate(pid: number): Pick<Figures, 'privateMb' | 'writtenMb'> {
  const text = readFileSync(`/proc/${pid}/smaps_rollup`, 'utf8')
  const readMb = (name: string) => Number(new RegExp(`^${name}:\\s+(\\d+)`, 'm').exec(text)?.[1] ?? 0) / 1024
  const writtenMb = readMb('Private_Dirty')
  return { privateMb: readMb('Private_Clean') + writtenMb, writtenMb }
}

async function answersOk(url: string): Promise<boolean> {
  try {
    return (await fetch(url)).ok
  } catch {
    return false
  }
}

function firstLine(child: ChildProcess): Promise<string> {
  return new Promise((resolve, reject) => {
    createInterface({ input: child.stdout as NodeJS.ReadableStream }).once('line', resolve)
    child.once('exit', (code) => reject(new Error(`a part of the benchmark ended with ${code}`)))
  })
}
