// What an index of frontends is made from, and how the flows to these frontends are listed.

import { FrontendIndex } from '../../engine/flows/frontend-index.ts'
import type { JournalListener } from '../../engine/journal.ts'
import type { Family } from '../../lib/ip.ts'
import type { Protocol, ServicePort } from '../../model/types.ts'
import type { ObservedFlow } from '../../sys/flows/flow-codec.ts'
import { type VisitedFlows, visitFlows } from '../../sys/flows/flow-events.ts'
import { ConntrackTable } from '../../sys/netlink/conntrack.ts'

export interface FrontendSources {
  readonly portsOf: (service: string, family: Family) => readonly ServicePort[]
  readonly journal: { subscribe(listener: JournalListener): () => void }
  readonly families: readonly Family[]
  readonly nodeAddresses: () => readonly string[]
}

const protocols: readonly Protocol[] = ['tcp', 'udp', 'sctp']

/** An index without services. */
export const openIndex = ({ nodeAddresses }: Pick<FrontendSources, 'nodeAddresses'>): FrontendIndex =>
  new FrontendIndex((ip) => nodeAddresses().includes(ip))

/** Visits every flow to a frontend. */
export const listFlows = (
  index: FrontendIndex,
  families: readonly Family[],
  visit: (flow: ObservedFlow) => void,
  signal: AbortSignal,
): Promise<void> => {
  const all = families.flatMap((family) => protocols.map((protocol) => ({ family, protocol })))
  const served = all.filter(({ family, protocol }) => index.hasProtocol(family, protocol))
  const selects = (port: number) => index.hasNumber(port)
  return visitEach(
    served.map((one) => ({ ...one, selects })),
    visit,
    signal,
  )
}

/** Visits every flow to a frontend that is translated; others too, if the kernel cannot leave them out. */
export const listTranslated = (
  index: FrontendIndex,
  families: readonly Family[],
  visit: (flow: ObservedFlow) => void,
  signal: AbortSignal,
): Promise<void> => {
  const served = families.filter((family) => protocols.some((protocol) => index.hasProtocol(family, protocol)))
  const selects = (port: number) => index.hasNumber(port)
  return visitEach(
    served.map((family) => ({ family, selects, translated: true })),
    visit,
    signal,
  )
}

async function visitEach(
  queries: readonly VisitedFlows[],
  visit: (flow: ObservedFlow) => void,
  signal: AbortSignal,
): Promise<void> {
  const table = new ConntrackTable()
  try {
    for (const query of queries) await visitFlows(table, query, visit, { signal })
  } finally {
    table.close()
  }
}
