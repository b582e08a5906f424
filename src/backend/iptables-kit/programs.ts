// Runs the iptables programs of one flavour and waits for the xtables lock. Which flavour a node uses is decided in flavour.ts.

import { readFileSync, statSync } from 'node:fs'
import { ProxyError } from '../../lib/errors.ts'
import type { Family } from '../../lib/ip.ts'
import type { Logger } from '../../lib/log.ts'
import type { Clock } from '../../lib/time.ts'
import { ExecError, type Output } from '../../sys/process/exec.ts'
import type { MemoryFile } from '../../sys/process/memory-file.ts'
import { runForLines } from '../../sys/process/run-lines.ts'
import { type SpawnOptions, spawnProgram } from '../../sys/process/spawn.ts'
import type { RestoreInput } from './restore-input.ts'
import { countCommits } from './restore-text.ts'

/** One installed set of programs: iptables, iptables-save, iptables-restore, and the same for IPv6. */
export interface ProgramSet {
  readonly flavour: 'nft' | 'legacy'
  /** `-nft`, `-legacy`, or '' where only one set is installed. */
  readonly suffix: string
  readonly version: ProgramVersion
}

export type ProgramVersion = readonly [major: number, minor: number, patch: number]

export interface ProgramsOptions {
  readonly set: ProgramSet
  readonly family: Family
  readonly log: Logger
  readonly clock: Clock
  /** How long to try again while another process holds the lock. Each try waits for `lockSeconds` by itself. */
  readonly lockTimeoutMs: number
}

const lockSeconds = 5
const commandDeadlineMs = 5 * 60_000
/** The nft flavour needs minutes for a table with 10,000 services. */
const restoreDeadlineMs = 15 * 60_000
/** Versions since which the programs understand `-w SECONDS`. */
const lockWaitSince: Readonly<Record<'command' | 'restore', ProgramVersion>> = {
  command: [1, 4, 22],
  restore: [1, 6, 2],
}

/** The programs of one family. The caller runs one at a time. */
export class IptablesPrograms {
  readonly set: ProgramSet
  /** Changes made so far, as nf_tables counts them: one per table of a restore. */
  commits = 0
  readonly #options: ProgramsOptions
  readonly #program: string

  constructor(options: ProgramsOptions) {
    this.set = options.set
    this.#options = options
    this.#program = `${programName(options.family)}${options.set.suffix}`
  }

  /** Runs `iptables -w 5 …`. Exit code 1 is the answer "no". */
  async succeeds(args: readonly string[], signal?: AbortSignal): Promise<boolean> {
    const options = { accept: [0, 1], deadlineMs: commandDeadlineMs, ...(signal && { signal }) }
    const { code } = await this.#runLocked(this.#program, [...this.#lockWait('command'), ...args], options)
    return code === 0
  }

  /** Reads the rules of one chain, as iptables-save prints them. */
  async listRules(table: string, chain: string, signal?: AbortSignal): Promise<readonly string[]> {
    const options = { deadlineMs: commandDeadlineMs, ...(signal && { signal }) }
    const args = [...this.#lockWait('command'), '-S', chain, '-t', table]
    const { stdout } = await this.#runLocked(this.#program, args, options)
    return stdout.split('\n').filter((line) => line.startsWith('-A '))
  }

  async restore(
    input: string | RestoreInput<MemoryFile>,
    signal?: AbortSignal,
    args: readonly string[] = [],
  ): Promise<void> {
    const stdin = typeof input === 'string' ? input : input.sink
    const options = { stdin, deadlineMs: restoreDeadlineMs, ...(signal && { signal }) }
    const allArgs = [...this.#lockWait('restore'), ...args, '--noflush', '--counters']
    await this.#runLocked(`${this.#program}-restore`, allArgs, options)
    this.commits += typeof input === 'string' ? countCommits(input) : input.commits
  }

  /** Reads one table as text. */
  async save(table: string, signal?: AbortSignal): Promise<string> {
    const options = { deadlineMs: restoreDeadlineMs, ...(signal && { signal }) }
    return (await spawnProgram(`${this.#program}-save`, ['-t', table], options)).stdout
  }

  /** Reads every table that exists, in pieces of whole lines. */
  saveAll(visit: (lines: string) => void, signal?: AbortSignal): Promise<void> {
    const options = { deadlineMs: restoreDeadlineMs, ...(signal && { signal }) }
    return runForLines(`${this.#program}-save`, [], options, visit)
  }

  /** Lists the rules of a table with their counters, as `-S -v` prints them, in pieces of whole lines. Holds the xtables lock meanwhile. */
  listCounters(table: string, visit: (lines: string) => void, signal?: AbortSignal): Promise<void> {
    const options = { deadlineMs: commandDeadlineMs, ...(signal && { signal }) }
    return runForLines(this.#program, [...this.#lockWait('command'), '-t', table, '-S', '-v'], options, visit)
  }

  #lockWait(kind: keyof typeof lockWaitSince): readonly string[] {
    return isAtLeast(this.set.version, lockWaitSince[kind]) ? ['-w', String(lockSeconds)] : []
  }

  /** Tries again while another process holds the lock: the change is still due after a whole sync period. */
  async #runLocked(program: string, args: readonly string[], options: SpawnOptions): Promise<Output> {
    const { clock, log, lockTimeoutMs } = this.#options
    const begun = clock.monotonic()
    for (;;) {
      try {
        return await spawnProgram(program, args, options)
      } catch (error) {
        if (!isLocked(error)) throw error
        const waitedMs = clock.monotonic() - begun
        const locked = createLockError(program, error, waitedMs)
        if (waitedMs >= lockTimeoutMs) throw locked
        log.warn('Waiting for the xtables lock', { error: locked.message })
      }
    }
  }
}

export const programName = (family: Family): string => (family === 4 ? 'iptables' : 'ip6tables')

/** True if `version` is `other` or later. */
export const isAtLeast = (version: ProgramVersion, other: ProgramVersion): boolean => {
  const at = version.findIndex((part, i) => part !== other[i])
  return at < 0 || (version[at] as number) > (other[at] as number)
}

const isLocked = (error: unknown): boolean => error instanceof ExecError && error.stderr.includes('xtables lock')

function createLockError(program: string, cause: unknown, waitedMs: number): ProxyError {
  const file = process.env.XTABLES_LOCKFILE ?? '/run/xtables.lock'
  const holder = findLockHolder(file)
  const who = holder === undefined ? 'another process' : `${holder.name} (pid ${holder.pid})`
  const seconds = Math.max(lockSeconds, Math.round(waitedMs / 1000))
  return new ProxyError('iptables-locked', `${program}: ${who} has held the lock ${file} for ${seconds} s`, {
    cause,
    fields: { file, holder: holder?.pid },
  })
}

interface LockHolder {
  readonly pid: number
  readonly name: string
}

/** Undefined if the kernel does not show who holds the lock, or if that process is not visible from here. */
function findLockHolder(file: string): LockHolder | undefined {
  try {
    const { ino } = statSync(file)
    for (const line of readFileSync('/proc/locks', 'utf8').split('\n')) {
      const [, kind, , , pid, where] = line.trim().split(/\s+/)
      if (kind !== 'FLOCK' || !where?.endsWith(`:${ino}`)) continue
      return { pid: Number(pid), name: readFileSync(`/proc/${pid}/comm`, 'utf8').trim() }
    }
  } catch {
    // The process has ended meanwhile, or lives in another PID namespace.
  }
  return undefined
}
