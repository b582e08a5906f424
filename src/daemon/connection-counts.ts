// Counts the connections that the kernel tracks: all of them, and those to services by the endpoint that answers.

import { readFileSync } from 'node:fs'
import type { Connections } from '../http/admin.ts'
import type { Desired } from '../inspect/dry-run.ts'
import { type Family, hostPort } from '../lib/ip.ts'
import { ConntrackTable } from '../sys/netlink/conntrack.ts'
import type { TrackedFlow } from '../sys/netlink/conntrack-codec.ts'
import { isRefusedWith } from '../sys/netlink/netlink-errors.ts'
import { platform } from '../sys/platform/platform.ts'

/** Returns undefined on a kernel that does not track connections. */
export function readTrackedConnections(): { tracked: number; limit: number } | undefined {
  if (!platform.tracksConnections) return undefined
  try {
    const read = (name: string) => Number(readFileSync(`/proc/sys/net/netfilter/${name}`, 'utf8'))
    return { tracked: read('nf_conntrack_count'), limit: read('nf_conntrack_max') }
  } catch {
    return undefined
  }
}

const protocols = { tcp: 6, udp: 17 } as const
type Protocol = keyof typeof protocols

/** Counts flows to the addresses of services. Without the right to list connections, a proxy has none in the kernel either. */
export async function countConnections(
  desired: Pick<Desired, 'ports'>,
  families: readonly Family[],
): Promise<readonly Connections[]> {
  if (!platform.tracksConnections) return []
  const counts = new Map<string, Connections & { count: number }>()
  const table = new ConntrackTable()
  try {
    for (const family of families) {
      await countFlows(table, new FrontendIndex(desired, family, 'tcp'), counts)
      await countFlows(table, new FrontendIndex(desired, family, 'udp'), counts)
    }
  } catch (error) {
    if (isRefusedWith(error, 'EPERM')) return []
    throw error
  } finally {
    table.close()
  }
  return [...counts].sort(([a], [b]) => (a < b ? -1 : 1)).map(([, connections]) => connections)
}

async function countFlows(
  table: ConntrackTable,
  frontends: FrontendIndex,
  counts: Map<string, Connections & { count: number }>,
): Promise<void> {
  const { family, protocol, destinationPorts } = frontends
  if (destinationPorts.size === 0) return
  await table.list({ family, protocol: protocols[protocol], destinationPorts }, (flows) => {
    for (const flow of flows) {
      const service = frontends.find(flow)
      // Without address translation, the host that has the address answers itself.
      if (service === undefined || flow.replySource === flow.destination) continue
      const endpoint = hostPort(flow.replySource, flow.replySourcePort)
      const key = `${service} ${endpoint}`
      const known = counts.get(key)
      if (known === undefined) counts.set(key, { service, endpoint, count: 1 })
      else known.count++
    }
  })
}

/** Finds the service of a flow by its destination. */
class FrontendIndex {
  readonly family: Family
  readonly protocol: Protocol
  readonly destinationPorts = new Set<number>()
  readonly #byAddress = new Map<string, string>()
  readonly #byNodePort = new Map<number, string>()

  constructor(desired: Pick<Desired, 'ports'>, family: Family, protocol: Protocol) {
    this.family = family
    this.protocol = protocol
    for (const port of desired.ports(family)) {
      if (port.protocol !== protocol) continue
      for (const frontend of port.frontends) {
        this.destinationPorts.add(frontend.port)
        if (frontend.kind === 'node-port') this.#byNodePort.set(frontend.port, port.name)
        else this.#byAddress.set(hostPort(frontend.ip, frontend.port), port.name)
      }
    }
  }

  find({ destination, destinationPort }: TrackedFlow): string | undefined {
    return this.#byAddress.get(hostPort(destination, destinationPort)) ?? this.#byNodePort.get(destinationPort)
  }
}
