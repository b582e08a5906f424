// Ends the connections to endpoints that are gone: finds them in the kernel's table, has their packets answered, ends the sockets of clients
// on the node itself, and removes the entries.
//
// Only connections that were made by a frontend of the service count: the same pod may serve other services, and clients that dial the pod
// itself. The looks are bounded: one for each endpoint if few went, one for all otherwise, and each follows a change of endpoints.

import type { ResetProtocol } from '../../backend/resets/reset-rules.ts'
import { type Family, isLoopback } from '../../lib/ip.ts'
import type { ServicePort } from '../../model/types.ts'
import type { Flow, FlowTable } from '../flows/flow-table.ts'
import type { GoneEndpoint } from './gone-endpoints.ts'

const numbers = { tcp: 6, udp: 17 } as const

/** A flow with the addresses of its client. */
export interface ClientFlow extends Flow {
  readonly source: string
  readonly sourcePort: number
}

export interface ConnectionResetsOptions<F extends ClientFlow> {
  readonly table: FlowTable<F>
  /** Has the packets of these connections answered by a reset or an error. */
  readonly answer: (family: Family, protocol: ResetProtocol, flows: readonly F[]) => Promise<void>
  /** Ends the sockets of these connections, whose clients are programs in the network namespace of the node. */
  readonly endSockets: (family: Family, flows: readonly F[], signal: AbortSignal) => Promise<void>
  readonly portsOf: (service: string, family: Family) => readonly ServicePort[]
  readonly nodeAddresses: (family: Family) => Iterable<string>
  readonly onEnded: (protocol: ResetProtocol, ended: number) => void
}

/** From this number of addresses on, one look at all flows is cheaper than one for each address. */
const manyAddresses = 8

export class ConnectionResets<F extends ClientFlow> {
  readonly #options: ConnectionResetsOptions<F>
  #last: Promise<unknown> = Promise.resolve()

  constructor(options: ConnectionResetsOptions<F>) {
    this.#options = options
  }

  /** Ends all connections to these endpoints. One call at a time looks at the table. */
  end(gone: readonly GoneEndpoint[], signal: AbortSignal): Promise<void> {
    const next = this.#last.then(async () => {
      for (const family of [4, 6] as const) {
        for (const protocol of ['tcp', 'udp'] as const) {
          const own = gone.filter((one) => one.family === family && one.protocol === protocol)
          if (own.length > 0) await this.#endSome(family, protocol, own, signal)
        }
      }
    })
    this.#last = next.catch(() => undefined)
    return next
  }

  async #endSome(
    family: Family,
    protocol: ResetProtocol,
    gone: readonly GoneEndpoint[],
    signal: AbortSignal,
  ): Promise<void> {
    const { table, answer, endSockets, onEnded } = this.#options
    const isGone = this.#matchGone(family, protocol, gone)
    const found: F[] = []
    const visit = (flows: readonly F[]) => {
      for (const flow of flows) if (isGone(flow)) found.push(flow)
    }
    const ips = new Set(gone.map(({ ip }) => ip))
    const filter = { family, protocol: numbers[protocol] }
    if (ips.size >= manyAddresses || family === 6) await table.list(filter, visit, { signal })
    else for (const replySource of ips) await table.list({ ...filter, replySource }, visit, { signal })
    if (found.length === 0) return
    await answer(family, protocol, found)
    // The entries still exist then: what the kernel sends for a socket that it ends is translated as ever.
    const local = protocol === 'tcp' ? this.#findLocal(family, found) : []
    if (local.length > 0) await endSockets(family, local, signal)
    await table.remove(found, { signal })
    onEnded(protocol, found.length)
  }

  #findLocal(family: Family, flows: readonly F[]): readonly F[] {
    const own = new Set(this.#options.nodeAddresses(family))
    return flows.filter(({ source }) => own.has(source) || isLoopback(source))
  }

  #matchGone(family: Family, protocol: ResetProtocol, gone: readonly GoneEndpoint[]): (flow: F) => boolean {
    const { portsOf, nodeAddresses } = this.#options
    const own = new Set(nodeAddresses(family))
    const services = new Map<string, ReadonlySet<string>>()
    const byEndpoint = new Map<string, Set<ReadonlySet<string>>>()
    for (const { service, ip, port } of gone) {
      let frontends = services.get(service)
      if (frontends === undefined) {
        frontends = listFrontends(portsOf(service, family), protocol)
        services.set(service, frontends)
      }
      const key = `${ip} ${port}`
      byEndpoint.set(key, (byEndpoint.get(key) ?? new Set()).add(frontends))
    }
    return ({ replySource, replySourcePort, destination, destinationPort }) => {
      const owners = byEndpoint.get(`${replySource} ${replySourcePort}`)
      if (owners === undefined) return false
      const isOwn = own.has(destination) || isLoopback(destination)
      for (const frontends of owners) {
        if (frontends.has(`${destination} ${destinationPort}`)) return true
        if (isOwn && frontends.has(`${anyOwn} ${destinationPort}`)) return true
      }
      return false
    }
  }
}

/** Stands for the address of a node port; no address is empty. */
const anyOwn = ''

function listFrontends(ports: readonly ServicePort[], protocol: ResetProtocol): ReadonlySet<string> {
  const found = new Set<string>()
  for (const port of ports) {
    if (port.protocol !== protocol) continue
    for (const { kind, ip, port: number } of port.frontends) {
      found.add(`${kind === 'node-port' ? anyOwn : ip} ${number}`)
    }
  }
  return found
}
