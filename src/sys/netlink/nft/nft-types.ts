// The objects of nf_tables as plain data, the numbers of its messages, and its flags. An optional field that is absent is not sent. Pure.

import type { Family } from '../../../lib/ip.ts'
import type { Expression, Verdict } from './expressions.ts'

const NFNL_SUBSYS_NFTABLES = 10 << 8
/** The multicast group of all changes. */
export const NFNLGRP_NFTABLES = 7

/** Message types, NFT_MSG_*. `destroy` (Linux 6.3) succeeds also if the object is not there. */
export const messageTypes = {
  table: {
    add: NFNL_SUBSYS_NFTABLES,
    get: NFNL_SUBSYS_NFTABLES | 1,
    delete: NFNL_SUBSYS_NFTABLES | 2,
    destroy: NFNL_SUBSYS_NFTABLES | 26,
  },
  chain: { add: NFNL_SUBSYS_NFTABLES | 3, get: NFNL_SUBSYS_NFTABLES | 4, delete: NFNL_SUBSYS_NFTABLES | 5 },
  rule: { add: NFNL_SUBSYS_NFTABLES | 6, get: NFNL_SUBSYS_NFTABLES | 7, delete: NFNL_SUBSYS_NFTABLES | 8 },
  set: { add: NFNL_SUBSYS_NFTABLES | 9, get: NFNL_SUBSYS_NFTABLES | 10, delete: NFNL_SUBSYS_NFTABLES | 11 },
  elements: { add: NFNL_SUBSYS_NFTABLES | 12, get: NFNL_SUBSYS_NFTABLES | 13, delete: NFNL_SUBSYS_NFTABLES | 14 },
  object: { add: NFNL_SUBSYS_NFTABLES | 18, get: NFNL_SUBSYS_NFTABLES | 19, delete: NFNL_SUBSYS_NFTABLES | 20 },
  generation: { add: NFNL_SUBSYS_NFTABLES | 15, get: NFNL_SUBSYS_NFTABLES | 16 },
} as const

export type Verb = 'add' | 'delete'

/** NFT_TABLE_F_OWNER: only the socket that made the table may change it. */
export const TABLE_OWNER = 2
/** NFT_TABLE_F_PERSIST: the table outlives the socket that owns it (Linux 6.9). */
export const TABLE_PERSIST = 4

export interface Table {
  readonly family: Family
  readonly name: string
  /** TABLE_* bits. */
  readonly flags?: number
  readonly comment?: string
}

/** NF_INET_* hook numbers. */
export const hooks = { prerouting: 0, input: 1, forward: 2, output: 3, postrouting: 4 } as const
export type Hook = keyof typeof hooks

export interface Chain {
  readonly family: Family
  readonly table: string
  readonly name: string
  /** Absent for a chain that is not attached to a hook. */
  readonly base?: {
    readonly type: 'filter' | 'nat' | 'route'
    readonly hook: Hook
    readonly priority: number
    readonly policy?: 'accept' | 'drop'
  }
  readonly comment?: string
}

export interface Rule {
  readonly family: Family
  readonly table: string
  readonly chain: string
  readonly expressions: readonly Expression[]
  readonly comment?: string
  /** Text of ours in the rule's userdata, which `nft` does not print. */
  readonly tag?: string
}

// NFT_SET_* flags.
export const SET_ANONYMOUS = 1
export const SET_CONSTANT = 2
export const SET_INTERVAL = 4
export const SET_MAP = 8
export const SET_TIMEOUT = 0x10
/** Rules may add elements. The kernel's name is NFT_SET_EVAL. */
export const SET_DYNAMIC = 0x20
/** NFT_SET_CONCAT. */
export const SET_CONCATENATION = 0x80

/** NFT_DATA_VERDICT: the data type of a map whose data are verdicts. */
export const VERDICT_TYPE = 0xffffff00

export interface NftSet {
  readonly family: Family
  readonly table: string
  readonly name: string
  /** Any number that is unique among the sets of a transaction. The kernel requires one. */
  readonly id: number
  /** SET_* bits. */
  readonly flags: number
  /** The kernel stores the types only for `nft list`. `describeSet` makes them. */
  readonly keyType: number
  readonly keyLength: number
  readonly dataType?: number
  readonly dataLength?: number
  readonly size?: number
  /** The unpadded lengths of the fields of a concatenated key; required with SET_INTERVAL. */
  readonly fieldLengths?: readonly number[]
  readonly timeoutMs?: number
  readonly userdata?: Uint8Array
  /** True if every element counts the packets that find it. */
  readonly counter?: boolean
}

/** The names that an element list begins with. */
export interface SetName {
  readonly family: Family
  readonly table: string
  readonly set: string
  /** The id of a set that is made in the same transaction and whose name the kernel completes. */
  readonly setId?: number
}

export interface Elements extends SetName {
  readonly elements: readonly Element[]
}

export interface Element {
  /** As it lies in registers: every field padded to 4 bytes; addresses and ports in network order, marks and slots in host order. */
  readonly key: Uint8Array
  /** The last key of the range, in interval sets with concatenated keys. */
  readonly keyEnd?: Uint8Array | undefined
  readonly data?: Uint8Array | Verdict | undefined
  /** True if the key is the first one after a range, in interval sets with simple keys. */
  readonly intervalEnd?: boolean
  readonly timeoutMs?: number
  readonly comment?: string | undefined
  /** Packets that found the element; when it is added, the number from which it counts. */
  readonly packets?: number
}

/** NFT_OBJECT_COUNTER. */
export const OBJECT_COUNTER = 1

/** A named counter. */
export interface NamedCounter {
  readonly family: Family
  readonly table: string
  readonly name: string
  readonly packets: number
  readonly comment?: string
}
