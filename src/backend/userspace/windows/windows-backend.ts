// Userspace mode for Windows: adds the addresses of services to an interface, and listens on them.

import { ProxyError } from '../../../lib/errors.ts'
import { type Family, isLoopback } from '../../../lib/ip.ts'
import type { Logger } from '../../../lib/log.ts'
import { systemClock } from '../../../lib/time.ts'
import {
  interfaceVariable,
  listPlacedAddresses,
  nameServiceInterface,
} from '../../../sys/platform/service-interface.ts'
import type { Backend, Settings } from '../../backend.ts'
import { DialReports } from '../../relay/dial-reports.ts'
import { FlowReports } from '../../relay/flow-reports.ts'
import { FdBudget } from '../fd-budget.ts'
import { makeDirectFlows } from '../flows/direct-flows.ts'
import { InterfaceAddresses, thisMachine, type WindowsMachine } from './service-addresses.ts'
import { planOnWindows, type WindowsEntry } from './windows-plan.ts'
import { WindowsTarget } from './windows-target.ts'

export function userspaceOnWindows(
  settings: Pick<Settings, 'userspace'>,
  machine: WindowsMachine = thisMachine,
): Backend<WindowsEntry> {
  const budget = new FdBudget()
  const dials = new DialReports()
  const flows = new FlowReports(systemClock.now)
  const { bindAddress, udpTimeoutMs: udpIdleMs } = settings.userspace
  const targets = new Map<Family, WindowsTarget>()
  let addresses: InterfaceAddresses | undefined
  return {
    name: 'userspace',
    periodic: true,
    untracked: true,
    dials,
    relayed: makeDirectFlows(flows),
    async families(): Promise<readonly Family[]> {
      if (isLoopback(bindAddress)) {
        throw new ProxyError('config', `--bind-address ${bindAddress} is loopback: clients could not reach any service`)
      }
      return listInterfaceFamilies(machine)
    },
    prepare: async () => {},
    base: () => [],
    plan: planOnWindows,
    async open(context) {
      addresses ??= openAddresses(machine, context.log)
      const target = new WindowsTarget({ context, addresses, udpIdleMs, budget, dials, flows })
      targets.set(context.family, target)
      return target
    },
    async openCheck({ family }) {
      return (await targets.get(family)?.check()) ?? { presence: () => 'missing' }
    },
  }
}

/** A reboot removes the addresses, but not the record of them. */
function openAddresses(machine: WindowsMachine, log: Logger): InterfaceAddresses {
  const addresses = new InterfaceAddresses(machine, log)
  addresses.forgetMissing()
  return addresses
}

/** The families of which the interface has an address. Throws a ProxyError if there is no such interface. */
function listInterfaceFamilies({ environment, interfaces }: WindowsMachine): readonly Family[] {
  const name = nameServiceInterface(environment)
  const own = listPlacedAddresses(interfaces).filter((one) => one.interface === name)
  const families = ([4, 6] as const).filter((family) => own.some((one) => one.family === family))
  if (families.length > 0) return families
  throw new ProxyError(
    'no-interface',
    `there is no interface "${name}" with an address: name another one with ${interfaceVariable}`,
  )
}
