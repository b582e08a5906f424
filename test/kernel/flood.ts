// Very many short connections to a service on a NodeNetwork, from and to processes of their own (storm.worker.ts).

import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import type { Manifest } from '../scenarios/format.ts'
import { type Bundle, bundleProgram } from '../support/bundle-program.ts'
import { type NodeNetwork, podIps } from './node-network.ts'
import { expand } from './web-service.ts'

export const floodedIp = '172.30.0.50'
const port = 8081
/** An address of the pod network, so that no rule rewrites it. */
export const flooderIp = '10.1.0.1'

/** What a client reports at its end. */
export interface FloodFigures {
  readonly made: number
  readonly failed: number
  readonly first?: string
  /** The median duration of a connection until its answer, in µs. */
  readonly p50: number
  readonly p99: number
  readonly perSecond: number
}

/** The service `ns1/flooded`, whose only endpoint is the first pod. */
export const floodedService = (): readonly Manifest[] => [
  expand({ service: 'ns1/flooded', clusterIP: floodedIp, ports: [`main ${port}/tcp`] }, 990),
  expand({ slice: 'ns1/flooded', ports: [`main ${port}/tcp`], endpoints: [`${podIps[0]} local`] }, 991),
]

export class Flood {
  readonly #network: NodeNetwork
  readonly #bundle: Bundle
  readonly #children: ChildProcess[] = []

  private constructor(network: NodeNetwork, bundle: Bundle) {
    this.#network = network
    this.#bundle = bundle
  }

  /** Starts the server in the first pod. */
  static async prepare(network: NodeNetwork): Promise<Flood> {
    const flood = new Flood(network, await bundleProgram(join(import.meta.dirname, 'storm.worker.ts')))
    network.client.configure([`addr add ${flooderIp}/32 dev eth0`])
    network.node.configure([`route add ${flooderIp}/32 dev world`])
    await flood.#start(network.pod(0).name, 'server', String(port))
    return flood
  }

  /** Opens connections one after the other, at most `rate` per second; 0 is as many as possible. */
  async run(count: number, rate = 0): Promise<FloodFigures> {
    const to = [String(port), `${floodedIp}=${podIps[0]}`]
    const line = await this.#start(this.#network.client.name, 'client', `${count}@${rate}`, flooderIp, ...to)
    return JSON.parse(line) as FloodFigures
  }

  close(): void {
    for (const child of this.#children) child.kill('SIGKILL')
    this.#bundle.remove()
  }

  /** Resolves with the first line that the process prints. */
  async #start(namespace: string, ...args: readonly string[]): Promise<string> {
    const command = ['netns', 'exec', namespace, process.execPath, this.#bundle.file, ...args]
    const child = spawn('ip', command, { stdio: ['ignore', 'pipe', 'inherit'] })
    this.#children.push(child)
    const ended = once(child, 'exit').then(([code]) => Promise.reject(new Error(`${args[0]} ended with code ${code}`)))
    const [line] = await Promise.race([once(createInterface({ input: child.stdout }), 'line'), ended])
    ended.catch(() => {})
    return line as string
  }
}
