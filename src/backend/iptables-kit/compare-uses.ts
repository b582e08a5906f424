// Compares how often chains are used with how often they should be, and finds uses by other programs that are tolerated. Pure.

import { canary } from './chains.ts'
import { parseRule } from './restore-text.ts'
import { isUsedAsWanted, watchedTables } from './saved-uses.ts'

type Uses = ReadonlyMap<string, number>

/** A message names at most this many differences. */
const maxNamed = 3

/** Describes how `uses` differs from `expected` plus `tolerated`; '' if it does not. */
export function describeDifference(uses: Uses, expected: Uses, tolerated: Uses): string {
  const found: string[] = []
  for (const table of watchedTables) if (!uses.has(`${table} ${canary}`)) found.push(`${table} ${canary} is gone`)
  for (const [chain, own] of expected) {
    const wanted = own + (tolerated.get(chain) ?? 0)
    const use = uses.get(chain)
    if (use === undefined) found.push(`${chain} is gone`)
    else if (!isUsedAsWanted(chain, use, wanted)) {
      found.push(`${chain} has ${use} rules and jumps instead of ${wanted}`)
    }
    if (found.length > maxNamed) break
  }
  return found.length > maxNamed ? `${found.slice(0, maxNamed).join(', ')} and more` : found.join(', ')
}

/** Returns the number of unexpected uses of each chain. */
export function findExtraUses(uses: Uses, expected: Uses): Uses {
  return new Map([...findDifferences(uses, expected)].filter(([, more]) => more > 0))
}

/** Returns the difference in uses of each expected chain; 0 for a chain that does not exist. */
export function findDifferences(uses: Uses, expected: Uses): Uses {
  const differences = new Map<string, number>()
  for (const [chain, wanted] of expected) differences.set(chain, (uses.get(chain) ?? wanted) - wanted)
  return differences
}

/** Counts jumps of other programs to our chains. `jumps` are rules as `nat -A …`, `hooks` are our own jumps among them. */
export function countForeignJumps(
  jumps: ReadonlySet<string>,
  hooks: readonly { readonly table: string; readonly to: string }[],
): Uses {
  const counts = new Map<string, number>()
  const count = (chain: string, by: number) => counts.set(chain, (counts.get(chain) ?? 0) + by)
  for (const jump of jumps) {
    const space = jump.indexOf(' ')
    count(`${jump.slice(0, space)} ${parseRule(jump, space + 1, jump.length).target}`, 1)
  }
  for (const { table, to } of hooks) count(`${table} ${to}`, -1)
  // A missing jump of ours is a drift: it must not be tolerated.
  return new Map([...counts].filter(([, more]) => more > 0))
}
