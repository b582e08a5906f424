// Finds the flows in the kernel's connection tracking table that a rule calls wrong, and removes them.

import type { Family } from '../../lib/ip.ts'

/** The part of a flow that decisions read: where the client sent it, and who answers. */
export interface Flow {
  readonly protocol: number
  readonly destination: string
  readonly destinationPort: number
  readonly replySource: string
  readonly replySourcePort: number
}

interface FlowQuery {
  readonly family: Family
  /** Absent: all protocols. */
  readonly protocol?: number
  /** Absent: all ports. */
  readonly destinationPorts?: ReadonlySet<number>
  /** Leaves out the flows in which a reply was seen. */
  readonly unreplied?: boolean
  /** Leaves out flows that others answer, where the kernel can. */
  readonly replySource?: string
}

/** The kernel's table of flows; `sys` implements it. */
export interface FlowTable<F extends Flow> {
  list(
    filter: FlowQuery,
    visit: (flows: readonly F[]) => void,
    wait: { readonly signal: AbortSignal },
  ): Promise<{ readonly interrupted: boolean }>
  remove(flows: readonly F[], wait: { readonly signal: AbortSignal }): Promise<number>
}

export interface Removal {
  readonly filter: FlowQuery
  readonly isWrong: (flow: Flow) => boolean
  /** Called with the number of flows that each request removed. */
  readonly count: (removed: number) => void
}

/** How often to list the flows if the kernel's table changes meanwhile; kube-proxy tries as often. */
const attempts = 5
/** The most wrong flows in memory, some 15 MB; if there are more, another pass follows. */
const maxFound = 100_000
/** Flows per request to delete. The count of one request is lost if it fails. */
const removedAtOnce = 10_000

export async function removeFlows<F extends Flow>(
  table: FlowTable<F>,
  removal: Removal,
  signal: AbortSignal,
): Promise<void> {
  for (let more = true; more; ) {
    const found = await collect(table, removal, signal)
    let removed = 0
    for (let at = 0; at < found.length; at += removedAtOnce) {
      const some = await table.remove(found.slice(at, at + removedAtOnce), { signal })
      removal.count(some)
      removed += some
    }
    more = found.length === maxFound && removed > 0
  }
}

/** Lists the wrong flows. Flows found in a table that keeps changing are still wrong, so the last attempt counts even if incomplete. */
async function collect<F extends Flow>(
  table: FlowTable<F>,
  { filter, isWrong }: Removal,
  signal: AbortSignal,
): Promise<readonly F[]> {
  for (let attempt = 1; ; attempt++) {
    const found: F[] = []
    const visit = (flows: readonly F[]) => {
      for (const flow of flows) if (found.length < maxFound && isWrong(flow)) found.push(flow)
    }
    const { interrupted } = await table.list(filter, visit, { signal })
    if (!interrupted || attempt === attempts) return found
  }
}
