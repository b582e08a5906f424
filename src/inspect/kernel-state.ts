// Reads what the kernel holds, and compares entries with it. Reading writes nothing.

import type { Backend, Held, KernelCheck, Presence } from '../backend/backend.ts'
import { compareDigests } from '../backend/backend.ts'
import { findMode } from '../backend/modes.ts'
import { silentLogger } from '../lib/log.ts'
import { systemClock } from '../lib/time.ts'
import type { NodeView } from '../model/types.ts'

const deadlineMs = 30_000

export async function readKernelState(backend: Backend<Held>, view: NodeView): Promise<KernelCheck> {
  const signal = AbortSignal.timeout(deadlineMs)
  return backend.openCheck === undefined ? observeOnce(backend, view, signal) : backend.openCheck(view, signal)
}

/** Observes with a second target, so that the first one keeps what it knows. */
async function observeOnce(backend: Backend<Held>, view: NodeView, signal: AbortSignal): Promise<KernelCheck> {
  const { explain } = findMode(backend.name)
  const target = await backend.open({
    family: view.family,
    node: view,
    log: silentLogger,
    clock: systemClock,
    onDrift: () => {},
  })
  try {
    const byId = new Map((await target.observe(signal)).map((held) => [held.id, held]))
    return {
      presence: (part) => compareDigests(part, byId.get(part.id) ?? byId.get(explain.observedId?.(part.id) ?? '')),
    }
  } finally {
    await target.close()
  }
}

/** `kernel` is undefined if the kernel was not read. */
export const presenceOf = (part: Held, kernel: KernelCheck | undefined): Presence =>
  kernel?.presence(part) ?? 'unchecked'
