// Userspace mode for Windows: adds service addresses to an interface with netsh, and listens on them.

import { networkInterfaces } from 'node:os'
import { ProxyError } from '../../../lib/errors.ts'
import { canonicalIp, type Family, familyOf, isUnspecified } from '../../../lib/ip.ts'
import type { Logger } from '../../../lib/log.ts'
import { type Clock, sleep } from '../../../lib/time.ts'
import { type Output, type RunOptions, runProgram } from '../../../sys/process/exec.ts'
import type { Backend, Settings } from '../../backend.ts'
import { FdBudget } from '../fd-budget.ts'
import { type DirectEntry, placeOnServiceAddress, planDirect } from './direct-plan.ts'
import { type AddressHolder, checkSockets, DirectTarget } from './direct-target.ts'

/** The environment variable that names the interface which gets the service addresses. */
const interfaceVariable = 'INTERFACE_TO_ADD_SERVICE_IP'
const defaultInterface = 'vEthernet (HNS Internal NIC)'

/** The parts of the system that this file uses. Tests replace them. */
export interface WindowsMachine {
  readonly run: (program: string, args: readonly string[], options?: RunOptions) => Promise<Output>
  readonly interfaces: typeof networkInterfaces
  readonly environment: Readonly<Record<string, string | undefined>>
}

const thisMachine: WindowsMachine = { run: runProgram, interfaces: networkInterfaces, environment: process.env }

export function userspaceOnWindows(
  settings: Pick<Settings, 'userspace'>,
  windows: WindowsMachine = thisMachine,
): Backend<DirectEntry> {
  const budget = new FdBudget()
  const name = windows.environment[interfaceVariable] ?? defaultInterface
  const targets = new Map<Family, DirectTarget>()
  return {
    name: 'userspace',
    periodic: true,
    untracked: true,
    async families(): Promise<readonly Family[]> {
      const found = windows.interfaces()[name]
      if (found !== undefined) return found.some(({ family }) => family === 'IPv6') ? [4, 6] : [4]
      throw new ProxyError(
        'no-interface',
        `there is no interface "${name}": name another one with ${interfaceVariable}`,
      )
    },
    prepare: async () => {},
    base: () => [],
    plan: planDirect(placeOnServiceAddress),
    async open(context) {
      const { clock, log } = context
      const addresses = new NetshAddresses({ name, windows, clock, log })
      const target = new DirectTarget({ context, udpIdleMs: settings.userspace.udpTimeoutMs, budget, addresses })
      targets.set(context.family, target)
      return target
    },
    openCheck: ({ family }) => checkSockets(targets.get(family)),
  }
}

export interface NetshOptions {
  /** The name of the interface. */
  readonly name: string
  readonly windows: WindowsMachine
  readonly clock: Clock
  readonly log: Logger
}

/** Windows looks for duplicates of a new address in the network before a process can listen on it. */
const appearTimeoutMs = 10_000
const pollMs = 100

export class NetshAddresses implements AddressHolder {
  readonly #options: NetshOptions
  /** Addresses that we added and may remove. */
  readonly #added = new Set<string>()

  constructor(options: NetshOptions) {
    this.#options = options
  }

  async ensure(ip: string, signal: AbortSignal): Promise<void> {
    if (isUnspecified(ip)) return
    const found = this.#find(ip)
    if (found !== undefined) {
      // An earlier process has left this address if it is a host address on our interface.
      if (found.name === this.#options.name && found.isHostAddress) this.#added.add(ip)
      return
    }
    const { name, windows, clock, log } = this.#options
    await windows.run('netsh', addArguments(name, ip), { signal })
    this.#added.add(ip)
    log.v(1, 'Added a service address', { ip, interface: name })
    for (const end = clock.monotonic() + appearTimeoutMs; this.#find(ip) === undefined; ) {
      if (clock.monotonic() >= end) {
        throw new ProxyError('netsh', `${ip} was added to "${name}" but does not appear there`, { fields: { ip } })
      }
      await sleep(clock, pollMs, signal)
    }
  }

  async release(ip: string): Promise<void> {
    if (!this.#added.delete(ip)) return
    const { name, windows, log } = this.#options
    await windows.run('netsh', deleteArguments(name, ip))
    log.v(1, 'Removed a service address', { ip, interface: name })
  }

  #find(ip: string): { readonly name: string; readonly isHostAddress: boolean } | undefined {
    for (const [name, addresses] of Object.entries(this.#options.windows.interfaces())) {
      const match = addresses?.find(({ address }) => canonicalIp(address) === ip)
      if (match === undefined) continue
      const hostBits = familyOf(ip) === 4 ? '/32' : '/128'
      return { name, isHostAddress: match.cidr?.endsWith(hostBits) === true }
    }
    return undefined
  }
}

/** `store=active`: the address does not survive a reboot, as this process does not. */
const addArguments = (name: string, ip: string): readonly string[] =>
  familyOf(ip) === 4
    ? ['interface', 'ipv4', 'add', 'address', `name=${name}`, `address=${ip}`, 'mask=255.255.255.255', 'store=active']
    : ['interface', 'ipv6', 'add', 'address', `interface=${name}`, `address=${ip}/128`, 'store=active']

const deleteArguments = (name: string, ip: string): readonly string[] =>
  familyOf(ip) === 4
    ? ['interface', 'ipv4', 'delete', 'address', `name=${name}`, `address=${ip}`]
    : ['interface', 'ipv6', 'delete', 'address', `interface=${name}`, `address=${ip}`]
