// Rules that several chains share, and the chains that frontends with the same number of endpoints share.

import type { NodeView } from '../../model/types.ts'
import { type ChainSpec, chainDigest, type KeyField, type PlannedRule, type Statement } from './entries.ts'

/** Matches traffic of this node's pods, or all other traffic; undefined where pods cannot be told apart. */
export function fromLocalPods(node: NodeView, yes: boolean): Statement | undefined {
  const not = yes ? {} : { not: true }
  if (node.local === undefined) return undefined
  if (node.local.kind === 'cidr') return { kind: 'match-address', field: 'saddr', cidr: node.local.cidr, ...not }
  const [name, prefix] = node.local.kind === 'interface' ? [node.local.name, false] : [node.local.prefix, true]
  return { kind: 'match-interface', name, prefix, ...not }
}

/** Local endpoints of a frontend have slots of their own, far from those of the whole cluster. */
export const localSlots = 0x4000_0000

export const addressKey: readonly KeyField[] = ['daddr', 'l4proto', 'dport']
export const nodePortKey: readonly KeyField[] = ['l4proto', 'dport']

export interface Balance {
  readonly nodePort: boolean
  readonly policy: 'plain' | 'masquerade' | 'local'
  /** How many endpoints in the cluster, and how many on this node (with policy `local`). */
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

/** The inverse of `balanceName`: what an element of the kernel's says about its frontend. */
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

/** There are few kinds, and all frontends ask for theirs at every change. */
const known = new WeakMap<NodeView, Map<string, readonly BalanceChain[]>>()

/** The chains a frontend of this kind needs, the one it enters last. */
export function balanceChains(balance: Balance, node: NodeView): readonly BalanceChain[] {
  let ofNode = known.get(node)
  if (ofNode === undefined) {
    ofNode = new Map()
    known.set(node, ofNode)
  }
  const name = balanceName(balance)
  let chains = ofNode.get(name)
  if (chains === undefined) {
    chains = makeChains(balance, node).map((chain) => ({ chain, digest: chainDigest(chain) }))
    ofNode.set(name, chains)
  }
  return chains
}

function makeChains(balance: Balance, node: NodeView): readonly ChainSpec[] {
  const name = balanceName(balance)
  const plain = balanceName({ ...balance, policy: 'plain' })
  const chains: ChainSpec[] = []
  // With no endpoints in the cluster list there is nothing to short-circuit to.
  if (balance.cluster > 0) chains.push({ name: plain, rules: pick(balance, balance.cluster, 0) })
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
    chains.push({ name, rules: [...shortCircuit(balance, node, plain), ...pick(balance, balance.local, localSlots)] })
  }
  return chains
}

/** Traffic of this node and its pods to an address with a Local policy goes to every endpoint. */
function shortCircuit(balance: Balance, node: NodeView, plain: string): readonly PlannedRule[] {
  if (balance.cluster === 0) return []
  const rules: PlannedRule[] = []
  const pods = fromLocalPods(node, true)
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
 * The final drop is for a packet whose slot was not found because a commit came between its two look-ups: dropped, it is sent
 * again; passed on, it would leave an untranslated conntrack entry that breaks the connection for good.
 */
function pick(balance: Balance, count: number, offset: number): readonly PlannedRule[] {
  const drop: PlannedRule = { statements: [{ kind: 'drop' }] }
  if (count === 0) return [drop]
  const fields = balance.nodePort ? nodePortKey : addressKey
  const set = balance.nodePort ? 'nodeport-endpoints' : 'endpoints'
  return [{ statements: [{ kind: 'dnat-map', fields, count, offset, set }] }, drop]
}
