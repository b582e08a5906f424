// Measures the control plane alone: the initial sync of many services, and one endpoint change, through reflector, model and ledger,
// without a kernel (`npm run bench`).
//
// Each size runs in its own process, bundled as it ships, and the scripted API server in another one, so that neither the server nor
// the TypeScript loader counts. CPU is user and system time of all threads, the garbage collector included. A change is one watch event
// that leads to one sync. `back to back`: the lines come from memory, each after the previous one is synced; this is our own work.
// `alone over HTTP`: one every 2 ms from the server; this adds the cost of waking a sleeping process and of reading a socket.

import { fork } from 'node:child_process'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import { type Bundle, bundleProgram } from '../test/support/bundle-program.ts'
import { nodeFlags } from './node-flags.ts'

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
  /** Parsing the JSON of one change: it shows the speed of the machine. */
  readonly parseMicros: number
  /** The same figures without sockets, HTTP and waiting. */
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

const files = new Map<string, Bundle>()
for (const part of ['scripted-apiserver', 'control-plane-proxy']) {
  files.set(part, await bundleProgram(join(import.meta.dirname, `${part}.ts`)))
}
try {
  const results: Figures[] = []
  for (const size of sizes) results.push(await measure(size))
  print(results)
} finally {
  for (const { remove } of files.values()) remove()
}

async function measure({ services, endpoints }: { services: number; endpoints: number }): Promise<Figures> {
  const server = start('scripted-apiserver', [services, endpoints])
  const run = (port: number, changes: number) => runProxy([port, services, endpoints, warmUps, changes, everyMs])
  try {
    const figures = await run(Number(await server.line), 2000)
    return { ...figures, own: await run(0, 8000) }
  } finally {
    server.end()
  }
}

async function runProxy(args: readonly number[]): Promise<Figures> {
  const proxy = start('control-plane-proxy', args)
  try {
    return JSON.parse(await proxy.line) as Figures
  } finally {
    proxy.end()
  }
}

/** Starts a bundled part as a process, and waits for the first line that it prints. */
function start(part: string, args: readonly number[]): { readonly line: Promise<string>; end(): void } {
  const child = fork((files.get(part) as Bundle).file, args.map(String), {
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
