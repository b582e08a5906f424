// Measures relaying on loopback: our relay, socat and no relay, in one run; and 10,000 idle connections.
//
// Endpoint, relay and client are separate processes, ours bundled as it ships. Every figure is the median of several rounds; in each round
// all ways have their turn, and each round begins with another way. socat runs as it is usually run: one process per connection, once with
// its default of 8 KiB per read and once with 64 KiB, as Node reads. The CPU time of the relay is shown as well: it says more than speed
// on a busy machine.
//
// The argument `idle` measures only the idle connections. Where the limit of open files is too low for them and cannot be raised,
// `npx tsx test/vm/run-tier.ts bench/userspace.ts idle` measures them in a VM.

import { type ChildProcess, execFileSync, fork, spawn } from 'node:child_process'
import { once } from 'node:events'
import { readFileSync } from 'node:fs'
import { createConnection } from 'node:net'
import { join } from 'node:path'
import { bundleProgram } from '../test/support/bundle-program.ts'
import { cpuMs } from './process-cost.ts'
import type { Done, Task } from './userspace.worker.ts'

const rounds = Number(process.env.ROUNDS ?? 8)
const wantedIdle = 10_000
const idleLimitMb = 300
/** Each idle connection is two descriptors of the relay. */
const descriptors = 2 * wantedIdle + 1000

interface Way {
  readonly name: string
  readonly port: number
  /** Process of the relay; undefined if direct. */
  readonly pid?: number | undefined
}

/** A process that runs the worker file. */
interface Started {
  readonly child: ChildProcess
  readonly port: number
}

/** Figures of one way in one measure. */
interface Result {
  readonly value: number
  readonly cpuMs: number
}

interface Measure {
  readonly title: string
  readonly task: Omit<Task, 'port'>
  readonly value: (done: Done) => number
  readonly better: 'more' | 'less'
}

const onlyIdle = process.argv[2] === 'idle'
const megabytes = 512
const bytes = megabytes << 20
const rate = (ms: number): number => bytes / 1e6 / (ms / 1000)
const middle = ({ samples }: Done): number => samples[samples.length >> 1] as number

const measures: readonly Measure[] = [
  {
    title: 'download, 1 connection, MB/s',
    task: { kind: 'download', amount: bytes, width: 1 },
    value: ({ ms }) => rate(ms),
    better: 'more',
  },
  {
    title: 'upload, 1 connection, MB/s',
    task: { kind: 'upload', amount: bytes, width: 1 },
    // The client waits that long before it begins.
    value: ({ ms }) => rate(ms - 50),
    better: 'more',
  },
  {
    title: 'download, 8 connections, MB/s',
    task: { kind: 'download', amount: bytes / 8, width: 8 },
    value: ({ ms }) => rate(ms),
    better: 'more',
  },
  {
    title: 'round trip of 1 byte, p50, µs',
    task: { kind: 'ping', amount: 5000, width: 1 },
    value: middle,
    better: 'less',
  },
  {
    title: 'round trips, 32 connections, 1/s',
    task: { kind: 'ping', amount: 1000, width: 32 },
    value: ({ ms }) => 32_000 / (ms / 1000),
    better: 'more',
  },
  {
    title: 'connect + 1 byte + close, p50, µs',
    task: { kind: 'connect', amount: 500, width: 1 },
    value: middle,
    better: 'less',
  },
  {
    title: 'connections, 16 at a time, 1/s',
    task: { kind: 'connect', amount: 100, width: 16 },
    value: ({ ms }) => 1600 / (ms / 1000),
    better: 'more',
  },
]

if (!onlyIdle) ensureSocat()
const worker = await bundleProgram(join(import.meta.dirname, 'userspace.worker.ts'))
const children: ChildProcess[] = []
try {
  const endpoint = await start('endpoint')
  const relay = await start('relay', String(endpoint.port))
  const client = await start('client')
  if (!onlyIdle) await relayAll(endpoint, relay, client.child)
  await measureIdle(relay, client.child)
} finally {
  for (const child of children) child.kill('SIGKILL')
  worker.remove()
}

async function relayAll(endpoint: Started, relay: Started, client: ChildProcess): Promise<void> {
  const ways: Way[] = [
    { name: 'direct', port: endpoint.port },
    { name: 'sluice', port: relay.port, pid: relay.child.pid },
    { name: 'socat', ...(await startSocat(endpoint.port, [])) },
    { name: 'socat -b65536', ...(await startSocat(endpoint.port, ['-b65536'])) },
  ]
  const rows = new Map<string, readonly Result[]>()
  for (const measure of measures) rows.set(measure.title, await compare(measure, ways, client))
  print(ways, rows)
}

async function compare(measure: Measure, ways: readonly Way[], client: ChildProcess): Promise<readonly Result[]> {
  const values = ways.map((): number[] => [])
  const cpu = ways.map((): number[] => [])
  for (let round = 0; round <= rounds; round++) {
    for (let turn = 0; turn < ways.length; turn++) {
      const i = (round + turn) % ways.length
      const { port, pid } = ways[i] as Way
      const before = relayCpuMs(pid)
      const value = measure.value(await ask<Done>(client, { ...measure.task, port }))
      // Time for socat to wait for its processes, whose CPU counts only then.
      if (pid !== undefined) await new Promise((resolve) => setTimeout(resolve, 100))
      // The first round warms up.
      if (round === 0) continue
      values[i]?.push(value)
      cpu[i]?.push(relayCpuMs(pid) - before)
    }
  }
  return values.map((own, i) => ({ value: median(own), cpuMs: median(cpu[i] as number[]) }))
}

