// The iptables programs of this machine: which flavour the node uses, and running them with the lock's manners. Knows no rules of ours.

import { readFileSync, statSync } from 'node:fs'
import { describeError, ProxyError } from '../../lib/errors.ts'
import type { Family } from '../../lib/ip.ts'
import { type Logger, silentLogger } from '../../lib/log.ts'
import { type Clock, systemClock } from '../../lib/time.ts'
import { ExecError, type Output } from '../../sys/process/exec.ts'
import type { MemoryFile } from '../../sys/process/memory-file.ts'
import { runForLines } from '../../sys/process/run-lines.ts'
import { type SpawnOptions, spawnProgram } from '../../sys/process/spawn.ts'
import type { Mode } from '../backend.ts'
import type { RestoreInput } from './restore-input.ts'

export interface ProgramsOptions {
  readonly programs: Programs
  readonly family: Family
  readonly log: Logger
  readonly clock: Clock
  /** How long to go on when others hold the lock; each try waits `lockSeconds` by itself. */
  readonly patienceMs: number
}

/** Which set of programs to use, and what it can do. */
export interface Programs {
  readonly flavour: 'nft' | 'legacy'
  /** `-nft`, `-legacy`, or '' where there is only one set. */
  readonly suffix: string
  readonly version: Version
}

export type Version = readonly [number, number, number]

const lockSeconds = 5
/** A table of 10,000 services takes the nft flavour minutes. */
const restoreDeadlineMs = 15 * 60_000

/** One family's programs, one at a time. */
export class IptablesPrograms {
  readonly programs: Programs
  /** Changes made so far, in what nf_tables counts: one per table of a restore. */
  commits = 0
  readonly #options: ProgramsOptions
  readonly #name: string

  constructor(options: ProgramsOptions) {
    this.programs = options.programs
    this.#options = options
    this.#name = programName(options.family)
  }

  /** `iptables -w 5 …`; exit code 1 is the answer "no". */
  async ask(args: readonly string[], signal?: AbortSignal): Promise<boolean> {
    const program = `${this.#name}${this.programs.suffix}`
    const options = { accept: [0, 1], deadlineMs: 5 * 60_000, ...(signal && { signal }) }
    const { code } = await this.#patiently(program, [...this.#wait([1, 4, 22]), ...args], options)
    return code === 0
  }

