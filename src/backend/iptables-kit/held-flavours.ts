// Finds the flavours of iptables that may hold chains of a proxy, by asking the kernel: most nodes hold none, so no program needs to start.

import type { Family } from '../../lib/ip.ts'
import { readTableSize } from '../../sys/legacy-table-size.ts'
import { listLegacyTables, listNftChains, listPrograms } from './flavour.ts'
import type { ProgramSet } from './programs.ts'

type Flavour = ProgramSet['flavour']

/** Entries of a legacy table without rules and chains: one for each built-in chain, and one at the end. */
const emptyTableEntries: ReadonlyMap<string, number> = new Map([
  ['nat', 5],
  ['filter', 4],
  ['mangle', 6],
])

/** Chains that kubelet makes, and no proxy. */
const kubeletChains: ReadonlySet<string> = new Set(['KUBE-KUBELET-CANARY', 'KUBE-IPTABLES-HINT', 'KUBE-FIREWALL'])

/**
 * The installed sets of programs whose flavour may hold chains of a proxy, or only those that `isWanted` selects by a name like
 * `nat KUBE-SERVICES`. Starts no program if neither flavour does.
 */
export async function listHoldingPrograms(
  isWanted: (chain: string) => boolean = isProxyChain,
): Promise<readonly ProgramSet[]> {
  const holding = new Set<Flavour>()
  if (await mayHoldNftChains(isWanted)) holding.add('nft')
  if (mayHoldLegacyChains()) holding.add('legacy')
  if (holding.size === 0) return []
  return (await listPrograms()).filter(({ flavour }) => holding.has(flavour))
}

async function mayHoldNftChains(isWanted: (chain: string) => boolean): Promise<boolean> {
  try {
    return (await listNftChains()).some(isWanted)
  } catch {
    // The programs know more, or fail with a reason.
    return true
  }
}

/** `name` is the table and the chain, as in `nat KUBE-SERVICES`. */
export function isProxyChain(name: string): boolean {
  const [table = '', chain = ''] = name.split(' ')
  return emptyTableEntries.has(table) && chain.startsWith('KUBE-') && !kubeletChains.has(chain)
}

const mayHoldLegacyChains = (): boolean => ([4, 6] as const).some(mayHoldLegacyChainsOf)

/** The kernel does not name chains of a legacy table, so any rule or chain counts. */
function mayHoldLegacyChainsOf(family: Family): boolean {
  try {
    const existing = new Set(listLegacyTables(family))
    return [...emptyTableEntries].some(
      ([table, empty]) => existing.has(table) && readTableSize(family, table).entries > empty,
    )
  } catch {
    return true
  }
}
