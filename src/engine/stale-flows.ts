// Which UDP flows are stale (pure), and the runner that has them deleted after a sync.
//
// A UDP flow never ends by itself while a client keeps sending: after its endpoint is gone, the kernel goes on translating to it. So
// flows to a service's frontend that are answered from anywhere but a serving endpoint of that service are deleted, and the client's next
// packet is balanced anew. Decisions:
// 1. Flows to any serving endpoint stay: also terminating ones, other nodes', and those a policy would not choose. So a restart of the
//    proxy, or its first run after taking over a node, breaks nothing that works.
// 2. A service port without serving endpoints is left alone, as in Kubernetes 1.36 (1.37 deletes its flows, except by node port).
// 3. A flow that was never translated is answered by the frontend itself: it goes as soon as there is an endpoint.
// 4. Node ports: only flows to this node's own addresses. kube-proxy takes any destination with that port number, and so deletes
//    flows to other machines.
// 5. TCP and SCTP end by themselves: never touched.
// 6. In userspace mode it is our own socket that answers, and it knows better when an endpoint is gone: such flows stay. The socket must be
//    that of the service: after a restart another service's may have the port.

import { type Family, isLoopback } from '../lib/ip.ts'
import type { Logger } from '../lib/log.ts'
import type { Clock } from '../lib/time.ts'
import type { Endpoint, ServicePort } from '../model/types.ts'

const UDP = 17

/** What the decision reads of a flow: where the client sent it, and who answers. */
export interface UdpFlow {
  readonly protocol: number
  readonly destination: string
  readonly destinationPort: number
  readonly replySource: string
  readonly replySourcePort: number
}

/** Who serves: ports by address. */
type Serving = Map<string, Set<number>>

interface StaleRule {
  /** Destination ports of all frontends: flows to others need not even be read. */
  readonly ports: ReadonlySet<number>
  stale(flow: UdpFlow): boolean
}

/** Does the data plane itself answer for a service port there? */
type Answers = (id: string, ip: string, port: number) => boolean

interface Place {
  /** Of the service ports that are reached there. */
  readonly ids: string[]
  readonly serving: Serving
}

/** For one family; `nodeAddresses` are all those of this machine's interfaces. */
function staleRule(
  ports: Iterable<ServicePort>,
  nodeAddresses: Iterable<string>,
  answers: Answers = () => false,
): StaleRule {
  const frontends = new Map<number, Map<string, Place>>()
  for (const port of ports) {
    if (port.protocol !== 'udp' || port.serving.length === 0) continue
    for (const { kind, ip, port: number } of port.frontends) {
      const place = placeOf(frontends, number, kind === 'node-port' ? anyOwn : ip)
      place.ids.push(port.id)
      for (const endpoint of port.serving) add(place.serving, endpoint)
    }
  }
  const own = new Set(nodeAddresses)
  return {
    ports: new Set(frontends.keys()),
    stale(flow) {
      if (flow.protocol !== UDP) return false
      const byIp = frontends.get(flow.destinationPort)
      if (byIp === undefined) return false
      const { destination } = flow
      const place =
        byIp.get(destination) ?? (own.has(destination) || isLoopback(destination) ? byIp.get(anyOwn) : undefined)
      const { replySource, replySourcePort } = flow
      if (place === undefined || place.serving.get(replySource)?.has(replySourcePort) === true) return false
      return !place.ids.some((id) => answers(id, replySource, replySourcePort))
    },
  }
}

export function staleFlows<F extends UdpFlow>(
  flows: Iterable<F>,
  ports: Iterable<ServicePort>,
  nodeAddresses: Iterable<string>,
): F[] {
  const rule = staleRule(ports, nodeAddresses)
  const stale: F[] = []
  for (const flow of flows) if (rule.stale(flow)) stale.push(flow)
  return stale
}

/** The kernel's table, as `sys` offers it. */
export interface FlowTable<F extends UdpFlow> {
  list(
    filter: { readonly family: Family; readonly protocol: number; readonly destinationPorts: ReadonlySet<number> },
    visit: (flows: readonly F[]) => void,
    wait: { readonly signal: AbortSignal },
  ): Promise<{ readonly interrupted: boolean }>
  remove(flows: readonly F[], wait: { readonly signal: AbortSignal }): Promise<number>
}

