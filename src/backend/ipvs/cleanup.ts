// Removes what ipvs mode leaves on a node, ours or kube-proxy's. Virtual servers of others stay.

import { describeError, ProxyError } from '../../lib/errors.ts'
import type { Family } from '../../lib/ip.ts'
import type { Logger } from '../../lib/log.ts'
import { systemClock } from '../../lib/time.ts'
import { ipvsCommand } from '../../sys/netlink/ipvs.ts'
import type { Cleanup } from '../backend.ts'
import { listLegacyTables } from '../iptables-kit/flavour.ts'
import { listHoldingPrograms } from '../iptables-kit/held-flavours.ts'
import { IptablesPrograms, type ProgramSet } from '../iptables-kit/programs.ts'
import { DeviceAddresses } from './kernel/device-addresses.ts'
import { Ipsets } from './kernel/ipsets.ts'
import { withOwnServers } from './kernel/own-servers.ts'
import { chains, type RuleTableName, ruleTables } from './rule-text.ts'
import { jumpLines, ownLines } from './saved-rules.ts'

export const cleanupIpvs: Cleanup = async (log, spared = { cidrs: [] }) => {
  const errors: string[] = []
  const attempt = async (what: string, work: () => Promise<void>) => {
    try {
      await work()
    } catch (error) {
      errors.push(`${what}: ${describeError(error)}`)
    }
  }
  // Servers go first, while sets and addresses still show which are ours; rules go before the sets that they use.
  for (const family of [4, 6] as const) await attempt('virtual servers', () => removeServers(family, log, spared.cidrs))
  await attempt('kube-ipvs0', removeDevice)
  await attempt('rules', () => removeAllRules(log))
  for (const family of [4, 6] as const) await attempt('sets', () => removeSets(family))
  if (errors.length > 0) throw new ProxyError('ipvs-cleanup', `ipvs leftovers remain: ${errors.join('; ')}`)
}

/** Removes the rules of both families in both flavours of iptables. */
export async function removeAllRules(log: Logger): Promise<void> {
  const errors: string[] = []
  for (const programs of await listHoldingPrograms()) {
    for (const family of [4, 6] as const) {
      await removeRules(programs, family, log).catch((error: unknown) => errors.push(describeError(error)))
    }
  }
  if (errors.length > 0) throw new ProxyError('ipvs-cleanup', errors.join('; '))
}

async function removeServers(family: Family, log: Logger, sparedCidrs: readonly string[]): Promise<void> {
  await withOwnServers(family, sparedCidrs, async ({ kernel, servers }) => {
    const requests = kernel.openRequests<string>('delete virtual servers', {})
    for (const server of servers) requests.queueServerKey(ipvsCommand.deleteService, server.ip, server)
    await requests.send()
    if (servers.length > 0) log.info('Removed virtual servers', { family, count: servers.length })
  })
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

async function removeRules(set: ProgramSet, family: Family, log: Logger): Promise<void> {
  const iptables = new IptablesPrograms({ set, family, log, clock: systemClock, lockTimeoutMs: 30_000 })
  const legacy = set.flavour === 'legacy' ? listLegacyTables(family) : undefined
  for (const table of ruleTables) {
    // The legacy programs would create a table that does not exist by reading it.
    if (legacy !== undefined && !legacy.includes(table)) continue
    const text = composeRemoval(table, await iptables.save(table))
    if (text !== '') await iptables.restore(text)
  }
}

/**
 * Composes the input of iptables-restore that removes our chains; '' if there are none. Declaring a chain empties it; then it is deleted,
 * except if rules of others use it, for example rules of the iptables mode.
 */
export function composeRemoval(table: RuleTableName, saved: string): string {
  const lines = ownLines(table, saved)
  if (lines.length === 0) return ''
  const jump = new Set(jumpLines(table))
  const present = chains[table].filter((chain) => lines.some((line) => line.startsWith(`:${chain} `)))
  const usedByOthers = saved.split('\n').flatMap((line) => {
    const [, from = '', to = ''] = /^-A (\S+) (?:.* )?-[jg] (\S+)/.exec(line) ?? []
    return from === '' || jump.has(line) || present.includes(from) ? [] : [to]
  })
  const body = [
    ...present.map((chain) => `:${chain} - [0:0]`),
    ...lines.filter((line) => jump.has(line)).map((line) => line.replace(/^-A/, '-D')),
    ...present.filter((chain) => !usedByOthers.includes(chain)).map((chain) => `-X ${chain}`),
  ]
  return `${[`*${table}`, ...body, 'COMMIT'].join('\n')}\n`
}

async function removeSets(family: Family): Promise<void> {
  const ipsets = new Ipsets(family)
  try {
    const [error] = await ipsets.destroy({})
    if (error !== undefined) throw error
  } finally {
    ipsets.close()
  }
}
