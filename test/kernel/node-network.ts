// A node with two pods and a client in namespaces, where connections are held and new ones made while things happen to the rules.

import { type ChildProcess, spawn, spawnSync } from 'node:child_process'
import { once } from 'node:events'
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { createServer, type Server, Socket } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import * as libc from '../../src/sys/libc.ts'
import { NLM_F_CREATE } from '../../src/sys/netlink/message.ts'
import type { MessageWriter } from '../../src/sys/netlink/message-writer.ts'
import { NetlinkSocket } from '../../src/sys/netlink/socket.ts'
import type { Change } from '../lab/driver.ts'
import type { Ask } from '../lab/engine.worker.ts'
import { Namespace, runIp } from '../lab/namespace.ts'
import { applySysctls } from '../lab/sysctls.ts'
import { patience } from '../lab/vm.ts'
import { expandObject } from '../scenarios/expand.ts'
import type { Manifest } from '../scenarios/format.ts'
import { nodeSettings } from '../scenarios/node.ts'
import type { Json } from '../scenarios/twins.ts'
import { bundleProgram } from '../support/bundle-program.ts'
import type { Flavour } from './iptables-holdings.ts'

export const clusterIp = '172.30.0.41'
export const nodeIp = '192.168.0.2'
const clientIp = '192.168.0.100'
export const podIps = ['10.180.0.1', '10.180.0.2'] as const

let networks = 0

export class NodeNetwork {
  readonly node: Namespace
  readonly client: Namespace
  /** Killed at the end, if not before. */
  readonly proxies: ProxyProcess[] = []
  readonly #spaces: Namespace[] = []
  readonly #servers: Server[] = []
  readonly #open = new Set<Socket>()
  readonly #loads: (() => void)[] = []
  readonly #prefix = `ipt-${process.pid}-${networks++}-`

