// A node with a proxy and a client, and two other nodes with three pods each behind a switch. Every pod is a process in a namespace of its
// own, so that links, processes and whole nodes can really fail.

import { type ChildProcess, spawn, spawnSync } from 'node:child_process'
import { once } from 'node:events'
import { Socket } from 'node:net'
import { join } from 'node:path'
import { Namespace, runIp } from '../lab/namespace.ts'
import { applySysctls } from '../lab/sysctls.ts'
import { nodeName } from '../scenarios/expand.ts'
import type { Manifest } from '../scenarios/format.ts'
import { type Bundle, bundleProgram } from '../support/bundle-program.ts'
import { expand } from './web-service.ts'

export const clusterIp = '172.30.0.41'
export const nodeIp = '192.168.0.2'
const clientIp = '192.168.0.100'
const port = 8080
export const remoteNames = ['node-b', 'node-c'] as const
const podsEach = 3

/** The addresses of the pods of a remote node. */
export const podIpsOf = (remote: 0 | 1): readonly string[] =>
  Array.from({ length: podsEach }, (_, i) => `10.18${2 + remote}.0.${i + 1}`)

export const allPods = [...podIpsOf(0), ...podIpsOf(1)]

const remoteIp = (remote: number): string => `192.168.70.${10 + remote}`

let networks = 0

interface Pod {
  readonly ip: string
  readonly space: Namespace
  process: ChildProcess | undefined
}

export class RemoteNodes {
  readonly node: Namespace
  readonly client: Namespace
  readonly #switch: Namespace
  readonly #remotes: readonly Namespace[]
  readonly #pods: readonly Pod[]
  readonly #spaces: readonly Namespace[]
  readonly #open = new Set<Socket>()
  #program: Bundle | undefined