export interface CleanResult {
  readonly family: Family
  readonly deleted: number
  readonly durationMs: number
  /** Why it gave up; what was deleted by then is counted. */
  readonly error?: unknown
}

export interface CleanerOptions<F extends UdpFlow> {
  readonly table: FlowTable<F>
  /** Live service ports of a family, read when a run starts. */
  readonly ports: (family: Family) => Iterable<ServicePort>
  readonly nodeAddresses: (family: Family) => Iterable<string>
  /** Where the data plane answers by itself for a service port, if it does: such flows are never stale. */
  readonly answers?: ((family: Family, id: string, ip: string, port: number) => boolean) | undefined
  readonly clock: Clock
  readonly log: Logger
}

/** As often as kube-proxy tries when the kernel's table changes during the listing. */
const attempts = 5
/** Memory for stale flows of one pass, some 15 MB; if there are more, another pass follows. */
const maxStale = 100_000
/** A failure loses the count of one such part; many at once let the kernel match instead of being told each. */
const removedAtOnce = 10_000

/** One run at a time. A request during a run of the same family leads to one more run, however many requests there are. */
export class ConntrackCleaner<F extends UdpFlow> {
  readonly #options: CleanerOptions<F>
  readonly #abort = new AbortController()
  readonly #waiting = new Map<Family, Promise<CleanResult>>()
  #last: Promise<unknown> = Promise.resolve()

  constructor(options: CleanerOptions<F>) {
    this.#options = options
  }

  /** To be called after a successful sync that changed UDP endpoints. Never rejects, never makes the caller wait. */
  clean(family: Family): Promise<CleanResult> {
    const waiting = this.#waiting.get(family)
    if (waiting !== undefined) return waiting
    const next = this.#last.then(() => {
      this.#waiting.delete(family)
      return this.#run(family)
    })
    this.#waiting.set(family, next)
    this.#last = next
    return next
  }

  /** Ends the run there is, and all that wait. */
  async stop(): Promise<void> {
    this.#abort.abort()
    await this.#last
  }

  async #run(family: Family): Promise<CleanResult> {
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
      for (let more = rule.ports.size > 0; more; ) {
        const found = await this.#collect(family, rule)
        const before = deleted
        for (let at = 0; at < found.length; at += removedAtOnce) {
          deleted += await this.#options.table.remove(found.slice(at, at + removedAtOnce), { signal })
        }
        more = found.length === maxStale && deleted > before
      }
      if (deleted > 0) log.v(2, 'Deleted stale UDP flows', { family, deleted })
      return result()
    } catch (error) {
      if (!signal.aborted) log.error('Cleaning up stale UDP flows failed', { family, deleted, error })
      return { ...result(), error }
    }
  }

  /** What is found in a table that keeps changing is still stale: the last attempt counts, complete or not. */
  async #collect(family: Family, rule: StaleRule): Promise<readonly F[]> {
    const filter = { family, protocol: UDP, destinationPorts: rule.ports }
    for (let attempt = 1; ; attempt++) {
      const stale: F[] = []
      const visit = (flows: readonly F[]) => {
        for (const flow of flows) if (stale.length < maxStale && rule.stale(flow)) stale.push(flow)
      }
      const { interrupted } = await this.#options.table.list(filter, visit, { signal: this.#abort.signal })
      if (!interrupted || attempt === attempts) return stale
    }
  }
}

/** Key of the node-port frontend among the addresses of a port; no address looks like that. */
const anyOwn = ''

function placeOf(frontends: Map<number, Map<string, Place>>, port: number, ip: string): Place {
  let byIp = frontends.get(port)
  if (byIp === undefined) {
    byIp = new Map()
    frontends.set(port, byIp)
  }
  let place = byIp.get(ip)
  if (place === undefined) {
    place = { ids: [], serving: new Map() }
    byIp.set(ip, place)
  }
  return place
}

function add(serving: Serving, { ip, port }: Endpoint): void {
  const ports = serving.get(ip)
  if (ports === undefined) serving.set(ip, new Set([port]))
  else ports.add(port)
}
