// Counts the descriptors of relays against the limit of open files of this process, and raises that limit at the start.

import { describeError } from '../../lib/errors.ts'
import type { Logger } from '../../lib/log.ts'
import { platform } from '../../sys/platform/platform.ts'
import { runProgram } from '../../sys/process/exec.ts'
import type { DescriptorBudget } from '../relay/relay.ts'

/** The limit that kube-proxy's userspace mode set. */
const wantedFiles = 64_000

/** Descriptors that relays leave for the API server, the iptables programs and future listeners. */
const reserved = 256

/** Node cannot raise its own hard limit, but prlimit can, which every Linux has. With a lower limit, relays turn clients away earlier. */
export async function raiseOpenFileLimit(log: Logger): Promise<void> {
  const limit = platform.openFileLimit()
  if (limit >= wantedFiles) return
  try {
    await runProgram('prlimit', ['--pid', String(process.pid), `--nofile=${wantedFiles}:${wantedFiles}`])
  } catch (error) {
    log.warn('Cannot raise the limit of open files; each relayed connection needs two', {
      limit,
      wanted: wantedFiles,
      error: describeError(error),
    })
  }
}

/** Refuses a descriptor before the kernel would. The relays of both families share one budget. */
export class FdBudget implements DescriptorBudget {
  readonly #readLimit: () => number
  /** The limit as last read. */
  #limit: number
  #used = 0

  constructor(readLimit: () => number = () => platform.openFileLimit()) {
    this.#readLimit = readLimit
    this.#limit = readLimit()
  }

  get used(): number {
    return this.#used
  }

  acquire(descriptors: number): boolean {
    // Someone may have raised the limit since it was read.
    if (!this.#fits(descriptors)) this.#limit = this.#readLimit()
    if (!this.#fits(descriptors)) return false
    this.#used += descriptors
    return true
  }

  release(descriptors: number): void {
    this.#used -= descriptors
  }

  #fits(descriptors: number): boolean {
    return this.#used + descriptors <= this.#limit - reserved
  }
}
