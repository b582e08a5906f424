// Removes what userspace mode leaves on a node, ours or kube-proxy's, in both flavours of iptables. Chains of others stay.

import { ProxyError } from '../../lib/errors.ts'
import type { Family } from '../../lib/ip.ts'
import type { Logger } from '../../lib/log.ts'
import { systemClock } from '../../lib/time.ts'
import type { Cleanup } from '../backend.ts'
import { canary } from '../iptables-kit/chains.ts'
import { listHoldingPrograms } from '../iptables-kit/held-flavours.ts'
import { IptablesPrograms, type ProgramSet } from '../iptables-kit/programs.ts'
import { readSavedTable } from '../iptables-kit/saved-table.ts'
import { ownChains, type PortalTable } from './portal-chains.ts'

export const cleanupUserspace: Cleanup = async (log) => {
  const errors: string[] = []
  for (const set of await listHoldingPrograms(isOwnChain)) {
    for (const family of [4, 6] as const) errors.push(...(await cleanFamily(set, family, log)))
  }
  if (errors.length > 0) throw new ProxyError('iptables-cleanup', `userspace leftovers remain: ${errors.join('; ')}`)
}

/** `name` is the table and the chain, as in `nat KUBE-PORTALS-HOST`. */
function isOwnChain(name: string): boolean {
  const [table = '', chain = ''] = name.split(' ')
  return (table === 'nat' || table === 'filter') && ownChains[table].includes(chain)
}

async function cleanFamily(set: ProgramSet, family: Family, log: Logger): Promise<readonly string[]> {
  const programs = new IptablesPrograms({ set, family, log, clock: systemClock, lockTimeoutMs: 30_000 })
  const read = (table: string) => readSavedTable(set, family, table)
  const errors: string[] = []
  const remove = async (table: string, text: string) => {
    if (text === '') return
    log.info('Removing userspace leftovers', { family, table, flavour: set.flavour })
    try {
      await programs.restore(text, undefined, ['-T', table])
    } catch (error) {
      if (!(error instanceof ProxyError)) throw error
      errors.push(error.message)
    }
  }
  const [nat, filter] = [await read('nat'), await read('filter')]
  const removals = { nat: composeRemoval('nat', nat), filter: composeRemoval('filter', filter) }
  await remove('nat', removals.nat)
  await remove('filter', removals.filter)
  // mangle holds nothing of ours but a canary, which the iptables mode has, too.
  const isOurs = removals.nat + removals.filter !== ''
  const isShared = hasIptablesMode(listChains(nat)) || hasIptablesMode(listChains(filter))
  if (isOurs && !isShared) await remove('mangle', composeCanaryRemoval(await read('mangle')))
  return errors
}

/**
 * Composes the input of iptables-restore that removes our chains and every jump to them; '' if there are none. The canary stays while
 * chains of the iptables mode are there, which shares it.
 */
export function composeRemoval(table: PortalTable, saved: string): string {
  const present = listChains(saved)
  const own = present.filter((chain) => ownChains[table].includes(chain))
  if (own.length === 0) return ''
  const removed = [...own, ...(present.includes(canary) && !hasIptablesMode(present) ? [canary] : [])]
  const jumps = saved
    .split('\n')
    .filter((line) => own.some((chain) => line.endsWith(` -j ${chain}`)))
    .map((line) => line.replace(/^-A/, '-D'))
  const declared = removed.map((chain) => `:${chain} - [0:0]`)
  return `${[`*${table}`, ...declared, ...jumps, ...removed.map((chain) => `-X ${chain}`), 'COMMIT'].join('\n')}\n`
}

const composeCanaryRemoval = (saved: string): string =>
  listChains(saved).includes(canary) ? `*mangle\n:${canary} - [0:0]\n-X ${canary}\nCOMMIT\n` : ''

const listChains = (saved: string): readonly string[] =>
  [...saved.matchAll(/^:(\S+) /gm)].map((match) => match[1] as string)

const hasIptablesMode = (chains: readonly string[]): boolean =>
  chains.some((chain) => /^KUBE-(?:SERVICES|POSTROUTING|FORWARD)$/.test(chain))
