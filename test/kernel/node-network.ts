// A node with two pods and a client, each in a network namespace. Connections are held, and new ones made, while a test changes the rules.

import { spawnSync } from 'node:child_process'
import { once } from 'node:events'
import { createServer, type Server, Socket } from 'node:net'
import { setTimeout as delay } from 'node:timers/promises'
import { familyOf } from '../../src/lib/ip.ts'
import * as libc from '../../src/sys/libc.ts'
import { NLM_F_CREATE } from '../../src/sys/netlink/message.ts'
import type { MessageWriter } from '../../src/sys/netlink/message-writer.ts'
import { NetlinkSocket } from '../../src/sys/netlink/socket.ts'
import { Namespace, runIp } from '../lab/namespace.ts'
import { applySysctls } from '../lab/sysctls.ts'
import { timeLimit } from '../lab/vm.ts'
import type { Flavour } from './iptables-holdings.ts'
import type { ProxyProcess } from './proxy-process.ts'

export const clusterIp = '172.30.0.41'
export const nodeIp = '192.168.0.2'
const clientIp = '192.168.0.100'
export const podIps = ['10.180.0.1', '10.180.0.2'] as const

/** The same node, client and pods in IPv6. */
export const ipv6 = {
  clusterIp: 'fd00:30::41',
  nodeIp: 'fd00:192::2',
  clientIp: 'fd00:192::100',
  podIps: ['fd00:180::1', 'fd00:180::2'],
} as const
const gateway6 = 'fd00:255::1'

let networks = 0

export class NodeNetwork {
  readonly node: Namespace
  readonly client: Namespace
  /** Killed by `close`, if they still run. */
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
      `addr add ${ipv6.nodeIp}/64 dev world nodad`,
      'route add default via 192.168.0.1 dev world onlink',
      'route add default via fd00:192::1 dev world onlink',
      ...podIps.flatMap((ip, i) => [
        `link add pod${i} type veth peer name eth0 netns ${prefix}pod${i}`,
        `link set pod${i} up`,
        `addr add 10.255.0.1/32 dev pod${i}`,
        `addr add ${gateway6}/128 dev pod${i} nodad`,
        `route add ${ip}/32 dev pod${i}`,
        `route add ${ipv6.podIps[i]}/128 dev pod${i}`,
      ]),
    ])
    client.configure([
      'link set lo up',
      'link set eth0 up',
      `addr add ${clientIp}/24 dev eth0`,
      `addr add ${ipv6.clientIp}/64 dev eth0 nodad`,
      `route add default via ${nodeIp}`,
      `route add default via ${ipv6.nodeIp}`,
    ])
    for (const [i, ip] of podIps.entries()) {
      const pod = network.pod(i === 0 ? 0 : 1)
      pod.configure([
        'link set lo up',
        'link set eth0 up',
        `addr add ${ip}/32 dev eth0`,
        `addr add ${ipv6.podIps[i]}/128 dev eth0 nodad`,
        'route add default via 10.255.0.1 dev eth0 onlink',
        `route add default via ${gateway6} dev eth0 onlink`,
      ])
      await network.#serve(pod, ip)
      await network.#serve(pod, ipv6.podIps[i] as string)
    }
    return network
  }

  /** Starts a server that answers every line with the pod's address until the client closes. */
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

  /** Takes the link of a pod down or up, with its routes. */
  async setLink(i: 0 | 1, how: 'down' | 'up'): Promise<void> {
    const routes = [
      `ip addr replace ${ipv6.podIps[i]}/128 dev eth0 nodad`,
      'ip route replace default via 10.255.0.1 dev eth0 onlink',
      `ip route replace default via ${gateway6} dev eth0 onlink`,
    ]
    await this.pod(i).exec('sh', ['-c', [`ip link set eth0 ${how}`, ...(how === 'up' ? routes : [])].join('; ')])
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

  /** Creates or deletes a packet counter (nfacct) of the node. Returns false if the kernel refuses. */
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

  /** Creates the chain by which kubelet shows the flavour it uses. */
  async useFlavour(flavour: Flavour): Promise<void> {
    await this.run(`iptables-${flavour} -t mangle -N KUBE-KUBELET-CANARY`)
  }

  dial(ip: string, port: number, limitMs = timeLimit(3000), from = this.client): Promise<Dialled> {
    const any = familyOf(ip) === 6 ? '::' : '0.0.0.0'
    const own = familyOf(ip) === 6 ? ipv6.clientIp : clientIp
    const fd = from.openSocket('tcp', from === this.client ? own : any, 0)
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

  /** Opens one connection. Returns the address of the pod that answered, or the error. */
  async ask(ip = clusterIp, port = 80, limitMs = 3000): Promise<string> {
    const { answer, socket } = await this.dial(ip, port, limitMs)
    socket.destroy()
    return answer
  }

  /** Keeps one connection busy and opens new ones until stopped. Returns the counts and all problems. */
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
        const reply = Promise.race([
          once(socket, 'data').then(String),
          delay(20_000, undefined, { ref: false }).then(() => 'silence'),
        ])
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
        // Elapsed time says nothing on a busy machine: a lost packet shows in the segments that were sent again.
        const { answer: got, resent, socket: one } = await this.dial(ip, port, 20_000)
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
  /** Segments that the kernel sent again while it connected. Elapsed time says nothing on a busy machine. */
  readonly resent: number
  readonly socket: Socket
}

const IPPROTO_TCP = 6
const TCP_INFO = 11
/** Offset of tcpi_total_retrans. */
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
