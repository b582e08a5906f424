// Removes what the ipvs mode leaves on a node, ours or kube-proxy's; virtual servers of others stay.

import { describeError, ProxyError } from '../../lib/errors.ts'
import type { Family } from '../../lib/ip.ts'
import type { Logger } from '../../lib/log.ts'
import { systemClock } from '../../lib/time.ts'
import { command } from '../../sys/netlink/ipvs.ts'
import type { Cleanup, Held } from '../backend.ts'
import { IptablesPrograms, legacyTables, listPrograms, type Programs } from '../iptables-kit/programs.ts'
import { DeviceAddresses } from './device-addresses.ts'
import { Ipsets } from './ipsets.ts'
import { IpvsNetlink } from './ipvs-netlink.ts'
import { isOurs, outside } from './ownership.ts'
import { jumpLines, ownLines } from './rule-tables.ts'
import { chains, type RuleTableName } from './rule-text.ts'

export const cleanupIpvs: Cleanup = async (log, spared = { cidrs: [] }) => {
  const errors: string[] = []
  const attempt = async (what: string, work: () => Promise<void>) => {
    try {
      await work()
    } catch (error) {
      errors.push(`${what}: ${describeError(error)}`)
    }
  }
  // Servers while sets and addresses still tell which are ours; rules before the sets that they use.
  for (const family of [4, 6] as const) await attempt('virtual servers', () => removeServers(family, log, spared.cidrs))
  await attempt('kube-ipvs0', removeDevice)
  await attempt('rules', () => removeAllRules(log))
  for (const family of [4, 6] as const) await attempt('sets', () => removeSets(family))
  if (errors.length > 0) throw new ProxyError('ipvs-cleanup', `ipvs leftovers remain: ${errors.join('; ')}`)
}

/** In both families and flavours. */
export async function removeAllRules(log: Logger): Promise<void> {
  const errors: string[] = []
  for (const programs of await listPrograms()) {
    for (const family of [4, 6] as const) {
      await removeRules(programs, family, log).catch((error: unknown) => errors.push(describeError(error)))
    }
  }
  if (errors.length > 0) throw new ProxyError('ipvs-cleanup', errors.join('; '))
}

async function removeServers(family: Family, log: Logger, spared: readonly string[]): Promise<void> {
  const members = new Ipsets(family)
  const addresses = new DeviceAddresses(family, () => undefined)
  try {
    const held: readonly Held[] = await members.read({})
    await addresses.read({})
    // Without sets and addresses nothing can be ours, and the module need not be loaded to see that.
    if (held.length === 0 && addresses.bound.size === 0) return
    const kernel = await IpvsNetlink.open()
    if (kernel === undefined) return
    try {
      const included = outside(spared)
      const ids = new Set(held.map(({ id }) => id))
      const requests = kernel.requests<string>('delete virtual servers', {})
      const ours = (await kernel.services({})).filter(
        (server) => server.family === family && included(server.ip) && isOurs(server, addresses.bound, ids),
      )
      for (const server of ours) requests.serviceKey(command.deleteService, server.ip, server)
      await requests.send()
      if (ours.length > 0) log.info('removed virtual servers', { family, count: ours.length })
    } finally {
      kernel.close()
    }
  } finally {
    members.close()
    addresses.close()
  }
}

async function removeDevice(): Promise<void> {
  const addresses = new DeviceAddresses(4, () => undefined)
  try {
    await addresses.read({})
    await addresses.destroy({})
  } finally {
    addresses.close()
  }
}

async function removeRules(programs: Programs, family: Family, log: Logger): Promise<void> {
  const tools = new IptablesPrograms({ programs, family, log, clock: systemClock, patienceMs: 30_000 })
  const legacy = programs.flavour === 'legacy' ? legacyTables(family) : undefined
  for (const table of ['nat', 'filter', 'mangle'] as const) {
    // The legacy programs would make a table that is not there by looking at it.
    if (legacy !== undefined && !legacy.includes(table)) continue
    const text = removal(table, await tools.save(table))
    if (text !== '') await tools.restore(text)
  }
}

/** Chains are emptied by being named, then deleted; one that rules of others use, such as those of the iptables mode, stays for them. */
export function removal(table: RuleTableName, saved: string): string {
  const lines = ownLines(table, saved)
  if (lines.length === 0) return ''
  const jump = new Set(jumpLines(table))
  const there = chains[table].filter((chain) => lines.some((line) => line.startsWith(`:${chain} `)))
  const foreign = saved.split('\n').flatMap((line) => {
    const [, from = '', to = ''] = /^-A (\S+) (?:.* )?-[jg] (\S+)/.exec(line) ?? []
    return from === '' || jump.has(line) || there.includes(from) ? [] : [to]
  })
  const body = [
    ...there.map((chain) => `:${chain} - [0:0]`),
    ...lines.filter((line) => jump.has(line)).map((line) => line.replace(/^-A/, '-D')),
    ...there.filter((chain) => !foreign.includes(chain)).map((chain) => `-X ${chain}`),
  ]
  return `${[`*${table}`, ...body, 'COMMIT'].join('\n')}\n`
}

async function removeSets(family: Family): Promise<void> {
  const members = new Ipsets(family)
  try {
    const [error] = await members.destroy({})
    if (error !== undefined) throw error
  } finally {
    members.close()
  }
}
