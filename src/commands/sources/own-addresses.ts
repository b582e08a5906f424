// Finds the addresses that `sluice up` registers for this machine as a node, since no kubelet does.

import { createSocket } from 'node:dgram'
import { canonicalIp } from '../../lib/ip.ts'
import { listAddresses } from '../../sys/netlink/interface-addresses.ts'

/** Returns at most one address of each family, IPv4 first. */
export async function ownAddresses(): Promise<readonly string[]> {
  const all = (await listAddresses()).filter((one) => one.scope === 'global' && one.interface !== 'lo')
  const found: string[] = []
  for (const family of [4, 6] as const) {
    const ip = (await sourceAddress(family)) ?? all.find((one) => one.family === family)?.ip
    if (ip !== undefined) found.push(ip)
  }
  return found
}

/** Addresses reserved for documentation: a packet to them takes the default route. */
const remoteAddresses = { 4: '192.0.2.1', 6: '2001:db8::1' } as const

/** Returns the source address of a packet to a remote host. Connecting a UDP socket asks the routing table and sends nothing. */
export function sourceAddress(family: 4 | 6, remote: string = remoteAddresses[family]): Promise<string | undefined> {
  return new Promise((resolve) => {
    const socket = createSocket(family === 4 ? 'udp4' : 'udp6')
    const finish = (ip: string | undefined) => {
      socket.close()
      resolve(ip)
    }
    socket.on('error', () => finish(undefined))
    // Without a route, Node passes the error to this callback and emits no event.
    socket.connect(9, remote, (error?: Error) =>
      finish(error === undefined ? canonicalIp(socket.address().address) : undefined),
    )
  })
}
