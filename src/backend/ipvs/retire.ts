// Makes room for another mode that already serves: removes unused servers at once, and other servers when their connections have ended.
//
// New connections do not reach IPVS: other modes translate their destination before that. Connections that IPVS made live in its own table
// and need their server, and its address on the device, until they end. Their masquerading is in conntrack and needs no rule.
// How single destinations drain while ipvs mode runs is in kernel/drain.ts.

import { type Family, hostPort } from '../../lib/ip.ts'
import { protocolNumbers } from '../../sys/ip-numbers.ts'
import { ConntrackTable } from '../../sys/netlink/conntrack.ts'
import type { TrackedFlow } from '../../sys/netlink/conntrack-codec.ts'
import { ipvsCommand, type VirtualServer } from '../../sys/netlink/ipvs.ts'
import type { Retire } from '../backend.ts'
import { cleanupIpvs, removeAllRules } from './cleanup.ts'
import type { IpvsNetlink } from './kernel/ipvs-netlink.ts'
import { withOwnServers } from './kernel/own-servers.ts'

export const retireIpvs: Retire = async (log, again, spared = { cidrs: [] }) => {
  const busy = (await retireFamily(4, spared.cidrs)) + (await retireFamily(6, spared.cidrs))
  if (busy === 0) {
    await cleanupIpvs(log, spared)
    return true
  }
  if (!again) {
    log.info('Virtual servers stay until their connections have ended', { count: busy })
    await removeAllRules(log)
  }
  return false
}

/** Returns how many servers still have connections. */
async function retireFamily(family: Family, sparedCidrs: readonly string[]): Promise<number> {
  const busy = await withOwnServers(family, sparedCidrs, async ({ kernel, servers, addresses }) => {
    const drained = await drainServers(kernel, servers)
    const needed = new Set(drained.map(({ ip }) => ip))
    const unneeded = [...addresses.bound].filter((ip) => !needed.has(ip))
    await addresses.unbind(unneeded, {})
    await deleteUdpFlows(family, servers)
    return drained.length
  })
  return busy ?? 0
}

/** Deletes servers without connections. All others get weight 0, and are returned. */
async function drainServers(kernel: IpvsNetlink, servers: readonly VirtualServer[]): Promise<readonly VirtualServer[]> {
  const requests = kernel.openRequests<string>('retire virtual servers', {})
  const busy: VirtualServer[] = []
  for (const server of servers) {
    const destinations = server.protocol === 'udp' ? [] : await kernel.listDestinations(server, {})
    if (destinations.every(({ active, inactive }) => active + inactive === 0)) {
      requests.queueServerKey(ipvsCommand.deleteService, server.ip, server)
      continue
    }
    busy.push(server)
    for (const { ip, port, weight } of destinations) {
      if (weight > 0) requests.queueDestination(ipvsCommand.setDestination, server.ip, server, { ip, port, weight: 0 })
    }
  }
  // The kernel refuses to delete what is gone already, which is fine.
  await requests.send()
  return busy
}

/** UDP has no connections to wait for, but another mode does not translate a flow that IPVS began while conntrack remembers the flow. */
async function deleteUdpFlows(family: Family, servers: readonly VirtualServer[]): Promise<void> {
  const gone = new Set(servers.filter(({ protocol }) => protocol === 'udp').map(({ ip, port }) => hostPort(ip, port)))
  if (gone.size === 0) return
  const table = new ConntrackTable()
  try {
    const flows: TrackedFlow[] = []
    const destinationPorts = new Set(servers.map(({ port }) => port))
    await table.list({ family, protocol: protocolNumbers.udp, destinationPorts }, (some) => {
      flows.push(...some.filter(({ destination, destinationPort }) => gone.has(hostPort(destination, destinationPort))))
    })
    await table.remove(flows)
  } finally {
    table.close()
  }
}
