// Finds the service ports that chains of endpoints belonged to. Chains that this process did not write are recognised by their hash.

import { stride, type TimeSlice } from '../../../lib/yielding.ts'
import { hash32 } from '../../names.ts'
import { type PortEntry, portNameOf } from '../entries.ts'
import type { WrittenRules } from '../write/written.ts'
import { findDestination } from './listed-counts.ts'

export interface StrayOptions {
  readonly written: WrittenRules
  /** Lists the rules of one chain of nat. */
  readonly listRules: (chain: string, signal: AbortSignal) => Promise<readonly string[]>
  readonly slice: TimeSlice
}

/** A program is started for each stray; what more strays have counted is lost. */
const mostStrays = 200

export class StrayOwners {
  readonly #options: StrayOptions

  constructor(options: StrayOptions) {
    this.#options = options
  }

  /** Returns the ids of the ports by chain. Chains of ports that are not among `ports` are left out. */
  async find(
    chains: readonly string[],
    ports: readonly PortEntry[],
    signal: AbortSignal,
  ): Promise<ReadonlyMap<string, string>> {
    const ids = new Set(ports.map(({ id }) => id))
    const known = this.#findWritten(new Set(chains))
    const found = new Map([...known].filter(([, id]) => ids.has(id)))
    for (const chain of chains.filter((one) => !known.has(one)).slice(0, mostStrays)) {
      const port = await this.#recognise(chain, ports, signal)
      if (port !== undefined) found.set(chain, port.id)
    }
    return found
  }

  #findWritten(chains: ReadonlySet<string>): ReadonlyMap<string, string> {
    const found = new Map<string, string>()
    for (const { id, rules } of this.#options.written.ports()) {
      for (const chain of rules.chains()) if (chains.has(chain)) found.set(chain, id)
    }
    return found
  }

  /** The name of a chain is a hash of its port and its endpoint, which its rule names. */
  async #recognise(chain: string, ports: readonly PortEntry[], signal: AbortSignal): Promise<PortEntry | undefined> {
    const { listRules, slice } = this.#options
    const endpoint = findDestination(await listRules(chain, signal).catch(() => []))
    if (endpoint === '') return undefined
    for (const [i, port] of ports.entries()) {
      if (i % stride === 0 && slice.over) await slice.yieldLoop()
      const protocol = port.id.slice(port.id.lastIndexOf('/') + 1)
      if (chain.endsWith(`-${hash32(`${portNameOf(port)}${protocol}${endpoint}`, 16)}`)) return port
    }
    return undefined
  }
}
