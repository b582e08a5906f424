// The lab: builds the network once, arranges it for each scenario, runs servers, sends packets, and removes everything at the end.

import { spawnSync } from 'node:child_process'
import { existsSync, readdirSync } from 'node:fs'
import { familyOf, isLoopback } from '../../src/lib/ip.ts'
import type { MessageWriter } from '../../src/sys/netlink/message-writer.ts'
import { NetlinkSocket } from '../../src/sys/netlink/socket.ts'
import type { Place, Probe } from '../scenarios/format.ts'
import { ipv4Twin, ipv6Twin } from '../scenarios/twins.ts'
import { type Address, type Arrivals, type Server, serve } from './echo-servers.ts'
import type { Namespace } from './namespace.ts'
import { type Packet, type Reply, sendPacket } from './send-packet.ts'
import {
  buildTopology,
  farPodAddress,
  farRoute,
  hostRoute,
  linkAddresses,
  nodeAddresses,
  nodeExtraAddress,
  podBridge,
  sinkPort,
  sinkRules,
  type Topology,
} from './topology.ts'

/** Where the addresses of a scenario are. All are IPv4; their IPv6 twins are at the same places. */
export interface Arrangement {
  readonly localPods: readonly string[]
  readonly remotePods: readonly string[]
  /** Addresses of the node besides its usual ones. */
  readonly nodeExtras: readonly string[]
  /** True if local pods are connected by the bridge and not by single links. */
  readonly bridged: boolean
}

/** A server and where it is. */
export interface Listener extends Address {
  readonly at: Place
  /** '' for an endpoint. */
  readonly sink: string
}

/** One packet of a scenario; source port 0 stands for the next free one. */
export type Flow = Pick<Probe, 'at' | 'from' | 'sourcePort' | 'to' | 'port' | 'protocol'>

/** IPCTNL_MSG_CT_DELETE; without a flow it deletes all. */
const deleteFlows = 0x102

// Every connection gets another source port, so that connection tracking never takes it for an earlier flow.
// The range excludes the node ports, health check ports and fixed source ports of the scenarios.
const sourcePorts = { first: 33_000, last: 60_900 }

export class Lab {
  readonly #topology: Topology
  readonly #prefix: string
  readonly #onExit: () => void
  readonly #onSignal: (signal: NodeJS.Signals) => void
  readonly #arrivals: Arrivals = new Set()
  readonly #servers: Server[] = []
  readonly #answerTimes: number[] = []
  #sinks: Server[] = []
  /** The device that leads to each pod, by address: a route is written only when it changes. */
  readonly #routes = new Map<string, string>()
  #conntrack: NetlinkSocket | undefined
  #arranged: Arrangement = { localPods: [], remotePods: [], nodeExtras: [], bridged: false }
  #nextPort = sourcePorts.first
  #closed = false

