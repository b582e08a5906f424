// Finds firewalls of other programs that may drop packets to services.

import { couldNotLook, type Finding, ok } from '../../backend/finding.ts'
import { findDroppingPolicies } from '../../backend/iptables-kit/program-findings.ts'
import { describeError } from '../../lib/errors.ts'
import { runProgram } from '../../sys/process/exec.ts'
import { hasNetAdmin } from './machine.ts'

export async function examineFirewalls(): Promise<readonly Finding[]> {
  if (!hasNetAdmin()) return [couldNotLook('firewalls', 'that needs CAP_NET_ADMIN')]
  try {
    return await listFirewalls()
  } catch (error) {
    return [couldNotLook('firewalls', describeError(error))]
  }
}

async function listFirewalls(): Promise<readonly Finding[]> {
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
    // Without the program nft, tables of others cannot be listed.
    return []
  }
}
