// Reads how many connections the chains of endpoints have counted: from nf_tables by netlink, from the legacy tables by their program.
//
// The last rule of such a chain translates, and the nat table sees the first packet of a connection alone, so that the rule's counter
// counts connections. iptables-nft lists 150,000 rules in 20 s of CPU; by netlink it takes a fraction of a second. The legacy program holds
// the xtables lock while it reads: a legacy restore replaces the whole table and adds the counters afterwards, so that a reader in between
// would see zeros.

import type { Family } from '../../../lib/ip.ts'
import { isRefusedWith } from '../../../sys/netlink/netlink-errors.ts'
import { Nftables } from '../../../sys/netlink/nft/nftables.ts'
import type { ListedRule } from '../../../sys/netlink/nft/read-objects.ts'
import { endpointPrefix, isEndpointChain } from '../../iptables-kit/chains.ts'
import type { IptablesPrograms } from '../../iptables-kit/programs.ts'
import { findListedCounts } from './listed-counts.ts'

export type ChainReading = ReadonlyMap<string, number>

export interface ChainCounters {
  /** Reads all chains of endpoints. */
  readAll(signal?: AbortSignal): Promise<ChainReading>
  /** Reads some chains, or more. Chains that do not exist are left out. */
  readSome(chains: Iterable<string>, signal?: AbortSignal): Promise<ChainReading>
  close(): void
}

export const openChainCounters = (programs: IptablesPrograms, family: Family): ChainCounters =>
  programs.set.flavour === 'nft' ? new NftChainCounters(family) : createLegacyCounters(programs)

/** More chains are read with all others: each takes a request. */
const mostRequests = 500
/** How often a listing is tried that commits of others interrupt. The results are merged. */
const attempts = 3

const endpointChains = { table: 'nat', chains: endpointPrefix } as const

class NftChainCounters implements ChainCounters {
  readonly #family: Family
  #opened: Nftables | undefined

  constructor(family: Family) {
    this.#family = family
  }

  async readAll(signal?: AbortSignal): Promise<ChainReading> {
    const found = new Map<string, number>()
    for (let attempt = 1; attempt <= attempts; attempt++) {
      // The last rule of a chain is the one that translates.
      const visit = (chain: string, packets: number) => void found.set(chain, packets)
      if (await this.#nft().ruleCountersOnce(this.#family, endpointChains, visit, { signal })) break
    }
    return found
  }

  async readSome(chains: Iterable<string>, signal?: AbortSignal): Promise<ChainReading> {
    const names = [...chains]
    if (names.length > mostRequests) return this.readAll(signal)
    const found = new Map<string, number>()
    for (const chain of names) {
      try {
        for (const rule of await this.#nft().rulesOf(this.#family, 'nat', chain)) addRule(found, rule)
      } catch (error) {
        if (!isRefusedWith(error, 'ENOENT')) throw error
      }
    }
    return found
  }

  close(): void {
    this.#opened?.close()
    this.#opened = undefined
  }

  #nft(): Nftables {
    this.#opened ??= new Nftables()
    return this.#opened
  }
}

function addRule(found: Map<string, number>, { table, chain, packets = 0 }: ListedRule): void {
  if (table === 'nat' && isEndpointChain(chain)) found.set(chain, packets)
}

function createLegacyCounters(programs: IptablesPrograms): ChainCounters {
  const readAll = async (signal?: AbortSignal): Promise<ChainReading> => {
    const found = new Map<string, number>()
    await programs.listCounters('nat', (lines) => findListedCounts(lines, found), signal)
    return found
  }
  return { readAll, readSome: (_, signal) => readAll(signal), close: () => {} }
}
