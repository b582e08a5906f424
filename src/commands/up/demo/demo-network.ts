// Builds the network of the demo: two nodes, pods with echo servers on both, and a client outside, each in its own network namespace.
//
//   client ──── node1 ──── node2          node1 runs the proxy
//               │            │
//        shell, saythx-redis-1, hello-1   saythx-redis-2, hello-2

import { createServer, type Server, Socket } from 'node:net'
import { hasErrno } from '../../../lib/errors.ts'
import { listNamespaces, openTcp, runInside, runIp } from '../../../sys/netns.ts'
import { ensureSysctl } from '../../../sys/sysctl.ts'

export interface Pod {
  readonly name: string
  readonly namespace: string
  readonly node: 'node1' | 'node2'
  readonly ip: string
  /** 0 if the pod serves nothing. */
  readonly port: number
  readonly app: string
}

export const nodes = {
  node1: { ip: '192.168.77.11', podCidr: '10.32.0.0/24', gateway: '10.32.0.1' },
  node2: { ip: '192.168.78.12', podCidr: '10.32.1.0/24', gateway: '10.32.1.1' },
} as const

export const clientIp = '192.168.77.100'
/** The address of node1 on its link to node2. */
const node1LinkIp = '192.168.78.11'

/** The address of the pod that has no server and is used as a client. */
export const shellIp = '10.32.0.9'

export const pods: readonly Pod[] = [
  { name: 'shell', namespace: 'default', node: 'node1', ip: shellIp, port: 0, app: 'shell' },
  { name: 'saythx-redis-1', namespace: 'work', node: 'node1', ip: '10.32.0.2', port: 6379, app: 'saythx-redis' },
  { name: 'saythx-redis-2', namespace: 'work', node: 'node2', ip: '10.32.1.2', port: 6379, app: 'saythx-redis' },
  { name: 'hello-1', namespace: 'default', node: 'node1', ip: '10.32.0.3', port: 8080, app: 'hello' },
  { name: 'hello-2', namespace: 'default', node: 'node2', ip: '10.32.1.3', port: 8080, app: 'hello' },
]

const namespaceNames: readonly string[] = ['client', 'node1', 'node2', ...pods.map(({ name }) => name)]

export class DemoNetwork {
  readonly prefix: string
  readonly #servers: Server[] = []
  readonly #sockets = new Set<Socket>()

  constructor(prefix: string) {
    this.prefix = prefix
  }

  /** Returns the name of the network namespace of a node, a pod or the client. */
  namespace(name: string): string {
    return this.prefix + name
  }

  async build(): Promise<void> {
    await runIp(
      '',
      namespaceNames.map((name) => `netns add ${this.namespace(name)}`),
    )
    // On a real node, the kubelet or the distribution switches forwarding on.
    for (const node of ['node1', 'node2']) runInside(this.namespace(node), () => ensureSysctl('net/ipv4/ip_forward', 1))
    await runIp(this.namespace('node1'), this.#node1Commands())
    await runIp(this.namespace('node2'), [
      ...bringUp('eth0'),
      `addr add ${nodes.node2.ip}/24 dev eth0`,
      `route add default via ${node1LinkIp}`,
      ...this.#podLinkCommands('node2'),
    ])
    await runIp(this.namespace('client'), [
      ...bringUp('eth0'),
      `addr add ${clientIp}/24 dev eth0`,
      `route add default via ${nodes.node1.ip}`,
    ])
    for (const pod of pods) await runIp(this.namespace(pod.name), podCommands(pod))
  }

  /** Starts an echo server in each pod that has a port. */
  async startServers(): Promise<void> {
    for (const pod of pods) {
      if (pod.port === 0) continue
      await this.#listen(openTcp(this.namespace(pod.name), pod.ip, pod.port), (socket) => echo(pod, socket))
    }
  }

  /** Forwards connections to an address inside a namespace to a loopback port of this process's own namespace. */
  async tunnel(name: string, at: { address: string; port: number }, target: number): Promise<void> {
    await this.#listen(openTcp(this.namespace(name), at.address, at.port), (socket) => {
      const forward = new Socket()
      forward.on('error', () => socket.destroy())
      socket.on('error', () => forward.destroy())
      socket.on('close', () => forward.destroy())
      forward.connect(target, '127.0.0.1')
      socket.pipe(forward).pipe(socket)
    })
  }

  /** Does what `curl` does inside a namespace: resolves with the body of the answer, or why there is none. */
  request(name: string, from: string, to: { host: string; port: number }, timeoutMs = 3_000): Promise<string> {
    return new Promise((resolve) => {
      const socket = new Socket({ fd: openTcp(this.namespace(name), from, 0) })
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
        finish(hasErrno(error, 'ECONNREFUSED') ? 'refused' : (error.code ?? error.message)),
      )
      socket.connect(to.port, to.host, () => socket.write('GET / HTTP/1.0\r\n\r\n'))
    })
  }

  async close(): Promise<void> {
    for (const socket of this.#sockets) socket.destroy()
    await Promise.all(this.#servers.splice(0).map((server) => new Promise((resolve) => server.close(resolve))))
    await removeNamespaces(this.prefix)
  }

  #node1Commands(): readonly string[] {
    return [
      this.#linkTo('client', 'eth0'),
      this.#linkTo('node2', 'eth1'),
      ...bringUp('eth0', 'eth1'),
      `addr add ${nodes.node1.ip}/24 dev eth0`,
      `addr add ${node1LinkIp}/24 dev eth1`,
      `route add ${nodes.node2.podCidr} via ${nodes.node2.ip}`,
      // No interface has the cluster IPs: without a route the kernel refuses packets to them before any rule is evaluated.
      `route add default via ${clientIp}`,
      ...this.#podLinkCommands('node1'),
    ]
  }

  #podLinkCommands(node: Pod['node']): readonly string[] {
    return pods
      .filter((pod) => pod.node === node)
      .flatMap((pod, i) => [
        this.#linkTo(pod.name, `pod${i}`),
        `addr add ${nodes[node].gateway}/32 dev pod${i}`,
        `link set pod${i} up`,
        `route add ${pod.ip}/32 dev pod${i}`,
      ])
  }

  /** The other end of the link is eth0 of the peer. */
  #linkTo(peer: string, device: string): string {
    return `link add ${device} type veth peer name eth0 netns ${this.namespace(peer)}`
  }

  #listen(fd: number, onSocket: (socket: Socket) => void): Promise<void> {
    const server = createServer((socket) => {
      this.#sockets.add(socket)
      socket.on('close', () => this.#sockets.delete(socket))
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
  const own = namespaceNames.map((name) => prefix + name)
  const present = listNamespaces().filter((name) => own.includes(name))
  await runIp(
    '',
    present.map((name) => `netns del ${name}`),
  )
}

const bringUp = (...devices: readonly string[]): readonly string[] =>
  ['lo', ...devices].map((device) => `link set ${device} up`)

function podCommands(pod: Pod): readonly string[] {
  const { gateway } = nodes[pod.node]
  return [
    ...bringUp('eth0'),
    `addr add ${pod.ip}/32 dev eth0`,
    `route add ${gateway}/32 dev eth0`,
    `route add default via ${gateway}`,
  ]
}

/** Answers HTTP, so that curl works; sends anything else back line by line. */
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
