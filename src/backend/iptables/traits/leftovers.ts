// Finds the chains and jumps that a proxy in iptables mode has on this node. Removing them is in cleanup.ts.

import { count } from '../../../lib/plural.ts'
import { kubeletFirewall } from '../../iptables-kit/chains.ts'
import { listPrograms } from '../../iptables-kit/flavour.ts'
import { listHoldingPrograms } from '../../iptables-kit/held-flavours.ts'
import { programName } from '../../iptables-kit/programs.ts'
import { readSavedTable } from '../../iptables-kit/saved-table.ts'
import type { KeptObject, Leftover, LeftoverTraits } from '../../proxy-mode.ts'
import { cleanupIptables, findTableLeftovers } from '../cleanup.ts'
import { readServices } from '../read-services.ts'

export const iptablesLeftovers: LeftoverTraits = {
  find: findChains,
  cleanup: cleanupIptables,
  findKept: findKubeletFirewalls,
  // kube-proxy's ipvs mode has chains of the same names.
  sharedWith: 'ipvs and iptables',
  readServices,
}

async function findChains(): Promise<readonly Leftover[]> {
  const places = (await listHoldingPrograms()).flatMap((programs) =>
    ([4, 6] as const).flatMap((family) =>
      (['nat', 'filter', 'mangle'] as const).map((table) => ({ programs, family, table })),
    ),
  )
  const found: Leftover[] = []
  for (const { programs, family, table } of places) {
    const { chains, jumps } = findTableLeftovers(table, await readSavedTable(programs, family, table))
    if (chains.length + jumps.length === 0) continue
    found.push({
      mode: 'iptables',
      what: `${count(chains.length, 'chain')}, ${count(jumps.length, 'jump')}`,
      where: `${programName(family)} (${programs.flavour}), table ${table}`,
    })
  }
  return found
}

/** Kubelet writes the same chain with the same rule, and expects to find it. */
async function findKubeletFirewalls(): Promise<readonly KeptObject[]> {
  const found: KeptObject[] = []
  for (const programs of await listPrograms()) {
    for (const family of [4, 6] as const) {
      const saved = await readSavedTable(programs, family, 'filter')
      if (!saved.includes(`\n:${kubeletFirewall} `)) continue
      const program = `${programName(family)}${programs.suffix}`
      const jumps = saved.split('\n').filter((line) => line.endsWith(` -j ${kubeletFirewall}`))
      found.push({
        what: `chain ${kubeletFirewall}`,
        where: `${programName(family)} (${programs.flavour}), table filter`,
        why: 'kubelet uses it as well',
        commands: [
          ...jumps.map((line) => `${program} ${line.replace(/^-A/, '-D')}`),
          `${program} -F ${kubeletFirewall}`,
          `${program} -X ${kubeletFirewall}`,
        ],
      })
    }
  }
  return found
}
