// Measures what the dashboard costs a proxy with 10,000 services: nobody looks, five viewers look at the overview, or five at the list.
// The viewers are clients that ask what the page asks; `npm run test:browser` has the page itself.

import { type ChildProcess, execFileSync, fork } from 'node:child_process'
import { mkdtempSync, readFileSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import { setTimeout as wait } from 'node:timers/promises'
import { startDashboard } from '../src/commands/dashboard/dashboard-server.ts'
import { ProxyFeed } from '../src/commands/dashboard/proxy-feed.ts'
import { AdminClient } from '../src/http/admin-client.ts'
import { silentLogger } from '../src/lib/log.ts'
import { enterNamespace } from '../test/lab/entered-namespace.ts'
import { bundleProgram } from '../test/support/bundle-program.ts'
import { nodeFlags, script } from './node-flags.ts'
import { cpuMs, waitUntilIdle } from './process-cost.ts'
import { startProxy } from './start-proxy.ts'

const services = 10_000
const endpoints = 5
const viewers = 5
const seconds = Number(process.env.BENCH_SECONDS ?? 60)

/** What a page asks for again and again while it is open. */
const pages: Readonly<Record<string, readonly string[]>> = {
  overview: [],
  'list of services': ['/api/connections', '/api/traffic'],
}

export async function measurePage(): Promise<readonly string[]> {
  const folder = mkdtempSync(join(tmpdir(), 'sluice-bench-'))
  execFileSync('npm', ['run', '--silent', 'build'], { cwd: join(import.meta.dirname, '..'), stdio: 'ignore' })
  const api = await bundleProgram(join(import.meta.dirname, 'scripted-apiserver.ts'))
  const namespace = enterNamespace()
  const children: ChildProcess[] = []
  try {
    namespace.exec('ip', ['addr', 'add', '192.0.2.1/32', 'dev', 'lo'])
    const server = fork(api.file, [services, endpoints].map(String), { stdio: ['ignore', 'pipe', 'inherit', 'ipc'] })
    children.push(server)
    const port = Number(await firstLine(server))
    const socket = join(folder, 'proxy.sock')
    const program = [process.execPath, ...nodeFlags(), script]
    const proxy = startProxy({ program, mode: 'nftables' }, { port, folder, env: { SLUICE_ADMIN_SOCKET: socket } })
    children.push(proxy)
    return await measureAll(proxy.pid as number, socket)
  } finally {
    for (const child of children) child.kill('SIGKILL')
    await wait(200)
    namespace.leave()
    rmSync(folder, { recursive: true, force: true })
    api.remove()
  }
}

async function measureAll(pid: number, socket: string): Promise<readonly string[]> {
  const client = new AdminClient(socket)
  for (let i = 0; i < 600; i++) {
    const summary = await client.summary().catch(() => undefined)
    if (summary?.services === services && summary.families.every(({ lastSync }) => lastSync?.ok === true)) break
    await wait(100)
  }
  await waitUntilIdle(pid)
  const lines = [`${services} services of ${endpoints} endpoints, nftables, nothing changes; ${seconds} s each`]
  lines.push(format('nobody looks', await measureQuiet(pid)))
  for (const [name, questions] of Object.entries(pages)) {
    const looking = await look(socket, questions)
    try {
      // The first answers are not part of the quiet time.
      await wait(5_000)
      lines.push(format(`${viewers} viewers, ${name}`, await measureQuiet(pid)))
    } finally {
      await looking.close()
    }
  }
  return lines
}

interface Quiet {
  /** The share of one core. */
  readonly cpu: number
  readonly wakeUps: number
}

const format = (name: string, { cpu, wakeUps }: Quiet): string =>
  `${name.padEnd(30)} CPU of the proxy ${(cpu * 100).toFixed(2).padStart(6)} % of a core, ${wakeUps.toFixed(1)} wake-ups per second`

async function measureQuiet(pid: number): Promise<Quiet> {
  const before = { cpu: cpuMs(pid), wakeUps: wakeUpsOf(pid), at: performance.now() }
  await wait(seconds * 1000)
  const passed = performance.now() - before.at
  return { cpu: (cpuMs(pid) - before.cpu) / passed, wakeUps: ((wakeUpsOf(pid) - before.wakeUps) * 1000) / passed }
}

const wakeUpsOf = (pid: number): number =>
  Number(/^voluntary_ctxt_switches:\s+(\d+)/m.exec(readFileSync(`/proc/${pid}/status`, 'utf8'))?.[1])

/** Opens the dashboard and lets viewers look at it. */
async function look(socket: string, questions: readonly string[]): Promise<{ close(): Promise<void> }> {
  const dashboard = await startDashboard({
    address: '127.0.0.1:0',
    hosts: new Set(),
    about: { program: 'sluice', flags: [], fleetFlags: null, hasProxy: true, version: '' },
    feed: new ProxyFeed(async () => new AdminClient(socket)),
    readFleet: undefined,
    log: silentLogger,
  })
  const { origin } = new URL(dashboard.url)
  const admitted = await fetch(dashboard.url, { redirect: 'manual' })
  const headers = { cookie: (admitted.headers.get('set-cookie') ?? '').split(';')[0] as string }
  const stop = new AbortController()
  const ask = async (path: string) => (await fetch(`${origin}${path}`, { headers, signal: stop.signal })).arrayBuffer()
  const timers: NodeJS.Timeout[] = []
  for (let viewer = 0; viewer < viewers; viewer++) {
    void follow(`${origin}/api/events`, headers, stop.signal)
    if (questions.length > 0) await ask('/api/services')
    timers.push(setInterval(() => questions.forEach((path) => void ask(path).catch(() => {})), 5_000))
  }
  return {
    async close() {
      for (const timer of timers) clearInterval(timer)
      stop.abort()
      await dashboard.close()
    },
  }
}

/** Reads server-sent events until the signal aborts. */
async function follow(url: string, headers: Record<string, string>, signal: AbortSignal): Promise<void> {
  try {
    const { body } = await fetch(url, { headers, signal })
    for await (const chunk of body ?? []) void chunk
  } catch {}
}

function firstLine(child: ChildProcess): Promise<string> {
  return new Promise((resolve, reject) => {
    createInterface({ input: child.stdout as NodeJS.ReadableStream }).once('line', resolve)
    child.once('exit', (code) => reject(new Error(`the server ended with code ${code}`)))
  })
}
