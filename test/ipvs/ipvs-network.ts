// A small network for what the corpus does not cover: one client, one node with the proxy, and pods that keep connections open.

import { createSocket } from 'node:dgram'
import { once } from 'node:events'
import { createServer, type Server, Socket } from 'node:net'
import { EngineDriver, vmNodeArgs } from '../lab/engine-driver.ts'
import { Namespace, runIp } from '../lab/namespace.ts'
import { applySysctls } from '../lab/sysctls.ts'
import { expandObject, nodeName } from '../scenarios/expand.ts'
import type { Manifest, NodeSettings } from '../scenarios/format.ts'
import type { Json } from '../scenarios/twins.ts'
import { holdings } from './ipvs-holdings.ts'

/** Options of Node for programs that a test starts beside the proxy. */
export const nodeOptions = vmNodeArgs

const clientIp = '203.0.113.2'
export const nodeIp = '192.168.0.2'
export const vip = '172.30.0.41'

export const settings: NodeSettings = {
  name: nodeName,
  zone: '',
  primary: [nodeIp],
  addresses: [nodeIp],
  detector: { cidrs: ['10.0.0.0/8'] },
  nodePortAddresses: [`${nodeIp}/32`],
  localhostNodePorts: false,
  masqueradeAll: false,
  serviceCIDRs: [],
  apiServers: [],
  externalIPs: true,
}

export class IpvsNetwork {
  readonly node: Namespace
  readonly #prefix: string
  readonly #client: Namespace
  readonly #pods: Namespace
  readonly #servers = new Map<string, { server: Server; sockets: Set<Socket> }>()
  readonly #datagrams: ReturnType<typeof createSocket>[] = []
  /** The number of connections that each pod has accepted so far. */
  readonly accepted = new Map<string, number>()
  driver = new EngineDriver({ holdings, keepBase: true })
  #serial = 0
  #port = 20_000

