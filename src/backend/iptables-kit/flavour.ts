// Chooses between the nft and the legacy programs of iptables, and finds out which families work with them. programs.ts runs them.

import { accessSync, constants, existsSync, readFileSync } from 'node:fs'
import { describeError, ProxyError } from '../../lib/errors.ts'
import type { Family } from '../../lib/ip.ts'
import { type Logger, silentLogger } from '../../lib/log.ts'
import { systemClock } from '../../lib/time.ts'
import { readTableSize } from '../../sys/legacy-table-size.ts'
import { isRefusedWith } from '../../sys/netlink/netlink-errors.ts'
import { spawnProgram } from '../../sys/process/spawn.ts'
import type { Mode } from '../backend.ts'
import { IptablesPrograms, type ProgramSet, type ProgramVersion, programName } from './programs.ts'

/**
 * Finds the flavour that this node uses: the one in which kubelet has made its chains, else the one that holds a proxy's rules, else the
 * one that holds more rules, else that of plain `iptables`. Packets pass the rules of both flavours, which is rarely intended, so the log
 * warns if both hold rules.
 */
export async function findPrograms(log: Logger): Promise<ProgramSet> {
  const plain = await probePrograms('')
  const found = (await listPrograms()).filter(({ suffix }) => suffix !== '')
  const usual = found.find((one) => one.flavour === plain?.flavour) ?? found[0]
  if (usual === undefined) {
    if (plain !== undefined) return plain
    throw new ProxyError(
      'iptables-missing',
      'iptables is not installed on this machine; install it or use mode nftables',
    )
  }
  if (found.length === 1) return usual
  if (!mayListLegacyTables()) {
    log.warn('Cannot see whether legacy iptables holds rules: only root may read the names of its tables', {
      file: legacyTablesFile(4),
    })
  }
  const unreadable = listUnreadableTables()
  if (unreadable.length > 0) {
    log.warn('Cannot read the tables of legacy iptables and takes them for empty: CAP_NET_RAW is missing', {
      tables: unreadable.join(' '),
    })
  }
  const ranks = await Promise.all(found.map(rankByChains))
  const best = Math.max(...ranks)
  const marked = best === 0 ? [] : found.filter((_, i) => ranks[i] === best)
  const [first, second] = marked
  const chosen = first !== undefined && second === undefined ? first : await chooseByRules(found, usual)
  await warnOfOtherFlavour(found, chosen, log)
  return chosen
}

/** Families in which the nat table can be read. Throws if there is none, with the reasons. */
export async function findUsableFamilies(mode: Mode): Promise<readonly Family[]> {
  const set = await findPrograms(silentLogger)
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
async function rankByChains({ suffix }: ProgramSet): Promise<number> {
  const saved = await saveBothFamilies(suffix, 'mangle')
  if (/^:KUBE-(?:IPTABLES-HINT|KUBELET-CANARY) /m.test(saved)) return 2
  return /^:KUBE-PROXY-CANARY /m.test(saved) ? 1 : 0
}

async function chooseByRules(found: readonly ProgramSet[], usual: ProgramSet): Promise<ProgramSet> {
  const counts = await Promise.all(found.map(({ suffix }) => countAllRules(suffix)))
  const most = Math.max(...counts)
  const [first, second] = found.filter((_, i) => counts[i] === most)
  return first !== undefined && second === undefined ? first : usual
}

async function warnOfOtherFlavour(found: readonly ProgramSet[], chosen: ProgramSet, log: Logger): Promise<void> {
  const other = found.find((one) => one !== chosen)
  if (other === undefined || (await countAllRules(other.suffix)) === 0) return
  log.warn('Both flavours of iptables hold rules and packets pass both', { used: chosen.flavour, also: other.flavour })
}

const countAllRules = async (suffix: string): Promise<number> =>
  (await saveBothFamilies(suffix)).match(/^-A /gm)?.length ?? 0

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
