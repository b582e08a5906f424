// Reports the TCP connections that the kernel begins to track, those that get a reply, and those that end.

import { type Family, hostPort } from '../lib/ip.ts'
import type { Clock } from '../lib/time.ts'
import { familyOfNumber, protocolNumbers } from './ip-numbers.ts'
import { AddressCache } from './netlink/address-codec.ts'
import { FlowDecoder } from './netlink/conntrack-codec.ts'
import { type MessageReader, NLM_F_CREATE } from './netlink/message.ts'
import { type Subscription, subscribe } from './netlink/subscribe.ts'

/** NFNLGRP_CONNTRACK_NEW, _UPDATE and _DESTROY. */
const groups = [1, 2, 3]
const IPCTNL_MSG_CT_NEW = 0x100
const IPCTNL_MSG_CT_DELETE = 0x102

export interface TrackedEvent {
  readonly id: number
  readonly kind: 'new' | 'update' | 'destroy'
  readonly replied: boolean
  /** `ip:port` of who answers, or should. */
  readonly endpoint: string
  /** True if the client dialled another address than that of the endpoint. */
  readonly translated: boolean
}

export interface ConnectionListener {
  event(event: TrackedEvent): void
  /** Called when events were lost, because there were too many. */
  lost(reason: string): void
}

/** Throws if the kernel has no connection tracking, or does not allow it. */
export function watchConnections(listener: ConnectionListener, clock: Clock): Subscription {
  const addresses = new AddressCache()
  const protocol = protocolNumbers.tcp
  const decoders: Readonly<Record<Family, FlowDecoder>> = {
    4: new FlowDecoder({ family: 4, protocol }, addresses),
    6: new FlowDecoder({ family: 6, protocol }, addresses),
  }
  const read = (message: MessageReader) => {
    const kind = kindOf(message)
    const family = familyOfNumber(message.bytes[message.start] ?? 0)
    if (kind === undefined || family === undefined) return
    const decoder = decoders[family]
    const flow = decoder.decode(message)
    if (flow === undefined) return
    const endpoint = hostPort(flow.replySource, flow.replySourcePort)
    const translated = flow.destination !== flow.replySource || flow.destinationPort !== flow.replySourcePort
    listener.event({ id: flow.id, kind, replied: decoder.isReplied, endpoint, translated })
  }
  const options = { protocol: 'netfilter', purpose: 'connections', receiveBufferBytes: 2 << 20, clock } as const
  return subscribe(options, groups, { message: read, lost: (reason) => listener.lost(reason) })
}

function kindOf({ type, flags }: MessageReader): TrackedEvent['kind'] | undefined {
  if (type === IPCTNL_MSG_CT_DELETE) return 'destroy'
  if (type !== IPCTNL_MSG_CT_NEW) return undefined
  return (flags & NLM_F_CREATE) !== 0 ? 'new' : 'update'
}
