// Userspace mode without any rights, for `sluice up` on a workstation: serves on loopback addresses, without iptables and without root.
//
// Node ports answer on 127.0.0.1. A cluster IP answers on the loopback address with the same last three numbers: 10.96.0.80 is
// 127.96.0.80. Ports that only root may bind move up by 10000.

import { hostPort } from '../../../lib/ip.ts'
import { systemClock } from '../../../lib/time.ts'
import type { Frontend } from '../../../model/types.ts'
import { readSysctl } from '../../../sys/sysctl.ts'
import type { Backend, Settings } from '../../backend.ts'
import { DialReports } from '../../relay/dial-reports.ts'
import { FlowReports } from '../../relay/flow-reports.ts'
import { FdBudget } from '../fd-budget.ts'
import { makeDirectFlows } from '../flows/direct-flows.ts'
import { type DirectEntry, type DirectPlace, planDirect } from './direct-plan.ts'
import { checkSockets, DirectTarget } from './direct-target.ts'

/** Added to the number of a port that only root may bind. */
const portOffset = 10_000

/** `firstFree`: the lowest port that every user may bind. */
export const placeOnLoopback =
  (firstFree: number) =>
  ({ kind, ip, port: wanted }: Frontend): DirectPlace | undefined => {
    const ports = [wanted < firstFree ? wanted + portOffset : wanted]
    if (kind === 'node-port') return { host: '127.0.0.1', ports, label: `*:${wanted}` }
    const numbers = ip.split('.')
    return kind === 'cluster-ip' && numbers.length === 4
      ? { host: `127.${numbers.slice(1).join('.')}`, ports, label: hostPort(ip, wanted) }
      : undefined
  }

/** The lowest port that every user may bind. */
export const firstFreePort = (): number => Number(readSysctl('net/ipv4/ip_unprivileged_port_start') ?? 1024)

export function userspaceUnprivileged(settings: Pick<Settings, 'userspace'>): Backend<DirectEntry> {
  const budget = new FdBudget()
  const dials = new DialReports()
  const flows = new FlowReports(systemClock.now)
  const { udpTimeoutMs: udpIdleMs } = settings.userspace
  const place = placeOnLoopback(firstFreePort())
  let target: DirectTarget | undefined
  return {
    name: 'userspace',
    periodic: true,
    untracked: true,
    dials,
    relayed: makeDirectFlows(flows),
    families: async () => [4],
    prepare: async () => {},
    base: () => [],
    plan: planDirect((frontend) => [place(frontend) ?? []].flat()),
    answersAt(frontend) {
      const { host, ports } = place(frontend) ?? { host: '', ports: [] }
      return ports[0] === undefined ? '' : hostPort(host, ports[0])
    },
    async open(context) {
      target = new DirectTarget({ context, udpIdleMs, budget, dials, flows })
      return target
    },
    openCheck: () => checkSockets(target),
  }
}
