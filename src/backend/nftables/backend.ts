// Assembles nftables mode from its parts. Its cleanup is in cleanup.ts.

import { type Family, familyName } from '../../lib/ip.ts'
import { Nftables } from '../../sys/netlink/nft/nftables.ts'
import type { Backend, OpenContext, PortCounters, Settings } from '../backend.ts'
import { base } from './base.ts'
import { checkNftables } from './check.ts'
import type { NftEntry } from './entries.ts'
import { FeatureProbe, restrictFeatures } from './features.ts'
import { plan, planLazily } from './plan.ts'
import { NftTarget } from './target.ts'

export function nftables({ counters }: Pick<Settings, 'counters'> = { counters: true }): Backend<NftEntry> {
  const probe = new FeatureProbe()
  const make = (context: OpenContext) => makeTarget(context, counters, probe)
  const targets = new OpenTargets(make)
  const open = (context: OpenContext) => targets.open(context)
  return {
    name: 'nftables',
    periodic: false,
    async families(): Promise<readonly Family[]> {
      const nft = new Nftables()
      try {
        await probe.find(nft, 4)
      } finally {
        nft.close()
      }
      return [4, 6]
    },
    // There is nothing to prepare: no sysctl, and the kernel loads its modules by itself.
    prepare: async () => {},
    base,
    plan: (port, node) => plan(port, node, counters),
    planLazily: (port, node) => planLazily(port, node, counters),
    open,
    openCheck: (node, signal) => checkNftables(make, node, signal),
    ...(counters ? { counters: () => targets.readCounters() } : {}),
  }
}

async function makeTarget(context: OpenContext, counters: boolean, probe: FeatureProbe): Promise<NftTarget> {
  const nft = new Nftables({ clock: context.clock })
  const found = restrictFeatures(await probe.find(nft, context.family))
  const names = Object.entries(found).map(([name, has]) => `${name}=${has ? 'yes' : 'no'}`)
  context.log.info('Features of nftables in this kernel', {
    family: familyName(context.family),
    found: names.join(' '),
  })
  return new NftTarget(context, nft, { ...found, counters: found.counters && counters })
}

/** The targets of the families, which are read together. */
class OpenTargets {
  readonly #make: (context: OpenContext) => Promise<NftTarget>
  readonly #open = new Map<Family, NftTarget>()

  constructor(make: (context: OpenContext) => Promise<NftTarget>) {
    this.#make = make
  }

  async open(context: OpenContext): Promise<NftTarget> {
    const target = await this.#make(context)
    this.#open.set(context.family, target)
    return target
  }

  async readCounters(): Promise<readonly PortCounters[]> {
    const nft = new Nftables()
    try {
      const found: PortCounters[] = []
      for (const target of this.#open.values()) found.push(...(await target.readCounters(nft)))
      return found
    } finally {
      nft.close()
    }
  }
}
