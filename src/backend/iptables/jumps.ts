// Makes sure that the canaries, the shared chains and the jumps into them exist, in one restore. Nothing that exists is changed.

import { canary, formatJump, formatJumpArguments, jumps, type KubeJump } from '../iptables-kit/chains.ts'
import type { IptablesPrograms } from '../iptables-kit/programs.ts'
import { formatDeclarations } from '../iptables-kit/restore-text.ts'
import type { ChainUses } from '../iptables-kit/table-reader.ts'

/** `found` is what the tables hold now. */
export async function ensureJumps(programs: IptablesPrograms, found: ChainUses, signal: AbortSignal): Promise<void> {
  const missing = await findMissingJumps(programs, found, signal)
  const text = composeJumps(missing, (table, chain) => !found.uses.has(`${table} ${chain}`))
  if (text !== '') await programs.restore(text, signal)
}

/** A jump to a chain that does not exist or is not used is missing; the other jumps are looked up. */
async function findMissingJumps(
  programs: IptablesPrograms,
  { uses, jumps: found }: ChainUses,
  signal: AbortSignal,
): Promise<readonly KubeJump[]> {
  const missing: KubeJump[] = []
  const known = new Set(found ?? [])
  const listed = new Set<string>()
  for (const jump of jumps) {
    const { table, from, to } = jump
    const line = `${table} ${formatJump(jump)}`
    const isUsed = (uses.get(`${table} ${to}`) ?? 0) > 0
    // Listing a chain once answers the question for all of its jumps.
    if (isUsed && !known.has(line) && !listed.has(`${table} ${from}`)) {
      listed.add(`${table} ${from}`)
      for (const rule of await programs.listRules(table, from, signal)) known.add(`${table} ${rule}`)
    }
    if (known.has(line)) continue
    const check = ['-C', from, '-t', table, ...formatJumpArguments(jump)]
    if (!isUsed || !(await programs.succeeds(check, signal))) missing.push(jump)
  }
  return missing
}

/**
 * The input of a restore that makes the missing jumps, the missing canaries, and the chains that the jumps lead to; '' if nothing is
 * missing. A chain that exists must not be declared: that would empty it.
 */
export function composeJumps(
  missing: readonly KubeJump[],
  isAbsent: (table: string, chain: string) => boolean,
): string {
  let text = ''
  for (const table of ['mangle', 'nat', 'filter']) {
    const own = missing.filter((jump) => jump.table === table)
    const chains = new Set([canary, ...own.map(({ to }) => to)].filter((chain) => isAbsent(table, chain)))
    if (own.length + chains.size === 0) continue
    const inserts = own.map((jump) => `${formatJump(jump).replace('-A', '-I')}\n`)
    text += `*${table}\n${formatDeclarations([...chains])}${inserts.join('')}COMMIT\n`
  }
  return text
}
