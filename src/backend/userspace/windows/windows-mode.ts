// The userspace mode of Windows as the rest of the program sees it. It has the name of the Linux mode, as in kube-proxy.

import type { Family } from '../../../lib/ip.ts'
import { silentLogger } from '../../../lib/log.ts'
import type { Held } from '../../backend.ts'
import type { LeftoverTraits, PartDescription, ProxyMode } from '../../proxy-mode.ts'
import { userspaceBehaviour } from '../traits/behaviour.ts'
import { userspaceDoctor } from '../traits/doctor.ts'
import { userspaceExplain } from '../traits/explain.ts'
import { userspaceMetrics } from '../traits/metrics.ts'
import { userspaceTraffic } from '../traits/traffic.ts'
import { InterfaceAddresses, thisMachine, type WindowsMachine } from './service-addresses.ts'
import { userspaceOnWindows } from './windows-backend.ts'

export const windowsUserspaceMode: ProxyMode = {
  name: 'userspace',
  makeBackend: (settings) => userspaceOnWindows(settings),
  behaviour: () => userspaceBehaviour,
  explain: { remarks: [], describePart, listCommand: 'netsh interface ip show addresses' },
  metrics: userspaceMetrics,
  doctor: { ...userspaceDoctor, findings: async () => [] },
  leftovers: makeWindowsLeftovers(thisMachine),
  traffic: userspaceTraffic,
  trialObstacle: 'userspace mode programs sockets, and a trial would have to open them',
}

/** Leftovers are the addresses in the record of a proxy that no longer runs. */
export function makeWindowsLeftovers(machine: WindowsMachine): LeftoverTraits {
  return {
    find: async () =>
      new InterfaceAddresses(machine, silentLogger).listAdded().map(({ ip, interface: name }) => ({
        mode: 'userspace',
        what: `service address ${ip}`,
        where: `interface "${name}"`,
      })),
    async cleanup(log) {
      const addresses = new InterfaceAddresses(machine, log)
      for (const { ip } of addresses.listAdded()) {
        log.info('Removing a service address', { ip })
        await addresses.remove(ip, ip.includes(':') ? 6 : 4)
      }
      addresses.forgetMissing()
    },
  }
}

function describePart(part: Held, family: Family): PartDescription {
  if (part.kind === 'address') {
    const command = `netsh interface ipv${family} show addresses`
    return { name: part.id, content: 'is on the interface of the services', command }
  }
  const described = userspaceExplain.describePart?.(part, family)
  const { name = part.id, content = part.digest } = described ?? {}
  const address = /^socket (\S+)/.exec(name)?.[1] ?? ''
  return { name, content, command: `netstat -ano | findstr ${address}` }
}
