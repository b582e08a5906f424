// Makes room for another mode that serves already: what nobody uses any more goes at once, servers with connections when those have ended.
//
// New connections do not come here: other modes translate their destination before the packets reach IPVS. Those that IPVS has made live in its own
// table and need their server, and its address on the device, until they end. Their masquerading is in conntrack and needs no rule.

import { type Family, hostPort } from '../../lib/ip.ts'
import { ConntrackTable } from '../../sys/netlink/conntrack.ts'
import type { TrackedFlow } from '../../sys/netlink/conntrack-codec.ts'
import { command, protocolNumbers, type Service } from '../../sys/netlink/ipvs.ts'
import type { Retire } from '../backend.ts'
import { cleanupIpvs, removeAllRules } from './cleanup.ts'
import { DeviceAddresses } from './device-addresses.ts'
import { Ipsets } from './ipsets.ts'
import { IpvsNetlink } from './ipvs-netlink.ts'
import { isOurs, outside } from './ownership.ts'

export const retireIpvs: Retire = async (log, again, spared = { cidrs: [] }) => {
  const busy = (await retireFamily(4, spared.cidrs)) + (await retireFamily(6, spared.cidrs))
  if (busy === 0) {
    await cleanupIpvs(log, spared)
    return true
  }
  if (!again) {
    log.info('virtual servers stay until their connections have ended', { count: busy })
    await removeAllRules(log)
  }
  return false
}

/** Returns how many servers are still in use. */
async function retireFamily(family: Family, spared: readonly string[]): Promise<number> {
  const members = new Ipsets(family)
  const addresses = new DeviceAddresses(family, () => undefined)
  try {
    const held = await members.read({})
    await addresses.read({})
    // Without sets and addresses nothing can be ours, and the module need not be loaded to see that.
    if (held.length === 0 && addresses.bound.size === 0) return 0
    const kernel = await IpvsNetlink.open()
    if (kernel === undefined) return 0
    try {
      const ids = new Set(held.map(({ id }) => id))
      const services = (await kernel.services({})).filter((server) => server.family === family)
      const included = outside(spared)
      const ours = services.filter((server) => included(server.ip) && isOurs(server, addresses.bound, ids))
      const busy = await drain(kernel, ours)
      const needed = new Set(busy.map(({ ip }) => ip))
      await addresses.unbind(
        [...addresses.bound].filter((ip) => !needed.has(ip)),
        {},
      )
      await forgetFlows(family, ours)
      return busy.length
    } finally {
      kernel.close()
    }
  } finally {
    members.close()
    addresses.close()
  }
}

/** Deletes servers without connections; the others rest, and are returned. */
async function drain(kernel: IpvsNetlink, servers: readonly Service[]): Promise<readonly Service[]> {
  const requests = kernel.requests<string>('retire virtual servers', {})
  const busy: Service[] = []
  for (const server of servers) {
    const destinations = server.protocol === 'udp' ? [] : await kernel.destinations(server, {})
    if (destinations.every(({ active, inactive }) => active + inactive === 0)) {
      requests.serviceKey(command.deleteService, server.ip, server)
      continue
    }
    busy.push(server)
    for (const { ip, port, weight } of destinations) {
      if (weight > 0) requests.destination(command.setDestination, server.ip, server, { ip, port, weight: 0 })
    }
  }
  // Gone already: just as well.
  await requests.send()
  return busy
}

/** UDP has no connections to wait for; but a flow that IPVS began would not be translated by others while conntrack remembers it. */
async function forgetFlows(family: Family, servers: readonly Service[]): Promise<void> {
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
