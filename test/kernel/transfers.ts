// Transfers of known size on a NodeNetwork, and counters of nf_tables in each pod that say what really arrived there.

import { createSocket } from 'node:dgram'
import { once } from 'node:events'
import { createServer, type Server, Socket } from 'node:net'
import { familyOf } from '../../src/lib/ip.ts'
import { ipv6, type NodeNetwork, podIps } from './node-network.ts'

export const tcpPort = 9090
export const udpPort = 5353

/** What a pod received and sent. */
export interface Witnessed {
  readonly packetsIn: number
  readonly bytesIn: number
  readonly packetsOut: number
  readonly bytesOut: number
}

export class Transfers {
  readonly #network: NodeNetwork
  readonly #servers: { close(): void }[] = []
  readonly #open = new Set<Socket>()

  private constructor(network: NodeNetwork) {
    this.#network = network
  }

  static async prepare(network: NodeNetwork): Promise<Transfers> {
    const transfers = new Transfers(network)
    for (const i of [0, 1] as const) {
      for (const ip of [podIps[i], ipv6.podIps[i] as string]) await transfers.#serveTcp(i, ip)
      transfers.#serveUdp(i, podIps[i])
      const rules = [
        'add table inet witness',
        'add chain inet witness in { type filter hook input priority 0; }',
        'add chain inet witness out { type filter hook output priority 0; }',
        ...['ip', 'ip6'].flatMap((family) =>
          ['tcp', 'udp'].flatMap((protocol) => [
            `add rule inet witness in meta nfproto ${family === 'ip' ? 'ipv4' : 'ipv6'} meta l4proto ${protocol} counter comment "${family} ${protocol}"`,
            `add rule inet witness out meta nfproto ${family === 'ip' ? 'ipv4' : 'ipv6'} meta l4proto ${protocol} counter comment "${family} ${protocol}"`,
          ]),
        ),
      ]
      const { code, stderr } = await network.pod(i).exec('nft', [rules.join('\n')])
      if (code !== 0) throw new Error(stderr)
    }
    return transfers
  }

  /** What the pod has received and sent since `prepare`. */
  async witness(pod: 0 | 1, protocol: 'tcp' | 'udp', family: 'ip' | 'ip6' = 'ip'): Promise<Witnessed> {
    const { stdout } = await this.#network.pod(pod).exec('nft', ['list', 'table', 'inet', 'witness'])
    const pattern = new RegExp(`counter packets (\\d+) bytes (\\d+) comment "${family} ${protocol}"`, 'g')
    const [received, sent] = [...stdout.matchAll(pattern)].map(([, packets, bytes]) => [Number(packets), Number(bytes)])
    const [packetsIn = Number.NaN, bytesIn = Number.NaN] = received ?? []
    const [packetsOut = Number.NaN, bytesOut = Number.NaN] = sent ?? []
    return { packetsIn, bytesIn, packetsOut, bytesOut }
  }

  /** Sends bytes over a new connection and receives as many as the server is asked for. Both sides close. */
  async transfer(ip: string, port: number, sent: number, received: number): Promise<void> {
    const held = await this.hold(ip, port)
    await held.exchange(sent, received)
    await held.close()
  }

  /** Opens a connection that stays. */
  async hold(ip: string, port: number): Promise<Held> {
    const own = familyOf(ip) === 6 ? ipv6.clientIp : '192.168.0.100'
    const socket = new Socket({ fd: this.#network.client.openSocket('tcp', own, 0) })
    this.#open.add(socket)
    socket.connect({ host: ip, port })
    await once(socket, 'connect')
    return {
      async exchange(sent, received) {
        const order = Buffer.alloc(Math.max(8, sent))
        order.writeUInt32BE(order.length, 0)
        order.writeUInt32BE(received, 4)
        let got = 0
        const done = new Promise<void>((resolve, reject) => {
          socket.once('error', reject)
          socket.on('data', (chunk) => {
            got += chunk.length
            if (got >= received) resolve()
          })
        })
        socket.write(order)
        await done
        socket.removeAllListeners('data')
        if (got !== received) throw new Error(`received ${got} bytes instead of ${received}`)
      },
      async close() {
        socket.end()
        await once(socket, 'close')
      },
    }
  }

  /** Sends datagrams one after the other from one port, and waits for the answer to each. */
  async ask(ip: string, port: number, count: number, bytes: number): Promise<void> {
    const socket = createSocket('udp4')
    socket.bind({ fd: this.#network.client.openSocket('udp', '192.168.0.100', 0) })
    for (let i = 0; i < count; i++) {
      socket.send(Buffer.alloc(bytes), port, ip)
      await once(socket, 'message', { signal: AbortSignal.timeout(20_000) })
    }
    socket.close()
  }

  close(): void {
    for (const socket of this.#open) socket.destroy()
    for (const server of this.#servers) server.close()
  }

  /** Reads orders: how long they are, and how many bytes to answer. */
  async #serveTcp(pod: 0 | 1, ip: string): Promise<void> {
    const server: Server = createServer((socket) => {
      this.#open.add(socket)
      let read = Buffer.alloc(0)
      socket.on('error', () => undefined)
      socket.on('close', () => this.#open.delete(socket))
      socket.on('data', (chunk) => {
        read = Buffer.concat([read, chunk])
        if (read.length < 8 || read.length < read.readUInt32BE(0)) return
        const wanted = read.readUInt32BE(4)
        read = read.subarray(read.readUInt32BE(0))
        socket.write(Buffer.alloc(wanted))
      })
    })
    this.#servers.push(server)
    server.listen({ fd: this.#network.pod(pod).openSocket('tcp', ip, tcpPort) })
    await once(server, 'listening')
  }

  /** Answers each datagram with twice as many bytes. */
  #serveUdp(pod: 0 | 1, ip: string): void {
    const socket = createSocket('udp4')
    socket.on('message', (message, from) => socket.send(Buffer.alloc(2 * message.length), from.port, from.address))
    socket.bind({ fd: this.#network.pod(pod).openSocket('udp', ip, udpPort) })
    this.#servers.push(socket)
  }
}

export interface Held {
  exchange(sent: number, received: number): Promise<void>
  close(): Promise<void>
}
