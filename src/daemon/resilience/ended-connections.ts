// Ends the connections to endpoints that are gone, for services that want it: what finds such endpoints, and what the kernel is told.

import type { ResetProtocol } from '../../backend/resets/reset-rules.ts'
import { ResetTable } from '../../backend/resets/reset-table.ts'
import type { FlowTable } from '../../engine/flows/flow-table.ts'
import type { Resolve } from '../../engine/planner.ts'
import { ConnectionResets } from '../../engine/resets/connection-resets.ts'
import { type GoneEndpoint, GoneEndpoints } from '../../engine/resets/gone-endpoints.ts'
import type { Metrics } from '../../http/metrics.ts'
import { describeError } from '../../lib/errors.ts'
import type { Family } from '../../lib/ip.ts'
import type { Logger } from '../../lib/log.ts'
import type { Clock } from '../../lib/time.ts'
import type { ServicePort, ServiceRecord } from '../../model/types.ts'
import { SocketEnder } from '../../sys/end-sockets.ts'
import { ConntrackTable } from '../../sys/netlink/conntrack.ts'
import type { TrackedFlow } from '../../sys/netlink/conntrack-codec.ts'

export interface EndedConnectionsOptions {
  /** After how many ms connections of a service are ended; 0 for never. */
  readonly graceMs: (service: ServiceRecord) => number
  readonly hasService: (service: string) => boolean
  readonly portsOf: (service: string, family: Family) => readonly ServicePort[]
  readonly nodeAddresses: (family: Family) => Iterable<string>
  readonly metrics: Pick<Metrics, 'resetConnections'>
  readonly clock: Clock
  readonly log: Logger
}

export class EndedConnections {
  readonly #options: EndedConnectionsOptions
  readonly #abort = new AbortController()
  readonly #table = new ConntrackTable()
  readonly #resetTable: ResetTable
  readonly #sockets = new SocketEnder()
  readonly #gone: GoneEndpoints
  readonly #resets: ConnectionResets<TrackedFlow>

  constructor(options: EndedConnectionsOptions) {
    this.#options = options
    const { graceMs, hasService, portsOf, nodeAddresses, metrics, clock } = options
    this.#resetTable = new ResetTable(clock)
    this.#gone = new GoneEndpoints({ graceMs, hasService, clock, onGone: (gone) => this.#end(gone) })
    this.#resets = new ConnectionResets({
      table: this.#table,
      answer: (family, protocol, flows) => this.#answer(family, protocol, flows),
      endSockets: (family, flows, signal) => this.#endSockets(family, flows, signal),
      portsOf,
      nodeAddresses,
      onEnded: metrics.resetConnections,
    })
  }

  /** Wraps the policy of the model, which stays as it is. */
  wrap(resolve: Resolve): Resolve {
    return this.#gone.wrap(resolve)
  }

  /**
   * Returns a table that reports an error to the clients of UDP flows before it removes the flows, if their endpoint has left its service:
   * stale UDP flows are removed at once, without a grace.
   */
  announce(table: FlowTable<TrackedFlow>): FlowTable<TrackedFlow> {
    return {
      list: (...of) => table.list(...of),
      remove: async (flows, wait) => {
        await this.#announceUdp(flows).catch((error: unknown) => this.#report(error))
        return table.remove(flows, wait)
      },
    }
  }

  close(): void {
    this.#abort.abort()
    this.#gone.close()
    this.#resetTable.close()
    this.#sockets.close()
    this.#table.close()
  }

  async #announceUdp(flows: readonly TrackedFlow[]): Promise<void> {
    const leaving = new Set<string>()
    for (const { family, protocol, ip, port } of this.#gone.listLeaving()) {
      if (protocol === 'udp') leaving.add(`${family} ${ip} ${port}`)
    }
    if (leaving.size === 0) return
    for (const family of [4, 6] as const) {
      const own = flows.filter(
        (flow) => flow.family === family && leaving.has(`${family} ${flow.replySource} ${flow.replySourcePort}`),
      )
      if (own.length === 0) continue
      await this.#answer(family, 'udp', own)
      this.#options.metrics.resetConnections('udp', own.length)
    }
  }

  #end(gone: readonly GoneEndpoint[]): void {
    this.#resets.end(gone, this.#abort.signal).catch((error: unknown) => this.#report(error))
  }

  async #answer(family: Family, protocol: ResetProtocol, flows: readonly TrackedFlow[]): Promise<void> {
    await this.#resetTable.add(family, protocol, flows)
    this.#options.log.info('Ending connections to endpoints that are gone', { family, protocol, count: flows.length })
  }

  /** The connections are named in the table already: if a socket cannot be ended, its next packet is answered. */
  async #endSockets(family: Family, flows: readonly TrackedFlow[], signal: AbortSignal): Promise<void> {
    const { log } = this.#options
    const wasSupported = this.#sockets.isSupported
    try {
      const ended = await this.#sockets.end(family, flows, { signal })
      if (ended > 0) log.v(2, 'Ended sockets of this node', { family, count: ended })
    } catch (error) {
      this.#report(error)
    }
    if (wasSupported && !this.#sockets.isSupported) {
      log.v(2, 'The kernel ends no sockets: clients on this node find out when they send')
    }
  }

  #report(error: unknown): void {
    if (this.#abort.signal.aborted) return
    this.#options.log.error('Connections to endpoints that are gone cannot be ended', { error: describeError(error) })
  }
}
