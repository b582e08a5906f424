// Finds what proxies of any mode, ours or kube-proxy, have on this node. Only reads.

import { modes } from './modes.ts'
import type { Leftover } from './proxy-mode.ts'

export async function findLeftovers(): Promise<readonly Leftover[]> {
  const found: Leftover[] = []
  for (const { leftovers } of modes) found.push(...(await leftovers.find()))
  return found
}