function relayCpuMs(pid: number | undefined): number {
  return pid === undefined ? 0 : cpuMs(pid)
}

function median(values: readonly number[]): number {
  const sorted = values.toSorted((a, b) => a - b)
  return ((sorted[(sorted.length - 1) >> 1] as number) + (sorted[sorted.length >> 1] as number)) / 2
}

async function measureIdle(relay: Started, client: ChildProcess): Promise<void> {
  const before = await ask<{ rss: number }>(relay.child, {})
  const limit = openFileLimit(relay.child.pid as number)
  const idleConnections = Math.min(wantedIdle, Math.floor((limit - 60) / 2))
  await ask<Done>(client, { kind: 'idle', port: relay.port, amount: idleConnections, width: 1 })
  const { active, rss } = await ask<{ active: number; rss: number }>(relay.child, {})
  const mb = (bytes: number) => Math.round(bytes / 2 ** 20)
  console.log(`\n${active} idle connections: RSS ${mb(rss)} MB (${mb(before.rss)} MB before)`)
  if (idleConnections < wantedIdle) {
    const each = (rss - before.rss) / active
    const all = mb(before.rss + each * wantedIdle)
    console.log(`${limit} open files allow no more here; at ${(each / 1024).toFixed(1)} KB each, 10000 take ${all} MB`)
  }
  if (active !== idleConnections) throw new Error(`only ${active} connections are open`)
  if (mb(rss) >= idleLimitMb) throw new Error(`more than ${idleLimitMb} MB for idle connections`)
}

function print(ways: readonly Way[], rows: ReadonlyMap<string, readonly Result[]>): void {
  const line = (title: string, cells: readonly string[]) =>
    console.log(title.padEnd(36) + cells.map((cell) => cell.padStart(15)).join(''))
  line(`median of ${rounds} rounds`, [...ways.map(({ name }) => name), 'vs socat'])
  for (const { title, better } of measures) {
    const values = (rows.get(title) ?? []).map(({ value }) => value)
    const [, own, socat] = values as [number, number, number, number]
    const factor = better === 'more' ? own / socat : socat / own
    line(title, [...values.map((value) => value.toFixed(0)), `${factor.toFixed(2)}x`])
  }
  line('\nCPU of the relay, ms', ['', ...ways.slice(1).map(({ name }) => name), 'vs socat'])
  for (const { title } of measures) {
    const [, own, socat, wide] = (rows.get(title) ?? []).map((result) => result.cpuMs) as [
      number,
      number,
      number,
      number,
    ]
    line(title.replace(/, [^,]*$/, ''), ['', ...[own, socat, wide].map(String), `${(socat / own).toFixed(2)}x`])
  }
}

async function start(role: string, ...args: string[]): Promise<Started> {
  const child = fork(worker.file, [role, ...args], {
    execArgv: ['--expose-gc'],
    stdio: ['ignore', 'inherit', 'inherit', 'ipc'],
  })
  children.push(child)
  raiseLimit(child.pid as number)
  if (role === 'client') return { child, port: 0 }
  const [{ port }] = (await once(child, 'message')) as [{ port: number }]
  return { child, port }
}

function openFileLimit(pid: number): number {
  const match = /Max open files\s+(\d+)/.exec(readFileSync(`/proc/${pid}/limits`, 'utf8'))
  return Number(match?.[1] ?? descriptors)
}

/** Raises the limit of open files, which Node cannot. Without the right to, the limit stays, and not all idle connections fit. */
function raiseLimit(pid: number): void {
  try {
    execFileSync('prlimit', ['--pid', String(pid), `--nofile=${descriptors}:${descriptors}`], { stdio: 'ignore' })
  } catch {
    // The report of the idle connections shows the limit.
  }
}

async function ask<R>(child: ChildProcess, question: object): Promise<R> {
  const over = new AbortController()
  const answered = once(child, 'message', { signal: over.signal })
  const died = once(child, 'exit', { signal: over.signal }).then(() => {
    throw new Error('a process of the bench ended')
  })
  died.catch(() => {})
  child.send(question)
  try {
    return ((await Promise.race([answered, died])) as [R])[0]
  } finally {
    over.abort()
  }
}

async function startSocat(
  target: number,
  options: readonly string[],
): Promise<{ port: number; pid: number | undefined }> {
  const port = 20_000 + (process.pid % 10_000) + children.length
  const listen = `TCP4-LISTEN:${port},bind=127.0.0.1,fork,reuseaddr,nodelay,backlog=4096`
  const child = spawn('socat', [...options, listen, `TCP4:127.0.0.1:${target},nodelay`], {
    stdio: ['ignore', 'inherit', 'ignore'],
  })
  children.push(child)
  for (let tries = 0; ; tries++) {
    const socket = createConnection({ port, host: '127.0.0.1' })
    const open = await once(socket, 'connect').then(
      () => true,
      () => false,
    )
    socket.destroy()
    if (open) return { port, pid: child.pid }
    if (tries > 50) throw new Error('socat does not listen')
    await new Promise((resolve) => setTimeout(resolve, 50))
  }
}

function ensureSocat(): void {
  try {
    execFileSync('socat', ['-V'], { stdio: 'ignore' })
  } catch {
    console.log('installing socat')
    execFileSync('apt-get', ['install', '-y', '--no-install-recommends', 'socat'], { stdio: 'ignore' })
  }
}
