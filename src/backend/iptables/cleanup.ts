// Removes what the iptables mode leaves on a node, ours or kube-proxy's, in both flavours. Chains of kubelet and others stay.

import { ProxyError } from '../../lib/errors.ts'
import type { Family } from '../../lib/ip.ts'
import type { Logger } from '../../lib/log.ts'
import { systemClock } from '../../lib/time.ts'
import type { Cleanup } from '../backend.ts'
import {
  canary,
  formatJump,
  type IptablesTableName,
  isEndpointChain,
  isServiceChain,
  jumps,
  kubeletFirewall,
  sharedChains,
} from '../iptables-kit/chains.ts'
import { listHoldingPrograms } from '../iptables-kit/held-flavours.ts'
import { IptablesPrograms, type ProgramSet } from '../iptables-kit/programs.ts'
import { formatDeclarations, formatDeletion } from '../iptables-kit/restore-text.ts'
import { readSavedTable } from '../iptables-kit/saved-table.ts'
import { removeCarriedTables } from './count/carried-table.ts'

export const cleanupIptables: Cleanup = async (log) => {
  const errors: string[] = []
  for (const set of await listHoldingPrograms()) {
    for (const family of [4, 6] as const) errors.push(...(await cleanFamily(set, family, log)))
  }
  await removeCarriedTables()
  if (errors.length > 0) throw new ProxyError('iptables-cleanup', `iptables leftovers remain: ${errors.join('; ')}`)
}

async function cleanFamily(set: ProgramSet, family: Family, log: Logger): Promise<readonly string[]> {
  const programs = new IptablesPrograms({ set, family, log, clock: systemClock, lockTimeoutMs: 30_000 })
  const errors: string[] = []
  // Userspace mode has the same canaries.
  let isShared = false
  for (const table of ['nat', 'filter', 'mangle'] as const) {
    const saved = await readSavedTable(set, family, table)
    isShared ||= /^:KUBE-PORTALS-/m.test(saved)
    const found = findTableLeftovers(table, saved, isShared)
    if (found.jumps.length + found.chains.length === 0) continue
    log.info('Removing iptables leftovers', { family, table, flavour: set.flavour, chains: found.chains.length })
    errors.push(...(await removeLeftovers(programs, table, found)))
  }
  return errors
}

interface TableLeftovers {
  /** Lines as iptables-save prints them. */
  readonly jumps: readonly string[]
  readonly chains: readonly string[]
}

/** Finds what a proxy makes, by exact name and exact jump; without the canary if another mode shares it. */
export function findTableLeftovers(
  table: IptablesTableName | 'mangle',
  saved: string,
  isShared = false,
): TableLeftovers {
  const ownJumps = new Set(
    jumps.filter((jump) => jump.table === table && jump.to !== kubeletFirewall).map((jump) => formatJump(jump)),
  )
  const shared: readonly string[] = table === 'mangle' ? [] : sharedChains[table]
  const known = new Set([...shared, ...(isShared ? [] : [canary])])
  const chains = [...saved.matchAll(/^:(\S+) /gm)].map((match) => match[1] as string)
  return {
    jumps: saved.split('\n').filter((line) => ownJumps.has(line)),
    chains: chains.filter((chain) => known.has(chain) || (table === 'nat' && isServiceChain(chain))),
  }
}

/** The nft flavour needs minutes for more chains at once. */
const chainsPerRestore = 1500

/**
 * Removes everything at once if there are not too many chains. If that is refused, because something else uses one of the chains, it
 * removes as much as possible and returns the errors.
 */
async function removeLeftovers(
  programs: IptablesPrograms,
  table: string,
  { jumps: lines, chains }: TableLeftovers,
): Promise<readonly string[]> {
  const restore = async (body: string): Promise<readonly string[]> => {
    try {
      await programs.restore(`*${table}\n${body}COMMIT\n`, undefined, ['-T', table])
      return []
    } catch (error) {
      if (!(error instanceof ProxyError)) throw error
      return [error.message]
    }
  }
  const unlink = lines.map((line) => `${line.replace(/^-A/, '-D')}\n`).join('')
  // Chains that jump are deleted before those that they jump to, so the shared chains come last.
  const shared = chains.filter((chain) => !isServiceChain(chain))
  const own = chains
    .filter((chain) => isServiceChain(chain))
    .sort((a, b) => Number(isEndpointChain(a)) - Number(isEndpointChain(b)))
  if (own.length <= chainsPerRestore) {
    const errors = await restore(`${formatDeclarations(chains)}${unlink}${formatDeletions(chains)}`)
    if (errors.length === 0) return []
  }
  const errors = [...(await restore(`${formatDeclarations(shared)}${unlink}`))]
  for (let start = 0; start < own.length; start += chainsPerRestore) {
    errors.push(...(await removeChains(own.slice(start, start + chainsPerRestore), restore)))
  }
  for (const chain of shared) errors.push(...(await restore(formatDeletion(chain))))
  return errors
}

/** Removes chains at once, or empties them at once and deletes them one by one. */
async function removeChains(
  chains: readonly string[],
  restore: (body: string) => Promise<readonly string[]>,
): Promise<readonly string[]> {
  if ((await restore(`${formatDeclarations(chains)}${formatDeletions(chains)}`)).length === 0) return []
  const errors = [...(await restore(formatDeclarations(chains)))]
  for (const chain of chains) errors.push(...(await restore(formatDeletion(chain))))
  return errors
}

const formatDeletions = (chains: readonly string[]): string => chains.map(formatDeletion).join('')
