// Measures the embedded API server under load, with 10,000 services, 50,000 endpoints and 50 watchers: CPU, memory, and how long a write
// takes to reach the watchers.
//
//   tsx bench/embedded-apiserver.ts [services] [endpoints per service] [watchers]
//
// The server is a separate process, with fsync and TLS, as in `sluice up`.

import { fork } from 'node:child_process'
import { mkdtempSync, readdirSync, rmSync, statSync } from 'node:fs'
import { Agent, request } from 'node:https'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { startApiServer } from '../src/apiserver/start.ts'
import { silentLogger } from '../src/lib/log.ts'

const watching: (() => void)[] = []

async function serve(directory: string): Promise<void> {
  const server = await startApiServer({ log: silentLogger, stateDir: directory, serviceCidrs: ['10.96.0.0/14'] })
  const usage = () => {
    const { user, system } = process.cpuUsage()
    return {
      cpuMs: (user + system) / 1000,
      rssMb: process.memoryUsage().rss / 2 ** 20,
      settled: server.registry.size('endpointslices'),
    }
  }
  process.on('message', (message) => {
    if (message === 'usage') process.send?.(usage())
    if (message === 'stop') void server.close().then(() => process.exit())
  })
  process.on('disconnect', () => process.exit())
  process.send?.({ url: server.url, token: server.token })
}

interface Usage {
  readonly cpuMs: number
  readonly rssMb: number
  readonly settled: number
}

async function measure(): Promise<void> {
  const [services = 10_000, perService = 5, watchers = 50] = process.argv.slice(2).map(Number)
  const directory = mkdtempSync(join(tmpdir(), 'sluice-bench-'))
  try {
    let child = await launch(directory)
    await child.load(services, perService)
    const loaded = await child.usage()
    print(
      'loaded',
      `${services} services, ${services * perService} endpoints; server CPU ${ms(loaded.cpuMs)}, RSS ${loaded.rssMb.toFixed(0)} MB`,
    )
    await child.list('/api/v1/services')
    await child.list('/apis/discovery.k8s.io/v1/endpointslices')
    await child.watchers(watchers)
    await child.changes(200, 20)
    await child.changes(2_000, 0)
    await child.stop()
    const sizes = readdirSync(join(directory, 'registry')).map(
      (name) => `${name} ${(statSync(join(directory, 'registry', name)).size / 2 ** 20).toFixed(1)} MB`,
    )
    print('on disk', sizes.join(', '))
    const began = performance.now()
    child = await launch(directory)
    const again = await child.usage()
    print(
      'restart',
      `${ms(performance.now() - began)} until it answers; CPU ${ms(again.cpuMs)}, RSS ${again.rssMb.toFixed(0)} MB`,
    )
    await child.stop()
  } finally {
    rmSync(directory, { recursive: true, force: true })
  }
}

