// The demo's small world: two nodes, pods with echo servers on both, a client outside; each a network namespace of its own.
//
//   client ──── node1 ──── node2          node1 runs the proxy
//               │            │
//        shell, saythx-redis-1, hello-1   saythx-redis-2, hello-2

import { createServer, type Server, Socket } from 'node:net'
import { inside, ip, listNamespaces, openTcp } from '../../../sys/netns.ts'
import { ensureSysctl } from '../../../sys/sysctl.ts'

export interface Pod {
  readonly name: string
  readonly namespace: string
  readonly node: 'node1' | 'node2'
  readonly ip: string
  /** 0: it serves nothing. */
  readonly port: number
  readonly app: string
}

export const nodes = {
  node1: { ip: '192.168.77.11', podCidr: '10.32.0.0/24', gateway: '10.32.0.1' },
  node2: { ip: '192.168.78.12', podCidr: '10.32.1.0/24', gateway: '10.32.1.1' },
} as const

export const clientIp = '192.168.77.100'
const nearLink = '192.168.78.11'

export const pods: readonly Pod[] = [
  { name: 'shell', namespace: 'default', node: 'node1', ip: '10.32.0.9', port: 0, app: 'shell' },
  { name: 'saythx-redis-1', namespace: 'work', node: 'node1', ip: '10.32.0.2', port: 6379, app: 'saythx-redis' },
  { name: 'saythx-redis-2', namespace: 'work', node: 'node2', ip: '10.32.1.2', port: 6379, app: 'saythx-redis' },
  { name: 'hello-1', namespace: 'default', node: 'node1', ip: '10.32.0.3', port: 8080, app: 'hello' },
  { name: 'hello-2', namespace: 'default', node: 'node2', ip: '10.32.1.3', port: 8080, app: 'hello' },
]

export class DemoNetwork {
  readonly prefix: string
  readonly #servers: Server[] = []
  readonly #open = new Set<Socket>()

  constructor(prefix: string) {
    this.prefix = prefix
  }

  space(name: string): string {
    return this.prefix + name
  }

  async build(): Promise<void> {
    const names = ['client', 'node1', 'node2', ...pods.map(({ name }) => name)]
    await ip(
      '',
      names.map((name) => `netns add ${this.space(name)}`),
    )
    // As on any node: kubelet or the distribution sets it there.
    for (const node of ['node1', 'node2']) inside(this.space(node), () => ensureSysctl('net/ipv4/ip_forward', 1))
    const link = (name: string, peer: string, space: string) =>
      `link add ${name} type veth peer name ${peer} netns ${this.space(space)}`
    const up = (...links: string[]) => ['lo', ...links].map((name) => `link set ${name} up`)
    const podLinks = (node: Pod['node']) =>
      pods
        .filter((pod) => pod.node === node)
        .flatMap((pod, i) => [
          link(`pod${i}`, 'eth0', pod.name),
          `addr add ${nodes[node].gateway}/32 dev pod${i}`,
          `link set pod${i} up`,
          `route add ${pod.ip}/32 dev pod${i}`,
        ])
    await ip(this.space('node1'), [
      link('eth0', 'eth0', 'client'),
      link('eth1', 'eth0', 'node2'),
      ...up('eth0', 'eth1'),
      `addr add ${nodes.node1.ip}/24 dev eth0`,
      `addr add ${nearLink}/24 dev eth1`,
      `route add ${nodes.node2.podCidr} via ${nodes.node2.ip}`,
      // Cluster IPs are nowhere: without any route the kernel gives up on them before a rule is asked.
      `route add default via ${clientIp}`,
      ...podLinks('node1'),
    ])
    await ip(this.space('node2'), [
      ...up('eth0'),
      `addr add ${nodes.node2.ip}/24 dev eth0`,
      `route add default via ${nearLink}`,
      ...podLinks('node2'),
    ])
    await ip(this.space('client'), [
      ...up('eth0'),
      `addr add ${clientIp}/24 dev eth0`,
      `route add default via ${nodes.node1.ip}`,
    ])
    for (const pod of pods) {
      const { gateway } = nodes[pod.node]
      await ip(this.space(pod.name), [
        ...up('eth0'),
        `addr add ${pod.ip}/32 dev eth0`,
        `route add ${gateway}/32 dev eth0`,
        `route add default via ${gateway}`,
      ])
    }
  }