  /** Rules of one chain, as iptables-save prints them. */
  async list(table: string, chain: string, signal?: AbortSignal): Promise<readonly string[]> {
    const program = `${this.#name}${this.programs.suffix}`
    const options = { deadlineMs: 5 * 60_000, ...(signal && { signal }) }
    const args = [...this.#wait([1, 4, 22]), '-S', chain, '-t', table]
    return (await this.#patiently(program, args, options)).stdout.split('\n').filter((line) => line.startsWith('-A '))
  }

  async restore(
    text: string | RestoreInput<MemoryFile>,
    signal?: AbortSignal,
    args: readonly string[] = [],
  ): Promise<void> {
    const program = `${this.#name}${this.programs.suffix}-restore`
    const stdin = typeof text === 'string' ? text : text.sheet
    const options = { stdin, deadlineMs: restoreDeadlineMs, ...(signal && { signal }) }
    await this.#patiently(program, [...this.#wait([1, 6, 2]), ...args, '--noflush', '--counters'], options)
    this.commits += typeof text === 'string' ? text.split('\nCOMMIT').length - 1 : text.commits
  }

  async save(table: string, signal?: AbortSignal): Promise<string> {
    const options = { deadlineMs: restoreDeadlineMs, ...(signal && { signal }) }
    return (await spawnProgram(this.#saveProgram, ['-t', table], options)).stdout
  }

  /** Every table there is, in pieces of whole lines. */
  saveAll(visit: (lines: string) => void, signal?: AbortSignal): Promise<void> {
    return runForLines(this.#saveProgram, [], { deadlineMs: restoreDeadlineMs, ...(signal && { signal }) }, visit)
  }

  get #saveProgram(): string {
    return `${this.#name}${this.programs.suffix}-save`
  }

  #wait(since: Version): readonly string[] {
    return atLeast(this.programs.version, since) ? ['-w', String(lockSeconds)] : []
  }

  /** Goes on trying while others hold the lock; what was asked for does not get less urgent by waiting a whole sync period. */
  async #patiently(program: string, args: readonly string[], options: SpawnOptions): Promise<Output> {
    const { clock, log, patienceMs } = this.#options
    const begun = clock.monotonic()
    for (;;) {
      try {
        return await spawnProgram(program, args, options)
      } catch (error) {
        if (!isLocked(error)) throw error
        const waitedMs = clock.monotonic() - begun
        const locked = lockError(program, error, waitedMs)
        if (waitedMs >= patienceMs) throw locked
        log.warn('waiting for the lock of iptables', { error: locked.message })
      }
    }
  }
}

export const programName = (family: Family): string => (family === 4 ? 'iptables' : 'ip6tables')

export const atLeast = (version: Version, other: Version): boolean => {
  const at = version.findIndex((part, i) => part !== other[i])
  return at < 0 || (version[at] as number) > (other[at] as number)
}

const isLocked = (error: unknown): boolean => error instanceof ExecError && error.stderr.includes('xtables lock')

function lockError(program: string, cause: unknown, waitedMs: number): ProxyError {
  const file = process.env.XTABLES_LOCKFILE ?? '/run/xtables.lock'
  const holder = lockHolder(file)
  const who = holder === undefined ? 'another process' : `${holder.name} (pid ${holder.pid})`
  const seconds = Math.max(lockSeconds, Math.round(waitedMs / 1000))
  return new ProxyError('iptables-locked', `${program}: ${who} has held the lock ${file} for ${seconds} s`, {
    cause,
    fields: { file, holder: holder?.pid },
  })
}

/** Who holds the lock, if the kernel tells and the process is visible from here. */
function lockHolder(file: string): { readonly pid: number; readonly name: string } | undefined {
  try {
    const { ino } = statSync(file)
    for (const line of readFileSync('/proc/locks', 'utf8').split('\n')) {
      const [, kind, , , pid, where] = line.trim().split(/\s+/)
      if (kind !== 'FLOCK' || !where?.endsWith(`:${ino}`)) continue
      return { pid: Number(pid), name: readFileSync(`/proc/${pid}/comm`, 'utf8').trim() }
    }
  } catch {
    // Gone meanwhile, or of another PID namespace: then it stays without a name.
  }
  return undefined
}

// ---- Which programs. ----

/**
 * The flavour that the node uses: where kubelet has left its mark, else where a proxy's rules are, else where more rules are,
 * else what plain `iptables` is. Rules in both flavours are traversed both, which few people want: said in the log.
 */
export async function findPrograms(log: Logger): Promise<Programs> {
  const plain = await programsCalled('')
  const found = (await listPrograms()).filter(({ suffix }) => suffix !== '')
  if (found.length === 0) {
    if (plain !== undefined) return plain
    throw new ProxyError('iptables-missing', 'there is no iptables on this machine; install it or use mode nftables')
  }
  const usual = found.find((one) => one.flavour === plain?.flavour) ?? (found[0] as Programs)
  if (found.length === 1) return usual
  const marks = await Promise.all(found.map(marksOf))
  const best = Math.max(...marks.map(({ rank }) => rank))
  const marked = found.filter((_, i) => best > 0 && marks[i]?.rank === best)
  const chosen = marked.length === 1 ? (marked[0] as Programs) : await fuller(found, usual)
  await warnOfOther(found, chosen, log)
  return chosen
}

/** Families in which a mode has the iptables that it needs: those in which the nat table can be read. */
export async function usableFamilies(mode: Mode): Promise<readonly Family[]> {
  const programs = await findPrograms(silentLogger)
  const problems: string[] = []
  const usable: Family[] = []
  for (const family of [4, 6] as const) {
    const tools = new IptablesPrograms({ programs, family, log: silentLogger, clock: systemClock, patienceMs: 30_000 })
    try {
      if (await tools.ask(['-S', 'POSTROUTING', '-t', 'nat'])) usable.push(family)
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

/** Every flavour there is. */
export async function listPrograms(): Promise<readonly Programs[]> {
  const found = (await Promise.all(['-nft', '-legacy'].map(programsCalled))).filter((one) => one !== undefined)
  if (found.length > 0) return found
  const plain = await programsCalled('')
  return plain === undefined ? [] : [plain]
}

async function programsCalled(suffix: string): Promise<Programs | undefined> {
  try {
    const { stdout } = await spawnProgram(`iptables${suffix}`, ['--version'])
    const match = /v(\d+)\.(\d+)(?:\.(\d+))?/.exec(stdout)
    const version: Version = [Number(match?.[1] ?? 0), Number(match?.[2] ?? 0), Number(match?.[3] ?? 0)]
    return { suffix, version, flavour: stdout.includes('nf_tables') ? 'nft' : 'legacy' }
  } catch (error) {
    if (describeError(error).includes('not installed')) return undefined
    throw error
  }
}

/** Kubelet's chains are in mangle, so that nobody has to read the large tables. */
async function marksOf({ suffix }: Programs): Promise<{ readonly rank: number }> {
  const text = await saveBoth(suffix, ['-t', 'mangle'])
  if (/^:KUBE-(?:IPTABLES-HINT|KUBELET-CANARY) /m.test(text)) return { rank: 2 }
  return { rank: /^:KUBE-PROXY-CANARY /m.test(text) ? 1 : 0 }
}

async function fuller(found: readonly Programs[], usual: Programs): Promise<Programs> {
  const counts = await Promise.all(found.map(({ suffix }) => countRules(suffix)))
  const most = Math.max(...counts)
  const full = found.filter((_, i) => counts[i] === most)
  return full.length === 1 ? (full[0] as Programs) : usual
}

async function warnOfOther(found: readonly Programs[], chosen: Programs, log: Logger): Promise<void> {
  const other = found.find((one) => one !== chosen)
  if (other === undefined || (await countRules(other.suffix)) === 0) return
  log.warn('both flavours of iptables hold rules; packets pass both', { used: chosen.flavour, also: other.flavour })
}

const countRules = async (suffix: string): Promise<number> => (await saveBoth(suffix, [])).match(/^-A /gm)?.length ?? 0

/** Without `-t` the legacy programs show tables that exist; with it they would make them, so it is asked only if they do. */
async function saveBoth(suffix: string, args: readonly string[]): Promise<string> {
  const texts = await Promise.all(
    ([4, 6] as const).map(async (family) => {
      if (args.length > 0 && suffix === '-legacy' && !legacyTables(family).includes(args[1] as string)) return ''
      const program = `${programName(family)}${suffix}-save`
      // A family that the kernel lacks holds no rules.
      return await spawnProgram(program, args, { accept: [0, 1, 2, 3, 4] }).then(({ stdout }) => stdout)
    }),
  )
  return texts.join('\n')
}

/** Tables of the legacy flavour that exist. */
export function legacyTables(family: Family): readonly string[] {
  try {
    return readFileSync(`/proc/thread-self/net/${family === 4 ? 'ip' : 'ip6'}_tables_names`, 'utf8')
      .trim()
      .split('\n')
  } catch {
    return []
  }
}