  private constructor() {
    const names = ['node', 'client', 'pod0', 'pod1'].map((name) => this.#prefix + name)
    runIp(
      [],
      names.map((name) => `netns add ${name}`),
    )
    this.#spaces = names.map((name) => new Namespace(name))
    for (const space of this.#spaces) applySysctls(space)
    this.node = this.#spaces[0] as Namespace
    this.client = this.#spaces[1] as Namespace
  }

  static async create(): Promise<NodeNetwork> {
    const network = new NodeNetwork()
    const { node, client } = network
    const prefix = network.#prefix
    node.configure([
      'link set lo up',
      `link add world type veth peer name eth0 netns ${prefix}client`,
      'link set world up',
      `addr add ${nodeIp}/24 dev world`,
      'route add default via 192.168.0.1 dev world onlink',
      ...podIps.flatMap((ip, i) => [
        `link add pod${i} type veth peer name eth0 netns ${prefix}pod${i}`,
        `link set pod${i} up`,
        `addr add 10.255.0.1/32 dev pod${i}`,
        `route add ${ip}/32 dev pod${i}`,
      ]),
    ])
    client.configure([
      'link set lo up',
      'link set eth0 up',
      `addr add ${clientIp}/24 dev eth0`,
      `route add default via ${nodeIp}`,
    ])
    for (const [i, ip] of podIps.entries()) {
      const pod = network.pod(i === 0 ? 0 : 1)
      pod.configure([
        'link set lo up',
        'link set eth0 up',
        `addr add ${ip}/32 dev eth0`,
        'route add default via 10.255.0.1 dev eth0 onlink',
      ])
      await network.#serve(pod, ip)
    }
    return network
  }

  /** Answers every line with the pod's address, for as long as the client likes. */
  #serve(pod: Namespace, ip: string): Promise<void> {
    const server = createServer((socket) => {
      this.#open.add(socket)
      socket.on('error', () => undefined)
      socket.on('close', () => this.#open.delete(socket))
      socket.on('data', () => socket.write(`${ip}\n`))
    })
    this.#servers.push(server)
    return new Promise((resolve) => server.listen({ fd: pod.openSocket('tcp', ip, 8080) }, resolve))
  }

  /** Runs a shell command on the node; throws if it fails. */
  async run(command: string): Promise<string> {
    const { code, stdout, stderr } = await this.node.exec('sh', ['-c', command])
    if (code !== 0) throw new Error(`${command}: ${stderr}`)
    return stdout
  }

  pod(i: 0 | 1): Namespace {
    return this.#spaces[2 + i] as Namespace
  }

  /** Makes or takes away a packet counter (nfacct) of the node; false if the kernel refuses. */
  async counter(what: 'make' | 'drop', name: string): Promise<boolean> {
    const socket = this.node.inside(() => new NetlinkSocket({ protocol: 'netfilter', purpose: 'nfacct' }))
    const kind = what === 'make' ? { type: 0x700, flags: NLM_F_CREATE } : { type: 0x703 }
    const body = (writer: MessageWriter) => {
      writer.netfilter(16)
      writer.text(1, name)
    }
    try {
      await socket.request({ op: `${what} a counter`, body, ...kind })
      return true
    } catch {
      return false
    } finally {
      socket.close()
    }
  }

  /** Kubelet's mark, by which the flavour is known. */
  async useFlavour(flavour: Flavour): Promise<void> {
    await this.run(`iptables-${flavour} -t mangle -N KUBE-KUBELET-CANARY`)
  }

  dial(ip: string, port: number, limitMs = patience(3000)): Promise<Dialled> {
    const fd = this.client.openSocket('tcp', clientIp, 0)
    const socket = new Socket({ fd })
    this.#open.add(socket)
    let resent = 0
    return new Promise((resolve) => {
      const finish = (answer: string) => {
        clearTimeout(timer)
        resolve({ answer, resent, socket })
      }
      const timer = setTimeout(() => finish('timeout'), limitMs)
      socket.once('error', (error: NodeJS.ErrnoException) => finish(error.code ?? 'error'))
      socket.once('data', (line) => finish(line.toString().trim()))
      socket.connect({ host: ip, port }, () => {
        resent = resentSegments(fd)
        socket.write('hello\n')
      })
    })
  }

  /** One new connection; the pod that answered or what went wrong. */
  async ask(ip = clusterIp, port = 80, limitMs = 3000): Promise<string> {
    const { answer, socket } = await this.dial(ip, port, limitMs)
    socket.destroy()
    return answer
  }

  /** Keeps a connection busy, and makes new ones all the time; tells what went wrong when stopped. */
  async load(ip = clusterIp, port = 80): Promise<{ stop(): Promise<Load> }> {
    const { answer, socket } = await this.dial(ip, port)
    if (!(podIps as readonly string[]).includes(answer)) throw new Error(`no connection to begin with: ${answer}`)
    const load = { rounds: 0, made: 0, problems: [] as string[] }
    let running = true
    this.#loads.push(() => {
      running = false
    })
    const held = (async () => {
      socket.on('error', (error) => load.problems.push(`held connection: ${error.message}`))
      socket.on('close', () => running && load.problems.push('held connection: closed'))
      while (running) {
        const reply = Promise.race([once(socket, 'data').then(String), delay(5000).then(() => 'silence')])
        socket.write('again\n')
        const line = await reply.catch(String)
        if (line.trim() !== answer) {
          load.problems.push(`held connection: ${line}`)
          return
        }
        load.rounds++
        await delay(10)
      }
    })()
    const fresh = (async () => {
      while (running) {
        const { answer: got, resent, socket: one } = await this.dial(ip, port)
        one.destroy()
        load.made++
        if (!(podIps as readonly string[]).includes(got)) load.problems.push(`new connection: ${got}`)
        else if (resent > 0) load.problems.push(`new connection: ${resent} of its first packets were lost`)
        await delay(10)
      }
    })()
    return {
      async stop() {
        running = false
        await Promise.all([held, fresh])
        socket.destroy()
        return load
      },
    }
  }

