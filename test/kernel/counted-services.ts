// Two services whose connections are counted, in a namespace with addresses for their endpoints and clients, and clients that really connect.

import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import { expect } from 'vitest'
import type { CountedPort } from '../lab/engine.worker.ts'
import { type EnteredNamespace, enterNamespace } from '../lab/entered-namespace.ts'
import type { Manifest } from '../scenarios/format.ts'
import { type Bundle, bundleProgram } from '../support/bundle-program.ts'
import { endpointSliceOf, serviceOf } from './manifest-builders.ts'

export const port = 8080
export const nodePort = 30_080
export const node = '192.168.0.2'
/** Endpoints are 1 to 6 in this network. */
export const net = '10.180.1'
export const vips = { plain: '172.30.0.1', sticky: '172.30.0.2' } as const
export type CountedService = keyof typeof vips
export const affinity = { sessionAffinity: 'ClientIP', sessionAffinityConfig: { clientIP: { timeoutSeconds: 1 } } }

export function enterCountedNamespace(): EnteredNamespace {
  const namespace = enterNamespace()
  const addresses = [node, ...[1, 2, 3, 4, 5, 6].flatMap((i) => [`${net}.${i}`, `10.1.0.${i}`])]
  for (const ip of addresses) namespace.exec('ip', ['addr', 'add', `${ip}/32`, 'dev', 'lo'])
  namespace.exec('ip', ['link', 'add', 'out', 'type', 'veth', 'peer', 'name', 'away'])
  for (const name of ['out', 'away']) namespace.exec('ip', ['link', 'set', name, 'up'])
  namespace.exec('ip', ['route', 'add', '172.30.0.0/16', 'dev', 'out'])
  return namespace
}

/** The server behind all endpoints, and clients: processes in the namespace that was entered before. */
export class ConnectionStorm {
  readonly #program: Bundle
  readonly #children: ChildProcess[] = []

  private constructor(program: Bundle) {
    this.#program = program
  }

  static async prepare(): Promise<ConnectionStorm> {
    return new ConnectionStorm(await bundleProgram(join(import.meta.dirname, 'storm.worker.ts')))
  }

  async serve(): Promise<void> {
    await this.#start('server', String(port))
  }

  /** Opens connections one after another, all of which must succeed. */
  async connect(count: number, ip: string, source = 1, at = port): Promise<void> {
    const line = await this.#start('client', String(count), `10.1.0.${source}`, String(at), `${ip}=${net}`)
    expect(JSON.parse(line)).toMatchObject({ made: count, failed: 0, misrouted: 0 })
  }

  /** Ends the processes. */
  async stop(): Promise<void> {
    await endAll(this.#children.splice(0))
  }

  remove(): void {
    this.#program.remove()
  }

  /** Resolves with the first line that the process prints. */
  async #start(...args: readonly string[]): Promise<string> {
    const child = spawn(process.execPath, [this.#program.file, ...args], { stdio: ['ignore', 'pipe', 'inherit'] })
    this.#children.push(child)
    const [line] = await once(createInterface({ input: child.stdout as NodeJS.ReadableStream }), 'line')
    return line as string
  }
}

/** Ends those processes that still run. */
export async function endAll(children: readonly ChildProcess[]): Promise<void> {
  for (const child of children) {
    if (child.exitCode !== null || child.signalCode !== null) continue
    child.kill('SIGKILL')
    await once(child, 'exit')
  }
}

export function service(name: CountedService, spec: object = {}): Manifest {
  const ports = [{ name: 'p', port, ...(name === 'plain' ? { nodePort } : {}) }]
  return serviceOf(name, vips[name], ports, { ...(name === 'plain' ? { type: 'NodePort' } : affinity), ...spec })
}

export function endpoints(name: CountedService, hosts: readonly number[]): Manifest {
  const addresses = hosts.map((host) => `${net}.${host}`)
  return endpointSliceOf(name, addresses, port)
}

export function objects(hosts: readonly number[]): readonly Manifest[] {
  return [service('plain'), endpoints('plain', hosts), service('sticky'), endpoints('sticky', hosts)]
}

/** Lists of endpoints, one after the other: they are replaced, added and removed, all of them go, and come back. */
export const hostLists = [[4, 2, 3], [4, 5], [6], [1, 2, 3, 4, 5, 6], [2, 4, 6], [3], [1, 6, 2, 5], [1, 2, 3]] as const

export function findCounts(ports: readonly CountedPort[], name: CountedService): CountedPort {
  const found = ports.find((one) => one.port === `ns/${name}:p`)
  if (found === undefined) throw new Error(`no counters of ${name}: ${JSON.stringify(ports)}`)
  return found
}

export function sumOf({ endpoints: all }: CountedPort): number {
  return Object.values(all).reduce((sum, one) => sum + one.connections, 0)
}
