// Kills the proxy at any moment and starts it again: the table keeps working, the next proxy takes it over, and no connection fails.

import { type ChildProcess, execFileSync, fork } from 'node:child_process'
import { createSocket } from 'node:dgram'
import { once } from 'node:events'
import { createServer, type Server, Socket } from 'node:net'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { afterAll, afterEach, beforeAll, describe, expect, it } from 'vitest'
import { ChainTable } from '../../src/sys/netlink/nft/chain-uses.ts'
import { Nftables } from '../../src/sys/netlink/nft/nftables.ts'
import { type EnteredNamespace, enterNamespace } from '../lab/entered-namespace.ts'
import { canOwn } from '../lab/kernel-traits.ts'
import { full, inVm, timeLimit } from '../lab/vm.ts'
import type { Manifest, NodeSettings } from '../scenarios/format.ts'
import { type Bundle, bundleProgram } from '../support/bundle-program.ts'
import { scenario } from './in-process-proxy.ts'
import type { Order } from './nftables.worker.ts'

const killsInVm = full ? 8 : 3
const kills = Number(process.env.KILLS ?? (inVm ? killsInVm : 15))
const stable = 8
const churning = 60
const hosts = Array.from({ length: 6 }, (_, i) => `10.180.0.${i + 1}`)

let namespace: EnteredNamespace
let bundle: Bundle
let settings: NodeSettings
const servers: Server[] = []
const children: ChildProcess[] = []

beforeAll(async () => {
  settings = scenario('S11').node.nftables
  bundle = await bundleProgram(join(import.meta.dirname, 'nftables.worker.ts'))
  namespace = enterNamespace()
  for (const ip of hosts) namespace.exec('ip', ['addr', 'add', `${ip}/32`, 'dev', 'lo'])
  namespace.exec('ip', ['link', 'add', 'out', 'type', 'veth', 'peer', 'name', 'away'])
  for (const name of ['out', 'away']) namespace.exec('ip', ['link', 'set', name, 'up'])
  namespace.exec('ip', ['route', 'add', '172.30.0.0/16', 'dev', 'out'])
  for (const ip of hosts) {
    const server = createServer((socket) => socket.on('error', () => undefined).end(ip))
    servers.push(server)
    await new Promise<void>((resolve) => server.listen({ host: ip, port: 80, backlog: 4096 }, resolve))
  }
})

afterEach(() => {
  for (const child of children.splice(0)) child.kill('SIGKILL')
  namespace.exec('nft', ['flush', 'ruleset'])
})

afterAll(() => {
  for (const server of servers) server.close()
  namespace.leave()
  bundle.remove()
})

const vip = (i: number) => `172.30.${i >> 8}.${i & 255}`

function objects(i: number, endpoints: readonly string[], protocol = 'TCP'): readonly Manifest[] {
  const name = `svc${i}`
  const meta = { namespace: 'ns', name, uid: `uid-${i}`, creationTimestamp: '2024-01-01T00:00:00Z' }
  return [
    {
      apiVersion: 'v1',
      kind: 'Service',
      metadata: meta,
      spec: {
        type: 'ClusterIP',
        clusterIP: vip(i),
        clusterIPs: [vip(i)],
        ipFamilies: ['IPv4'],
        ports: [{ name: 'p', protocol, port: 80 }],
      },
    },
    {
      apiVersion: 'discovery.k8s.io/v1',
      kind: 'EndpointSlice',
      metadata: { ...meta, name: `${name}-a`, labels: { 'kubernetes.io/service-name': name } },
      addressType: 'IPv4',
      ports: [{ name: 'p', protocol, port: 80 }],
      endpoints: endpoints.map((address) => ({
        addresses: [address],
        nodeName: 'node-a',
        conditions: { ready: true, serving: true, terminating: false },
      })),
    },
  ] as unknown as readonly Manifest[]
}

const chooseHosts = () => hosts.filter(() => Math.random() < 0.5)

function spawn(): ChildProcess {
  const child = fork(bundle.file, [], { execArgv: [], stdio: ['ignore', 'inherit', 'inherit', 'ipc'] })
  children.push(child)
  return child
}

const order = (child: ChildProcess, what: Order) => child.send(what)

async function readAnswer(child: ChildProcess): Promise<{ started?: boolean; changes?: number; error?: string }> {
  const [message] = await once(child, 'message')
  return message as { started?: boolean }
}

