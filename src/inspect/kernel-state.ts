// Reads what the kernel holds through a second target that only observes, so that reading writes nothing, and compares entries with it.

import type { Backend, Held } from '../backend/backend.ts'
import { findMode } from '../backend/modes.ts'
import type { Presence } from '../http/admin.ts'
import { silentLogger } from '../lib/log.ts'
import { systemClock } from '../lib/time.ts'
import type { NodeView } from '../model/types.ts'

export interface KernelState {
  find(id: string): Held | undefined
  /** True if another process than the one that wrote entries of this kind can observe and distinguish them. */
  isVisible(kind: string): boolean
}

export async function readKernelState(
  backend: Backend<Held>,
  view: NodeView,
  signal?: AbortSignal,
): Promise<KernelState> {
  const { explain } = findMode(backend.name)
  const target = await backend.open({
    family: view.family,
    node: view,
    log: silentLogger,
    clock: systemClock,
    onDrift: () => {},
  })
  try {
    const held = await target.observe(signal ?? AbortSignal.timeout(30_000))
    const byId = new Map(held.map((one) => [one.id, one]))
    return {
      find: (id) => byId.get(id) ?? byId.get(explain.observedId?.(id) ?? id),
      isVisible: (kind) => explain.isVisible(kind),
    }
  } finally {
    await target.close()
  }
}

/** An observed entry without a digest proves that the entry exists, but not what it contains. */
export function comparePresence(entry: Held, kernel: KernelState | undefined): Presence {
  if (kernel === undefined || !kernel.isVisible(entry.kind)) return 'unchecked'
  const held = kernel.find(entry.id)
  if (held === undefined) return 'missing'
  if (held.digest === entry.digest) return 'present'
  return held.digest === '' ? 'byName' : 'differs'
}
