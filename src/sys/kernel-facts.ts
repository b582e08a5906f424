// Finds out facts about this kernel: its version, whether it has IPv6, and how many files this process may open.

import { readFileSync } from 'node:fs'
import { release } from 'node:os'
import { join } from 'node:path'
import { type KernelFiles, kernelFiles } from './tuning.ts'

/** Returns false without the IPv6 module, with `ipv6.disable=1`, and if disable_ipv6 is set for all interfaces. */
export function ipv6Available(files: KernelFiles = kernelFiles): boolean {
  try {
    readFileSync(join(files.proc, 'net/if_inet6'))
    return readFileSync(join(files.proc, 'sys/net/ipv6/conf/all/disable_ipv6'), 'utf8').trim() !== '1'
  } catch {
    return false
  }
}

/** Returns how many files this process may have open, Infinity if there is no limit or it is unknown. */
export function openFileLimit(files: KernelFiles = kernelFiles): number {
  try {
    const limits = readFileSync(join(files.proc, 'self/limits'), 'utf8')
    return Number(/^Max open files\s+(\d+)/m.exec(limits)?.[1] ?? Number.POSITIVE_INFINITY)
  } catch {
    return Number.POSITIVE_INFINITY
  }
}

export interface KernelVersion {
  readonly major: number
  readonly minor: number
  readonly patch: number
}

/** Parses `6.18.44-fc` as 6.18.44; undefined if the text does not start with a version. */
export function parseKernelVersion(text: string): KernelVersion | undefined {
  const match = /^(\d+)\.(\d+)(?:\.(\d+))?/.exec(text)
  if (match === null) return undefined
  return { major: Number(match[1]), minor: Number(match[2]), patch: Number(match[3] ?? 0) }
}

/** Returns the version of this machine's kernel; 0.0.0 if it is unknown, so that no feature counts as supported. */
export function kernelVersion(): KernelVersion {
  return parseKernelVersion(release()) ?? { major: 0, minor: 0, patch: 0 }
}

/** Returns true if the version is `major.minor` or later. */
export function atLeast(version: KernelVersion, major: number, minor: number): boolean {
  return version.major > major || (version.major === major && version.minor >= minor)
}
