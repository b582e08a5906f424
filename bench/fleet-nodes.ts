// Starts simulated nodes in a few processes, and asks them how far they are.

import { type ChildProcess, fork } from 'node:child_process'
import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { setTimeout as wait } from 'node:timers/promises'
import type { FleetCluster } from './fleet-cluster.ts'

export interface Assignment {
  readonly kubeconfig: string
  /** One per node. */
  readonly tokens: readonly string[]
  readonly first: number
  readonly contentType: string
}

export interface NodeFigures {
  /** Nodes that have read all four kinds. */
  readonly synced: number
  /** Objects that came and went. */
  readonly delivered: number
  /** Watches that were not accepted, by HTTP status. */
  readonly failed: Readonly<Record<string, number>>
  /** Requests that were sent again because the server asked for that. */
  readonly retried: number
  /** Requests that were not watches. */
  readonly lists: number
  /** Unix ms when each watch was accepted. */
  readonly accepted: readonly number[]
}

const processes = 2
const startLimitMs = 420_000

export class SimulatedNodes {
  readonly count: number
  readonly #children: readonly ChildProcess[]
  readonly #assignments: readonly Assignment[]

  constructor(program: string, cluster: FleetCluster, options: { tokens: readonly string[]; contentType: string }) {
    const { tokens, contentType } = options
    this.count = tokens.length
    const kubeconfig = join(cluster.directory, 'fleet.kubeconfig')
    writeFileSync(kubeconfig, renderKubeconfig(cluster.server, cluster.authority, ''), { mode: 0o600 })
    const share = Math.ceil(tokens.length / processes)
    this.#assignments = Array.from({ length: processes }, (_, n) => {
      const first = n * share
      return { kubeconfig, contentType, first, tokens: tokens.slice(first, first + share) }
    })
    this.#children = this.#assignments.map(() => fork(program, { stdio: ['ignore', 'inherit', 'inherit', 'ipc'] }))
  }

  /** Resolves when all nodes have read everything. */
  async start(): Promise<void> {
    await Promise.all(this.#children.map((child, n) => ask(child, this.#assignments[n] as Assignment)))
    await this.#waitFor('all nodes to read everything', ({ synced }) => synced === this.count)
  }

  /** Begins to count again. */
  async forget(): Promise<void> {
    await Promise.all(this.#children.map((child) => ask(child, 'forget')))
  }

  /** Resolves when this many objects have come since `forget`. */
  async awaitDelivered(count: number): Promise<void> {
    await this.#waitFor(`${count} objects`, ({ delivered }) => delivered >= count)
  }

  async figures(): Promise<NodeFigures> {
    const all = await Promise.all(this.#children.map((child) => ask(child, 'figures')))
    const sum = (read: (figures: NodeFigures) => number) => all.reduce((total, one) => total + read(one), 0)
    return {
      synced: sum(({ synced }) => synced),
      delivered: sum(({ delivered }) => delivered),
      failed: addCounts(all.map(({ failed }) => failed)),
      retried: sum(({ retried }) => retried),
      lists: sum(({ lists }) => lists),
      accepted: all.flatMap(({ accepted }) => accepted).sort((a, b) => a - b),
    }
  }

  async stop(): Promise<void> {
    for (const child of this.#children) child.kill('SIGKILL')
    await wait(1_000)
  }

  async #waitFor(what: string, isDone: (figures: NodeFigures) => boolean): Promise<NodeFigures> {
    const end = performance.now() + startLimitMs
    for (;;) {
      const figures = await this.figures()
      if (isDone(figures)) return figures
      if (performance.now() > end) throw new Error(`no end within ${startLimitMs / 1000} s of waiting for ${what}`)
      await wait(100)
    }
  }
}

function addCounts(all: readonly Readonly<Record<string, number>>[]): Record<string, number> {
  const total: Record<string, number> = {}
  for (const counts of all) for (const [key, n] of Object.entries(counts)) total[key] = (total[key] ?? 0) + n
  return total
}

export function renderKubeconfig(server: string, authority: string, token: string): string {
  return JSON.stringify({
    apiVersion: 'v1',
    kind: 'Config',
    clusters: [{ name: 'b', cluster: { server, 'certificate-authority': authority } }],
    users: [{ name: 'b', user: token === '' ? {} : { token } }],
    contexts: [{ name: 'b', context: { cluster: 'b', user: 'b' } }],
    'current-context': 'b',
  })
}

function ask(child: ChildProcess, question: Assignment | 'figures' | 'forget'): Promise<NodeFigures> {
  return new Promise((resolve, reject) => {
    const onExit = (code: number | null) => reject(new Error(`a process of simulated nodes ended with ${code}`))
    child.once('exit', onExit)
    child.once('message', (answer) => {
      child.removeListener('exit', onExit)
      resolve(answer as NodeFigures)
    })
    child.send(question)
  })
}