  async close(): Promise<void> {
    for (const stop of this.#loads) stop()
    for (const proxy of this.proxies) await proxy.kill()
    for (const socket of this.#open) socket.destroy()
    await delay(50)
    for (const server of this.#servers) server.close()
    for (const space of this.#spaces) space.close()
    const input = this.#spaces.map(({ name }) => `netns del ${name}\n`).join('')
    spawnSync('ip', ['-force', '-batch', '-'], { input })
  }
}

interface Dialled {
  readonly answer: string
  /** Lost while it was made: told by the kernel, as time says nothing on a busy machine. */
  readonly resent: number
  readonly socket: Socket
}

const IPPROTO_TCP = 6
const TCP_INFO = 11
/** Of tcpi_total_retrans. */
const totalResentAt = 100

function resentSegments(fd: number): number {
  const info = Buffer.alloc(104)
  if (libc.getsockoptBytes(fd, IPPROTO_TCP, TCP_INFO, info) < info.length) throw new Error('no TCP_INFO')
  return info.readUInt32LE(totalResentAt)
}

export interface Load {
  readonly rounds: number
  readonly made: number
  readonly problems: readonly string[]
}

export const delay = (ms: number): Promise<void> => new Promise((resolve) => setTimeout(resolve, ms))

/** Waits for what a test is about; the limit is only there to end a test that fails. */
export async function until(
  what: string,
  test: () => Promise<boolean> | boolean,
  limitMs = patience(15_000),
): Promise<number> {
  const begun = performance.now()
  while (!(await test())) {
    if (performance.now() - begun > limitMs) throw new Error(`not in ${limitMs} ms: ${what}`)
    await delay(20)
  }
  return performance.now() - begun
}

// ---- Objects. ----

export const web = (endpoints: readonly string[] = podIps): Change => ({
  drop: [],
  put: [
    expand({ service: 'ns1/web', type: 'NodePort', clusterIP: clusterIp, ports: ['http 80/tcp 30080'] }, 0),
    expand({ slice: 'ns1/web', ports: ['http 8080/tcp'], endpoints: endpoints.map((ip) => `${ip} local`) }, 1),
  ],
})

/** Services that nobody asks, to have something to write; `turn` changes their endpoints. */
export function extras(count: number, turn = 0): Change {
  const put: Manifest[] = []
  for (let i = 0; i < count; i++) {
    const ports = ['http 80/tcp']
    put.push(expand({ service: `extra/svc-${i}`, clusterIP: `172.30.${100 + (i >> 8)}.${i & 255}`, ports }, 2 * i + 2))
    const endpoints = [0, 1, 2].map((n) => `10.200.${i & 255}.${3 * turn + n + 1} remote`)
    put.push(expand({ slice: `extra/svc-${i}`, ports, endpoints }, 2 * i + 3))
  }
  return { drop: [], put }
}

export const expand = (value: Json, serial: number): Manifest => expandObject(value, serial, 4)

/** A service with one endpoint, the first pod. */
export const single = (service: string, clusterIP: string): readonly Manifest[] => [
  expand({ service, clusterIP, ports: ['http 80/tcp'] }, 900),
  expand({ slice: service, ports: ['http 8080/tcp'], endpoints: [`${podIps[0]} local`] }, 901),
]

/**
 * A PATH with a restore that refuses what names `word`, as the legacy flavour does when the kernel refuses: it only says
 * that the table could not be committed. What an API server lets pass the kernel hardly ever refuses by itself.
 */
export async function refusing(
  network: NodeNetwork,
  flavour: Flavour,
  word: string,
): Promise<{ path: string; end(): void }> {
  const folder = mkdtempSync(join(tmpdir(), 'sluice-refusing-'))
  const program = `iptables-${flavour}-restore`
  const real = (await network.run(`command -v ${program}`)).trim()
  const script = `#!/bin/sh
text=$(cat; echo .)
case "$text" in *${word}*) echo "${program}: line $(printf %s "$text" | grep -n COMMIT | tail -1 | cut -d: -f1) failed" >&2; exit 1;; esac
printf %s "\${text%.}" | exec ${real} "$@"
`
  writeFileSync(join(folder, program), script, { mode: 0o755 })
  return { path: `${folder}:${process.env.PATH}`, end: () => rmSync(folder, { recursive: true }) }
}

/** A PATH with a restore that tells how many sockets listen on the node when it is called, and which ports its text leads to. */
export async function overhearing(
  network: NodeNetwork,
  flavour: Flavour,
): Promise<{ path: string; heard(): readonly string[]; end(): void }> {
  const folder = mkdtempSync(join(tmpdir(), 'sluice-overhearing-'))
  const program = `iptables-${flavour}-restore`
  const real = (await network.run(`command -v ${program}`)).trim()
  const script = `#!/bin/sh
text=$(cat; echo .)
ports=$(printf %s "$text" | grep -o 'to-destination [0-9.]*:[0-9]*' | sed 's/.*://' | sort -u | tr '\\n' ' ')
echo "$(ss -Hlnt src ${nodeIp} | wc -l) listeners, leads to $ports" >> ${folder}/heard
printf %s "\${text%.}" | exec ${real} "$@"
`
  writeFileSync(join(folder, program), script, { mode: 0o755 })
  return {
    path: `${folder}:${process.env.PATH}`,
    heard: () => readFileSync(join(folder, 'heard'), 'utf8').trim().split('\n'),
    end: () => rmSync(folder, { recursive: true }),
  }
}

// ---- The proxy. ----

let bundled: Promise<string> | undefined

/** As one file: it starts in a tenth of the time that compiling at each start takes. */
function bundle(): Promise<string> {
  bundled ??= bundleProgram(join(import.meta.dirname, '../lab/engine.worker.ts')).then(({ file, remove }) => {
    process.once('exit', remove)
    return file
  })
  return bundled
}

/** The real engine and backend, in a process of its own that can be killed. */
export class ProxyProcess {
  /** What it logged. */
  log = ''
  readonly #child: ChildProcess
  readonly #dead: Promise<unknown>

  private constructor(child: ChildProcess) {
    this.#child = child
    this.#dead = once(child, 'exit')
    child.stderr?.on('data', (chunk) => {
      this.log += chunk
    })
    process.once('exit', this.#end)
  }

  readonly #end = () => void this.#child.kill('SIGKILL')

  /** Does not wait for the first sync, whose services are `initial`. */
  static async start(
    network: NodeNetwork,
    initial: readonly Manifest[] = [],
    env: NodeJS.ProcessEnv = {},
    mode: 'iptables' | 'userspace' = 'iptables',
  ): Promise<ProxyProcess> {
    const args = ['netns', 'exec', network.node.name, process.execPath, await bundle()]
    const child = spawn('ip', args, {
      stdio: ['ignore', 'inherit', 'pipe', 'ipc'],
      env: { ...process.env, SLUICE_TEST_V: '2', ...env },
    })
    const proxy = new ProxyProcess(child)
    network.proxies.push(proxy)
    await proxy.ask({
      ask: 'start',
      mode,
      families: [4],
      settings: nodeSettings(mode, [4], [{ addresses: [nodeIp] }]),
      interfaceAddresses: ['127.0.0.1', nodeIp, '10.255.0.1'],
      initial,
    })
    return proxy
  }

  async apply(change: Change): Promise<void> {
    await this.ask({ ask: 'apply', ...change })
  }

  async settle(): Promise<void> {
    await this.ask({ ask: 'settle' })
  }

  async ask(ask: Ask): Promise<unknown> {
    const answered = once(this.#child, 'message')
    this.#child.send(ask)
    const dead = this.#dead.then(() => {
      throw new Error(`the proxy is dead: ${this.log.slice(-2000)}`)
    })
    const [message] = (await Promise.race([answered, dead])) as [{ result?: unknown; error?: string }]
    if (message.error !== undefined) throw new Error(message.error)
    return message.result
  }

  /** Leaves everything as it is. */
  async kill(): Promise<void> {
    this.#end()
    await this.#dead
    process.removeListener('exit', this.#end)
  }
}
