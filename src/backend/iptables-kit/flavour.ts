// Chooses between the nft and the legacy programs of iptables, and finds out which families work with them. programs.ts runs them.

import { accessSync, constants, existsSync, readFileSync } from 'node:fs'
import { describeError, ProxyError } from '../../lib/errors.ts'
import type { Family } from '../../lib/ip.ts'
import { type Logger, silentLogger } from '../../lib/log.ts'
import { systemClock } from '../../lib/time.ts'
import { readTableSize } from '../../sys/legacy-table-size.ts'
import { isRefusedWith } from '../../sys/netlink/netlink-errors.ts'
import { ChainTable } from '../../sys/netlink/nft/chain-uses.ts'
import { spawnProgram } from '../../sys/process/spawn.ts'
import type { Mode } from '../backend.ts'
import { canary } from './chains.ts'
import { IptablesPrograms, type ProgramSet, type ProgramVersion, programName } from './programs.ts'

/**
 * Finds the flavour that this node uses: the one in which kubelet has made its chains, else the one that holds a proxy's rules, else the
 * one that holds more rules, else that of plain `iptables`. Packets pass the rules of both flavours, which is rarely intended, so the log
 * warns if both hold rules.
 */
export async function findPrograms(log: Logger, kernel?: KernelLists): Promise<ProgramSet> {
  return takeChoice(await choosePrograms(kernel), log)
}

/** Logs what there is to say about a choice. */
export function takeChoice({ programs, warnings }: Choice, log: Logger): ProgramSet {
  for (const { message, fields } of warnings) log.warn(message, fields)
  return programs
}

/** What the kernel says without a program. */
export interface KernelLists {
  /** The chains of nf_tables in both families, as `nat KUBE-SERVICES`. Rejects if the kernel does not list them. */
  readonly nftChains: () => Promise<readonly string[]>
  /** Tables of the legacy flavour that exist. */
  readonly legacyTables: (family: Family) => readonly string[]
}

export interface Choice {
  readonly programs: ProgramSet
  readonly warnings: readonly Warning[]
}

interface Warning {
  readonly message: string
  readonly fields: Readonly<Record<string, string>>
}

/** As `findPrograms`, and returns what the log should say. */
export async function choosePrograms(kernel: KernelLists = kernelLists): Promise<Choice> {
  const warnings: Warning[] = []
  const plain = await probePrograms('')
  const found = (await listPrograms()).filter(({ suffix }) => suffix !== '')
  const usual = found.find((one) => one.flavour === plain?.flavour) ?? found[0]
  if (usual === undefined) {
    if (plain !== undefined) return { programs: plain, warnings }
    throw new ProxyError(
      'iptables-missing',
      'iptables is not installed on this machine; install it or use mode nftables',
    )
  }
  if (found.length === 1) return { programs: usual, warnings }
  if (!mayListLegacyTables()) {
    warnings.push({
      message: 'Cannot see whether legacy iptables holds rules: only root may read the names of its tables',
      fields: { file: legacyTablesFile(4) },
    })
  }
  const unreadable = listUnreadableTables()
  if (unreadable.length > 0) {
    warnings.push({
      message: 'Cannot read the tables of legacy iptables and takes them for empty: CAP_NET_RAW is missing',
      fields: { tables: unreadable.join(' ') },
    })
  }
  const ranks = await Promise.all(found.map((one) => rankByChains(one, kernel)))
  const best = Math.max(...ranks)
  const marked = best === 0 ? [] : found.filter((_, i) => ranks[i] === best)
  const [first, second] = marked
  const chosen = first !== undefined && second === undefined ? first : await chooseByRules(found, usual, kernel)
  const other = found.find((one) => one !== chosen)
  if (other !== undefined && (await countAllRules(other, kernel)) > 0) {
    warnings.push({
      message: 'Both flavours of iptables hold rules and packets pass both',
      fields: { used: chosen.flavour, also: other.flavour },
    })
  }
  return { programs: chosen, warnings }
}

/** Families in which these programs can read the nat table. Throws if there is none, with the reasons. */
export async function findUsableFamilies(mode: Mode, set: ProgramSet): Promise<readonly Family[]> {
  const problems: string[] = []
  const usable: Family[] = []
  for (const family of [4, 6] as const) {
    const programs = new IptablesPrograms({
      set,
      family,
      log: silentLogger,
      clock: systemClock,
      lockTimeoutMs: 30_000,
    })
    try {
      if (await programs.succeeds(['-S', 'POSTROUTING', '-t', 'nat'])) usable.push(family)
      else problems.push(`${programName(family)} cannot read the nat table`)
    } catch (error) {
      if (!(error instanceof ProxyError)) throw error
      problems.push(error.message)
    }
  }
  if (usable.length > 0) return usable
  const what = mode === 'iptables' ? 'iptables' : `mode ${mode} needs iptables, which`
  throw new ProxyError('iptables-unusable', `${what} does not work here: ${problems.join('; ')}`)
}

/** Lists every flavour that is installed. */
export async function listPrograms(): Promise<readonly ProgramSet[]> {
  const found = (await Promise.all(['-nft', '-legacy'].map(probePrograms))).filter((one) => one !== undefined)
  if (found.length > 0) return found
  const plain = await probePrograms('')
  return plain === undefined ? [] : [plain]
}

