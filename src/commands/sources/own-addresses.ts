// The addresses by which this machine is a node, where no kubelet tells: what `sluice up` registers.

import { createSocket } from 'node:dgram'
import { canonicalIp } from '../../lib/ip.ts'
import { listAddresses } from '../../sys/netlink/interface-addresses.ts'

/** At most one of each family, IPv4 first. */
export async function ownAddresses(): Promise<readonly string[]> {
  const all = (await listAddresses()).filter((one) => one.scope === 'global' && one.interface !== 'lo')
  const found: string[] = []
  for (const family of [4, 6] as const) {
    const ip = (await sourceAddress(family)) ?? all.find((one) => one.family === family)?.ip
    if (ip !== undefined) found.push(ip)
  }
  return found
}

/** Addresses for documentation, which nobody has. */
const worlds = { 4: '192.0.2.1', 6: '2001:db8::1' } as const

/** The address this machine would use towards the world; asking the routing table that way sends nothing. */
export function sourceAddress(family: 4 | 6, world: string = worlds[family]): Promise<string | undefined> {
  return new Promise((resolve) => {
    const socket = createSocket(family === 4 ? 'udp4' : 'udp6')
    const finish = (ip: string | undefined) => {
      socket.close()
      resolve(ip)
    }
    socket.on('error', () => finish(undefined))
    // Where no route leads there, the callback is told so, not the listener.
    socket.connect(9, world, (error?: Error) =>
      finish(error === undefined ? canonicalIp(socket.address().address) : undefined),
    )
  })
}