  constructor() {
    this.#prefix = `slu-${process.pid}-s${networks++}-`
    const names = ['node', 'client', 'pods'].map((name) => this.#prefix + name)
    runIp(
      [],
      names.map((name) => `netns add ${name}`),
    )
    process.once('exit', () => this.#delete())
    ;[this.node, this.#client, this.#pods] = names.map((name) => new Namespace(name)) as [
      Namespace,
      Namespace,
      Namespace,
    ]
    for (const one of [this.node, this.#client, this.#pods]) applySysctls(one)
    this.node.configure([
      'link set lo up',
      `link add client type veth peer name eth0 netns ${names[1]}`,
      `link add pods type veth peer name eth0 netns ${names[2]}`,
      'link set client up',
      'link set pods up',
      `addr add ${nodeIp}/32 dev client`,
      'addr add 10.255.0.1/32 dev pods',
      `route add ${clientIp}/32 dev client`,
      'route add 10.180.0.0/24 dev pods',
    ])
    this.#client.configure(['link set lo up', 'link set eth0 up', `addr add ${clientIp}/32 dev eth0`])
    this.#client.configure([`route add default via ${nodeIp} dev eth0 onlink`])
    this.#pods.configure(['link set lo up', 'link set eth0 up'])
    this.#pods.configure(Array.from({ length: 20 }, (_, i) => `addr add 10.180.0.${i + 1}/32 dev eth0`))
    this.#pods.configure(['route add default via 10.255.0.1 dev eth0 onlink'])
  }

  async start(...objects: Json[]): Promise<void> {
    const interfaceAddresses = ['127.0.0.1', '::1', nodeIp, '10.255.0.1']
    const initial = this.manifests(objects)
    await this.driver.start({ node: this.node, mode: 'ipvs', families: [4], settings, interfaceAddresses, initial })
    await this.driver.settle()
  }

  /** Kills the proxy process and starts another. */
  async restart(...objects: Json[]): Promise<void> {
    this.driver.close()
    this.driver = new EngineDriver({ holdings, keepBase: true })
    await this.start(...objects)
  }

  /** Applies objects in the shorthand of the scenarios; resolves when the kernel has them. */
  async put(...objects: Json[]): Promise<void> {
    await this.driver.apply({ drop: [], put: this.manifests(objects) })
    await this.driver.settle()
  }

  manifests(objects: readonly Json[]): readonly Manifest[] {
    return objects.map((object) => {
      const manifest = expandObject(object, this.#serial++, 4)
      const annotations = (object as { annotations?: Json }).annotations
      if (annotations === undefined) return manifest
      return { ...manifest, metadata: { ...manifest.metadata, annotations } }
    })
  }

  /** Starts servers that answer every line with their address until the client closes the connection. */
  async serve(...ips: string[]): Promise<void> {
    for (const ip of ips) {
      const sockets = new Set<Socket>()
      const server = createServer((socket) => {
        sockets.add(socket)
        this.accepted.set(ip, (this.accepted.get(ip) ?? 0) + 1)
        socket.on('close', () => sockets.delete(socket))
        socket.on('error', () => undefined)
        socket.on('data', () => socket.write(`${ip}\n`))
      })
      server.listen({ fd: this.#pods.openSocket('tcp', ip, 80), backlog: 511 })
      await once(server, 'listening')
      this.#servers.set(ip, { server, sockets })
    }
  }

  /** Starts pods that answer every datagram with their address. */
  serveUdp(...ips: string[]): void {
    for (const ip of ips) {
      const socket = createSocket('udp4')
      socket.bind({ fd: this.#pods.openSocket('udp', ip, 53) })
      socket.on('message', (_, { port, address }) => socket.send(ip, port, address))
      this.#datagrams.push(socket)
    }
  }

  /** A client that always sends from one port: `ask` resolves with the address that answers, or with '' after a second. */
  datagrams(sourcePort: number, to = vip): { ask(): Promise<string> } {
    const socket = createSocket('udp4')
    socket.bind({ fd: this.#client.openSocket('udp', clientIp, sourcePort) })
    this.#datagrams.push(socket)
    return {
      ask: async () => {
        const answer = once(socket, 'message', { signal: AbortSignal.timeout(1000) })
        socket.send('who?', 53, to)
        const [data] = (await answer.catch(() => [Buffer.alloc(0)])) as [Buffer]
        return data.toString()
      },
    }
  }

  /** Stops a pod: closes its connections and refuses new ones. */
  unserve(...ips: string[]): void {
    for (const ip of ips) {
      const { server, sockets } = this.#servers.get(ip) ?? {}
      server?.close()
      for (const socket of sockets ?? []) socket.destroy()
      this.#servers.delete(ip)
    }
  }

  /** Connects to the service and asks which server answers. Rejects if that fails. */
  async connect(options: { to?: string; port?: number; sourcePort?: number } = {}): Promise<HeldConnection> {
    const { to = vip, port = 80, sourcePort = this.#nextPort() } = options
    const socket = new Socket({ fd: this.#client.openSocket('tcp', clientIp, sourcePort) })
    socket.on('error', () => undefined)
    const connection = new HeldConnection(socket, sourcePort)
    socket.connect({ host: to, port })
    await connection.ask()
    return connection
  }

  async once(to = vip): Promise<string> {
    const connection = await this.connect({ to })
    connection.close()
    return connection.server
  }

  tool(program: string, ...args: string[]): Promise<string> {
    return this.node.exec(program, args).then(({ code, stdout, stderr }) => {
      if (code !== 0) throw new Error(`${program} ${args.join(' ')}: ${stderr}`)
      return stdout
    })
  }

  /** `ip:port weight active inactive` of each destination of the service. */
  async destinations(address = `${vip}:80`): Promise<readonly string[]> {
    const listed = await this.tool('ipvsadm', '-Ln', '-t', address)
    return [...listed.matchAll(/-> (\S+)\s+Masq\s+(\d+)\s+(\d+)\s+(\d+)/g)]
      .map((match) => match.slice(1).join(' '))
      .sort()
  }

  close(): void {
    this.driver.close()
    this.unserve(...this.#servers.keys())
    for (const socket of this.#datagrams.splice(0)) socket.close()
    this.#delete()
  }

  #nextPort(): number {
    this.#port = this.#port === 60_000 ? 20_000 : this.#port + 1
    return this.#port
  }

  #delete(): void {
    for (const name of ['node', 'client', 'pods']) {
      try {
        runIp([], [`netns del ${this.#prefix}${name}`])
      } catch {
        // Gone already.
      }
    }
  }
}

let networks = 0

/** One connection, and the server at its other end. */
export class HeldConnection {
  server = ''
  readonly sourcePort: number
  readonly #socket: Socket

  constructor(socket: Socket, sourcePort: number) {
    this.#socket = socket
    this.sourcePort = sourcePort
  }

  /** Asks again. The same server answers, or none does. */
  async ask(): Promise<string> {
    const over = new AbortController()
    const { signal } = over
    const timer = setTimeout(() => over.abort(new Error('no answer in 30 s')), 30_000)
    const closed = once(this.#socket, 'close', { signal }).then(() => Promise.reject(new Error('connection closed')))
    closed.catch(() => undefined)
    try {
      const answer = once(this.#socket, 'data', { signal })
      this.#socket.write('who?\n')
      const [data] = (await Promise.race([answer, closed])) as [Buffer]
      this.server = data.toString().trim()
      return this.server
    } finally {
      clearTimeout(timer)
      over.abort()
    }
  }

  close(): void {
    this.#socket.destroy()
  }

  reset(): void {
    this.#socket.resetAndDestroy()
  }
}

/** Asks all of them every 50 ms until `failures` is called. An answer of another server, or none, is a failure. */
export function keepAsking(connections: readonly Pick<HeldConnection, 'server' | 'ask'>[]): {
  failures(): Promise<readonly string[]>
} {
  const failures: string[] = []
  let over = false
  const asked = Promise.all(
    connections.map(async (connection) => {
      while (!over && failures.length < 10) {
        const expected = connection.server
        const who = await connection.ask().catch((error: Error) => error.message)
        if (who !== expected) failures.push(`${who} instead of ${expected}`)
        await new Promise((resolve) => setTimeout(resolve, 50))
      }
    }),
  )
  return {
    async failures() {
      over = true
      await asked
      return failures
    },
  }
}
