// Measures what one user's largest objects do to another's: while they come, stay and go, the worst delay of a change of an innocent
// service, until its first packet, and the worst time of an answer of /livez. Sluice and the real kube-proxy, each in a network namespace.
//
//   npm run bench:hostile [-- nftables|iptables [row…]]      rows by number from 0; all by default
//
// Sluice runs from its bundle with this Node, and as the single executable if `npm run package` has made it. kube-proxy is measured if
// test/e2e/build-cluster has built it. A change that takes longer than a minute ends the row.
// BENCH_HOLDS=1 adds the longest turn of Sluice's event loop, in CPU time of its main thread: other programs on the machine do not count.

import { type ChildProcess, execFileSync, fork, spawn } from 'node:child_process'
import { existsSync, mkdtempSync, readFileSync, rmSync } from 'node:fs'
import { loadavg, tmpdir } from 'node:os'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import { enterNamespace } from '../test/lab/entered-namespace.ts'
import { bundleProgram } from '../test/support/bundle-program.ts'
import { probeAddress, serviceIp } from './api-objects.ts'
import { type HostileObjects, hostileObjects } from './hostile-objects.ts'
import { rssMb, waitUntilIdle } from './process-cost.ts'
import { findKubeProxy, findOwnPrograms, type ProxyProgram, startProxy } from './start-proxy.ts'

const services = 100
const phaseMs = Number(process.env.BENCH_PHASE ?? 6) * 1000
const mostMs = 60_000
const [mode = 'nftables', ...rows] = process.argv.slice(2)

/** Worst times in ms; undefined: more than `mostMs`. */
interface Figures {
  readonly changeMs: number | undefined
  readonly changes: number
  readonly livezMs: number
  readonly rssMb: number
  /** The longest turn of the event loop; undefined if it is not measured. */
  readonly heldMs: number | undefined
}

/** What is preloaded into Sluice; undefined if turns are not measured. */
const preload = process.env.BENCH_HOLDS === '1' ? join(import.meta.dirname, 'event-loop-holds.mjs') : undefined

const root = join(import.meta.dirname, '..')
const folder = mkdtempSync(join(tmpdir(), 'sluice-bench-'))
/** The file to which the preloaded module writes. */
const holds = join(folder, 'holds')
execFileSync('npx', ['rolldown', '-c'], { cwd: root, stdio: ['ignore', 'ignore', 'ignore'] })
const bundles = await Promise.all(
  ['hostile-apiserver', 'connect-probe'].map((name) => bundleProgram(join(import.meta.dirname, `${name}.ts`))),
)
const [api = '', probeFile = ''] = bundles.map(({ file }) => file)
try {
  const programs = findPrograms()
  console.log(`load of the machine: ${loadavg()[0]?.toFixed(1)}\n`)
  const names = [...programs.keys()]
  console.log(`| ${mode} mode | ${names.map((name) => `${name}: change | /livez | memory`).join(' | ')} |`)
  console.log(`| --- |${' ---: | ---: | ---: |'.repeat(names.length)}`)
  for (const [kind, make] of hostileObjects.entries()) {
    if (rows.length > 0 && !rows.includes(String(kind))) continue
    const cells: string[] = []
    for (const program of programs.values()) cells.push(...show(await measure(program, kind)))
    console.log(`| ${(make() as HostileObjects).name} | ${cells.join(' | ')} |`)
  }
} finally {
  rmSync(folder, { recursive: true, force: true })
  for (const { remove } of bundles) remove()
}

function findPrograms(): ReadonlyMap<string, ProxyProgram> {
  const found = new Map<string, ProxyProgram>()
  const chosen = mode as ProxyProgram['mode']
  for (const { name, program, isScript } of findOwnPrograms()) {
    const [node = '', ...rest] = program
    if (preload === undefined) found.set(name, { program, mode: chosen })
    else if (isScript) found.set(name, { program: [node, '--import', preload, ...rest], mode: chosen })
  }
  const theirs = findKubeProxy()
  if (existsSync(theirs) && process.env.BENCH_OWN === undefined)
    found.set('kube-proxy', { program: [theirs], mode: chosen })
  return found
}

function show({ changeMs, livezMs, rssMb, heldMs }: Figures): readonly string[] {
  const change = changeMs === undefined ? `over ${mostMs / 1000} s` : formatMs(changeMs)
  const held = heldMs === undefined ? '' : ` (longest turn ${formatMs(heldMs)})`
  return [change, `${formatMs(livezMs)}${held}`, `${rssMb.toFixed(0)} MB`]
}

