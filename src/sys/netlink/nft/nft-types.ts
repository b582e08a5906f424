// nf_tables' objects as plain data, and the numbers of its messages. What is optional and absent is not sent.

import type { Family } from '../../../lib/ip.ts'
import type { Expression, Verdict } from './expressions.ts'

const subsystem = 10 << 8

/** Message types. `destroy` (Linux 6.3) deletes without minding absence. */
export const message = {
  table: { add: subsystem, get: subsystem | 1, delete: subsystem | 2, destroy: subsystem | 26 },
  chain: { add: subsystem | 3, get: subsystem | 4, delete: subsystem | 5, destroy: subsystem | 27 },
  rule: { add: subsystem | 6, get: subsystem | 7, delete: subsystem | 8, destroy: subsystem | 28 },
  set: { add: subsystem | 9, get: subsystem | 10, delete: subsystem | 11, destroy: subsystem | 29 },
  elements: { add: subsystem | 12, get: subsystem | 13, delete: subsystem | 14, destroy: subsystem | 30 },
  generation: { add: subsystem | 15, get: subsystem | 16 },
} as const

/** `create` is `add` that fails if the thing is there. */
export type Verb = 'add' | 'create' | 'delete' | 'destroy'

/** Only this socket may change the table. */
export const TABLE_OWNER = 2
/** The table outlives the socket that owns it (Linux 6.9). */
export const TABLE_PERSIST = 4

export interface Table {
  readonly kind: 'table'
  readonly family: Family
  readonly name: string
  /** TABLE_* bits. */
  readonly flags?: number
  readonly comment?: string
}

export const hooks = { prerouting: 0, input: 1, forward: 2, output: 3, postrouting: 4 } as const
export type Hook = keyof typeof hooks

export interface Chain {
  readonly kind: 'chain'
  readonly family: Family
  readonly table: string
  readonly name: string
  /** Absent: a chain that is only jumped to. */
  readonly base?: {
    readonly type: 'filter' | 'nat' | 'route'
    readonly hook: Hook
    readonly priority: number
    readonly policy?: 'accept' | 'drop'
  }
  readonly comment?: string
}

export interface Rule {
  readonly kind: 'rule'
  readonly family: Family
  readonly table: string
  readonly chain: string
  readonly expressions: readonly Expression[]
  readonly comment?: string
  /** A word of ours that nft does not show. */
  readonly tag?: string
  /** Names a rule that is there. In a rule to add: its place is taken. */
  readonly handle?: number
}

export const SET_ANONYMOUS = 1
export const SET_CONSTANT = 2
export const SET_INTERVAL = 4
export const SET_MAP = 8
export const SET_TIMEOUT = 0x10
/** Elements are also added by rules. */
export const SET_DYNAMIC = 0x20
export const SET_CONCATENATION = 0x80

/** The data type of a map whose data are verdicts. */
export const VERDICT_TYPE = 0xffffff00

export interface NftSet {
  readonly kind: 'set'
  readonly family: Family
  readonly table: string
  readonly name: string
  /** Any number that is unique among the sets of a transaction; the kernel insists on it. */
  readonly id: number
  /** SET_* bits. */
  readonly flags: number
  /** The kernel only keeps the types, for `nft list`. `describeFields` makes them. */
  readonly keyType: number
  readonly keyLength: number
  readonly dataType?: number
  readonly dataLength?: number
  readonly size?: number
  /** Unpadded lengths of a concatenated key's fields; needed with SET_INTERVAL. */
  readonly fieldLengths?: readonly number[]
  readonly timeoutMs?: number
  readonly gcIntervalMs?: number
  readonly userdata?: Uint8Array
}

export interface Elements {
  readonly kind: 'elements'
  readonly family: Family
  readonly table: string
  readonly set: string
  /** Of a set made in the same transaction under a name the kernel completes. */
  readonly setId?: number
  readonly elements: readonly Element[]
}

export interface Element {
  /** As it lies in registers: every field padded to 4 bytes; addresses and ports in network order, marks and slots in host order. */
  readonly key: Uint8Array
  /** Last key of the range, in interval sets with concatenated keys. */
  readonly keyEnd?: Uint8Array
  readonly data?: Uint8Array | Verdict
  /** This key is the first one after a range, in interval sets with simple keys. */
  readonly intervalEnd?: boolean
  readonly timeoutMs?: number
  readonly comment?: string
}

export const familyNumber = (family: Family): number => (family === 4 ? 2 : 10)

/** Undefined for families that are not ours: inet, bridge, netdev. */
export const familyOfNumber = (number: number): Family | undefined => (number === 2 ? 4 : number === 10 ? 6 : undefined)
