// The ipvs data plane as the engine sees it: virtual servers in the kernel, with the sets and rules they need.

import { describeError, ProxyError } from '../../lib/errors.ts'
import { familyOf } from '../../lib/ip.ts'
import type { Logger } from '../../lib/log.ts'
import { atLeast, kernelVersion } from '../../sys/kernel-facts.ts'
import { command, type Service } from '../../sys/netlink/ipvs.ts'
import { runProgram } from '../../sys/process/exec.ts'
import { ensureSysctl } from '../../sys/sysctl.ts'
import type { Backend, Settings } from '../backend.ts'
import { findPrograms, type Programs, usableFamilies } from '../iptables-kit/programs.ts'
import { base } from './base.ts'
import { PortTotals } from './counters.ts'
import type { IpvsEntry } from './entries.ts'
import { IpvsNetlink, missingIpvsError } from './ipvs-netlink.ts'
import { plan } from './plan.ts'
import { IpvsTarget } from './target.ts'

export type IpvsSettings = Pick<Settings, 'syncPeriodMs' | 'ipvs'>

const defaultScheduler = 'rr'
/** A destination that is not wanted any more is removed after this even if it has connections; they then end. */
const drainLimitMs = 3_600_000

/** A fact of the machine, and dear to find out. */
let found: Promise<Programs> | undefined

export function ipvs(settings: IpvsSettings): Backend<IpvsEntry> {
  const scheduler = settings.ipvs.scheduler || defaultScheduler
  const targets = new Set<IpvsTarget>()
  const totals = new PortTotals()
  return {
    name: 'ipvs',
    periodic: true,
    // Its rules masquerade and filter what IPVS balances.
    families: () => usableFamilies('ipvs'),
    prepare: (_node, log) => prepare(settings, scheduler, log),
    base,
    plan: (port, node) => plan(port, node, { scheduler }),
    async open(context) {
      found ??= findPrograms(context.log)
      const programs = await found.catch((error: unknown) => {
        found = undefined
        throw error
      })
      const kernel = await IpvsNetlink.open()
      if (kernel === undefined) throw missingIpvsError()
      const target = new IpvsTarget({
        context,
        kernel,
        programs,
        syncPeriodMs: settings.syncPeriodMs,
        excludeCidrs: settings.ipvs.excludeCidrs.filter((cidr) => familyOf(cidr) === context.family),
        drainLimitMs,
        checkMs: 500,
        onClose: () => targets.delete(target),
      })
      targets.add(target)
      return target
    },
    async counters(limit) {
      // By a socket of its own: a change does not wait for ten thousand servers to be read.
      const kernel = await IpvsNetlink.open()
      if (kernel === undefined) return []
      try {
        const services = await kernel.services({})
        return totals.report(
          [...targets].flatMap((target) => target.readings(services)),
          limit,
        )
      } finally {
        kernel.close()
      }
    },
  }
}

async function prepare(settings: IpvsSettings, scheduler: string, log: Logger): Promise<void> {
  const { ipvs: options } = settings
  await loadModule(log)
  const kernel = await IpvsNetlink.open()
  if (kernel === undefined) throw missingIpvsError()
  try {
    await probe(kernel, scheduler)
    for (const [name, value] of sysctls(options.strictArp)) {
      if (ensureSysctl(name, value)) log.info('set a kernel setting for ipvs', { name, value })
    }
    const seconds = (ms: number) => Math.ceil(ms / 1000)
    const timeouts = {
      tcp: seconds(options.tcpTimeoutMs),
      tcpFin: seconds(options.tcpFinTimeoutMs),
      udp: seconds(options.udpTimeoutMs),
    }
    if (timeouts.tcp + timeouts.tcpFin + timeouts.udp > 0) await kernel.setTimeouts(timeouts)
  } finally {
    kernel.close()
  }
}

/** The kernel loads it when asked for the family; where that is not allowed, modprobe may be. */
async function loadModule(log: Logger): Promise<void> {
  const there = await IpvsNetlink.open()
  there?.close()
  if (there !== undefined) return
  try {
    await runProgram('modprobe', ['ip_vs'])
  } catch (error) {
    log.warn('cannot load the module ip_vs', { error: describeError(error) })
  }
}

function sysctls(strictArp: boolean): readonly (readonly [name: string, value: number])[] {
  const version = kernelVersion()
  const list: [string, number][] = [
    // Packets that IPVS translates are tracked, so that they can be masqueraded.
    ['net/ipv4/vs/conntrack', 1],
    // A connection whose destination was removed ends at its next packet instead of going nowhere.
    ['net/ipv4/vs/expire_nodest_conn', 1],
    // A persistent client whose endpoint drains gets another one.
    ['net/ipv4/vs/expire_quiescent_template', 1],
    ['net/ipv4/ip_forward', 1],
  ]
  // A client that uses its port again is balanced anew, so it never meets an endpoint that drains. Kernels from 4.1 until 5.9 take a second
  // for that; there the connection stays where it was.
  if (atLeast(version, 5, 9)) list.push(['net/ipv4/vs/conn_reuse_mode', 1])
  else if (atLeast(version, 4, 1)) list.push(['net/ipv4/vs/conn_reuse_mode', 0])
  if (strictArp) list.push(['net/ipv4/conf/all/arp_ignore', 1], ['net/ipv4/conf/all/arp_announce', 2])
  return list
}

/** Creates and deletes a server of an address for documentation, as the only way to know that the scheduler is there. */
async function probe(kernel: IpvsNetlink, scheduler: string): Promise<void> {
  const services = await kernel.services({})
  if (services.some((one) => one.scheduler === scheduler)) return
  const server: Service = {
    family: 4,
    protocol: 'tcp',
    ip: '198.51.100.0',
    port: 20_000,
    scheduler,
    flags: 0,
    timeout: 0,
  }
  const create = kernel.requests<string>(`create a virtual server with scheduler ${scheduler}`, {})
  create.service(command.newService, scheduler, server)
  const [refused] = await create.send()
  if (refused !== undefined) {
    const words = `IPVS does not work with scheduler "${scheduler}": is the module ip_vs_${scheduler} there?`
    throw new ProxyError('ipvs-scheduler', words, { cause: refused.error, fields: { scheduler } })
  }
  const remove = kernel.requests<string>('delete the trial server', {})
  remove.serviceKey(command.deleteService, scheduler, server)
  await remove.send()
}
