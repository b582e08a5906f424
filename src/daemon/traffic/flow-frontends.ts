// What all ways to follow flows share: the frontends by which flows are recognised, and the packets that rules refuse.

import type { FrontendIndex } from '../../engine/flows/frontend-index.ts'
import type { ServicePort } from '../../model/types.ts'
import type { FlowSources, RefusalListener } from './flow-session.ts'
import { openIndex } from './frontend-sources.ts'

export interface FollowedFrontends {
  readonly index: FrontendIndex
  stop(): void
}

/** Follows changes of services until it is stopped. */
export function followFrontends(sources: FlowSources): FollowedFrontends {
  const { journal, families, portsOf } = sources
  const index = indexFrontends(sources)
  const stop = journal.subscribe({
    report: ({ services }) => {
      for (const service of services) {
        for (const family of families) index.set(service, family, portsOf(service, family))
      }
    },
  })
  return { index, stop }
}

export function indexFrontends(sources: FlowSources): FrontendIndex {
  const index = openIndex(sources)
  for (const family of sources.families) {
    const byService = new Map<string, ServicePort[]>()
    for (const port of sources.ports(family)) {
      const list = byService.get(port.service)
      if (list === undefined) byService.set(port.service, [port])
      else list.push(port)
    }
    for (const [service, list] of byService) index.set(service, family, list)
  }
  return index
}

/** Reports refused packets until the signal aborts. Resolves at once if this mode cannot tell. */
export async function openRefusals(
  { openRefusals: open }: FlowSources,
  index: FrontendIndex,
  listener: RefusalListener,
  signal: AbortSignal,
): Promise<void> {
  const opened = await open?.(listener, index)
  if (signal.aborted) opened?.close()
  else signal.addEventListener('abort', () => opened?.close(), { once: true })
}
