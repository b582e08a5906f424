// Finds firewalls of other programs that may drop packets to services.

import { type Finding, ok } from '../../backend/finding.ts'
import { findDroppingPolicies } from '../../backend/iptables-kit/program-findings.ts'
import { runProgram } from '../../sys/process/exec.ts'

export async function examineFirewalls(): Promise<readonly Finding[]> {
  const tables = (await findForeignTables()).map(
    (table): Finding => ({
      level: 'note',
      about: `firewall: table ${table}`,
      found: 'another program’s nf_tables table',
      meaning: 'Every table must accept a packet: no proxy can accept what this table drops.',
      todo: `nft list table ${table}: allow forwarding to and from pods, node ports, and the health check ports.`,
    }),
  )
  const found = [...(await findDroppingPolicies()), ...tables]
  return found.length > 0 ? found : [ok('firewalls', 'none in the way')]
}

/** Returns `family name` of each table that belongs neither to a proxy nor to the iptables programs. */
async function findForeignTables(): Promise<readonly string[]> {
  try {
    const { stdout } = await runProgram('nft', ['list', 'tables'], { deadlineMs: 10_000 })
    const tables = [...stdout.matchAll(/^table (\S+) (\S+)/gm)].map(([, family, name]) => `${family} ${name}`)
    return tables.filter((table) => !/^(ip|ip6|arp|bridge) (filter|nat|mangle|raw|security|kube-proxy)$/.test(table))
  } catch {
    // Without the program nft, or without root, other tables cannot be listed.
    return []
  }
}
