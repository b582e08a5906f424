// A look at what the kernel holds, through a second pair of eyes: a target that only observes, so that nothing is written by looking.

import type { Backend, Held, Mode } from '../backend/backend.ts'
import type { Presence } from '../http/admin.ts'
import { silentLogger } from '../lib/log.ts'
import { systemClock } from '../lib/time.ts'
import type { NodeView } from '../model/types.ts'

export interface KernelState {
  find(id: string): Held | undefined
  /** Entries of this kind can be seen from outside the process that made them, and told apart. */
  sees(kind: string): boolean
}

/** Kinds that `observe` of another process cannot tell: sockets of the proxy itself; rules that carry no mark. */
const unseen: Readonly<Record<Mode, (kind: string) => boolean>> = {
  nftables: (kind) => kind === 'listener',
  iptables: (kind) => kind !== 'chain',
  ipvs: () => false,
  userspace: () => true,
}

export async function readKernelState(
  backend: Backend<Held>,
  view: NodeView,
  signal?: AbortSignal,
): Promise<KernelState> {
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
      // A virtual server for a node port looks like any other once it is there.
      find: (id) => byId.get(id) ?? byId.get(id.replace(/^node-port /, 'server ')),
      sees: (kind) => !unseen[backend.name](kind),
    }
  } finally {
    await target.close()
  }
}

/** An observed entry without a digest says "it is there" and no more. */
export function presence(entry: Held, sight: KernelState | undefined): Presence {
  if (sight === undefined || !sight.sees(entry.kind)) return 'not checked'
  const held = sight.find(entry.id)
  if (held === undefined) return 'missing'
  if (held.digest === entry.digest) return 'held'
  return held.digest === '' ? 'present' : 'differs'
}