  private constructor() {
    const prefix = `far-${process.pid}-${networks++}-`
    const names = ['node', 'client', 'switch', ...remoteNames, ...allPods.map((_, i) => `pod${i}`)]
    runIp(
      [],
      names.map((name) => `netns add ${prefix}${name}`),
    )
    this.#spaces = names.map((name) => new Namespace(prefix + name))
    for (const space of this.#spaces) applySysctls(space)
    this.node = this.#spaces[0] as Namespace
    this.client = this.#spaces[1] as Namespace
    this.#switch = this.#spaces[2] as Namespace
    this.#remotes = this.#spaces.slice(3, 5)
    this.#pods = allPods.map((ip, i) => ({ ip, space: this.#spaces[5 + i] as Namespace, process: undefined }))
  }

  static async create(): Promise<RemoteNodes> {
    const network = new RemoteNodes()
    network.#connect()
    network.#program = await bundleProgram(join(import.meta.dirname, 'echo.worker.ts'))
    await Promise.all(allPods.map((ip) => network.startProcess(ip)))
    return network
  }

  /** Service `ns1/web` of all pods with the annotations, as the API server would send it. */
  static objects(annotations: Readonly<Record<string, string>>): readonly Manifest[] {
    const service = expand({ service: 'ns1/web', clusterIP: clusterIp, ports: ['http 80/tcp'], annotations }, 0)
    const slice = expand({ slice: 'ns1/web', ports: [`http ${port}/tcp`], endpoints: [] }, 1)
    const conditions = { ready: true, serving: true, terminating: false }
    const endpoints = ([0, 1] as const).flatMap((remote) =>
      podIpsOf(remote).map((ip) => ({ addresses: [ip], nodeName: remoteNames[remote], conditions })),
    )
    return [service, { ...slice, endpoints } as unknown as Manifest]
  }

  /** Cuts a remote node off at the switch, or connects it again: both nodes keep their carriers, as with a real switch. */
  async cutNode(remote: 0 | 1, how: 'down' | 'up'): Promise<void> {
    await this.#switch.exec('ip', ['link', 'set', `${remoteNames[remote]}`, how])
  }

  /** Runs a shell command in the namespace of a pod. */
  async runInPod(ip: string, command: string): Promise<void> {
    await this.#pod(ip).space.exec('sh', ['-c', command])
  }

  async setLink(ip: string, how: 'down' | 'up'): Promise<void> {
    await this.runInPod(ip, `ip link set eth0 ${how}`)
    if (how === 'up') await this.runInPod(ip, 'ip route replace default via 10.255.0.1 dev eth0 onlink')
  }

  async startProcess(ip: string): Promise<void> {
    const { space } = this.#pod(ip)
    const args = ['netns', 'exec', space.name, process.execPath, this.#program?.file ?? '', ip, String(port)]
    const child = spawn('ip', args, { stdio: ['ignore', 'pipe', 'inherit'] })
    this.#pod(ip).process = child
    await once(child.stdout, 'data')
  }

  /** SIGSTOP leaves a process whose kernel accepts connections and that never answers. */
  signal(ip: string, signal: NodeJS.Signals): void {
    this.#pod(ip).process?.kill(signal)
  }

  /** Opens a connection from the client to the service, and sends a request. Returns the address of the pod, or the error. */
  ask(limitMs: number): Promise<string> {
    const socket = new Socket({ fd: this.client.openSocket('tcp', '0.0.0.0', 0) })
    this.#open.add(socket)
    return new Promise((resolve) => {
      const finish = (answer: string) => {
        clearTimeout(timer)
        this.#open.delete(socket)
        socket.destroy()
        resolve(answer)
      }
      const timer = setTimeout(() => finish('timeout'), limitMs)
      socket.on('error', (error: NodeJS.ErrnoException) => finish(error.code ?? 'error'))
      socket.once('data', (text) => finish(String(text).split('\r\n').at(-1) ?? ''))
      socket.connect({ host: clusterIp, port: 80 }, () => socket.write('GET / HTTP/1.1\r\nHost: web\r\n\r\n'))
    })
  }

  close(): void {
    for (const socket of this.#open) socket.destroy()
    for (const { process: child } of this.#pods) child?.kill('SIGKILL')
    for (const space of this.#spaces) space.close()
    const input = this.#spaces.map(({ name }) => `netns del ${name}\n`).join('')
    spawnSync('ip', ['-force', '-batch', '-'], { input })
    this.#program?.remove()
  }

  #pod(ip: string): Pod {
    const found = this.#pods.find((pod) => pod.ip === ip)
    if (found === undefined) throw new Error(`there is no pod ${ip}`)
    return found
  }

  #connect(): void {
    this.#switch.configure(['link add name bridge type bridge', 'link set bridge up'])
    this.node.configure([
      'link set lo up',
      `link add world type veth peer name eth0 netns ${this.client.name}`,
      'link set world up',
      `addr add ${nodeIp}/24 dev world`,
      ...this.#plugIn(nodeName, '192.168.70.2'),
      ...remoteNames.map((_, remote) => `route add 10.18${2 + remote}.0.0/24 via ${remoteIp(remote)}`),
    ])
    this.client.configure([
      'link set lo up',
      'link set eth0 up',
      `addr add ${clientIp}/24 dev eth0`,
      `route add default via ${nodeIp}`,
    ])
    for (const [remote, name] of remoteNames.entries()) {
      const space = this.#remotes[remote] as Namespace
      space.configure(['link set lo up', ...this.#plugIn(name, remoteIp(remote)), 'route add default via 192.168.70.2'])
      for (const [i, ip] of podIpsOf(remote as 0 | 1).entries()) this.#addPod(space, i, ip)
    }
    const ports = [nodeName, ...remoteNames]
    this.#switch.configure(ports.flatMap((name) => [`link set ${name} master bridge`, `link set ${name} up`]))
  }

  #plugIn(name: string, ip: string): readonly string[] {
    return [
      `link add net type veth peer name ${name} netns ${this.#switch.name}`,
      'link set net up',
      `addr add ${ip}/24 dev net`,
    ]
  }

  #addPod(remote: Namespace, i: number, ip: string): void {
    const { space } = this.#pod(ip)
    remote.configure([
      `link add pod${i} type veth peer name eth0 netns ${space.name}`,
      `link set pod${i} up`,
      `addr add 10.255.0.1/32 dev pod${i}`,
      `route add ${ip}/32 dev pod${i}`,
    ])
    space.configure([
      'link set lo up',
      'link set eth0 up',
      `addr add ${ip}/32 dev eth0`,
      'route add default via 10.255.0.1 dev eth0 onlink',
    ])
  }
}
