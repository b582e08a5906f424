// Removes what userspace mode leaves on a node, ours or kube-proxy's, in both flavours of iptables; nothing of others.

import { ProxyError } from '../../lib/errors.ts'
import type { Family } from '../../lib/ip.ts'
import type { Logger } from '../../lib/log.ts'
import { systemClock } from '../../lib/time.ts'
import { runProgram } from '../../sys/process/exec.ts'
import type { Cleanup } from '../backend.ts'
import { canary } from '../iptables-kit/chains.ts'
import { legacyTables, listPrograms } from '../iptables-kit/flavour.ts'
import { IptablesPrograms, type ProgramSet, programName } from '../iptables-kit/programs.ts'
import { ownChains, type PortalTable } from './portal-chains.ts'

/** Those with our chains before the one in which there is only a canary. */
const tables = ['nat', 'filter', 'mangle'] as const

export const cleanupUserspace: Cleanup = async (log) => {
  const errors: string[] = []
  for (const programs of await listPrograms()) {
    for (const family of [4, 6] as const) errors.push(...(await cleanFamily(programs, family, log)))
  }
  if (errors.length > 0) throw new ProxyError('iptables-cleanup', `userspace leftovers remain: ${errors.join('; ')}`)
}

async function cleanFamily(programs: ProgramSet, family: Family, log: Logger): Promise<readonly string[]> {
  const tools = new IptablesPrograms({ set: programs, family, log, clock: systemClock, lockTimeoutMs: 30_000 })
  const legacy = programs.flavour === 'legacy' ? legacyTables(family) : undefined
  const errors: string[] = []
  let ours = false
  let alone = true
  for (const table of tables) {
    // The legacy programs would make a table that is not there by looking at it.
    if (legacy !== undefined && !legacy.includes(table)) continue
    const options = { accept: [0, 1, 2, 3, 4], deadlineMs: 10 * 60_000 }
    const { stdout } = await runProgram(`${programName(family)}${programs.suffix}-save`, ['-t', table], options)
    const input: string = table === 'mangle' ? canaryRemoval(ours && alone, stdout) : removal(table, stdout)
    alone &&= !othersIn(chainsOf(stdout))
    ours ||= input !== ''
    if (input === '') continue
    log.info('removing userspace leftovers', { family, table, flavour: programs.flavour })
    try {
      await tools.restore(input, undefined, ['-T', table])
    } catch (error) {
      if (!(error instanceof ProxyError)) throw error
      errors.push(error.message)
    }
  }
  return errors
}

/**
 * Input of iptables-restore that takes away our chains and every jump of a built-in chain to them; '' if there are none.
 * The canaries of the watch are shared with the iptables mode: they stay while its chains are there.
 */
export function removal(table: PortalTable, saved: string): string {
  const present = chainsOf(saved)
  const found = present.filter((chain) => ownChains[table].includes(chain))
  if (found.length === 0) return ''
  const doomed = [...found, ...(present.includes(canary) && !othersIn(present) ? [canary] : [])]
  const jumps = saved
    .split('\n')
    .filter((line) => found.some((chain) => line.endsWith(` -j ${chain}`)))
    .map((line) => line.replace(/^-A/, '-D'))
  const declared = doomed.map((chain) => `:${chain} - [0:0]`)
  return `${[`*${table}`, ...declared, ...jumps, ...doomed.map((chain) => `-X ${chain}`), 'COMMIT'].join('\n')}\n`
}

const canaryRemoval = (ours: boolean, saved: string): string =>
  ours && chainsOf(saved).includes(canary) ? `*mangle\n:${canary} - [0:0]\n-X ${canary}\nCOMMIT\n` : ''

const chainsOf = (saved: string): readonly string[] =>
  [...saved.matchAll(/^:(\S+) /gm)].map((match) => match[1] as string)

/** Chains of the iptables mode. */
const othersIn = (chains: readonly string[]): boolean =>
  chains.some((chain) => /^KUBE-(?:SERVICES|POSTROUTING|FORWARD)$/.test(chain))
