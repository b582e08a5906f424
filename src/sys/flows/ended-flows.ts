// Reports translated flows when the kernel forgets them, with everything that they counted.

import type { Clock } from '../../lib/time.ts'
import { filterTranslated } from '../conntrack/conntrack-filter.ts'
import { endGroup, notificationKind } from '../conntrack/conntrack-tuple.ts'
import type { MessageReader } from '../netlink/message.ts'
import { subscribe } from '../netlink/subscribe.ts'
import { type ObservedFlow, ObservedFlowDecoder } from './flow-codec.ts'

/**
 * The socket never asks for reliable notifications (NETLINK_BROADCAST_ERROR): the kernel would keep every flow until this process has read of its end,
 * and a proxy that hangs would fill the table.
 */
const receiveBufferBytes = 8 << 20

/** Nobody waits for the end of a flow, and the buffer holds thousands. */
const batchMs = 100

export interface EndedFlowListener {
  ended(flow: ObservedFlow): void
  /** Called when notifications were lost. */
  lost(reason: string): void
}

export interface EndedFlowSubscription {
  close(): void
  /** Reports a batch of what has ended already, without waiting for the event loop. Returns false if more may follow. */
  readQueued(): boolean
}

/** Throws if the kernel has no connection tracking, or does not allow it. `selects` says whether a destination port is of interest. */
export function watchEndedFlows(
  listener: EndedFlowListener,
  selects: (port: number) => boolean,
  clock: Clock,
): EndedFlowSubscription {
  const decoder = new ObservedFlowDecoder(selects)
  const read = (message: MessageReader) => {
    const flow = notificationKind(message) === 'destroy' ? decoder.decode(message) : undefined
    if (flow !== undefined) listener.ended(flow)
  }
  const options = { protocol: 'netfilter', purpose: 'ended flows', receiveBufferBytes, batchMs, clock } as const
  const subscription = subscribe(options, [endGroup], { message: read, lost: (reason) => listener.lost(reason) })
  subscription.setFilter(filterTranslated())
  return subscription
}