function formatMs(ms: number): string {
  return ms < 1000 ? `${ms.toFixed(0)} ms` : `${(ms / 1000).toFixed(1)} s`
}

async function measure(program: ProxyProgram, kind: number): Promise<Figures> {
  const namespace = enterNamespace()
  const children: ChildProcess[] = []
  try {
    namespace.exec('ip', ['addr', 'add', '192.0.2.1/32', 'dev', 'lo'])
    namespace.exec('ip', ['route', 'add', 'local', '10.250.0.0/16', 'dev', 'lo'])
    namespace.exec('ip', ['link', 'add', 'out', 'type', 'veth', 'peer', 'name', 'away'])
    for (const name of ['out', 'away']) namespace.exec('ip', ['link', 'set', name, 'up'])
    namespace.exec('ip', ['route', 'add', '10.96.0.0/12', 'dev', 'out'])
    const server = fork(api, [String(services)], { stdio: ['ignore', 'pipe', 'inherit', 'ipc'] })
    children.push(server)
    const port = Number(await firstLine(server))
    const answering = spawn(process.execPath, [probeFile, 'server', '8080'], { stdio: ['ignore', 'pipe', 'inherit'] })
    children.push(answering)
    await firstLine(answering)
    const proxy = startProxy(program, { port, folder, env: { SLUICE_HOLDS: holds } })
    children.push(proxy)
    const readHeld = preload !== undefined && program.program.includes(preload) ? readLongestTurn : undefined
    return await watch(proxy.pid as number, port, kind, readHeld)
  } finally {
    for (const child of children) child.kill('SIGKILL')
    await wait(300)
    namespace.leave()
  }
}

/** Returns the longest turn since the last call, in ms. */
async function readLongestTurn(pid: number): Promise<number> {
  process.kill(pid, 'SIGUSR2')
  await wait(300)
  return Number(readFileSync(holds, 'utf8'))
}

async function watch(
  pid: number,
  port: number,
  kind: number,
  readHeld: ((pid: number) => Promise<number>) | undefined,
): Promise<Figures> {
  const vip = serviceIp(services - 1)
  await probe<number>('until', vip, 80, probeAddress(0), mostMs, Date.now())
  const act = (what: string) => fetch(`http://127.0.0.1:${port}/hostile?kind=${kind}&do=${what}`)
  await act('prepare')
  await waitUntilIdle(pid)
  await readHeld?.(pid)
  const livez = watchLivez()
  let changeMs: number | undefined = 0
  let changes = 0
  let memory = 0
  for (const phase of ['come', 'change', 'go']) {
    const probing = probe<number[]>('changes', vip, 80, port, 100_000, 5, phaseMs)
    await wait(300)
    await act(phase)
    const began = performance.now()
    const found = await probing
    memory = Math.max(memory, rssMb(pid))
    changes += found.length
    changeMs = Math.max(changeMs, ...found)
    // The probe gave up in the middle of a change.
    if (performance.now() - began > mostMs) changeMs = undefined
    if (changeMs === undefined) break
  }
  const livezMs = await livez.stop()
  return { changeMs, changes, livezMs, rssMb: memory, heldMs: await readHeld?.(pid) }
}

/** Asks for /livez all the time, from a process that does nothing else. An answer that does not come within a minute counts as a minute. */
function watchLivez(): { stop(): Promise<number> } {
  const child = spawnProbe('livez', 10256, mostMs)
  const worst = firstLine(child)
  return {
    async stop() {
      child.kill('SIGTERM')
      return JSON.parse(await worst) as number
    },
  }
}

function wait(ms: number): Promise<void> {
  return new Promise((resolve) => setTimeout(resolve, ms))
}

/** Runs bench/connect-probe.ts, which makes connections with blocking calls, and returns what it prints. */
async function probe<T>(...words: readonly (string | number)[]): Promise<T> {
  return JSON.parse(await firstLine(spawnProbe(...words))) as T
}

function spawnProbe(...words: readonly (string | number)[]): ChildProcess {
  return spawn(process.execPath, [probeFile, ...words.map(String)], { stdio: ['ignore', 'pipe', 'inherit'] })
}

function firstLine(child: ChildProcess): Promise<string> {
  return new Promise((resolve, reject) => {
    createInterface({ input: child.stdout as NodeJS.ReadableStream }).once('line', resolve)
    child.once('exit', (code) => reject(new Error(`a part of the benchmark ended with ${code}`)))
  })
}
