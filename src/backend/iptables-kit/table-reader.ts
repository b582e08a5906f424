// Reads the kernel's iptables tables: a version that changes with every change, how often each chain is used, and which chains exist.

import type { Family } from '../../lib/ip.ts'
import { SetHash } from '../../lib/set-hash.ts'
import { readTableSize } from '../../sys/legacy-table-size.ts'
import { ChainTable } from '../../sys/netlink/nft/chain-uses.ts'
import { watchGenerations } from '../../sys/netlink/nft/generations.ts'
import type { Subscription } from '../../sys/netlink/subscribe.ts'
import type { IptablesTableName } from './chains.ts'
import type { IptablesPrograms } from './programs.ts'
import { RuleSetHash } from './rule-hash.ts'
import {
  countUses,
  isNatServiceChain,
  natPrefix,
  SavedServiceChains,
  type ServiceChains,
  usesMatch,
  watchedTables,
} from './saved-uses.ts'

export interface ChainUses {
  /** Rules in each chain plus rules that jump to it; the key is `nat KUBE-SERVICES`. */
  readonly uses: ReadonlyMap<string, number>
  /** Rules of other chains that jump to our chains, as `nat -A …`. Undefined in the nft flavour, where reading them costs extra. */
  readonly jumps: ReadonlySet<string> | undefined
}

export interface ChainSurvey extends ChainUses {
  readonly serviceChains: ServiceChains
}

/** What one write of ours changed. */
export interface OwnChange {
  /** Tables of the restores that succeeded. */
  readonly commits: number
  /** The growth of each legacy table in entries; undefined if it was unknown before the write. */
  readonly entries: Readonly<Record<IptablesTableName, number>> | undefined
}

/** What the tables hold if no other program changed them. */
export interface ExpectedRules {
  /** Rules in service chains. */
  readonly rules: RuleSetHash
  /** Uses by rules in all other chains, those by tolerated jumps of other programs included. */
  readonly uses: ReadonlyMap<string, number>
}

export interface TableReader {
  /** Costs next to nothing. If two versions are equal, nothing changed in between. */
  readVersion(): Promise<string>
  /**
   * Exists where the kernel reports changes. Calls `onChange` with every new version, and with undefined if reports were lost. Returns false
   * if the kernel does not report after all.
   */
  watchVersions?(onChange: (version: string | undefined) => void): boolean
  /** True if nothing but `own` lies between two versions. */
  isOwnChange(before: string, after: string, own: OwnChange): boolean
  readUses(signal?: AbortSignal): Promise<ChainUses>
  /** Exists where it is cheaper than `readUses`. Only `readUses` can say what differs. */
  matches?(expected: ExpectedRules): Promise<boolean>
  /** Reads which service chains exist. In its `uses` only the uses by built-in chains are complete. */
  readChains(signal?: AbortSignal): Promise<ChainSurvey>
  close(): void
}

export const openTableReader = (programs: IptablesPrograms, family: Family): TableReader =>
  programs.set.flavour === 'nft' ? createNftReader(family) : createLegacyReader(programs, family)

/** The version is the generation of nf_tables, which counts transactions. The kernel lists chains together with their uses. */
function createNftReader(family: Family): TableReader {
  const chains = new ChainTable()
  let commits: Subscription | undefined
  const readUses = async (signal?: AbortSignal) => ({
    uses: await chains.list(family, { signal }),
    jumps: undefined,
  })
  return {
    readVersion: async () => String(await chains.generation()),
    watchVersions(onChange) {
      try {
        commits = watchGenerations((generation) => onChange(generation === undefined ? undefined : String(generation)))
        return true
      } catch {
        return false
      }
    },
    isOwnChange: (before, after, { commits }) => Number(after) === Number(before) + commits,
    readUses,
    async readChains(signal) {
      const found = await readUses(signal)
      return { ...found, serviceChains: findServiceChains(found.uses) }
    },
    close() {
      commits?.close()
      chains.close()
    },
  }
}

function findServiceChains(uses: ReadonlyMap<string, number>): ServiceChains {
  const keys = [...uses.keys()].filter(isNatServiceChain)
  const checksum = new SetHash()
  for (const key of keys) checksum.add(key, natPrefix.length, key.length)
  return { checksum, names: () => keys.map((key) => key.slice(natPrefix.length)) }
}

/** The version is the size of the tables, which hardly any change leaves as it is. The tables can only be read as a whole. */
function createLegacyReader(programs: IptablesPrograms, family: Family): TableReader {
  const read = async <C extends SavedServiceChains | undefined>(signal: AbortSignal | undefined, serviceChains: C) => {
    const counts = { uses: new Map<string, number>(), jumps: new Set<string>(), serviceChains, table: '' }
    await programs.saveAll((lines) => countUses(lines, counts), signal)
    return counts
  }
  return {
    readVersion: async () =>
      watchedTables
        .map((table) => readTableSize(family, table))
        .map(({ entries, bytes }) => `${entries}/${bytes}`)
        .join(' '),
    isOwnChange: (before, after, { entries }) => {
      if (entries === undefined) return false
      const [old, current] = [entriesOf(before), entriesOf(after)]
      return watchedTables.every((table, i) => {
        const growth = table === 'mangle' ? 0 : entries[table]
        return current[i] === (old[i] as number) + growth
      })
    },
    readUses: (signal) => read(signal, undefined),
    async matches({ rules, uses: wanted }) {
      const found = new RuleSetHash()
      const { uses } = await read(undefined, new SavedServiceChains(found))
      return found.equals(rules) && usesMatch(uses, wanted)
    },
    readChains: (signal) => read(signal, new SavedServiceChains()),
    close: () => {},
  }
}

/** The number of entries of each table in a version. */
const entriesOf = (version: string): readonly number[] => version.split(' ').map(Number.parseFloat)
