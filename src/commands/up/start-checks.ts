// Checks before `sluice up` starts anything: what cannot work on this machine is said at once.

import { readFileSync } from 'node:fs'
import type { Mode } from '../../backend/backend.ts'
import { findLeftovers } from '../../backend/leftovers.ts'
import { findMode } from '../../backend/modes.ts'
import { resolveOptions } from '../../config/flags/options.ts'
import { makeSettings } from '../../daemon/backend-settings.ts'
import { ProxyError } from '../../lib/errors.ts'
import { canonicalIp, familyOf, parseCidr } from '../../lib/ip.ts'
import { listAddresses } from '../../sys/netlink/interface-addresses.ts'
import { ownAddresses, sourceAddress } from '../sources/own-addresses.ts'

/** Throws the ProxyError of a mode that cannot work here, as without its kernel module. Changes nothing. */
export async function checkMode(mode: Mode): Promise<void> {
  const { config } = resolveOptions([`--proxy-mode=${mode}`], (path) => readFileSync(path, 'utf8'))
  await findMode(mode).makeBackend(makeSettings(config)).families()
}

/** Throws a ProxyError 'taken' if another proxy has rules here. */
export async function refuseOtherRules(): Promise<void> {
  const found = await findLeftovers()
  if (found.length === 0) return
  const rules = found.map(({ what, where }) => `${what} in ${where}`).join('; ')
  throw new ProxyError(
    'taken',
    `a proxy has rules on this machine (${rules}): stop it and run sluice cleanup, or add --take-over`,
  )
}

export interface NodeAddressOptions {
  /** The value of --node-address. */
  readonly given: string | undefined
  /** True if services answer on loopback only, for which every machine has an address. */
  readonly onLoopback: boolean
}

/** Returns the addresses of the Node. Throws a ProxyError 'node' if there are none: the proxy would wait for them in vain. */
export async function chooseNodeAddresses({ given, onLoopback }: NodeAddressOptions): Promise<readonly string[]> {
  if (given !== undefined) return [canonicalIp(given) as string]
  const own = await ownAddresses()
  if (own.length > 0) return own
  if (onLoopback) return ['127.0.0.1']
  throw new ProxyError(
    'node',
    'this machine has no address but loopback and no default route, so the address of the node is unknown: give --node-address IP',
  )
}

/** Returns a line of advice if the kernel has no route to cluster IPs; it then refuses packets to them before any rule sees them. */
export async function findMissingRoute(cidr: string, addresses: readonly string[]): Promise<string | undefined> {
  const { family, ip } = parseCidr(cidr) ?? { family: 4 as const, ip: '' }
  const address = addresses.find((one) => familyOf(one) === family)
  if (address === undefined || (await sourceAddress(family, ip)) !== undefined) return undefined
  const device = (await listAddresses()).find((one) => one.ip === address)?.interface ?? 'INTERFACE'
  return `No route leads to the cluster IPs ${cidr}, so this machine cannot connect to them: ip route add ${cidr} dev ${device}`
}
