// Plans what userspace mode needs on Windows: the addresses of services on an interface, and sockets that listen there. Pure.
//
// An address is planned even if no socket listens on it: the system itself then refuses clients of a service without endpoints.

import type { Family } from '../../../lib/ip.ts'
import type { NodeView, ServicePort } from '../../../model/types.ts'
import type { Held } from '../../backend.ts'
import { type DirectEntry, placeOnServiceAddress, planDirect } from '../direct/direct-plan.ts'

export interface AddedAddressEntry extends Held {
  readonly kind: 'address'
  readonly ip: string
}

export type WindowsEntry = AddedAddressEntry | DirectEntry

const planSockets = planDirect(placeOnServiceAddress)

export function planOnWindows(port: ServicePort, node: NodeView): readonly WindowsEntry[] {
  const ips = new Set(port.frontends.filter(({ kind }) => kind !== 'node-port').map(({ ip }) => ip))
  return [...[...ips].map(makeAddressEntry), ...planSockets(port, node)]
}

/** Several services may claim one address: it stays until the last one is gone. */
export const makeAddressEntry = (ip: string): AddedAddressEntry => ({
  kind: 'address',
  id: `address ${ip}`,
  digest: ip,
  ip,
})

/** Returns the arguments of netsh that add an address until the next boot. Windows must not choose it as the source of connections. */
export const addArguments = (name: string, ip: string, family: Family): readonly string[] =>
  family === 4
    ? ['interface', 'ipv4', 'add', 'address', `name=${name}`, `address=${ip}`, 'mask=255.255.255.255', ...temporary]
    : ['interface', 'ipv6', 'add', 'address', `interface=${name}`, `address=${ip}/128`, ...temporary]

const temporary = ['store=active', 'skipassource=true'] as const

export const deleteArguments = (name: string, ip: string, family: Family): readonly string[] =>
  family === 4
    ? ['interface', 'ipv4', 'delete', 'address', `name=${name}`, `address=${ip}`, 'store=active']
    : ['interface', 'ipv6', 'delete', 'address', `interface=${name}`, `address=${ip}`, 'store=active']
