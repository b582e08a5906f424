// Userspace mode for Windows: service addresses are given to an interface through netsh, and listened on as they are.

import { networkInterfaces } from 'node:os'
import { ProxyError } from '../../../lib/errors.ts'
import { canonicalIp, type Family, familyOf, isUnspecified } from '../../../lib/ip.ts'
import type { Logger } from '../../../lib/log.ts'
import { type Clock, sleep } from '../../../lib/time.ts'
import { type Output, type RunOptions, runProgram } from '../../../sys/process/exec.ts'
import type { Backend, Settings } from '../../backend.ts'
import { FdBudget } from '../fd-budget.ts'
import { type DirectEntry, planDirect, serviceAddress } from './direct-plan.ts'
import { type AddressHolder, DirectTarget } from './direct-target.ts'

/** Where service addresses go unless this variable of the environment says otherwise. */
const interfaceVariable = 'INTERFACE_TO_ADD_SERVICE_IP'
const defaultInterface = 'vEthernet (HNS Internal NIC)'

/** What of the system is used; replaced in tests. */
export interface Windows {
  readonly run: (program: string, args: readonly string[], options?: RunOptions) => Promise<Output>
  readonly interfaces: typeof networkInterfaces
  readonly environment: Readonly<Record<string, string | undefined>>
}

const thisMachine: Windows = { run: runProgram, interfaces: networkInterfaces, environment: process.env }

export function winuserspace(
  settings: Pick<Settings, 'userspace'>,
  windows: Windows = thisMachine,
): Backend<DirectEntry> {
  const budget = new FdBudget()
  const name = windows.environment[interfaceVariable] ?? defaultInterface
  return {
    name: 'userspace',
    periodic: true,
    untracked: true,
    async families(): Promise<readonly Family[]> {
      const found = windows.interfaces()[name]
      if (found !== undefined) return found.some(({ family }) => family === 'IPv6') ? [4, 6] : [4]
      throw new ProxyError('no-interface', `there is no interface "${name}": name another one by ${interfaceVariable}`)
    },
    prepare: async () => {},
    base: () => [],
    plan: planDirect(serviceAddress),
    async open(context) {
      const { clock, log } = context
      const addresses = new NetshAddresses({ name, windows, clock, log })
      return new DirectTarget({ context, udpIdleMs: settings.userspace.udpTimeoutMs, budget, addresses })
    },
  }
}

export interface NetshOptions {
  /** Of the interface. */
  readonly name: string
  readonly windows: Windows
  readonly clock: Clock
  readonly log: Logger
}

/** A new address is checked for duplicates in the network before anybody can listen on it. */
const patienceMs = 10_000
const lookEveryMs = 100

export class NetshAddresses implements AddressHolder {
  readonly #options: NetshOptions
  /** Those that we added, and may take away. */
  readonly #added = new Set<string>()

  constructor(options: NetshOptions) {
    this.#options = options
  }

  async ensure(ip: string, signal: AbortSignal): Promise<void> {
    if (isUnspecified(ip)) return
    const found = this.#find(ip)
    if (found !== undefined) {
      // A host address on our interface is what a predecessor left.
      if (found.name === this.#options.name && found.host) this.#added.add(ip)
      return
    }
    const { name, windows, clock, log } = this.#options
    await windows.run('netsh', addArgs(name, ip), { signal })
    this.#added.add(ip)
    log.v(1, 'added a service address', { ip, interface: name })
    for (const end = clock.monotonic() + patienceMs; this.#find(ip) === undefined; ) {
      if (clock.monotonic() >= end) {
        throw new ProxyError('netsh', `${ip} was added to "${name}", but does not appear there`, { fields: { ip } })
      }
      await sleep(clock, lookEveryMs, signal)
    }
  }

  async release(ip: string): Promise<void> {
    if (!this.#added.delete(ip)) return
    const { name, windows, log } = this.#options
    await windows.run('netsh', deleteArgs(name, ip))
    log.v(1, 'removed a service address', { ip, interface: name })
  }

  #find(ip: string): { readonly name: string; readonly host: boolean } | undefined {
    for (const [name, addresses] of Object.entries(this.#options.windows.interfaces())) {
      const match = addresses?.find(({ address }) => canonicalIp(address) === ip)
      if (match !== undefined) return { name, host: match.cidr?.endsWith(familyOf(ip) === 4 ? '/32' : '/128') === true }
    }
    return undefined
  }
}

/** `store=active`: a reboot forgets them, as it forgets us. */
const addArgs = (name: string, ip: string): readonly string[] =>
  familyOf(ip) === 4
    ? ['interface', 'ipv4', 'add', 'address', `name=${name}`, `address=${ip}`, 'mask=255.255.255.255', 'store=active']
    : ['interface', 'ipv6', 'add', 'address', `interface=${name}`, `address=${ip}/128`, 'store=active']

const deleteArgs = (name: string, ip: string): readonly string[] =>
  familyOf(ip) === 4
    ? ['interface', 'ipv4', 'delete', 'address', `name=${name}`, `address=${ip}`]
    : ['interface', 'ipv6', 'delete', 'address', `interface=${name}`, `address=${ip}`]
