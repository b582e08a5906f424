// Finds what proxies of any mode, ours or kube-proxy, have on this node. Only reads.

import { modes } from './modes.ts'
import type { KeptObject, Leftover } from './proxy-mode.ts'

export async function findLeftovers(): Promise<readonly Leftover[]> {
  const found: Leftover[] = []
  for (const { leftovers } of modes) found.push(...(await leftovers.find()))
  return found
}

/** Finds what no cleanup removes, because other programs use it as well. */
export async function findKeptObjects(): Promise<readonly KeptObject[]> {
  const found: KeptObject[] = []
  for (const { leftovers } of modes) found.push(...((await leftovers.findKept?.()) ?? []))
  return found
}
