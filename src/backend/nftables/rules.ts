// Makes rules that several chains share, and the chains that frontends with the same number of endpoints share. Pure.

import type { NodeView } from '../../model/types.ts'
import { type ChainSpec, chainDigest, type KeyField, type PlannedRule, type Statement } from './entries.ts'

/** Matches traffic of this node's pods, or all other traffic; undefined if the node does not know its pods. */
export function matchLocalPods(node: NodeView, isLocal: boolean): Statement | undefined {
  const not = isLocal ? {} : { not: true }
  if (node.local === undefined) return undefined
  if (node.local.kind === 'cidr') return { kind: 'match-address', field: 'saddr', cidr: node.local.cidr, ...not }
  const [name, prefix] = node.local.kind === 'interface' ? [node.local.name, false] : [node.local.prefix, true]
  return { kind: 'match-interface', name, prefix, ...not }
}

/** The first slot of local endpoints, far from the slots of the whole cluster. */
export const localSlots = 0x4000_0000

export const addressKey: readonly KeyField[] = ['daddr', 'l4proto', 'dport']
export const nodePortKey: readonly KeyField[] = ['l4proto', 'dport']

/** What the chains of a frontend depend on. */
export interface Balance {
  readonly nodePort: boolean
  readonly policy: 'plain' | 'masquerade' | 'local'
  /** The number of endpoints in the cluster, and of those on this node (with policy `local`). */
  readonly cluster: number
  readonly local: number
}

/** `lb-5`, `lb-masquerade-5`, `lb-local-2-of-5`; `np-…` for node ports. */
export function balanceName(balance: Balance): string {
  const head = balance.nodePort ? 'np' : 'lb'
  if (balance.policy === 'plain') return `${head}-${balance.cluster}`
  if (balance.policy === 'masquerade') return `${head}-masquerade-${balance.cluster}`
  return `${head}-local-${balance.local}-of-${balance.cluster}`
}

/** The inverse of `balanceName`, for the names of chains that are read from the kernel. */
export function parseBalanceName(name: string): Balance | undefined {
  const match = /^(lb|np)-(?:(\d+)|masquerade-(\d+)|local-(\d+)-of-(\d+))$/.exec(name)
  if (match === null) return undefined
  const nodePort = match[1] === 'np'
  if (match[2] !== undefined) return { nodePort, policy: 'plain', cluster: Number(match[2]), local: 0 }
  if (match[3] !== undefined) return { nodePort, policy: 'masquerade', cluster: Number(match[3]), local: 0 }
  return { nodePort, policy: 'local', cluster: Number(match[5]), local: Number(match[4]) }
}

export interface BalanceChain {
  readonly chain: ChainSpec
  readonly digest: string
}

/** The chains that frontends of one node share. They are made once: there are few kinds, and every change asks for some. */
export class BalanceChains {
  readonly #node: NodeView
  readonly #made = new Map<string, readonly BalanceChain[]>()

  constructor(node: NodeView) {
    this.#node = node
  }

  /** Returns the chains that a frontend of this kind needs; the last one is the one that it leads into. */
  find(balance: Balance): readonly BalanceChain[] {
    const name = balanceName(balance)
    let chains = this.#made.get(name)
    if (chains === undefined) {
      chains = makeChains(balance, this.#node).map((chain) => ({ chain, digest: chainDigest(chain) }))
      this.#made.set(name, chains)
    }
    return chains
  }
}

function makeChains(balance: Balance, node: NodeView): readonly ChainSpec[] {
  const name = balanceName(balance)
  const plain = balanceName({ ...balance, policy: 'plain' })
  const chains: ChainSpec[] = []
  // Without endpoints in the cluster there is nothing to short-circuit to.
  if (balance.cluster > 0) chains.push({ name: plain, rules: chooseSlot(balance, balance.cluster, 0) })
  if (balance.policy === 'masquerade') {
    chains.push({
      name,
      rules: [
        {
          statements: [
            { kind: 'mark-or', bits: node.masqueradeMark },
            { kind: 'goto', chain: plain },
          ],
        },
      ],
    })
  } else if (balance.policy === 'local') {
    chains.push({
      name,
      rules: [...shortCircuit(balance, node, plain), ...chooseSlot(balance, balance.local, localSlots)],
    })
  }
  return chains
}

/** Sends traffic of this node and its pods to all endpoints, although the policy of the address is Local. */
function shortCircuit(balance: Balance, node: NodeView, plain: string): readonly PlannedRule[] {
  if (balance.cluster === 0) return []
  const rules: PlannedRule[] = []
  const pods = matchLocalPods(node, true)
  if (pods !== undefined) {
    rules.push({ statements: [pods, { kind: 'goto', chain: plain }], comment: 'short-circuit pod traffic' })
  }
  const local: Statement = { kind: 'address-type-local', field: 'saddr' }
  rules.push(
    { statements: [local, { kind: 'mark-or', bits: node.masqueradeMark }], comment: 'masquerade local traffic' },
    { statements: [local, { kind: 'goto', chain: plain }], comment: 'short-circuit local traffic' },
  )
  return rules
}

/**
 * The final drop catches a packet whose slot is not found because a commit came between its two lookups. The client sends a dropped
 * packet again. If it passed, it would leave an untranslated conntrack entry that breaks the connection for good.
 */
function chooseSlot(balance: Balance, count: number, offset: number): readonly PlannedRule[] {
  const drop: PlannedRule = { statements: [{ kind: 'drop' }] }
  if (count === 0) return [drop]
  const fields = balance.nodePort ? nodePortKey : addressKey
  const set = balance.nodePort ? 'nodeport-endpoints' : 'endpoints'
  return [{ statements: [{ kind: 'dnat-map', fields, count, offset, set }] }, drop]
}
