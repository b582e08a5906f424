// What proxies have on this node right now: tables, chains, sets, devices and virtual servers, ours or kube-proxy's. Only reads.

import { readFileSync } from 'node:fs'
import { type Family, familyName } from '../lib/ip.ts'
import { count } from '../lib/plural.ts'
import { Nftables } from '../sys/netlink/nft/nftables.ts'
import { runProgram } from '../sys/process/exec.ts'
import type { Mode } from './backend.ts'
import { leftovers } from './iptables/cleanup.ts'
import { legacyTables, listPrograms, type Programs, programName } from './iptables-kit/programs.ts'
import { Ipsets } from './ipvs/ipsets.ts'
import { tableName } from './nftables/base.ts'

export interface Leftover {
  readonly mode: Mode
  readonly what: string
  readonly where: string
}

export async function findLeftovers(): Promise<readonly Leftover[]> {
  return [...(await nftTables()), ...(await iptablesChains()), ...(await ipvsThings())]
}

async function nftTables(): Promise<readonly Leftover[]> {
  let nft: Nftables
  try {
    nft = new Nftables()
  } catch {
    // No nf_tables in this kernel: nothing can be there.
    return []
  }
  try {
    const tables = (await nft.tables()).filter(({ name }) => name === tableName)
    return tables.map(({ family, name }) => ({
      mode: 'nftables',
      what: `table ${name}`,
      where: `nf_tables, ${familyName(family)}`,
    }))
  } finally {
    nft.close()
  }
}

async function iptablesChains(): Promise<readonly Leftover[]> {
  const found: Leftover[] = []
  for (const programs of await listPrograms()) {
    for (const family of [4, 6] as const) {
      const legacy = programs.flavour === 'legacy' ? legacyTables(family) : undefined
      for (const table of ['nat', 'filter', 'mangle'] as const) {
        // The legacy programs would make a table that is not there by looking at it.
        if (legacy !== undefined && !legacy.includes(table)) continue
        const { chains, jumps } = leftovers(table, await saved(programs, family, table))
        if (chains.length + jumps.length === 0) continue
        found.push({
          mode: 'iptables',
          what: `${count(chains.length, 'chain')}, ${count(jumps.length, 'jump')}`,
          where: `${programName(family)} (${programs.flavour}), table ${table}`,
        })
      }
    }
  }
  return found
}

/** A table as the tools print it; '' if this kernel has none. */
export async function saved({ suffix }: Programs, family: Family, table: string): Promise<string> {
  const options = { accept: [0, 1, 2, 3, 4], deadlineMs: 10 * 60_000 }
  return (await runProgram(`${programName(family)}${suffix}-save`, ['-t', table], options)).stdout
}

export const hasIpvsDevice = (): boolean => readText('/proc/net/dev').includes('kube-ipvs0:')

async function ipvsThings(): Promise<readonly Leftover[]> {
  const found: Leftover[] = []
  if (hasIpvsDevice()) {
    found.push({ mode: 'ipvs', what: 'device kube-ipvs0', where: 'network interfaces' })
  }
  const servers = readText('/proc/net/ip_vs').match(/^(TCP|UDP|SCTP) /gm)?.length ?? 0
  if (servers > 0 && found.length > 0) {
    found.push({ mode: 'ipvs', what: `${servers} virtual servers (those of services go, others stay)`, where: 'IPVS' })
  }
  for (const family of [4, 6] as const) {
    const members = new Ipsets(family)
    try {
      const sets = new Set((await members.read({})).filter(({ kind }) => kind === 'set').map(({ id }) => id))
      if (sets.size > 0)
        found.push({ mode: 'ipvs', what: `${sets.size} sets KUBE-*`, where: `ipset, ${familyName(family)}` })
    } catch {
      // No ipset in this kernel: nothing can be there.
    } finally {
      members.close()
    }
  }
  return found
}

function readText(path: string): string {
  try {
    return readFileSync(path, 'utf8')
  } catch {
    return ''
  }
}
