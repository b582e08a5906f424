// Decides which UDP flows are stale, and deletes them from the kernel's table after a sync.
//
// A UDP flow never ends by itself while a client keeps sending: when its endpoint is gone, the kernel still translates to it. So a flow to
// a frontend of a service is deleted if anything but a serving endpoint of that service answers it, and the kernel balances the client's
// next packet again. Decisions:
// 1. Flows to any serving endpoint stay, also if the endpoint terminates, is on another node, or is one that a policy would not choose.
//    So a restart of the proxy, or its first run after it takes over a node, breaks nothing that works.
// 2. Flows of a service port without serving endpoints stay, as in Kubernetes 1.36 (1.37 deletes them, except for node ports).
// 3. The frontend itself answers a flow that was never translated: the flow is deleted as soon as there is an endpoint.
// 4. For node ports, only flows to this node's own addresses count. kube-proxy matches any destination with that port number, and so
//    deletes flows to other machines.
// 5. TCP and SCTP connections end by themselves: their flows are never deleted.
// 6. Where a relay of the proxy answers, its flows stay: the relay knows when an endpoint is gone. The relay must belong to the service:
//    after a restart the relay of another service may have the port.

import { type Family, isLoopback } from '../../lib/ip.ts'
import type { Logger } from '../../lib/log.ts'
import type { Clock } from '../../lib/time.ts'
import type { Endpoint, ServicePort } from '../../model/types.ts'
import { type Flow, type FlowTable, removeFlows } from './flow-table.ts'

const UDP = 17

/** The ports of serving endpoints, by address. */
type Serving = Map<string, Set<number>>

export interface StaleRule {
  /** The destination ports of all frontends: flows to other ports need not be read. */
  readonly ports: ReadonlySet<number>
  isStale(flow: Flow): boolean
}

/** True if the data plane itself answers for a service port at this address and port. */
type Answers = (id: string, ip: string, port: number) => boolean

/** What is known about one destination address and port. */
interface Destination {
  /** The ids of the service ports that are reached there. */
  readonly ids: string[]
  readonly serving: Serving
}

/** Makes the rule for one family. `nodeAddresses` are all addresses of this machine's interfaces. */
export function staleRule(
  ports: Iterable<ServicePort>,
  nodeAddresses: Iterable<string>,
  answers: Answers = () => false,
): StaleRule {
  const frontends = new Map<number, Map<string, Destination>>()
  for (const port of ports) {
    if (port.protocol !== 'udp' || port.serving.length === 0) continue
    for (const { kind, ip, port: number } of port.frontends) {
      const known = destinationAt(frontends, number, kind === 'node-port' ? anyOwn : ip)
      known.ids.push(port.id)
      for (const endpoint of port.serving) add(known.serving, endpoint)
    }
  }
  const own = new Set(nodeAddresses)
  return {
    ports: new Set(frontends.keys()),
    isStale(flow) {
      if (flow.protocol !== UDP) return false
      const byIp = frontends.get(flow.destinationPort)
      if (byIp === undefined) return false
      const { destination } = flow
      const known =
        byIp.get(destination) ?? (own.has(destination) || isLoopback(destination) ? byIp.get(anyOwn) : undefined)
      const { replySource, replySourcePort } = flow
      if (known === undefined || known.serving.get(replySource)?.has(replySourcePort) === true) return false
      return !known.ids.some((id) => answers(id, replySource, replySourcePort))
    },
  }
}

export interface CleanResult {
  readonly family: Family
  readonly deleted: number
  readonly durationMs: number
  /** Why the run ended early; `deleted` counts what was deleted by then. */
  readonly error?: unknown
}

export interface CleanerOptions<F extends Flow> {
  readonly table: FlowTable<F>
  /** The current service ports of a family, read when a run starts. */
  readonly ports: (family: Family) => Iterable<ServicePort>
  readonly nodeAddresses: (family: Family) => Iterable<string>
  /** True where the data plane itself answers for a service port: such flows are never stale. Absent if it never does. */
  readonly answers?: ((family: Family, id: string, ip: string, port: number) => boolean) | undefined
  readonly clock: Clock
  readonly log: Logger
}

/** Runs one cleanup at a time. Any number of requests during a run of the same family lead to one more run. */
export class ConntrackCleaner<F extends Flow> {
  readonly #options: CleanerOptions<F>
  readonly #abort = new AbortController()
  readonly #waiting = new Map<Family, Promise<CleanResult>>()
  #last: Promise<unknown> = Promise.resolve()

  constructor(options: CleanerOptions<F>) {
    this.#options = options
  }

  /** Called after a successful sync that changed UDP endpoints. Never rejects; the caller need not wait. */
  clean(family: Family): Promise<CleanResult> {
    const waiting = this.#waiting.get(family)
    if (waiting !== undefined) return waiting
    const next = this.#last.then(() => {
      this.#waiting.delete(family)
      return this.#deleteStale(family)
    })
    this.#waiting.set(family, next)
    this.#last = next
    return next
  }

  /** Ends the current run and all waiting runs. */
  async stop(): Promise<void> {
    this.#abort.abort()
    await this.#last
  }

  async #deleteStale(family: Family): Promise<CleanResult> {
    const { clock, log } = this.#options
    const { signal } = this.#abort
    const started = clock.monotonic()
    let deleted = 0
    const result = () => ({ family, deleted, durationMs: clock.monotonic() - started })
    try {
      signal.throwIfAborted()
      const { ports, nodeAddresses, answers } = this.#options
      const own: Answers = (id, ip, port) => answers?.(family, id, ip, port) === true
      const rule = staleRule(ports(family), nodeAddresses(family), own)
      if (rule.ports.size > 0) {
        const filter = { family, protocol: UDP, destinationPorts: rule.ports }
        const count = (removed: number) => {
          deleted += removed
        }
        await removeFlows(this.#options.table, { filter, isWrong: rule.isStale, count }, signal)
      }
      if (deleted > 0) log.v(2, 'Deleted stale UDP flows', { family, deleted })
      return result()
    } catch (error) {
      if (!signal.aborted) log.error('Cleaning up stale UDP flows failed', { family, deleted, error })
      return { ...result(), error }
    }
  }
}

/** The key of a node port among the addresses of a port; no address is empty. */
const anyOwn = ''

function destinationAt(frontends: Map<number, Map<string, Destination>>, port: number, ip: string): Destination {
  let byIp = frontends.get(port)
  if (byIp === undefined) {
    byIp = new Map()
    frontends.set(port, byIp)
  }
  let known = byIp.get(ip)
  if (known === undefined) {
    known = { ids: [], serving: new Map() }
    byIp.set(ip, known)
  }
  return known
}

function add(serving: Serving, { ip, port }: Endpoint): void {
  const ports = serving.get(ip)
  if (ports === undefined) serving.set(ip, new Set([port]))
  else ports.add(port)
}
