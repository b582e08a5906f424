// A backend whose kernel is a map, with faults on demand, for tests of everything between records and the kernel.

import type { Applied, Backend, Changes, DriftReason, Held, OpenContext, Target } from '../../src/backend/backend.ts'
import { ProxyError } from '../../src/lib/errors.ts'
import type { Family } from '../../src/lib/ip.ts'
import { frontendKey } from '../../src/model/conflicts.ts'
import type { NodeView, ServicePort } from '../../src/model/types.ts'

const entry = (kind: string, key: string, content: unknown): Held => ({
  kind,
  id: `${kind} ${key}`,
  digest: JSON.stringify(content),
})

function base(node: NodeView): readonly Held[] {
  return [entry('base', 'table', [node.masqueradeMark]), entry('base', 'cidrs', node.serviceCidrs)]
}

/** Plans shared entries, too: two services that select one local pod claim one hairpin entry. */
function plan(port: ServicePort, node: NodeView): readonly Held[] {
  const entries = port.frontends.map((frontend) =>
    entry('frontend', frontendKey(frontend, port.protocol), [
      port.name,
      port.internal,
      port.external,
      port.cluster,
      port.local,
      frontend.allow,
      port.affinitySeconds,
      frontend.kind === 'node-port' ? node.nodePorts.addresses : [],
    ]),
  )
  const hairpins = port.cluster.filter((endpoint) => endpoint.local).map(({ ip }) => entry('hairpin', ip, ip))
  return port.frontends.length === 0 ? [] : [...entries, ...hairpins]
}

/** The kernel of one family. It outlives engines, as a real kernel does. */
export class MemoryKernel {
  readonly held = new Map<string, Held>()
  /** How often each id was written or removed. */
  readonly writes = new Map<string, number>()
  /** The ids of each apply, in order. */
  readonly applies: { put: string[]; drop: string[]; wanted: number }[] = []
  observed = 0
  /** Makes the next observe throw, or the next apply after this number of changes. */
  failObserve = false
  failApplyAfter: number | undefined
  refuses: (id: string) => boolean = () => false
  /** True if another program changed something since the last apply. */
  drifted = false
  onDrift: (culprit: string, reason: DriftReason) => void = () => {}
  /** If set, apply asks whether to pause after this many changes. */
  pausesAfter: number | undefined
  /** Called after the changes of an apply, before it ends. */
  onApplied: () => void = () => {}
  /** If set, observe and apply wait for it. */
  gate: Promise<void> | undefined
  /** If set, apply waits for what it returns. */
  wait: (() => Promise<void>) | undefined

  /** Changes the kernel like another program; the target reports a drift unless `silent`. */
  tamper(id: string, digest: string | undefined, { silent = false } = {}): void {
    if (digest === undefined) this.held.delete(id)
    else this.held.set(id, { id, kind: id.split(' ')[0] as string, digest })
    this.drifted = true
    if (!silent) this.onDrift('test', 'changed')
  }

  ids(): string[] {
    return [...this.held.keys()].sort()
  }

  /** Everything that the kernel holds, as comparable text. */
  content(): Record<string, string> {
    return Object.fromEntries(
      [...this.held].sort(([a], [b]) => (a < b ? -1 : 1)).map(([id, { digest }]) => [id, digest]),
    )
  }

  write(id: string, held: Held | undefined): void {
    this.writes.set(id, (this.writes.get(id) ?? 0) + 1)
    if (held === undefined) this.held.delete(id)
    else this.held.set(id, { id: held.id, kind: held.kind, digest: held.digest })
  }
}

export interface MemoryBackendOptions {
  /** Planning throws for these ports. */
  readonly breaks?: (port: ServicePort) => boolean
  readonly periodic?: boolean
}

export function memoryBackend(
  kernels: ReadonlyMap<Family, MemoryKernel>,
  options: MemoryBackendOptions = {},
): Backend<Held> {
  return {
    name: 'nftables',
    periodic: options.periodic ?? false,
    families: async () => [...kernels.keys()],
    prepare: async () => {},
    base,
    plan(port, node) {
      if (options.breaks?.(port)) throw new Error('this port breaks the planner')
      return plan(port, node)
    },
    open: async (context) => openTarget(kernels.get(context.family) as MemoryKernel, context),
  }
}

function openTarget(kernel: MemoryKernel, context: OpenContext): Target<Held> {
  kernel.onDrift = context.onDrift
  return {
    async observe(signal) {
      await kernel.gate
      signal.throwIfAborted()
      kernel.observed++
      if (kernel.failObserve) {
        kernel.failObserve = false
        throw new ProxyError('netlink', 'observe failed')
      }
      return [...kernel.held.values()]
    },
    async apply(changes, signal, wanted) {
      await kernel.gate
      await kernel.wait?.()
      signal.throwIfAborted()
      kernel.applies.push({
        put: changes.put.map((one) => one.id),
        drop: changes.drop.map((one) => one.id),
        wanted: wanted.size,
      })
      kernel.drifted = false
      return write(kernel, changes, context)
    },
    drifted: () => kernel.drifted,
    close: async () => {
      kernel.onDrift = () => {}
    },
  }
}

/** Writes until everything is written or the engine asks for a pause. */
function write(kernel: MemoryKernel, changes: Changes<Held>, context: OpenContext): Applied {
  const { put, drop } = changes
  const after = kernel.pausesAfter
  if (after === undefined) return applyTo(kernel, changes)
  kernel.onApplied()
  const isLast = put.length + drop.length <= after || context.shouldPause?.() !== true
  if (isLast) return { ...applyTo(kernel, changes), written: changes }
  const written = { put: put.slice(0, after), drop: drop.slice(0, Math.max(0, after - put.length)) }
  const rest = { put: put.slice(after), drop: drop.slice(written.drop.length) }
  const resume = async (signal: AbortSignal) => {
    signal.throwIfAborted()
    return write(kernel, rest, context)
  }
  return { ...applyTo(kernel, written), written, resume }
}

function applyTo(kernel: MemoryKernel, changes: Changes<Held>): Applied {
  let budget = kernel.failApplyAfter ?? Number.POSITIVE_INFINITY
  kernel.failApplyAfter = undefined
  const refused = new Set<string>()
  const change = (id: string, held: Held | undefined) => {
    if (budget-- <= 0) throw new ProxyError('netlink', 'apply failed')
    if (kernel.refuses(id)) refused.add(id)
    else kernel.write(id, held)
  }
  for (const one of changes.put) change(one.id, one)
  for (const one of changes.drop) change(one.id, undefined)
  if (budget <= 0) throw new ProxyError('netlink', 'apply failed')
  return {
    refused: [...refused].map((id) => ({ id, error: new ProxyError('netlink', `refused ${id}`) })),
    figures: { held: kernel.held.size },
  }
}