  /** One echo server per pod. */
  async serve(): Promise<void> {
    for (const pod of pods) {
      if (pod.port === 0) continue
      await this.#listen(openTcp(this.space(pod.name), pod.ip, pod.port), (socket) => echo(pod, socket))
    }
  }

  /** What is connected to here, inside a namespace, comes out at a port of our own loopback. */
  async tunnel(name: string, port: number, target: number): Promise<void> {
    await this.#listen(openTcp(this.space(name), '127.0.0.1', port), (socket) => {
      const onward = new Socket()
      onward.on('error', () => socket.destroy())
      socket.on('error', () => onward.destroy())
      socket.on('close', () => onward.destroy())
      onward.connect(target, '127.0.0.1')
      socket.pipe(onward).pipe(socket)
    })
  }

  /** As `curl` from inside a namespace: the answer's text, or why there is none. */
  ask(name: string, from: string, to: { host: string; port: number }, timeoutMs = 3_000): Promise<string> {
    return new Promise((resolve) => {
      const socket = new Socket({ fd: openTcp(this.space(name), from, 0) })
      let text = ''
      const finish = (answer: string) => {
        socket.destroy()
        resolve(answer)
      }
      socket.setTimeout(timeoutMs, () => finish('no answer'))
      socket.setEncoding('utf8')
      socket.on('data', (chunk) => {
        text += chunk
      })
      socket.on('end', () => finish(text.slice(text.indexOf('\r\n\r\n') + 4).trim()))
      socket.on('error', (error: NodeJS.ErrnoException) =>
        finish(error.code === 'ECONNREFUSED' ? 'refused' : (error.code ?? error.message)),
      )
      socket.connect(to.port, to.host, () => socket.write('GET / HTTP/1.0\r\n\r\n'))
    })
  }

  async close(): Promise<void> {
    for (const socket of this.#open) socket.destroy()
    await Promise.all(this.#servers.splice(0).map((server) => new Promise((resolve) => server.close(resolve))))
    await removeNamespaces(this.prefix)
  }

  #listen(fd: number, onSocket: (socket: Socket) => void): Promise<void> {
    const server = createServer((socket) => {
      this.#open.add(socket)
      socket.on('close', () => this.#open.delete(socket))
      socket.on('error', () => socket.destroy())
      onSocket(socket)
    })
    this.#servers.push(server)
    return new Promise((resolve, reject) => {
      server.once('error', reject)
      server.listen({ fd }, resolve)
    })
  }
}

export async function removeNamespaces(prefix: string): Promise<void> {
  const own = ['client', 'node1', 'node2', ...pods.map(({ name }) => name)].map((name) => prefix + name)
  const there = listNamespaces().filter((name) => own.includes(name))
  await ip(
    '',
    there.map((name) => `netns del ${name}`),
  )
}

/** Answers HTTP, so that curl can be used; anything else is sent back, line by line. */
function echo(pod: Pod, socket: Socket): void {
  const who = `${pod.name} (${pod.ip} on ${pod.node})`
  const seen = `saw you as ${socket.remoteAddress}:${socket.remotePort}`
  socket.setEncoding('utf8')
  let text = ''
  socket.on('data', (chunk) => {
    text += chunk
    if (/^(GET|HEAD|POST) /.test(text)) {
      if (!text.includes('\r\n\r\n')) return
      const body = `${who} ${seen}\n`
      socket.end(
        `HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: ${body.length}\r\nConnection: close\r\n\r\n${body}`,
      )
      return
    }
    const lines = text.split('\n')
    text = lines.pop() as string
    for (const line of lines) socket.write(`${who}: ${line}\n`)
  })
}
