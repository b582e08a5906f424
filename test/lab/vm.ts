// What differs where tests run: in a VM whose CPU is emulated, and by the version of the kernel.

import { spawnSync } from 'node:child_process'
import { release } from 'node:os'

export const inVm = process.env.SLUICE_IN_VM === '1'

/** All there is to test, and not only a part of it; SLUICE_FULL=1 asks for that in a VM. */
export const full = !inVm || process.env.SLUICE_FULL === '1'

/** A limit on time, as it is meant on a real machine. */
export const patience = (ms: number): number => (inVm ? 12 * ms : ms)

export function kernelAtLeast(major: number, minor: number): boolean {
  const [ours = 0, oursMinor = 0] = release().split(/[.-]/).map(Number)
  return ours > major || (ours === major && oursMinor >= minor)
}

/** Tables can have an owner and still outlive it: only then does nftables mode own its table. */
export const canOwn = kernelAtLeast(6, 9)

/**
 * nft 1.0.6 swaps the bytes of a protocol, which is one byte, where a set has ranges; kernels of 2026 (6.12.117, 7.2) refuse that,
 * whoever's rule it is. So there nft cannot load back what it prints of ours.
 */
export const nftWritesRanges = (() => {
  const set = 'set s { type ipv4_addr . inet_proto . ipv4_addr; flags interval; }'
  const input = `table ip sluice-try {\n ${set}\n chain c { ip daddr . meta l4proto . ip saddr @s accept; }\n}\n`
  return spawnSync('nft', ['-c', '-f', '-'], { input }).status === 0
})()
