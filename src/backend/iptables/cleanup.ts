// Removes what the iptables mode leaves on a node, ours or kube-proxy's, in both flavours; what kubelet and others have stays.

import { ProxyError } from '../../lib/errors.ts'
import type { Family } from '../../lib/ip.ts'
import type { Logger } from '../../lib/log.ts'
import { systemClock } from '../../lib/time.ts'
import { runProgram } from '../../sys/process/exec.ts'
import type { Cleanup } from '../backend.ts'
import {
  canary,
  type IptablesTableName,
  isServiceChain,
  jumps,
  kubeletFirewall,
  savedJump,
  sharedChains,
} from '../iptables-kit/chains.ts'
import { legacyTables, listPrograms } from '../iptables-kit/flavour.ts'
import { IptablesPrograms, type ProgramSet, programName } from '../iptables-kit/programs.ts'

export const cleanupIptables: Cleanup = async (log) => {
  const errors: string[] = []
  for (const programs of await listPrograms()) {
    for (const family of [4, 6] as const) errors.push(...(await cleanFamily(programs, family, log)))
  }
  if (errors.length > 0) throw new ProxyError('iptables-cleanup', `iptables leftovers remain: ${errors.join('; ')}`)
}

async function cleanFamily(programs: ProgramSet, family: Family, log: Logger): Promise<readonly string[]> {
  const tools = new IptablesPrograms({ set: programs, family, log, clock: systemClock, lockTimeoutMs: 30_000 })
  const errors: string[] = []
  const legacy = programs.flavour === 'legacy' ? legacyTables(family) : undefined
  for (const table of ['nat', 'filter', 'mangle'] as const) {
    // The legacy programs would make a table that is not there by looking at it.
    if (legacy !== undefined && !legacy.includes(table)) continue
    const saved = await readTable(programs, family, table)
    const doomed = leftovers(table, saved)
    if (doomed.jumps.length + doomed.chains.length === 0) continue
    log.info('removing iptables leftovers', { family, table, flavour: programs.flavour, chains: doomed.chains.length })
    errors.push(...(await remove(tools, table, doomed)))
  }
  return errors
}

/** A family that the kernel lacks has no leftovers. */
async function readTable({ suffix }: ProgramSet, family: Family, table: string): Promise<string> {
  const options = { accept: [0, 1, 2, 3, 4], deadlineMs: 10 * 60_000 }
  return (await runProgram(`${programName(family)}${suffix}-save`, ['-t', table], options)).stdout
}

interface Leftovers {
  /** Lines as iptables-save prints them. */
  readonly jumps: readonly string[]
  readonly chains: readonly string[]
}

/** Only what a proxy makes, by exact name and exact jump. */
export function leftovers(table: IptablesTableName | 'mangle', saved: string): Leftovers {
  const wanted = new Set(
    jumps.filter((jump) => jump.table === table && jump.to !== kubeletFirewall).map((jump) => savedJump(jump)),
  )
  const shared: readonly string[] = table === 'mangle' ? [] : sharedChains[table]
  const known = new Set([...shared, canary])
  const chains = [...saved.matchAll(/^:(\S+) /gm)].map((match) => match[1] as string)
  return {
    jumps: saved.split('\n').filter((line) => wanted.has(line)),
    chains: chains.filter((chain) => known.has(chain) || (table === 'nat' && isServiceChain(chain))),
  }
}

/** More chains at once take the nft flavour minutes. */
const chainsPerRestore = 1500

/** All at once if they are not too many; if that is refused, because somebody else uses one of the chains, as much as goes. */
async function remove(
  tools: IptablesPrograms,
  table: string,
  { jumps: lines, chains }: Leftovers,
): Promise<readonly string[]> {
  const unlink = lines.map((line) => line.replace(/^-A/, '-D'))
  const input = (body: readonly string[]) => `${[`*${table}`, ...body, 'COMMIT'].join('\n')}\n`
  const restore = (body: readonly string[]) => tools.restore(input(body), undefined, ['-T', table])
  const empty = (some: readonly string[]) => some.map((chain) => `:${chain} - [0:0]`)
  const drop = (some: readonly string[]) => some.map((chain) => `-X ${chain}`)
  const errors: string[] = []
  const attempt = async (body: readonly string[]) => {
    try {
      await restore(body)
      return true
    } catch (error) {
      if (!(error instanceof ProxyError)) throw error
      errors.push(error.message)
      return false
    }
  }
  // Those that jump before those they jump to, the shared ones last.
  const shared = chains.filter((chain) => !isServiceChain(chain))
  const own = chains
    .filter((chain) => isServiceChain(chain))
    .sort((a, b) => Number(a.startsWith(endpoints)) - Number(b.startsWith(endpoints)))
  if (own.length <= chainsPerRestore) {
    if (await attempt([...empty(chains), ...unlink, ...drop(chains)])) return []
    errors.length = 0
  }
  await attempt([...empty(shared), ...unlink])
  for (let start = 0; start < own.length; start += chainsPerRestore) {
    const some = own.slice(start, start + chainsPerRestore)
    if (await attempt([...empty(some), ...drop(some)])) continue
    errors.pop()
    await attempt(empty(some))
    for (const chain of some) await attempt(drop([chain]))
  }
  for (const chain of shared) await attempt(drop([chain]))
  return errors
}

const endpoints = 'KUBE-SEP-'
