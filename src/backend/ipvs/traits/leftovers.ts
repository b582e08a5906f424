// Finds the device, the virtual servers and the sets that a proxy in ipvs mode has on this node. Removing them is in cleanup.ts.

import { readFileSync } from 'node:fs'
import { type Family, familyName } from '../../../lib/ip.ts'
import type { Leftover, LeftoverTraits } from '../../proxy-mode.ts'
import { cleanupIpvs } from '../cleanup.ts'
import { Ipsets } from '../kernel/ipsets.ts'
import { retireIpvs } from '../retire.ts'

export const ipvsLeftovers: LeftoverTraits = {
  find: findAll,
  cleanup: cleanupIpvs,
  // Virtual servers hold the connections.
  retire: retireIpvs,
  // kube-proxy's iptables mode has chains of the same names.
  sharedWith: 'ipvs and iptables',
}

function hasDevice(): boolean {
  return readText('/proc/net/dev').includes('kube-ipvs0:')
}

async function findAll(): Promise<readonly Leftover[]> {
  const device = hasDevice()
  const servers = readText('/proc/net/ip_vs').match(/^(TCP|UDP|SCTP) /gm)?.length ?? 0
  const found: Leftover[] = []
  if (device) found.push({ mode: 'ipvs', what: 'device kube-ipvs0', where: 'network interfaces' })
  if (device && servers > 0) {
    found.push({ mode: 'ipvs', what: `${servers} virtual servers (those of services go, others stay)`, where: 'IPVS' })
  }
  for (const family of [4, 6] as const) {
    const sets = await countSets(family)
    if (sets > 0) found.push({ mode: 'ipvs', what: `${sets} sets KUBE-*`, where: `ipset, ${familyName(family)}` })
  }
  return found
}

async function countSets(family: Family): Promise<number> {
  const ipsets = new Ipsets(family)
  try {
    return new Set((await ipsets.read({})).filter(({ kind }) => kind === 'set').map(({ id }) => id)).size
  } catch {
    // This kernel has no ipset, so it has no sets.
    return 0
  } finally {
    ipsets.close()
  }
}

function readText(path: string): string {
  try {
    return readFileSync(path, 'utf8')
  } catch {
    return ''
  }
}