const legacyTablesFile = (family: Family): string => `/proc/thread-self/net/${family === 4 ? 'ip' : 'ip6'}_tables_names`

/** Tables of the legacy flavour that exist in this network namespace. */
export function listLegacyTables(family: Family): readonly string[] {
  try {
    return readFileSync(legacyTablesFile(family), 'utf8')
      .split('\n')
      .filter((table) => table !== '')
  } catch {
    return []
  }
}

const kernelLists: KernelLists = { nftChains: listNftChains, legacyTables: listLegacyTables }

/** False if the file exists and this user may not read it: only root may. */
function mayListLegacyTables(): boolean {
  const path = legacyTablesFile(4)
  try {
    accessSync(path, constants.R_OK)
    return true
  } catch {
    return !existsSync(path)
  }
}

/** Tables of the legacy flavour that exist and that this process may not read: its programs open a raw socket for that. */
const listUnreadableTables = (): readonly string[] =>
  ([4, 6] as const).flatMap((family) =>
    listLegacyTables(family)
      .filter((table) => !isReadable(family, table))
      .map((table) => `${programName(family)} ${table}`),
  )

function isReadable(family: Family, table: string): boolean {
  try {
    readTableSize(family, table)
    return true
  } catch (error) {
    // Other errors are those of the kernel, which the programs report.
    return !isRefusedWith(error, 'EPERM')
  }
}

async function probePrograms(suffix: string): Promise<ProgramSet | undefined> {
  try {
    const { stdout } = await spawnProgram(`iptables${suffix}`, ['--version'])
    const match = /v(\d+)\.(\d+)(?:\.(\d+))?/.exec(stdout)
    const version: ProgramVersion = [Number(match?.[1] ?? 0), Number(match?.[2] ?? 0), Number(match?.[3] ?? 0)]
    return { suffix, version, flavour: stdout.includes('nf_tables') ? 'nft' : 'legacy' }
  } catch (error) {
    if (describeError(error).includes('not installed')) return undefined
    throw error
  }
}

/** 2 for kubelet's chains, 1 for a proxy's, 0 for neither. All of them are in mangle, so the large tables need not be read. */
async function rankByChains(programs: ProgramSet, kernel: KernelLists): Promise<number> {
  const chains = await listMangleChains(programs, kernel)
  if (chains.has('KUBE-IPTABLES-HINT') || chains.has('KUBE-KUBELET-CANARY')) return 2
  return chains.has(canary) ? 1 : 0
}

async function listMangleChains({ suffix, flavour }: ProgramSet, kernel: KernelLists): Promise<ReadonlySet<string>> {
  if (flavour === 'nft') {
    const prefix = 'mangle '
    const names = await kernel.nftChains().catch(() => undefined)
    if (names !== undefined) {
      return new Set(names.filter((name) => name.startsWith(prefix)).map((name) => name.slice(prefix.length)))
    }
  }
  const saved = await saveBothFamilies(suffix, 'mangle')
  return new Set([...saved.matchAll(/^:(\S+) /gm)].map(([, chain = '']) => chain))
}

/** The chains of both families, as `nat KUBE-SERVICES`. */
export async function listNftChains(): Promise<readonly string[]> {
  const chains = new ChainTable()
  try {
    return [...(await chains.list(4)).keys(), ...(await chains.list(6)).keys()]
  } finally {
    chains.close()
  }
}

async function chooseByRules(
  found: readonly ProgramSet[],
  usual: ProgramSet,
  kernel: KernelLists,
): Promise<ProgramSet> {
  // Listing the rules of nf_tables may take seconds, and is of no use if the legacy tables hold none.
  const legacy = found.find(({ flavour }) => flavour === 'legacy')
  const legacyRules = legacy === undefined ? 0 : await countAllRules(legacy, kernel)
  if (usual.flavour === 'nft' && legacyRules === 0) return usual
  const counts = await Promise.all(found.map((one) => (one === legacy ? legacyRules : countAllRules(one, kernel))))
  const most = Math.max(...counts)
  const [first, second] = found.filter((_, i) => counts[i] === most)
  return first !== undefined && second === undefined ? first : usual
}

async function countAllRules({ suffix, flavour }: ProgramSet, kernel: KernelLists): Promise<number> {
  const hasTables = flavour === 'nft' || ([4, 6] as const).some((family) => kernel.legacyTables(family).length > 0)
  return hasTables ? ((await saveBothFamilies(suffix)).match(/^-A /gm)?.length ?? 0) : 0
}

/**
 * Reads one table, or all that exist, in both families. Given `-t`, the legacy programs would make a table that does not exist, so they
 * are asked only for a table that does.
 */
async function saveBothFamilies(suffix: string, table?: string): Promise<string> {
  const texts = await Promise.all(
    ([4, 6] as const).map(async (family) => {
      if (table !== undefined && suffix === '-legacy' && !listLegacyTables(family).includes(table)) return ''
      const args = table === undefined ? [] : ['-t', table]
      // A family that the kernel lacks holds no rules.
      const { stdout } = await spawnProgram(`${programName(family)}${suffix}-save`, args, { accept: [0, 1, 2, 3, 4] })
      return stdout
    }),
  )
  return texts.join('\n')
}