  private constructor(prefix: string, topology: Topology) {
    this.#prefix = prefix
    this.#topology = topology
    this.#onExit = () => deleteNamespaces((name) => name.startsWith(prefix))
    this.#onSignal = (signal) => {
      this.#onExit()
      process.kill(process.pid, signal)
    }
    process.once('exit', this.#onExit)
    for (const signal of endingSignals) process.once(signal, this.#onSignal)
  }

  /** `localPods`: every IPv4 address that is a pod of this node in any of the scenarios. */
  static async create(localPods: readonly string[]): Promise<Lab> {
    if (process.getuid?.() !== 0) throw new Error('the lab needs root: it makes network namespaces')
    deleteNamespaces(isOrphan)
    const prefix = `slu-${process.pid}-${labs++}-`
    const cleanup = () => deleteNamespaces((name) => name.startsWith(prefix))
    let topology: Topology
    try {
      topology = buildTopology(prefix, localPods)
    } catch (error) {
      cleanup()
      throw error
    }
    const lab = new Lab(prefix, topology)
    try {
      await lab.#openSinks()
    } catch (error) {
      await lab.close()
      throw error
    }
    return lab
  }

  get node(): Namespace {
    return this.#topology.node
  }

  /** Returns every address of the node, of both families. */
  interfaceAddresses(): readonly string[] {
    const own = [...nodeAddresses, ...linkAddresses, ...this.#arranged.nodeExtras]
    return ['127.0.0.1', '::1', ...own, ...own.map(ipv6Twin)]
  }

  /** Moves pods to their places and deletes all tracked connections of the previous scenario. */
  async arrange(wanted: Arrangement): Promise<void> {
    const previous = this.#arranged
    const { node, far, farpods, podInterfaces } = this.#topology
    const commands: string[] = []
    if (previous.bridged !== wanted.bridged) {
      for (const name of podInterfaces.values()) {
        commands.push(wanted.bridged ? `link set ${name} master ${podBridge}` : `link set ${name} nomaster`)
        // Bridge CNI plugins do the same: with br_netfilter a pod that reaches itself is sent back through its own port.
        if (wanted.bridged) commands.push(`link set ${name} type bridge_slave hairpin on`)
      }
    }
    for (const ip of wanted.localPods) {
      const own = podInterfaces.get(ip)
      if (own === undefined) throw new Error(`the lab was built without local pod ${ip}`)
      commands.push(...this.#route(ip, wanted.bridged ? podBridge : own))
    }
    for (const ip of wanted.remotePods) commands.push(...this.#route(ip, ''))
    const gone = previous.nodeExtras.filter((ip) => !wanted.nodeExtras.includes(ip))
    const fresh = wanted.nodeExtras.filter((ip) => !previous.nodeExtras.includes(ip))
    commands.push(...gone.flatMap(nodeExtraAddress).map((command) => command.replace('addr add', 'addr del')))
    commands.push(...fresh.flatMap(nodeExtraAddress))
    node.configure(commands)
    const added = wanted.remotePods.filter((ip) => !previous.remotePods.includes(ip))
    const removed = previous.remotePods.filter((ip) => !wanted.remotePods.includes(ip))
    farpods.configure([
      ...removed.flatMap(farPodAddress).map((command) => command.replace('addr add', 'addr del')),
      ...added.flatMap(farPodAddress),
    ])
    far.configure([
      ...removed.flatMap((ip) => hostRoute(ip, 'pods')).map((command) => command.replace('replace', 'del')),
      ...added.flatMap((ip) => hostRoute(ip, 'pods')),
    ])
    this.#arranged = wanted
    await this.forgetConnections()
  }

  /** Empties the node's connection tracking table. */
  async forgetConnections(): Promise<void> {
    this.#conntrack ??= this.node.inside(() => new NetlinkSocket({ protocol: 'netfilter', purpose: 'conntrack' }))
    const body = (writer: MessageWriter) => writer.netfilter(0)
    await this.#conntrack.request({ op: 'forget all flows', type: deleteFlows, body })
  }

  /** Returns commands that route a pod to this device, or to the other node if it is ''; none if the route exists. */
  #route(ip: string, device: string): readonly string[] {
    if (this.#routes.get(ip) === device) return []
    this.#routes.set(ip, device)
    return device === '' ? farRoute(ip) : hostRoute(ip, device)
  }

  /** Starts servers for these addresses; they run until `unserve`. */
  async serve(listeners: readonly Listener[]): Promise<void> {
    for (const listener of listeners) {
      const namespace = this.#space(listener.at, listener.ip)
      this.#servers.push(await serve(namespace, listener, listener.sink, this.#arrivals))
    }
  }

  async unserve(): Promise<void> {
    await Promise.all(this.#servers.splice(0).map((server) => server.close()))
    this.#arrivals.clear()
  }

  /** Sends one connection or datagram. `timeoutMs` is the time after which no answer counts as a drop. */
  async probe(flow: Flow, timeoutMs = this.silenceMs()): Promise<Reply> {
    const packet: Packet = {
      ...flow,
      sourcePort: flow.sourcePort === 0 ? this.#freePort() : flow.sourcePort,
      timeoutMs,
    }
    const begun = performance.now()
    const reply = await sendPacket(this.#space(flow.at, flow.from), packet, this.#arrivals)
    if (reply.kind !== 'dropped') {
      this.#answerTimes.push(performance.now() - begun)
      if (this.#answerTimes.length > 32) this.#answerTimes.shift()
    }
    return reply
  }

  /** Returns the time after which no answer counts as a drop: three times the slowest recent answer, since the machine may be busy. */
  silenceMs(): number {
    return Math.min(3000, Math.max(400, 3 * Math.max(0, ...this.#answerTimes)))
  }

  async close(): Promise<void> {
    if (this.#closed) return
    this.#closed = true
    await this.unserve()
    await Promise.all(this.#sinks.map((sink) => sink.close()))
    this.#conntrack?.close()
    const { pods, podInterfaces: _, ...rest } = this.#topology
    for (const namespace of [...Object.values(rest), ...pods.values()]) namespace.close()
    process.removeListener('exit', this.#onExit)
    for (const signal of endingSignals) process.removeListener(signal, this.#onSignal)
    deleteNamespaces((name) => name.startsWith(this.#prefix))
  }

  #space(at: Place, ip: string): Namespace {
    if (at === 'node') return this.#topology.node
    if (at === 'outside') return this.#topology.clients
    if (at === 'remote') return this.#topology.farpods
    const pod = this.#topology.pods.get(ipv4(ip))
    if (pod === undefined) throw new Error(`the lab was built without local pod ${ip}`)
    return pod
  }

  #freePort(): number {
    const port = this.#nextPort
    this.#nextPort = port === sourcePorts.last ? sourcePorts.first : port + 1
    return port
  }

  /** Starts the servers in the router that answer packets which leave the node untouched. */
  async #openSinks(): Promise<void> {
    const { router } = this.#topology
    const { code, stderr } = await router.exec('nft', ['-f', '-'], { input: sinkRules })
    if (code !== 0) throw new Error(`nft in the router: ${stderr}`)
    for (const ip of ['192.168.0.1', 'fd00:192:168::1']) {
      for (const protocol of ['tcp', 'udp'] as const) {
        this.#sinks.push(await serve(router, { ip, port: sinkPort, protocol }, 'left the node', this.#arrivals))
      }
    }
  }
}

let labs = 0

const endingSignals = ['SIGINT', 'SIGTERM', 'SIGHUP'] as const

/** True for loopback and for the addresses that the node has in every scenario, in both families. */
export const isNodeAddress = (ip: string): boolean =>
  isLoopback(ip) || (nodeAddresses as readonly string[]).includes(ipv4(ip))

export const ipv4 = (ip: string): string => (familyOf(ip) === 4 ? ip : (ipv4Twin(ip) ?? ip))

/** True if the namespace belongs to a process that was killed before it could remove it. */
function isOrphan(name: string): boolean {
  const match = /^slu-(\d+)-\d+-/.exec(name)
  return match !== null && !existsSync(`/proc/${match[1]}`)
}

function deleteNamespaces(wanted: (name: string) => boolean): void {
  const names = existsSync('/run/netns') ? readdirSync('/run/netns').filter(wanted) : []
  if (names.length === 0) return
  const input = names.map((name) => `netns del ${name}\n`).join('')
  spawnSync('ip', ['-force', '-batch', '-'], { input, stdio: ['pipe', 'ignore', 'ignore'] })
}
