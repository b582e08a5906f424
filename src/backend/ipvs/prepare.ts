// Prepares the node for ipvs mode once: loads the kernel module, tries the scheduler, and sets sysctls and timeouts.

import { describeError, ProxyError } from '../../lib/errors.ts'
import type { Logger } from '../../lib/log.ts'
import { atLeast, kernelVersion } from '../../sys/kernel-facts.ts'
import { ipvsCommand, type VirtualServer } from '../../sys/netlink/ipvs.ts'
import { runProgram } from '../../sys/process/exec.ts'
import { ensureSysctl } from '../../sys/sysctl.ts'
import type { Settings } from '../backend.ts'
import { IpvsNetlink, missingIpvsError } from './kernel/ipvs-netlink.ts'

export async function prepare(options: Settings['ipvs'], scheduler: string, log: Logger): Promise<void> {
  await loadModule(log)
  const kernel = await IpvsNetlink.open()
  if (kernel === undefined) throw missingIpvsError()
  try {
    await tryScheduler(kernel, scheduler)
    for (const [name, value] of listSysctls(options.strictArp)) {
      if (ensureSysctl(name, value)) log.info('Set a sysctl for ipvs', { name, value })
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

/** Throws a ProxyError 'ipvs-missing' if the kernel has neither loaded the module nor can load it. Changes nothing. */
export async function requireIpvs(): Promise<void> {
  const loaded = await IpvsNetlink.open()
  loaded?.close()
  if (loaded !== undefined) return
  await runProgram('modprobe', ['--dry-run', 'ip_vs']).catch(() => {
    throw missingIpvsError()
  })
}

/** The kernel loads the module itself when a process asks for its netlink family; where that is not allowed, modprobe may be. */
async function loadModule(log: Logger): Promise<void> {
  const loaded = await IpvsNetlink.open()
  loaded?.close()
  if (loaded !== undefined) return
  try {
    await runProgram('modprobe', ['ip_vs'])
  } catch (error) {
    log.warn('Cannot load the kernel module ip_vs', { error: describeError(error) })
  }
}

function listSysctls(strictArp: boolean): readonly (readonly [name: string, value: number])[] {
  const version = kernelVersion()
  const list: [string, number][] = [
    // Connection tracking sees the packets that IPVS translates, so that rules can masquerade them.
    ['net/ipv4/vs/conntrack', 1],
    // A connection whose destination was removed ends at its next packet instead of being sent nowhere.
    ['net/ipv4/vs/expire_nodest_conn', 1],
    // A persistent client whose endpoint drains gets another endpoint.
    ['net/ipv4/vs/expire_quiescent_template', 1],
    ['net/ipv4/ip_forward', 1],
  ]
  // 1: a client that uses its port again is balanced again, so it never gets a draining endpoint. Kernels from 4.1 to 5.8 delay the client by
  // a second for that; there 0 keeps the connection on the endpoint it had.
  if (atLeast(version, 5, 9)) list.push(['net/ipv4/vs/conn_reuse_mode', 1])
  else if (atLeast(version, 4, 1)) list.push(['net/ipv4/vs/conn_reuse_mode', 0])
  if (strictArp) list.push(['net/ipv4/conf/all/arp_ignore', 1], ['net/ipv4/conf/all/arp_announce', 2])
  return list
}

/** Creates and deletes a server at an address that is reserved for documentation: there is no other way to know that the kernel has the scheduler. */
async function tryScheduler(kernel: IpvsNetlink, scheduler: string): Promise<void> {
  const services = await kernel.listServers({})
  if (services.some((one) => one.scheduler === scheduler)) return
  const server: VirtualServer = {
    family: 4,
    protocol: 'tcp',
    ip: '198.51.100.0',
    port: 20_000,
    scheduler,
    flags: 0,
    timeout: 0,
  }
  const create = kernel.openRequests<string>(`create a virtual server with scheduler ${scheduler}`, {})
  create.queueServer(ipvsCommand.newService, scheduler, server)
  const [refused] = await create.send()
  if (refused !== undefined) {
    const words = `IPVS does not work with scheduler "${scheduler}": is the module ip_vs_${scheduler} there?`
    throw new ProxyError('ipvs-scheduler', words, { cause: refused.error, fields: { scheduler } })
  }
  const remove = kernel.openRequests<string>('delete the trial server', {})
  remove.queueServerKey(ipvsCommand.deleteService, scheduler, server)
  await remove.send()
}
