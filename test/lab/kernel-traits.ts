// What tests ask about the kernel and the nft program they run on.

import { spawnSync } from 'node:child_process'
import { release } from 'node:os'

export function kernelAtLeast(major: number, minor: number): boolean {
  const [ours = 0, oursMinor = 0] = release().split(/[.-]/).map(Number)
  return ours > major || (ours === major && oursMinor >= minor)
}

/** A table can have an owner and outlive it (flag `persist`); only then does nftables mode own its table. */
export const canOwn = kernelAtLeast(6, 9)

/**
 * nft 1.0.6 swaps the bytes of a protocol, which is a single byte, where a set has ranges. Kernels of 2026 (6.12.117, 7.2) refuse
 * such a rule, also one that nft itself wrote. There nft cannot load what it lists of our table.
 */
export const nftWritesRanges = (() => {
  const set = 'set s { type ipv4_addr . inet_proto . ipv4_addr; flags interval; }'
  const input = `table ip sluice-try {\n ${set}\n chain c { ip daddr . meta l4proto . ip saddr @s accept; }\n}\n`
  return spawnSync('nft', ['-c', '-f', '-'], { input }).status === 0
})()