async function kill(child: ChildProcess): Promise<void> {
  const over = once(child, 'exit')
  child.kill('SIGKILL')
  await over
}

/** Connects again and again to the services that never change. */
class Traffic {
  made = 0
  readonly failed: string[] = []
  #running = true
  readonly #loops: Promise<void>[]

  constructor(parallel: number) {
    this.#loops = Array.from({ length: parallel }, (_, i) => this.#loop(i))
  }

  async stop(): Promise<void> {
    this.#running = false
    await Promise.all(this.#loops)
  }

  async #loop(i: number): Promise<void> {
    for (let turn = i; this.#running; turn++) {
      const host = vip(1 + (turn % stable))
      const answer = await connect(host)
      this.made++
      if (!hosts.includes(answer)) this.failed.push(`${host}: ${answer}`)
    }
  }
}

function connect(host: string): Promise<string> {
  return new Promise((resolve) => {
    const socket = new Socket()
    let text = ''
    const done = (what: string) => {
      socket.destroy()
      resolve(what)
    }
    socket.setTimeout(timeLimit(10_000), () => done('timeout'))
    socket.on('data', (chunk) => {
      text += chunk
    })
    socket.on('end', () => done(text))
    socket.on('error', (error) => done(error.message))
    socket.connect(80, host)
  })
}

/** Lists with nft the endpoints that packets to each service may reach. */
function listServed(): ReadonlyMap<string, readonly string[]> {
  const list = (name: string) => {
    const text = execFileSync('nft', ['-j', 'list', 'map', 'ip', 'kube-proxy', name], {
      encoding: 'utf8',
      maxBuffer: 1 << 26,
    })
    const { nftables } = JSON.parse(text) as { nftables: readonly { map?: { elem?: readonly [never, never][] } }[] }
    return nftables.find(({ map }) => map !== undefined)?.map?.elem ?? []
  }
  const counts = new Map<string, number>()
  for (const [key, verdict] of list('service-ips') as readonly [Key, { goto: { target: string } }][]) {
    counts.set(String(plain(key)[0]), Number(verdict.goto.target.replace('lb-', '')))
  }
  const found = new Map<string, string[]>([...counts.keys()].map((ip) => [ip, []]))
  for (const [key, data] of list('endpoints') as readonly [Key, { concat: [string, number] }][]) {
    const [ip, , , slot] = plain(key)
    // Later slots are not chosen any more and wait for the sweep.
    if (Number(slot) < (counts.get(String(ip)) ?? 0)) found.get(String(ip))?.push(data.concat[0])
  }
  for (const list of found.values()) list.sort()
  return found
}

type Key = { concat: readonly (string | number)[] } | { elem: { val: { concat: readonly (string | number)[] } } }
const plain = (key: Key) => ('elem' in key ? key.elem.val.concat : key.concat)

describe('a proxy that is killed', () => {
  it(`at random moments, ${kills} times, never fails a connection, and recovers`, {
    timeout: 600_000,
  }, async () => {
    const wanted = new Map<number, readonly string[]>()
    for (let i = 1; i <= stable; i++) wanted.set(i, hosts)
    const first = spawn()
    for (let i = 1; i <= churning; i++) wanted.set(stable + i, chooseHosts())
    const manifests = () => [...wanted].flatMap(([i, endpoints]) => objects(i, endpoints))
    order(first, { do: 'start', settings, manifests: manifests() })
    await readAnswer(first)
    await kill(first)
    const traffic = new Traffic(4)
    let verified = 0
    for (let round = 0; round < kills; round++) {
      for (let i = 1; i <= churning; i++) if (Math.random() < 0.3) wanted.set(stable + i, chooseHosts())
      const child = spawn()
      order(child, { do: 'start', settings, manifests: manifests() })
      if (Math.random() < 0.4) {
        // The proxy is killed while it observes, compares or writes.
        await sleep(timeLimit(100 + Math.random() * 500))
        await kill(child)
        continue
      }
      const { error } = await readAnswer(child)
      expect(error).toBeUndefined()
      const expected = [...wanted].filter(([, endpoints]) => endpoints.length > 0)
      expect([...listServed()].sort()).toEqual(
        expected.map(([i, endpoints]) => [vip(i), endpoints.toSorted()] as const).sort(),
      )
      verified++
      const rounds = Array.from({ length: 20 }, () =>
        Array.from({ length: churning }, (_, i) => i + 1)
          .filter(() => Math.random() < 0.2)
          .flatMap((i) => objects(stable + i, chooseHosts())),
      )
      order(child, { do: 'churn', rounds })
      await sleep(timeLimit(Math.random() * 80))
      await kill(child)
    }
    await traffic.stop()
    console.log(
      `${kills} kills, ${verified} states verified, ${traffic.made} connections, ${traffic.failed.length} failed`,
    )
    expect(traffic.failed).toEqual([])
    expect(traffic.made).toBeGreaterThan(kills * 10)
  })
})

