// Sluice and the real kube-proxy side by side: one machine, one scripted API server, the same objects, a network namespace each.
//
//   npm run bench:nftables [-- services…]      default 1000 10000 30000
//
// kube-proxy is measured where test/e2e/build-cluster has built it. Each run is bounded in time, and what took longer says so:
// kube-proxy needs minutes for 10,000 services. BENCH_LIMIT (seconds, 150 by default) is how long a cold start may take.

import { type ChildProcess, execFileSync, fork, spawn, spawnSync } from 'node:child_process'
import { existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import { rolldown } from 'rolldown'
import { enterNamespace } from '../test/kernel/support-netns.ts'
import { probeAddress, serviceIp } from './objects.ts'

const root = join(import.meta.dirname, '..')
const limitMs = Number(process.env.BENCH_LIMIT ?? 150) * 1000
const sizes = process.argv.slice(2).map(Number)
if (sizes.length === 0) sizes.push(1_000, 10_000, 30_000)
const endpoints = 5

interface Contender {
  readonly name: string
  readonly program: readonly string[]
  readonly mode: 'nftables' | 'iptables'
  readonly changes: number
  /** Larger sizes are known to take many minutes. */
  readonly most: number
}

interface Figures {
  readonly coldMs: number | undefined
  readonly coldCpuMs: number
  readonly changeMs: readonly number[]
  readonly changeCpuMicros: number
  readonly rssMb: number
  readonly kernelMb: number
  readonly directMicros: number
  readonly serviceMicros: number
}

const folder = mkdtempSync(join(tmpdir(), 'sluice-bench-'))
const bundles = join(root, 'node_modules/.cache', `sluice-bench-${process.pid}`)
mkdirSync(bundles, { recursive: true })
const contenders = findContenders()
execFileSync('npx', ['rolldown', '-c'], { cwd: root, stdio: ['ignore', 'ignore', 'ignore'] })
const parts = {
  api: await bundle(join(import.meta.dirname, 'apiserver.ts')),
  probe: await bundle(join(import.meta.dirname, 'probe.ts')),
}
try {
  for (const services of sizes) {
    const results: (readonly [string, Figures | undefined])[] = []
    for (const contender of contenders) {
      const run = services <= contender.most || process.env.BENCH_FULL !== undefined
      if (run) process.stderr.write(`measuring ${contender.name} with ${services} services\n`)
      results.push([contender.name, run ? await measure(contender, services) : undefined])
    }
    print(services, results)
  }
} finally {
  rmSync(folder, { recursive: true, force: true })
  rmSync(bundles, { recursive: true, force: true })
}

function findContenders(): readonly Contender[] {
  const own = {
    program: [process.execPath, join(root, 'bin/kube-proxy')],
    changes: 400,
    most: Number.POSITIVE_INFINITY,
  }
  const found: Contender[] = [{ name: 'Sluice nftables', mode: 'nftables', ...own }]
  const { stdout } = spawnSync(join(root, 'test/e2e/build-cluster'), ['--where'], { encoding: 'utf8' })
  const theirs = join(stdout.trim(), 'kube-proxy')
  if (!existsSync(theirs)) {
    console.log(`kube-proxy is not built (test/e2e/build-cluster kube-proxy): only Sluice is measured`)
    return found
  }
  const rest = { program: [theirs], changes: 15, most: 10_000 }
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

async function measure(contender: Contender, services: number): Promise<Figures> {
  const namespace = enterNamespace()
  const children: ChildProcess[] = []
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
    const kernelBefore = kernelMb()
    const proxy = startProxy(contender, port)
    children.push(proxy)
    return await observe(contender, { services, proxy, port, kernelBefore })
  } finally {
    for (const child of children) child.kill('SIGKILL')
    await new Promise((resolve) => setTimeout(resolve, 200))
    namespace.leave()
  }
}

interface Scene {
  readonly services: number
  readonly proxy: ChildProcess
  readonly port: number
  readonly kernelBefore: number
}

async function observe(contender: Contender, scene: Scene): Promise<Figures> {
  const { services, proxy, port, kernelBefore } = scene
  const vip = serviceIp(services - 1)
  const pid = proxy.pid as number
  const took = await probe<number>('until', vip, 80, probeAddress(0), limitMs, Date.now())
  const coldMs = took < 0 ? undefined : took
  process.stderr.write(`  traffic after ${took.toFixed(0)} ms\n`)
  await settled(pid)
  const none = { changeMs: [], changeCpuMicros: Number.NaN, serviceMicros: Number.NaN, directMicros: Number.NaN }
  const held = () => ({ coldMs, coldCpuMs, rssMb: rssMb(pid), kernelMb: kernelMb() - kernelBefore })
  const coldCpuMs = cpuMs(pid)
  if (coldMs === undefined) return { ...held(), ...none }
  const state = held()
  process.stderr.write(`  ${state.rssMb.toFixed(0)} MB; changing endpoints\n`)
  const quick = contender.changes > 100
  const changeMs = await probe<number[]>('changes', vip, 80, port, contender.changes, quick ? 10 : 200)
  // The same endpoint, through the service and past it.
  const last = probeAddress(contender.changes)
  const first = await probe<{ service: number; direct: number }>('latency', vip, 80, last, 8080)
  await settled(pid)
  const before = cpuMs(pid)
  const count = quick ? 4000 : 20
  await fetch(`http://127.0.0.1:${port}/changes?count=${count}&everyMs=${quick ? 2 : 500}`)
  await new Promise((resolve) => setTimeout(resolve, quick ? count * 3 : count * 500 + 2_000))
  await settled(pid)
  const changeCpuMicros = ((cpuMs(pid) - before) * 1000) / count
  return { ...state, changeMs, changeCpuMicros, serviceMicros: first.service, directMicros: first.direct }
}

function startProxy({ program, mode }: Contender, port: number): ChildProcess {
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
  return spawn(command, args, { stdio: ['ignore', stdio, stdio] })
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

/** Until the process has nothing more to do. */
async function settled(pid: number): Promise<void> {
  for (let quiet = 0, last = cpuMs(pid), i = 0; quiet < 3 && i < 100; i++) {
    await new Promise((resolve) => setTimeout(resolve, 300))
    const now = cpuMs(pid)
    quiet = now - last <= 10 ? quiet + 1 : 0
    last = now
  }
}

function print(services: number, results: readonly (readonly [string, Figures | undefined])[]): void {
  const at = (list: readonly number[], share: number) =>
    list.toSorted((a, b) => a - b)[Math.floor((list.length - 1) * share)]
  const rows: readonly (readonly [string, (figures: Figures) => number | undefined, string])[] = [
    ['cold start to traffic on the last service', (f) => f.coldMs, 'ms'],
    ['CPU of the cold start, programs it runs included', (f) => f.coldCpuMs, 'ms'],
    ['endpoint change, API write to first packet, p50', (f) => at(f.changeMs, 0.5), 'ms'],
    ['endpoint change, API write to first packet, p99', (f) => at(f.changeMs, 0.99), 'ms'],
    ['CPU per change', (f) => f.changeCpuMicros, 'µs'],
    ['RSS', (f) => f.rssMb, 'MB'],
    ['kernel memory (machine-wide difference)', (f) => f.kernelMb, 'MB'],
    ['first packet, direct, p50', (f) => f.directMicros, 'µs'],
    ['first packet, service, p50', (f) => f.serviceMicros, 'µs'],
    ['first packet, added', (f) => f.serviceMicros - f.directMicros, 'µs'],
  ]
  console.log(`\n${services} services x ${endpoints} endpoints`)
  console.log(`| | ${results.map(([name]) => name).join(' | ')} |\n| --- |${results.map(() => ' ---: |').join('')}`)
  const own = results[0]?.[1]
  for (const [title, read, unit] of rows) {
    const base = own === undefined ? undefined : read(own)
    const cells = results.map(([, figures], i) => {
      if (figures === undefined) return 'not run'
      const value = read(figures)
      if (value === undefined || Number.isNaN(value))
        return figures.coldMs === undefined ? `> ${limitMs / 1000} s` : '-'
      const ratio = i === 0 || base === undefined || base <= 0 ? '' : ` (${(value / base).toFixed(1)}x)`
      return `${value < 10 ? value.toFixed(2) : value.toFixed(0)} ${unit}${ratio}`
    })
    console.log(`| ${title} | ${cells.join(' | ')} |`)
  }
}
