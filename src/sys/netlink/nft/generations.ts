// Reports every commit of any process to any ruleset of nf_tables, and nothing about what it changed: the kernel drops all other
// notifications.

import { AttributeReader } from '../message.ts'
import { SocketFilter, typeAt } from '../socket-filter.ts'
import { type Subscription, subscribe } from '../subscribe.ts'
import { messageTypes, NFNLGRP_NFTABLES } from './nft-types.ts'
import { decodeGeneration } from './read-objects.ts'

/** `onCommit` gets the new generation, or undefined if notifications were lost. Throws if the kernel has no nf_tables. */
export function watchGenerations(onCommit: (generation: number | undefined) => void): Subscription {
  const reader = new AttributeReader()
  const options = { protocol: 'netfilter', purpose: 'nf_tables' } as const
  const subscription = subscribe(options, [NFNLGRP_NFTABLES], {
    message(message) {
      if (message.type === messageTypes.generation.add) onCommit(decodeGeneration(message, reader)?.id)
    },
    lost: () => onCommit(undefined),
  })
  subscription.setFilter(selectGenerations())
  return subscription
}

/** The notification about the generation is a datagram of its own. */
const selectGenerations = (): Uint8Array =>
  new SocketFilter()
    .load(typeAt, 1)
    .compare('=', messageTypes.generation.add & 0xff, { ifTrue: 'accept' })
    .reject()
    .label('accept')
    .accept()
    .toBytes()