describe('a proxy that is started again', () => {
  const fixed = Array.from({ length: 10 }, (_, i) => objects(i + 1, hosts.slice(0, 1 + (i % 6)))).flat()

  /** The number of transactions that it takes to become the owner, or to stop being it. */
  const ownerTransactions = canOwn ? 1 : 0

  async function readGeneration(): Promise<number> {
    const chains = new ChainTable()
    try {
      return await chains.generation()
    } finally {
      chains.close()
    }
  }

  it('rewrites nothing: after a crash it only becomes the owner, after a stop it exchanges the table once', async () => {
    const first = spawn()
    order(first, { do: 'start', settings, manifests: fixed })
    await readAnswer(first)
    await kill(first)
    const probes = await countProbes()
    const before = await readGeneration()
    const second = spawn()
    order(second, { do: 'start', settings, manifests: fixed })
    expect(await readAnswer(second)).toEqual({ started: true, changes: 0 })
    expect(await readGeneration()).toBe(before + probes + ownerTransactions)
    order(second, { do: 'stop' })
    await readAnswer(second)
    expect(await readGeneration()).toBe(before + probes + 2 * ownerTransactions)
    await kill(second)
    const third = spawn()
    order(third, { do: 'start', settings, manifests: fixed })
    await readAnswer(third)
    expect(await readGeneration()).toBe(before + 2 * probes + 3 * ownerTransactions)
    await kill(third)
  })

  /** Counts the transactions in which a proxy finds out what the kernel can do. */
  async function countProbes(): Promise<number> {
    const { FeatureProbe } = await import('../../src/backend/nftables/features.ts')
    const before = await readGeneration()
    const nft = new Nftables()
    await new FeatureProbe().find(nft, 4)
    nft.close()
    return (await readGeneration()) - before
  }

  it.each(['SIGKILL', 'stop'] as const)('keeps the UDP flows of endpoints that stay, after %s', async (how) => {
    const echoes = hosts.slice(0, 3).map((ip) => {
      const socket = createSocket('udp4')
      socket.on('message', (_, from) => socket.send(ip, from.port, from.address))
      socket.bind(80, ip)
      return socket
    })
    const client = createSocket('udp4')
    try {
      await new Promise<void>((resolve) => client.bind(0, resolve))
      await new Promise<void>((resolve) => {
        client.once('connect', resolve)
        const first = spawn()
        order(first, { do: 'start', settings, manifests: objects(1, hosts.slice(0, 3), 'UDP') })
        void readAnswer(first).then(() => client.connect(80, vip(1)))
      })
      const ask = async () => {
        client.send('?')
        const [answer] = await once(client, 'message', { signal: AbortSignal.timeout(timeLimit(5_000)) })
        return String(answer)
      }
      const flow = () => namespace.exec('conntrack', ['-L', '-p', 'udp', '-o', 'id']).match(/id=(\d+)/)?.[1]
      const endpoint = await ask()
      const id = flow()
      for (let i = 0; i < 3; i++) {
        const old = children.at(-1) as ChildProcess
        if (how === 'stop') {
          order(old, { do: 'stop' })
          await readAnswer(old)
        }
        await kill(old)
        expect(await ask()).toBe(endpoint)
        const next = spawn()
        order(next, { do: 'start', settings, manifests: objects(1, hosts.slice(0, 3), 'UDP') })
        await readAnswer(next)
        expect(await ask()).toBe(endpoint)
      }
      expect(flow()).toBe(id)
      // When the endpoint is removed, its flow is deleted.
      const rest = hosts.slice(0, 3).filter((ip) => ip !== endpoint)
      await kill(children.at(-1) as ChildProcess)
      const last = spawn()
      order(last, { do: 'start', settings, manifests: objects(1, rest, 'UDP') })
      await readAnswer(last)
      expect(rest).toContain(await ask())
    } finally {
      client.close()
      for (const echo of echoes) echo.close()
    }
  })
})
