// Finds the virtual servers that we, an earlier process or kube-proxy left on the node, for cleanup.ts and retire.ts.

import type { Family } from '../../../lib/ip.ts'
import type { ListedServer } from '../../../sys/netlink/ipvs.ts'
import { decideOwnership } from '../ownership.ts'
import { DeviceAddresses } from './device-addresses.ts'
import { Ipsets } from './ipsets.ts'
import { IpvsNetlink } from './ipvs-netlink.ts'

export interface OwnServers {
  readonly kernel: IpvsNetlink
  readonly servers: readonly ListedServer[]
  readonly addresses: DeviceAddresses
}

/** Calls `work` with what it found, unless nothing can be there. Returns the result of `work`, or undefined. */
export async function withOwnServers<T>(
  family: Family,
  excludedCidrs: readonly string[],
  work: (found: OwnServers) => Promise<T>,
): Promise<T | undefined> {
  const ipsets = new Ipsets(family)
  const addresses = new DeviceAddresses(family, () => undefined)
  try {
    const held = await ipsets.read({})
    await addresses.read({})
    // Without sets and addresses no server can be ours, and the module ip_vs need not be loaded to know that.
    if (held.length === 0 && addresses.bound.size === 0) return undefined
    const kernel = await IpvsNetlink.open()
    if (kernel === undefined) return undefined
    try {
      const members = new Set(held.map(({ id }) => id))
      const isOurs = decideOwnership({ bound: addresses.bound, members, excludedCidrs })
      const servers = (await kernel.listServers({})).filter((server) => server.family === family && isOurs(server))
      return await work({ kernel, servers, addresses })
    } finally {
      kernel.close()
    }
  } finally {
    ipsets.close()
    addresses.close()
  }
}
