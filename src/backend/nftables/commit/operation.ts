// The operations of a transaction: one message to the kernel, or a part of one. Pure.

import type { ChainSpec, NftSetSpec, PlannedRule } from '../entries.ts'

/** One message to the kernel. `entry` is at fault if the kernel refuses the message. */
export type Operation = { readonly entry: string } & (
  | { readonly op: 'add-set'; readonly set: NftSetSpec }
  | { readonly op: 'delete-set'; readonly name: string }
  | { readonly op: 'add-chain'; readonly chain: ChainSpec }
  | { readonly op: 'flush-chain'; readonly name: string }
  | { readonly op: 'add-rule'; readonly chain: string; readonly rule: PlannedRule; readonly tag: RuleTag }
  | { readonly op: 'delete-chain'; readonly name: string }
  | { readonly op: 'add-counter'; readonly name: string; readonly port: string; readonly packets: number }
  | { readonly op: 'delete-counter'; readonly name: string }
  | ({ readonly op: 'add-element'; readonly value: string } & ElementKey)
  | ({ readonly op: 'delete-element' } & ElementKey)
  /** Adds all endpoints of a frontend that had none. */
  | {
      readonly op: 'add-slots'
      readonly set: string
      readonly key: string
      readonly offset: number
      readonly values: readonly string[]
    }
)

interface ElementKey {
  readonly set: string
  readonly key: string
  /** The slot of an endpoint, whose key is that of its frontend. */
  readonly slot: number | undefined
}

/** Every rule of ours carries the digest of its chain, its own index and the number of rules. A chain is ours if all rules agree. */
interface RuleTag {
  readonly digest: string
  readonly index: number
  readonly count: number
}

/** Drops a packet that was on its way into a chain when the chain was given up. The client sends it again, and it finds the new chain. */
export const finalDrop = {
  op: 'add-rule',
  rule: { statements: [{ kind: 'drop' }] },
  tag: { digest: 'retired', index: 0, count: 1 },
} as const
