// The descriptors of this process: how many there may be, and how many of them relays may use.

import { readFileSync } from 'node:fs'
import { describeError } from '../../lib/errors.ts'
import type { Logger } from '../../lib/log.ts'
import { runProgram } from '../../sys/process/exec.ts'
import type { DescriptorBudget } from '../relay/relay.ts'

/** What kube-proxy's userspace mode asked for. */
const wantedFiles = 64_000

/** Kept for everything else: the API server, the iptables programs, listeners that are yet to come. */
const reserved = 256

/** The soft limit; Node has raised it to the hard limit by the time we look. Infinite where it cannot be told. */
export function openFileLimit(limits = '/proc/self/limits'): number {
  try {
    const match = /^Max open files\s+(\d+)/m.exec(readFileSync(limits, 'utf8'))
    return match === null ? Number.POSITIVE_INFINITY : Number(match[1])
  } catch {
    return Number.POSITIVE_INFINITY
  }
}

/** Node cannot raise its own hard limit; the program that every Linux has can. With less, load is shed earlier. */
export async function raiseOpenFileLimit(log: Logger): Promise<void> {
  const limit = openFileLimit()
  if (limit >= wantedFiles) return
  try {
    await runProgram('prlimit', ['--pid', String(process.pid), `--nofile=${wantedFiles}:${wantedFiles}`])
  } catch (error) {
    log.warn('cannot raise the limit of open files; each relayed connection takes two', {
      limit,
      wanted: wantedFiles,
      error: describeError(error),
    })
  }
}

/** Counts what relays take and refuses before the kernel would. Both families draw on one. */
export class FdBudget implements DescriptorBudget {
  readonly #limit: () => number
  #taken = 0

  constructor(limit: () => number = openFileLimit) {
    this.#limit = limit
    this.#known = limit()
  }

  /** The limit as last read. */
  #known: number

  get used(): number {
    return this.#taken
  }

  acquire(descriptors: number): boolean {
    if (this.#taken + descriptors > this.#known - reserved) {
      // Somebody may have raised it meanwhile.
      this.#known = this.#limit()
      if (this.#taken + descriptors > this.#known - reserved) return false
    }
    this.#taken += descriptors
    return true
  }

  release(descriptors: number): void {
    this.#taken -= descriptors
  }
}
