// Compares several programs by turns, for instance executables before and after a change: starts, lone changes and memory.
//
//   npm run bench:builds -- services[xendpoints] 'command and its words'…
//   npm run bench:builds -- 10000 '/tmp/before proxy' '/tmp/after proxy'
//
// BENCH_ROUNDS starts of each, by turns (3 by default). Then all run at the same time, each in its own network namespace, and get lone
// changes, one every 2 ms: BENCH_CHANGES at first (4000 by default, 0 leaves this part out), which are not counted, and then twelve times
// 500 by turns. BENCH_AT_ONCE puts several changes into each write, and BENCH_EVERY_MS is the time between writes. Medians are printed, and
// every figure behind them. The speed of a machine changes within minutes, so only figures of one run can be compared. A program that
// waits while others get their first changes may lose what V8 compiled (docs/benchmarks.md, Memory), so run a close comparison in both
// orders.

import { type ChildProcess, execFileSync, fork } from 'node:child_process'
import { mkdtempSync, readdirSync, readFileSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import { setTimeout as wait } from 'node:timers/promises'
import { type EnteredNamespace, enterNamespace } from '../test/lab/entered-namespace.ts'
import { bundleProgram } from '../test/support/bundle-program.ts'
import { probeAddress, serviceIp } from './api-objects.ts'
import { cpuMs, rssMb, waitUntilIdle } from './process-cost.ts'
import { startProxy } from './start-proxy.ts'

const [size = '20', ...programs] = process.argv.slice(2)
const [services = 20, endpoints = 5] = size.split('x').map(Number)
const rounds = Number(process.env.BENCH_ROUNDS ?? 3)
const changes = Number(process.env.BENCH_CHANGES ?? 4_000)
const mode = process.env.BENCH_MODE === 'iptables' ? 'iptables' : 'nftables'
/** The time after work before memory is read: Sluice returns memory to the system some seconds after it. */
const restMs = Number(process.env.BENCH_REST ?? 20) * 1000
const limitMs = 80_000
const atOnce = Number(process.env.BENCH_AT_ONCE ?? 1)
const everyMs = Number(process.env.BENCH_EVERY_MS ?? 2)
const [turns, changesPerTurn] = [12, 500 * atOnce]

type Figures = Readonly<Record<string, number>>

const folder = mkdtempSync(join(tmpdir(), 'sluice-bench-'))
const [api, connector] = await Promise.all(
  ['scripted-apiserver', 'connect-probe'].map((name) => bundleProgram(join(import.meta.dirname, `${name}.ts`))),
)
function print(what: string, found: readonly (readonly Figures[])[]): void {
  console.log(`\n${services} services of ${endpoints} endpoints, ${mode}, ${what}`)
  for (const name of Object.keys(found[0]?.[0] ?? {})) {
    console.log(name)
    for (const [i, program] of programs.entries()) {
      const values = (found[i] ?? []).flatMap((figures) => figures[name] ?? [])
      const all = values.map((value) => value.toFixed(0)).join(', ')
      console.log(`  ${program.slice(-40).padEnd(42)}${median(values).toFixed(1).padStart(9)}   (${all})`)
    }
  }
}

function median(values: readonly number[]): number {
  const sorted = [...values].sort((a, b) => a - b)
  return sorted[sorted.length >> 1] ?? Number.NaN
}

/** A program that runs in its own namespace, with an API server of its own. */
class RunningProgram {
  readonly #namespace: EnteredNamespace
  readonly #children: ChildProcess[] = []
  #port = 0
  pid = 0

  /** The calling thread enters the namespace, and leaves it when the program is stopped. */
  constructor() {
    this.#namespace = enterNamespace()
  }

  async start(program: string): Promise<void> {
    const { exec } = this.#namespace
    exec('ip', ['addr', 'add', '192.0.2.1/32', 'dev', 'lo'])
    exec('ip', ['route', 'add', 'local', '10.250.0.0/16', 'dev', 'lo'])
    exec('ip', ['link', 'add', 'out', 'type', 'veth', 'peer', 'name', 'away'])
    for (const name of ['out', 'away']) exec('ip', ['link', 'set', name, 'up'])
    exec('ip', ['route', 'add', '10.96.0.0/12', 'dev', 'out'])
    this.#port = Number(await this.#run(api?.file ?? '', [services, endpoints, 1]))
    await this.#run(connector?.file ?? '', ['server', 8080])
    // A proxy ends when its configuration is written to, so each has files of its own.
    const files = mkdtempSync(join(folder, 'proxy-'))
    const proxy = startProxy({ program: program.split(' '), mode }, { port: this.#port, folder: files })
    this.#children.push(proxy)
    this.pid = proxy.pid as number
  }

  /** Resolves with the time since the start. */
  async awaitTraffic(): Promise<number> {
    const words = ['until', serviceIp(services - 1), 80, probeAddress(0), limitMs, Date.now()]
    return Number(await this.#run(connector?.file ?? '', words))
  }

  /** Makes changes, by default one every 2 ms. The calling thread may be in another namespace. */
  async change(count: number): Promise<void> {
    const url = `http://127.0.0.1:${this.#port}/changes?count=${count}&everyMs=${everyMs}&atOnce=${atOnce}`
    execFileSync('ip', ['netns', 'exec', this.#namespace.name, 'curl', '-s', '-o', '/dev/null', url])
    await wait((count / atOnce) * everyMs + 400)
  }

  async stop(): Promise<void> {
    for (const child of this.#children) child.kill('SIGKILL')
    await wait(200)
    this.#namespace.leave()
  }

  async #run(file: string, words: readonly (string | number)[]): Promise<string> {
    const child = fork(file, words.map(String), { stdio: ['ignore', 'pipe', 'inherit', 'ipc'] })
    this.#children.push(child)
    return firstLine(child)
  }
}

async function measureStart(program: string): Promise<Figures> {
  const running = new RunningProgram()
  try {
    await running.start(program)
    const servingMs = await running.awaitTraffic()
    const servingCpuMs = cpuMs(running.pid)
    await waitUntilIdle(running.pid)
    const startCpuMs = cpuMs(running.pid)
    const startMb = rssMb(running.pid)
    await wait(restMs)
    return {
      'until traffic, ms': servingMs,
      'CPU until traffic, ms': servingCpuMs,
      'CPU until idle, ms': startCpuMs,
      'RSS after the start, MB': startMb,
      'RSS after a rest, MB': rssMb(running.pid),
      '… of which not in files, MB': anonymousMb(running.pid),
    }
  } finally {
    await running.stop()
  }
}

async function measureChanges(): Promise<readonly (readonly Figures[])[]> {
  const all: RunningProgram[] = []
  try {
    for (const program of programs) {
      const running = new RunningProgram()
      all.push(running)
      await running.start(program)
      await running.awaitTraffic()
    }
    for (const running of all) await running.change(changes)
    const found = programs.map((): Figures[] => [])
    for (let turn = 0; turn < turns; turn++) {
      for (const [i, running] of all.entries()) {
        const before = threadMicros(running.pid)
        await running.change(changesPerTurn)
        found[i]?.push({ 'CPU per change, µs': (threadMicros(running.pid) - before) / changesPerTurn })
      }
    }
    await wait(restMs)
    for (const [i, { pid }] of all.entries()) {
      found[i]?.push({
        'RSS after changes and a rest, MB': rssMb(pid),
        '… of which not in files, MB': anonymousMb(pid),
      })
    }
    // The names of all figures are read from the first ones.
    return found.map((figures) => [Object.assign({}, figures.at(-1), figures[0]), ...figures.slice(1, -1)])
  } finally {
    for (const running of all.reverse()) await running.stop()
  }
}

/** CPU of all threads, more exact than the ticks of /proc/PID/stat. */
function threadMicros(pid: number): number {
  const tasks = readdirSync(`/proc/${pid}/task`)
  const nanos = tasks.map((task) => Number(readFileSync(`/proc/${pid}/task/${task}/schedstat`, 'utf8').split(' ')[0]))
  return nanos.reduce((sum, one) => sum + one, 0) / 1000
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

try {
  const starts = programs.map((): Figures[] => [])
  for (let round = 0; round < rounds; round++) {
    for (const [i, program] of programs.entries()) starts[i]?.push(await measureStart(program))
  }
  print(`${rounds} starts of each by turns`, starts)
  if (changes > 0)
    print(`${turns} times ${changesPerTurn} changes of each by turns, ${atOnce} at once`, await measureChanges())
} finally {
  rmSync(folder, { recursive: true, force: true })
  for (const bundle of [api, connector]) bundle?.remove()
}
