// What scale costs: the initial sync of many services, and one endpoint change, through reflector, model and ledger. No kernel.
//
// Each size runs in a process of its own, bundled as it ships, and the scripted API server in another, so that neither the
// server nor the TypeScript loader counts. CPU is user and system time of all threads, the garbage collector included. A change
// is one watch event that leads to one sync. `back to back`: the lines come from memory, one when the last is synced; that is our own
// work. `alone over HTTP`: one every 2 ms from the server; that adds what it costs to wake a sleeping process and to read a socket.

import { fork } from 'node:child_process'
import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import { rolldown } from 'rolldown'
import { nodeFlags } from './flags.ts'

export interface Figures {
  readonly entries: number
  readonly initialCpuMs: number
  readonly initialWallMs: number
  readonly idleRssMb: number
  readonly rssMb: number
  readonly peakRssMb: number
  readonly changeMicros: number
  readonly p50Micros: number
  readonly p99Micros: number
  readonly rssAfterMb: number
  readonly heapMb: number
  /** Reading the JSON of one change: how fast the machine is. */
  readonly parseMicros: number
  /** The same without sockets, HTTP and waiting. */
  readonly own?: Figures
}

const sizes = [
  { services: 10_000, endpoints: 5 },
  { services: 30_000, endpoints: 3 },
]
const [warmUps, everyMs] = [2000, 2]

const columns: readonly [string, (figures: Figures) => string][] = [
  ['entries', (f) => String(f.entries)],
  ['initial sync: CPU ms', (f) => f.initialCpuMs.toFixed(0)],
  ['initial sync: wall ms', (f) => f.initialWallMs.toFixed(0)],
  ['RSS before, MB', (f) => f.idleRssMb.toFixed(0)],
  ['RSS after GC, MB', (f) => f.rssMb.toFixed(0)],
  ['peak RSS, MB', (f) => f.peakRssMb.toFixed(0)],
  ['one change, back to back: CPU µs (mean)', (f) => (f.own?.changeMicros ?? 0).toFixed(0)],
  ['one change, back to back: CPU µs (p50)', (f) => (f.own?.p50Micros ?? 0).toFixed(0)],
  ['one change, back to back: CPU µs (p99)', (f) => (f.own?.p99Micros ?? 0).toFixed(0)],
  ['  of which JSON.parse', (f) => f.parseMicros.toFixed(0)],
  ['one change, alone over HTTP: CPU µs (mean)', (f) => f.changeMicros.toFixed(0)],
  ['one change, alone over HTTP: CPU µs (p50)', (f) => f.p50Micros.toFixed(0)],
  ['one change, alone over HTTP: CPU µs (p99)', (f) => f.p99Micros.toFixed(0)],
  ['RSS after all changes and GC, MB', (f) => f.rssAfterMb.toFixed(0)],
  ['heap after all changes and GC, MB', (f) => f.heapMb.toFixed(0)],
]

const folder = await mkdtemp(join(tmpdir(), 'sluice-bench-'))
try {
  for (const part of ['apiserver', 'proxy']) {
    const bundle = await rolldown({
      input: join(import.meta.dirname, `${part}.ts`),
      platform: 'node',
      external: ['koffi'],
    })
    await bundle.write({ file: join(folder, `${part}.mjs`), format: 'esm', codeSplitting: false })
    await bundle.close()
  }
  const results: Figures[] = []
  for (const size of sizes) results.push(await measure(size))
  print(results)
} finally {
  await rm(folder, { recursive: true })
}

async function measure({ services, endpoints }: { services: number; endpoints: number }): Promise<Figures> {
  const server = start('apiserver', [services, endpoints])
  const run = (port: number, changes: number) => runProxy([port, services, endpoints, warmUps, changes, everyMs])
  try {
    const figures = await run(Number(await server.line), 2000)
    return { ...figures, own: await run(0, 8000) }
  } finally {
    server.end()
  }
}

async function runProxy(args: readonly number[]): Promise<Figures> {
  const proxy = start('proxy', args)
  try {
    return JSON.parse(await proxy.line) as Figures
  } finally {
    proxy.end()
  }
}

/** A bundled part in a process of its own, and the first line it prints. */
function start(part: string, args: readonly number[]): { readonly line: Promise<string>; end(): void } {
  const child = fork(join(folder, `${part}.mjs`), args.map(String), {
    // The second as bin/kube-proxy has it.
    execArgv: ['--expose-gc', ...nodeFlags()],
    stdio: ['ignore', 'pipe', 'inherit', 'ipc'],
  })
  const line = new Promise<string>((resolve, reject) => {
    createInterface({ input: child.stdout as NodeJS.ReadableStream }).once('line', resolve)
    child.once('exit', (code) => reject(new Error(`${part} ended with code ${code}`)))
  })
  return { line, end: () => void child.kill() }
}

function print(results: readonly Figures[]): void {
  const width = Math.max(...columns.map(([title]) => title.length))
  const head = sizes.map(({ services, endpoints }) => `${services} x ${endpoints}`.padStart(14)).join('')
  console.log(`\n${''.padEnd(width)}${head}`)
  for (const [title, show] of columns) {
    console.log(title.padEnd(width) + results.map((figures) => show(figures).padStart(14)).join(''))
  }
}
