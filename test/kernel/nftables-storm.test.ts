// Changes the endpoints of services as fast as the kernel accepts it while clients connect to them: no connection fails or is misrouted.

import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import { Socket } from 'node:net'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { type EnteredNamespace, enterNamespace } from '../lab/entered-namespace.ts'
import { type Bundle, bundleProgram } from '../support/bundle-program.ts'
import { InProcessProxy, scenario } from './in-process-proxy.ts'
import { endpointSliceOf, serviceOf } from './manifest-builders.ts'

/** `npm run test:storm` sends the full number. */
const connections = Number(process.env.STORM ?? 40_000)
const port = 8080
const maxEndpoints = 12
const sticky = { sessionAffinity: 'ClientIP', sessionAffinityConfig: { clientIP: { timeoutSeconds: 1 } } }
/** The endpoints of a service are in its own network, so that a misrouted connection shows. Services with affinity have their own chains. */
const services = [
  { name: 'one', vip: '172.30.0.1', net: '10.180.1', spec: {} },
  { name: 'two', vip: '172.30.0.2', net: '10.180.2', spec: {} },
  { name: 'three', vip: '172.30.0.3', net: '10.180.3', spec: sticky },
]

let namespace: EnteredNamespace
let bundle: Bundle
let proxy: InProcessProxy
const children: ChildProcess[] = []

beforeAll(async () => {
  bundle = await bundleProgram(join(import.meta.dirname, 'storm.worker.ts'))
  namespace = enterNamespace()
  for (const { net } of services) {
    for (let i = 1; i <= maxEndpoints; i++) namespace.exec('ip', ['addr', 'add', `${net}.${i}/32`, 'dev', 'lo'])
  }
  for (let i = 1; i <= 4; i++) namespace.exec('ip', ['addr', 'add', `10.1.0.${i}/32`, 'dev', 'lo'])
  namespace.exec('ip', ['link', 'add', 'out', 'type', 'veth', 'peer', 'name', 'away'])
  for (const name of ['out', 'away']) namespace.exec('ip', ['link', 'set', name, 'up'])
  namespace.exec('ip', ['route', 'add', '172.30.0.0/16', 'dev', 'out'])
})

afterAll(async () => {
  for (const child of children) child.kill('SIGKILL')
  await proxy?.stop()
  namespace.leave()
  bundle.remove()
})

function start(...args: readonly string[]): { readonly child: ChildProcess; readonly line: Promise<string> } {
  const child = spawn(process.execPath, [bundle.file, ...args], { stdio: ['ignore', 'pipe', 'inherit'] })
  children.push(child)
  const lines = createInterface({ input: child.stdout as NodeJS.ReadableStream })
  return { child, line: once(lines, 'line').then(([line]) => line as string) }
}

const put = (net: string, name: string, hosts: readonly number[]) =>
  proxy.put(
    endpointSliceOf(
      name,
      hosts.map((host) => `${net}.${host}`),
      port,
    ),
  )

const last = new Map<string, string>()

/** Chooses a random number of random endpoints, different from those before. */
function chooseHosts(name: string): readonly number[] {
  for (;;) {
    const share = Math.random()
    const all = Array.from({ length: maxEndpoints }, (_, i) => i + 1)
    const hosts = all.filter(() => Math.random() < share)
    if (hosts.length === 0 || last.get(name) === hosts.join()) continue
    last.set(name, hosts.join())
    return hosts
  }
}

interface Figures {
  readonly made: number
  readonly failed: number
  readonly first?: string
  readonly misrouted: number
  readonly slow: number
  readonly p50: number
  readonly p99: number
}

/** Opens connections that stay open. `countAlive` checks that the server still answers on each, and closes them. */
async function openLasting(count: number): Promise<{ countAlive(): Promise<number> }> {
  const sockets: Socket[] = []
  for (let i = 0; i < count; i++) {
    const socket = new Socket()
    socket.on('error', () => undefined)
    socket.connect(7, services[0]?.vip as string)
    await once(socket, 'connect')
    sockets.push(socket)
  }
  return {
    async countAlive() {
      const answers = sockets.map(async (socket) => {
        if (socket.destroyed || !socket.writable) return false
        socket.write('?')
        return once(socket, 'data', { signal: AbortSignal.timeout(5_000) }).then(
          () => true,
          () => false,
        )
      })
      const alive = (await Promise.all(answers)).filter((isAlive) => isAlive).length
      for (const socket of sockets) socket.destroy()
      return alive
    },
  }
}

describe('a storm of endpoint changes', () => {
  it(`fails and misroutes none of ${connections} connections`, { timeout: 900_000 }, async () => {
    await start('server', String(port)).line
    const { createServer } = await import('node:net')
    const echo = createServer((socket) => socket.on('error', () => undefined).pipe(socket))
    await new Promise<void>((resolve) => echo.listen(7, '0.0.0.0', resolve))
    proxy = await InProcessProxy.start(scenario('S11').node.nftables, { families: [4] })
    for (const { name, vip, net, spec } of services) {
      proxy.put(
        serviceOf(
          name,
          vip,
          [
            { name: 'p', port },
            { name: 'echo', port: 7 },
          ],
          spec,
        ),
      )
      put(net, name, chooseHosts(name))
    }
    // Changes the endpoints of the port of lasting connections. Two endpoints are always there.
    const putLasting = (hosts: readonly number[]) =>
      proxy.put(
        endpointSliceOf(
          'one',
          [...new Set([1, 2, ...hosts])].map((host) => `10.180.1.${host}`),
          7,
          'echo',
        ),
      )
    putLasting([])
    proxy.synced()
    await proxy.settled()
    const lasting = await openLasting(40)
    const before = proxy.reports.length
    const began = performance.now()
    const targets = services.map(({ vip, net }) => `${vip}=${net}`)
    const each = Math.ceil(connections / 2)
    const clients = [1, 2].map((i) => start('client', String(each), `10.1.0.${i}`, String(port), ...targets).line)
    let isOver = false
    const done = Promise.all(clients).finally(() => {
      isOver = true
    })
    for (let i = 0; !isOver; i++) {
      const since = proxy.reports.length
      // A change of chains costs the kernel a thousand times as much as a change of elements.
      const { name, net } = services[i % 40 === 0 ? 2 : i % 2] as (typeof services)[number]
      put(net, name, chooseHosts(name))
      if (i % 10 === 0) putLasting(chooseHosts('stay'))
      await proxy.settled(since)
    }
    const seconds = (performance.now() - began) / 1000
    const figures = (await done).map((line) => JSON.parse(line) as Figures)
    const changes = proxy.reports.length - before
    const sum = (of: (figures: Figures) => number) => figures.reduce((total, one) => total + of(one), 0)
    const late = sum(({ slow }) => slow)
    console.log(
      `${sum(({ made }) => made)} connections and ${changes} changes in ${seconds.toFixed(1)} s: ` +
        `${sum(({ failed }) => failed)} failed, ${sum(({ misrouted }) => misrouted)} misrouted, ${late} sent again; ` +
        `p50 ${figures[0]?.p50.toFixed(0)} µs, p99 ${figures[0]?.p99.toFixed(0)} µs`,
    )
    expect(proxy.reports.filter(({ ok }) => !ok)).toEqual([])
    expect(figures.map(({ failed, first, misrouted }) => ({ failed, first, misrouted }))).toEqual(
      figures.map(() => ({ failed: 0, first: undefined, misrouted: 0 })),
    )
    expect(await lasting.countAlive()).toBe(40)
    expect(changes).toBeGreaterThan(connections / 100)
    echo.close()
  })
})
