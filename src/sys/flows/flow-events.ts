// Reads flows with their state, their counters and who began them: from a dump of the kernel's table, and as notifications.
//
// A flow that began before anyone listened sends no notification, not even when it ends (nf_conntrack_events is 2, "auto"). A process that follows
// flows must list them again from time to time.

import type { Family } from '../../lib/ip.ts'
import type { Clock } from '../../lib/time.ts'
import { filterSamples } from '../conntrack/conntrack-filter.ts'
import { type NotificationKind, notificationGroups, notificationKind } from '../conntrack/conntrack-tuple.ts'
import { type IpProtocol, protocolNumbers } from '../ip-numbers.ts'
import type { ConntrackTable } from '../netlink/conntrack.ts'
import type { MessageReader } from '../netlink/message.ts'
import type { Wait } from '../netlink/socket.ts'
import { subscribe } from '../netlink/subscribe.ts'
import { type ObservedFlow, ObservedFlowDecoder } from './flow-codec.ts'

export interface FlowListener {
  event(kind: NotificationKind, flow: ObservedFlow): void
  /** Called when notifications were lost. */
  lost(reason: string): void
}

export interface FlowSubscription {
  close(): void
  /** Receives from now on only one in `rate` flows, always with all notifications of the flow. `rate` is a power of two. */
  sample(rate: number): void
}

/** True if the flow is among the one in `rate` that `sample` selects. Ports of clients are often all even: the lowest bit does not count. */
export const isSampled = (sourcePort: number, rate: number): boolean => ((sourcePort >> 1) & (rate - 1)) === 0

/** Throws if the kernel has no connection tracking, or does not allow it. */
export function watchFlows(listener: FlowListener, selects: (port: number) => boolean, clock: Clock): FlowSubscription {
  const decoder = new ObservedFlowDecoder(selects)
  let rate = 1
  const read = (message: MessageReader) => {
    const kind = notificationKind(message)
    const flow = kind === undefined ? undefined : decoder.decode(message)
    // Notifications that were queued before the filter was attached still come.
    if (flow !== undefined && isSampled(flow.sourcePort, rate)) listener.event(kind as NotificationKind, flow)
  }
  const options = { protocol: 'netfilter', purpose: 'flows', receiveBufferBytes: 4 << 20, clock } as const
  const subscription = subscribe(options, notificationGroups, {
    message: read,
    lost: (reason) => listener.lost(reason),
  })
  return {
    close: () => subscription.close(),
    sample(wanted) {
      rate = wanted
      subscription.setFilter(filterSamples(wanted))
    },
  }
}

export interface VisitedFlows {
  readonly family: Family
  /** Absent: all protocols. */
  readonly protocol?: IpProtocol
  /** Whether a destination port is of interest. */
  readonly selects: (port: number) => boolean
  /** True leaves out flows that nobody translates, if the kernel can. */
  readonly translated?: boolean
}

/** Visits every flow whose destination port is selected. The kernel walks its whole table once. */
export async function visitFlows(
  table: ConntrackTable,
  query: VisitedFlows,
  visit: (flow: ObservedFlow) => void,
  wait: Wait = {},
): Promise<void> {
  const { family, protocol, selects, translated = false } = query
  const decoder = new ObservedFlowDecoder(selects)
  const filter = { family, translated, ...(protocol === undefined ? {} : { protocol: protocolNumbers[protocol] }) }
  const read = (message: MessageReader) => {
    const flow = decoder.decode(message)
    if (flow !== undefined && (protocol === undefined || flow.protocol === protocol)) visit(flow)
  }
  await table.dump(filter, read, wait)
}
