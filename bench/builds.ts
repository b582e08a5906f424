// Compares several executables of Sluice by turns: starts, memory and lone changes, in nftables mode.
//
//   npm run bench:builds -- services[xendpoints] 'command and its words'…
//
// For instance `npm run bench:builds -- 10000 '/tmp/before proxy' '/tmp/after proxy'` with two executables. // BENCH_ROUNDS starts of each, by turns (3 by default); the medians are printed, and every figure behind them. `BENCH_CHANGES=0` leaves out
// the lone changes, one every 2 ms; otherwise as many are made twice, so that the second time shows warm code. The speed of a machine
// changes within minutes, so only figures of one run can be compared.

import { type ChildProcess, fork } from 'node:child_process'
import { mkdtempSync, readFileSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { basename, join } from 'node:path'
import { createInterface } from 'node:readline'
import { setTimeout as wait } from 'node:timers/promises'
import { enterNamespace } from '../test/lab/entered-namespace.ts'
import { bundleProgram } from '../test/support/bundle-program.ts'
import { serviceIp } from './api-objects.ts'
import { cpuMs, rssMb, waitUntilIdle } from './process-cost.ts'
import { startProxy } from './start-proxy.ts'

const [size = '20', ...programs] = process.argv.slice(2)
const [services = 20, endpoints = 5] = size.split('x').map(Number)
const rounds = Number(process.env.BENCH_ROUNDS ?? 3)
const changes = Number(process.env.BENCH_CHANGES ?? 4_000)
const mode = process.env.BENCH_MODE === 'iptables' ? 'iptables' : 'nftables'
/** The time after work before memory is read: Sluice returns memory to the system some seconds after it. */
const restMs = Number(process.env.BENCH_REST ?? 20) * 1000

type Figures = Readonly<Record<string, number>>

const folder = mkdtempSync(join(tmpdir(), 'sluice-bench-'))
const api = await bundleProgram(join(import.meta.dirname, 'scripted-apiserver.ts'))
const connector = await bundleProgram(join(import.meta.dirname, 'connect-probe.ts'))
try {
  const found = programs.map((): Figures[] => [])
  for (let round = 0; round < rounds; round++) {
    for (const [i, program] of programs.entries()) found[i]?.push(await measure(program))
  }
  console.log(`\n${services} services of ${endpoints} endpoints, ${mode}, ${rounds} starts of each by turns`)
  for (const name of Object.keys(found[0]?.[0] ?? {})) {
    console.log(name)
    for (const [i, program] of programs.entries()) {
      const values = (found[i] ?? []).map((figures) => figures[name] ?? Number.NaN)
      console.log(
        `  ${program.slice(0, 40).padEnd(42)}${median(values).toFixed(1).padStart(9)}   (${values.map((value) => value.toFixed(1)).join(', ')})`,
      )
    }
  }
} finally {
  rmSync(folder, { recursive: true, force: true })
  for (const { remove } of [api, connector]) remove()
}

function median(values: readonly number[]): number {
  const sorted = [...values].sort((a, b) => a - b)
  return sorted[sorted.length >> 1] ?? Number.NaN
}

async function measure(program: string): Promise<Figures> {
  const namespace = enterNamespace()
  const children: ChildProcess[] = []
  try {
    namespace.exec('ip', ['addr', 'add', '192.0.2.1/32', 'dev', 'lo'])
    namespace.exec('ip', ['route', 'add', 'local', '10.250.0.0/16', 'dev', 'lo'])
    namespace.exec('ip', ['link', 'add', 'out', 'type', 'veth', 'peer', 'name', 'away'])
    for (const name of ['out', 'away']) namespace.exec('ip', ['link', 'set', name, 'up'])
    namespace.exec('ip', ['route', 'add', '10.96.0.0/12', 'dev', 'out'])
    const server = fork(api.file, [services, endpoints, 1].map(String), { stdio: ['ignore', 'pipe', 'inherit', 'ipc'] })
    children.push(server)
    const port = Number(await firstLine(server))
    const answering = fork(connector.file, ['server', '8080'], { stdio: ['ignore', 'pipe', 'inherit', 'ipc'] })
    children.push(answering)
    await firstLine(answering)
    const proxy = startProxy({ program: program.split(' '), mode }, { port, folder })
    children.push(proxy)
    const pid = proxy.pid as number
    const prober = fork(
      connector.file,
      ['until', serviceIp(services - 1), '80', '10.250.0.0', '80000', String(Date.now())],
      {
        stdio: ['ignore', 'pipe', 'inherit', 'ipc'],
      },
    )
    const servingMs = Number(await firstLine(prober))
    const servingCpuMs = cpuMs(pid)
    await waitUntilIdle(pid)
    const startCpuMs = cpuMs(pid)
    const startMb = rssMb(pid)
    await wait(restMs)
    const rested = { 'RSS after a rest, MB': rssMb(pid), '… of which not in files, MB': anonymousMb(pid) }
    const start = {
      'until traffic, ms': servingMs,
      'CPU until traffic, ms': servingCpuMs,
      'CPU until idle, ms': startCpuMs,
      'RSS after the start, MB': startMb,
      ...rested,
    }
    process.stderr.write(
      `${basename(program)}: ${servingMs.toFixed(0)} ms, ${startCpuMs} ms of CPU, ${rested['RSS after a rest, MB'].toFixed(0)} MB\n`,
    )
    if (changes === 0) return start
    const first = await cpuPerChange(pid, port)
    const later = await cpuPerChange(pid, port)
    await wait(restMs)
    return {
      ...start,
      'CPU per change, µs': first,
      '… the second time, µs': later,
      'RSS after changes, MB': rssMb(pid),
      '… of which not in files': anonymousMb(pid),
    }
  } finally {
    for (const child of children) child.kill('SIGKILL')
    await wait(200)
    namespace.leave()
  }
}

async function cpuPerChange(pid: number, port: number): Promise<number> {
  await waitUntilIdle(pid)
  const before = cpuMs(pid)
  await fetch(`http://127.0.0.1:${port}/changes?count=${changes}&everyMs=2`)
  await wait(changes * 2 + 2_000)
  await waitUntilIdle(pid)
  return ((cpuMs(pid) - before) * 1000) / changes
}

function anonymousMb(pid: number): number {
  return Number(/RssAnon:\s+(\d+)/.exec(readFileSync(`/proc/${pid}/status`, 'utf8'))?.[1] ?? 0) / 1024
}

function firstLine(child: ChildProcess): Promise<string> {
  return new Promise((resolve, reject) => {
    createInterface({ input: child.stdout as NodeJS.ReadableStream }).once('line', resolve)
    child.once('exit', (code) => reject(new Error(`a part of the benchmark ended with ${code}`)))
  })
}
