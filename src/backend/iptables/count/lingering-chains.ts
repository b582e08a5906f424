// Keeps the chains of endpoints that are gone for a while after nothing jumps to them, so that their last count can be read. Pure.
//
// A restore that deletes a chain deletes its count, and whatever was counted since the last reading would be lost. So the restore that
// takes the jumps away leaves the chain: the entry that is written is the wanted entry with the chains of these endpoints. When nothing
// can be in the chain any more, its count is read, and the chain is deleted.

import type { Changes } from '../../backend.ts'
import { isEndpointChain } from '../../iptables-kit/chains.ts'
import type { IptablesEntry, PortEntry } from '../entries.ts'
import { buildEntry, contentOf, extend } from '../write/port-content.ts'
import type { WrittenRules } from '../write/written.ts'

interface LingeringPort {
  /** The entry without chains that linger. */
  readonly wanted: PortEntry
  /** Since when nothing jumps to each chain, in ms. */
  readonly since: ReadonlyMap<string, number>
}

/** A change in which chains linger. */
export interface KeptChanges {
  readonly changes: Changes<IptablesEntry>
  /** By id. */
  readonly ports: ReadonlyMap<string, LingeringPort & { readonly entry: PortEntry }>
}

export class LingeringChains {
  readonly #written: WrittenRules
  readonly #ports = new Map<string, LingeringPort>()

  constructor(written: WrittenRules) {
    this.#written = written
  }

  get isEmpty(): boolean {
    return this.#ports.size === 0
  }

  /** True if the chain has no use but its count. */
  has(port: string, chain: string): boolean {
    return this.#ports.get(port)?.since.has(chain) === true
  }

  /** Chains to which nothing jumps since `ms` or earlier, with the ids of their ports. */
  listSince(ms: number): ReadonlyMap<string, string> {
    const found = new Map<string, string>()
    for (const [id, { since }] of this.#ports) for (const [chain, at] of since) if (at <= ms) found.set(chain, id)
    return found
  }

  /** The same changes, in which no port that stays loses the chain of an endpoint. */
  keep({ put, drop }: Changes<IptablesEntry>, now: number): KeptChanges {
    const ports = new Map<string, LingeringPort & { readonly entry: PortEntry }>()
    const kept = put.map((entry) => {
      if (entry.kind === 'base') return entry
      const lost = this.#findLost(entry)
      const known = this.#ports.get(entry.id)?.since
      if (lost.length === 0 && known === undefined) return entry
      const since = new Map(lost.map((chain) => [chain, known?.get(chain) ?? now]))
      const extended = this.#extend(entry, lost)
      ports.set(entry.id, { wanted: entry, since, entry: extended })
      return extended
    })
    return { changes: ports.size === 0 ? { put, drop } : { put: kept, drop }, ports }
  }

  /** The changes that delete these chains. */
  release(chains: ReadonlyMap<string, string>): KeptChanges {
    const ports = new Map<string, LingeringPort & { readonly entry: PortEntry }>()
    for (const id of new Set(chains.values())) {
      const port = this.#ports.get(id)
      if (port === undefined) continue
      const since = new Map([...port.since].filter(([chain]) => !chains.has(chain)))
      ports.set(id, { wanted: port.wanted, since, entry: this.#extend(port.wanted, [...since.keys()]) })
    }
    return { changes: { put: [...ports.values()].map(({ entry }) => entry), drop: [] }, ports }
  }

  /** Notes what is written: changes of ports that were refused are left out. */
  settle({ ports, changes }: KeptChanges): void {
    for (const [id, { wanted, since, entry }] of ports) {
      if (this.#written.port(id)?.digest !== entry.digest) continue
      if (since.size === 0) this.#ports.delete(id)
      else this.#ports.set(id, { wanted, since })
    }
    for (const { id } of changes.drop) if (this.#written.port(id) === undefined) this.#ports.delete(id)
  }

  /** Everything was written without chains that linger. */
  clear(): void {
    this.#ports.clear()
  }

  #findLost(entry: PortEntry): readonly string[] {
    const old = this.#written.port(entry.id)
    if (old === undefined || old.digest === entry.digest) return []
    const own = new Set(entry.rules.chains())
    return old.rules.chains().filter((chain) => isEndpointChain(chain) && !own.has(chain))
  }

  #extend(entry: PortEntry, chains: readonly string[]): PortEntry {
    if (chains.length === 0) return entry
    const { byChain } = contentOf(this.#written.port(entry.id))
    const more = chains.map((chain) => [chain, byChain.get(chain) ?? []] as const)
    return buildEntry(entry, extend(contentOf(entry), more))
  }
}