async function launch(directory: string) {
  const child = fork(fileURLToPath(import.meta.url), { env: { ...process.env, SLUICE_BENCH_STATE: directory } })
  const message = <T>() => new Promise<T>((resolve) => child.once('message', (value) => resolve(value as T)))
  const { url, token } = await message<{ url: string; token: string }>()
  const agent = new Agent({ keepAlive: true, maxSockets: 64, rejectUnauthorized: false })
  const headers = { authorization: `Bearer ${token}` }
  const names: string[] = []

  const usage = async (): Promise<Usage> => {
    child.send('usage')
    return message<Usage>()
  }
  const send = (method: string, path: string, body?: unknown, type = 'application/json') =>
    new Promise<string>((resolve, reject) => {
      const outgoing = request(
        `${url}${path}`,
        { method, agent, headers: { ...headers, 'content-type': type } },
        (incoming) => {
          const chunks: Buffer[] = []
          incoming.on('data', (chunk) => chunks.push(chunk))
          incoming.on('error', reject)
          incoming.on('end', () => {
            const text = Buffer.concat(chunks).toString()
            if ((incoming.statusCode ?? 0) < 300) resolve(text)
            else reject(new Error(`${method} ${path}: ${incoming.statusCode} ${text.slice(0, 300)}`))
          })
        },
      )
      outgoing.on('error', reject)
      outgoing.end(body === undefined ? undefined : JSON.stringify(body))
    })
  /** Times when each watcher got its last change, by the name of the slice. */
  const seen = new Map<string, number[]>()

  return {
    usage,
    async load(services: number, perService: number) {
      const began = performance.now()
      await inParallel(services, 64, async (i) => {
        const name = `service-${i}`
        const namespace = '/namespaces/default'
        await send('POST', `/api/v1${namespace}/services`, {
          metadata: { name },
          spec: { ports: [{ name: 'http', port: 80 }] },
        })
        await send('POST', `/apis/discovery.k8s.io/v1${namespace}/endpointslices`, slice(i, perService, 0))
        names.push(name)
      })
      const seconds = (performance.now() - began) / 1000
      print(
        'writes',
        `${Math.round((2 * services) / seconds)} per second by 64 clients, each synced to disk before its answer`,
      )
    },
    async list(path: string) {
      const before = await usage()
      const began = performance.now()
      const text = await send('GET', path)
      const took = performance.now() - began
      print(
        'list',
        `${path.split('/').at(-1)}: ${(text.length / 2 ** 20).toFixed(1)} MB in ${ms(took)}, CPU ${ms((await usage()).cpuMs - before.cpuMs)}`,
      )
    },
    async watchers(count: number) {
      const before = await usage()
      const began = performance.now()
      await Promise.all(Array.from({ length: count }, (_, i) => watch(i)))
      const after = await usage()
      print(
        'watchers',
        `${count} have the whole state after ${ms(performance.now() - began)}; CPU ${ms(after.cpuMs - before.cpuMs)}, RSS ${after.rssMb.toFixed(0)} MB`,
      )
    },
    /** Changes one endpoint at a time. With `pauseMs` 0 a change does not wait for the watchers of the previous one. */
    async changes(count: number, pauseMs: number) {
      const before = await usage()
      const began = performance.now()
      const latencies: number[] = []
      const acknowledged: number[] = []
      for (let i = 0; i < count; i++) {
        const at = (i * 7919) % names.length
        const name = `service-${at}-slice`
        const times: number[] = []
        seen.set(name, times)
        const start = performance.now()
        await send('PUT', `/apis/discovery.k8s.io/v1/namespaces/default/endpointslices/${name}`, slice(at, 5, i + 1))
        acknowledged.push(performance.now() - start)
        if (pauseMs > 0) {
          while (times.length < watching.length) await new Promise((resolve) => setTimeout(resolve, 1))
          latencies.push(...times.map((time) => time - start))
          await new Promise((resolve) => setTimeout(resolve, pauseMs))
        }
      }
      const seconds = (performance.now() - began) / 1000
      const cpu = (await usage()).cpuMs - before.cpuMs
      const reach =
        pauseMs > 0 ? `; write to watchers: ${quantiles(latencies)}` : `, ${Math.round(count / seconds)} per second`
      print(
        pauseMs > 0 ? 'change' : 'stream',
        `${count} changes to ${watching.length} watchers; acknowledged: ${quantiles(acknowledged)}${reach}; server CPU ${(cpu / count).toFixed(2)} ms each`,
      )
    },
    stop() {
      agent.destroy()
      for (const end of watching) end()
      const gone = new Promise<void>((resolve) => child.once('exit', () => resolve()))
      child.send('stop')
      return gone
    },
  }

  function watch(i: number): Promise<void> {
    return new Promise((resolve, reject) => {
      const query = 'watch=true&allowWatchBookmarks=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan'
      const outgoing = request(
        `${url}/apis/discovery.k8s.io/v1/endpointslices?${query}`,
        { agent: false, rejectUnauthorized: false, headers },
        (incoming) => {
          let rest = ''
          incoming.setEncoding('utf8')
          incoming.on('error', () => {})
          incoming.on('data', (chunk: string) => {
            const lines = (rest + chunk).split('\n')
            rest = lines.pop() ?? ''
            const now = performance.now()
            for (const line of lines) {
              if (line.startsWith('{"type":"BOOKMARK"')) resolve()
              else if (line.startsWith('{"type":"MODIFIED"'))
                seen.get(/"name":"([^"]+)"/.exec(line)?.[1] ?? '')?.push(now)
            }
          })
        },
      )
      outgoing.on('error', (error) => (i < 0 ? undefined : reject(error)))
      outgoing.end()
      watching.push(() => {
        outgoing.removeAllListeners('error').on('error', () => {})
        outgoing.destroy()
      })
    })
  }
}

function slice(i: number, endpoints: number, turn: number) {
  const address = (k: number) => `10.${128 + ((i >> 12) & 127)}.${(i >> 4) & 255}.${((i & 15) << 4) + k}`
  return {
    metadata: { name: `service-${i}-slice`, labels: { 'kubernetes.io/service-name': `service-${i}` } },
    addressType: 'IPv4',
    endpoints: Array.from({ length: endpoints }, (_, k) => ({
      addresses: [address(k + 1)],
      conditions: { ready: true },
      nodeName: `node-${(i + k + turn) % 10_000}`,
    })),
    ports: [{ name: 'http', port: 8080, protocol: 'TCP' }],
  }
}

async function inParallel(count: number, width: number, task: (i: number) => Promise<void>): Promise<void> {
  let next = 0
  await Promise.all(
    Array.from({ length: width }, async () => {
      while (next < count) await task(next++)
    }),
  )
}

const ms = (value: number): string =>
  value >= 1000 ? `${(value / 1000).toFixed(1)} s` : `${value.toFixed(value < 10 ? 1 : 0)} ms`

function quantiles(values: readonly number[]): string {
  const sorted = [...values].sort((a, b) => a - b)
  const at = (part: number) => ms(sorted[Math.min(sorted.length - 1, Math.floor(part * sorted.length))] ?? 0)
  return `median ${at(0.5)}, 99% ${at(0.99)}`
}

function print(what: string, text: string): void {
  process.stdout.write(`${what.padEnd(9)} ${text}\n`)
}

const stateDir = process.env.SLUICE_BENCH_STATE
if (stateDir !== undefined && process.send !== undefined) await serve(stateDir)
else await measure()
