// What the doctor reports about the iptables programs, and about a firewall that drops forwarded packets.

import { describeError } from '../../lib/errors.ts'
import { couldNotLook, type Finding, ok } from '../finding.ts'
import { listPrograms } from './flavour.ts'
import type { ProgramSet } from './programs.ts'
import { readSavedTable } from './saved-table.ts'

/** Lists the installed flavours; `missing` completes the finding if there is none. */
export async function findIptablesPrograms(
  missing: Pick<Finding, 'level' | 'meaning' | 'todo'>,
): Promise<readonly Finding[]> {
  let flavours: readonly ProgramSet[]
  try {
    flavours = await listPrograms()
  } catch (error) {
    return [couldNotLook('iptables', describeError(error))]
  }
  if (flavours.length === 0) return [{ about: 'iptables', found: 'not installed', ...missing }]
  return flavours.map(({ flavour, version }) => ok(`iptables (${flavour})`, version.join('.')))
}

/** Lists the installed flavours for a mode that cannot work without any. */
export const findNeededPrograms = (mode: string): Promise<readonly Finding[]> =>
  findIptablesPrograms({
    level: 'problem',
    meaning: `Mode ${mode} writes rules through it.`,
    todo: 'Install iptables, or use mode nftables.',
  })

/** Reports each flavour in which the chain FORWARD drops packets that no rule accepts. Throws if the rules cannot be read. */
export async function findDroppingPolicies(): Promise<readonly Finding[]> {
  const found: Finding[] = []
  for (const programs of await listPrograms()) {
    const filter = await readSavedTable(programs, 4, 'filter')
    if (/^:FORWARD (\w+)/m.exec(filter)?.[1] !== 'DROP') continue
    found.push({
      level: 'warning',
      about: `firewall: iptables (${programs.flavour})`,
      found: 'policy of FORWARD is DROP',
      meaning:
        'What is forwarded to endpoints must be accepted by some rule; Docker sets this policy. iptables mode accepts its own marked traffic, nftables mode cannot overrule it.',
      todo: 'iptables -A FORWARD -s POD-CIDR -j ACCEPT and -d POD-CIDR -j ACCEPT, or iptables -P FORWARD ACCEPT.',
    })
  }
  return found
}
