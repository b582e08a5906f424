// The flows of relays to which rules redirect clients. A socket does not know which address the client asked for, so connection tracking is asked.

import { protocolNumbers } from '../../../sys/ip-numbers.ts'
import { ConntrackTable } from '../../../sys/netlink/conntrack.ts'
import { isRefusedWith } from '../../../sys/netlink/netlink-errors.ts'
import type { FlowReports } from '../../relay/flow-reports.ts'
import type { FlowPlace, RelayedAddresses, RelayedFlows } from '../../relayed-flows.ts'

/** Found places are kept for the end of a flow: by then the kernel may have forgotten it. */
const maxKept = 10_000

const remarks = [
  'Packets that legacy iptables rejects or drops are not shown; iptables on nf_tables shows them.',
] as const

export function makeRedirectedFlows(reports: FlowReports): RelayedFlows {
  const places = new OriginalPlaces()
  return {
    remarks,
    list: () => reports.list(),
    follow(listener) {
      const stop = reports.follow(listener)
      return () => {
        stop()
        places.forget()
      }
    },
    findPlaces: (flows) => places.find(flows),
  }
}

class OriginalPlaces {
  readonly #kept = new Map<number, FlowPlace>()

  async find(flows: readonly RelayedAddresses[]): Promise<readonly (FlowPlace | undefined)[]> {
    const table = new ConntrackTable()
    try {
      const found: (FlowPlace | undefined)[] = []
      for (const flow of flows) found.push(this.#kept.get(flow.id) ?? (await this.#ask(table, flow)))
      return found
    } finally {
      table.close()
    }
  }

  forget(): void {
    this.#kept.clear()
  }

  async #ask(table: ConntrackTable, flow: RelayedAddresses): Promise<FlowPlace | undefined> {
    const { family, protocol, local, localPort, client, clientPort } = flow
    try {
      const tracked = await table.findByReply({
        ...{ family, protocol: protocolNumbers[protocol] },
        ...{ source: local, sourcePort: localPort, destination: client, destinationPort: clientPort },
      })
      if (tracked === undefined) return undefined
      const place = { ip: tracked.destination, port: tracked.destinationPort }
      if (this.#kept.size >= maxKept) this.#kept.clear()
      this.#kept.set(flow.id, place)
      return place
    } catch (error) {
      if (isRefusedWith(error, 'EPERM')) return undefined
      throw error
    }
  }
}
