// Two nodes with a pod each, and a client that reaches both nodes and has the API server, each in a network namespace.

import { spawnSync } from 'node:child_process'
import { createServer, type Server, Socket } from 'node:net'
import { type Family, hostPort } from '../../src/lib/ip.ts'
import { Namespace, runIp } from '../lab/namespace.ts'
import { applySysctls } from '../lab/sysctls.ts'

export const nodeNames = ['node-a', 'node-b'] as const
/** The addresses of the network in one family. The API server listens on the address of the client towards the first node. */
const plans = {
  4: {
    nodeIps: ['192.168.61.2', '192.168.62.2'],
    podIps: ['10.181.0.1', '10.182.0.1'],
    clientIps: ['192.168.61.1', '192.168.62.1'],
    between: ['192.168.63.1', '192.168.63.2'],
    gateway: '10.255.0.1',
    lengths: [24, 32],
    any: '0.0.0.0',
  },
  6: {
    nodeIps: ['fd00:61::2', 'fd00:62::2'],
    podIps: ['fd00:181::1', 'fd00:182::1'],
    clientIps: ['fd00:61::1', 'fd00:62::1'],
    between: ['fd00:63::1', 'fd00:63::2'],
    gateway: 'fd00:255::1',
    lengths: [64, 128],
    any: '::',
  },
} as const

let networks = 0

export class TwoNodes {
  readonly client: Namespace
  readonly addresses: (typeof plans)[Family]
  readonly #spaces: Namespace[] = []
  readonly #servers: Server[] = []
  readonly #open = new Set<Socket>()

  private constructor(family: Family) {
    this.addresses = plans[family]
    const prefix = `two-${process.pid}-${networks++}-`
    const names = ['client', 'node0', 'node1', 'pod0', 'pod1'].map((name) => prefix + name)
    runIp(
      [],
      names.map((name) => `netns add ${name}`),
    )
    this.#spaces = names.map((name) => new Namespace(name))
    for (const space of this.#spaces) applySysctls(space)
    this.client = this.#spaces[0] as Namespace
    this.client.configure(['link set lo up'])
  }

  static async create(family: Family = 4): Promise<TwoNodes> {
    const network = new TwoNodes(family)
    for (const i of [0, 1] as const) network.#connect(i)
    for (const i of [0, 1] as const) await network.#serve(i)
    return network
  }

  node(i: 0 | 1): Namespace {
    return this.#spaces[1 + i] as Namespace
  }

  pod(i: 0 | 1): Namespace {
    return this.#spaces[3 + i] as Namespace
  }

  #connect(i: 0 | 1): void {
    const other = i === 0 ? 1 : 0
    const { nodeIps, podIps, clientIps, between, gateway, lengths } = this.addresses
    const [wide, single] = lengths
    const nodad = wide === 64 ? ' nodad' : ''
    this.node(i).configure([
      'link set lo up',
      `link add world type veth peer name world${i} netns ${this.client.name}`,
      'link set world up',
      `addr add ${nodeIps[i]}/${wide} dev world${nodad}`,
      `route add default via ${clientIps[i]}`,
      `link add pod type veth peer name eth0 netns ${this.pod(i).name}`,
      'link set pod up',
      `addr add ${gateway}/${single} dev pod${nodad}`,
      `route add ${podIps[i]}/${single} dev pod`,
      ...(i === 0 ? [`link add peer type veth peer name peer netns ${this.node(1).name}`] : []),
      'link set peer up',
      `addr add ${between[i]}/${wide} dev peer${nodad}`,
      `route add ${podIps[other]}/${single} via ${between[other]} dev peer onlink`,
    ])
    this.client.configure([`link set world${i} up`, `addr add ${clientIps[i]}/${wide} dev world${i}${nodad}`])
    this.pod(i).configure([
      'link set lo up',
      'link set eth0 up',
      `addr add ${podIps[i]}/${single} dev eth0${nodad}`,
      `route add default via ${gateway} dev eth0 onlink`,
    ])
  }

  /** Starts a server that answers every line with the address of the pod. */
  #serve(i: 0 | 1): Promise<void> {
    const { podIps } = this.addresses
    const server = createServer((socket) => {
      this.#open.add(socket)
      socket.on('error', () => undefined)
      socket.on('close', () => this.#open.delete(socket))
      socket.on('data', () => socket.write(`${podIps[i]}\n`))
    })
    this.#servers.push(server)
    return new Promise((resolve) => server.listen({ fd: this.pod(i).openSocket('tcp', podIps[i], 8080) }, resolve))
  }

  /** Opens a connection from the client, and asks once. Returns the address of the pod, or the error. */
  ask(ip: string, port: number, limitMs: number): Promise<string> {
    const socket = new Socket({ fd: this.client.openSocket('tcp', this.addresses.any, 0) })
    this.#open.add(socket)
    return new Promise((resolve) => {
      const finish = (answer: string) => {
        clearTimeout(timer)
        this.#open.delete(socket)
        socket.destroy()
        resolve(answer)
      }
      const timer = setTimeout(() => finish('timeout'), limitMs)
      socket.once('error', (error: NodeJS.ErrnoException) => finish(error.code ?? 'error'))
      socket.once('data', (line) => finish(line.toString().trim()))
      socket.connect({ host: ip, port }, () => socket.write('hello\n'))
    })
  }

  /** Sends an HTTP request from the client. Returns the status code; 0 without an answer. */
  readStatus(ip: string, port: number, limitMs: number): Promise<number> {
    const socket = new Socket({ fd: this.client.openSocket('tcp', this.addresses.any, 0) })
    return new Promise((resolve) => {
      const finish = (code: number) => {
        clearTimeout(timer)
        socket.destroy()
        resolve(code)
      }
      const timer = setTimeout(() => finish(0), limitMs)
      socket.once('error', () => finish(0))
      socket.once('data', (text) => finish(Number(/^HTTP\/1.1 (\d+)/.exec(String(text))?.[1] ?? 0)))
      socket.connect({ host: ip, port }, () => socket.write(`GET / HTTP/1.1\r\nHost: ${hostPort(ip, port)}\r\n\r\n`))
    })
  }

  close(): void {
    for (const socket of this.#open) socket.destroy()
    for (const server of this.#servers) server.close()
    for (const space of this.#spaces) space.close()
    const input = this.#spaces.map(({ name }) => `netns del ${name}\n`).join('')
    spawnSync('ip', ['-force', '-batch', '-'], { input })
  }
}
