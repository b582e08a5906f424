// Makes rules that several chains share, and the chains that frontends with the same number of slots share. Pure.

import type { NodeView } from '../../model/types.ts'
import { hash32 } from '../names.ts'
import {
  type ChainSpec,
  chainDigest,
  type FrontendEntry,
  type FrontendSpec,
  frontendKey,
  type KeyField,
  type PlannedRule,
  readDigest,
  type SlotChoice,
  type Statement,
} from './entries.ts'

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
  /** How a slot is chosen; at random if absent. */
  readonly choice?: SlotChoice | undefined
  /** Only with the choice `turn`: the frontend that alone uses the chains, since a rule has one counter for all its packets. */
  readonly owner?: string | undefined
  /** The number of slots for the whole cluster, and of those for this node (with policy `local`). */
  readonly cluster: number
  readonly local: number
}

export const balanceOf = (spec: FrontendSpec): Balance => ({
  nodePort: spec.ip === '',
  policy: spec.policy,
  cluster: spec.cluster.length,
  local: spec.local.length,
  choice: spec.choice,
  owner: spec.choice === 'turn' ? hash32(frontendKey(spec), 8) : undefined,
})

/** As `balanceOf`, of an entry: all frontends are asked for their chains before one of them is written. */
export function readBalance({ id, digest, tables }: FrontendEntry): Balance {
  const { policy, choice, cluster, local } = readDigest(digest)
  const key = id.slice(id.indexOf(' ') + 1)
  return {
    nodePort: isNodePort(key),
    policy,
    cluster: tables?.cluster.length ?? countSlots(cluster),
    local: tables?.local.length ?? countSlots(local),
    choice,
    owner: choice === 'turn' ? hash32(key, 8) : undefined,
  }
}

function countSlots(text: string): number {
  let count = text === '' ? 0 : 1
  for (let at = text.indexOf(','); at >= 0; at = text.indexOf(',', at + 1)) count++
  return count
}

export const isNodePort = (key: string): boolean => /^(tcp|udp|sctp) /.test(key)

/** `lb-5`, `lb-masquerade-5`, `lb-local-2-of-5`; `np-…` for node ports; `lb-hash-1024`; `lb-turn-5-ABCDEFGH`. */
export function balanceName(balance: Balance): string {
  const head = `${balance.nodePort ? 'np' : 'lb'}${balance.choice === undefined ? '' : `-${balance.choice}`}`
  const tail = balance.owner === undefined ? '' : `-${balance.owner}`
  if (balance.policy === 'plain') return `${head}-${balance.cluster}${tail}`
  if (balance.policy === 'masquerade') return `${head}-masquerade-${balance.cluster}${tail}`
  return `${head}-local-${balance.local}-of-${balance.cluster}${tail}`
}

/** The inverse of `balanceName`, for the names of chains that are read from the kernel. */
export function parseBalanceName(name: string): Balance | undefined {
  const match = balanceForm.exec(name)?.groups as BalanceGroups | undefined
  if (match === undefined || (match.owner !== undefined) !== (match.choice === 'turn')) return undefined
  const { choice, owner } = match
  const common = { nodePort: match.head === 'np', ...(choice && { choice }), ...(owner && { owner }) }
  if (match.plain !== undefined) return { ...common, policy: 'plain', cluster: Number(match.plain), local: 0 }
  if (match.masquerade !== undefined) {
    return { ...common, policy: 'masquerade', cluster: Number(match.masquerade), local: 0 }
  }
  return { ...common, policy: 'local', cluster: Number(match.cluster), local: Number(match.local) }
}

const balanceForm =
  /^(?<head>lb|np)-(?:(?<choice>hash|turn)-)?(?:(?<plain>\d+)|masquerade-(?<masquerade>\d+)|local-(?<local>\d+)-of-(?<cluster>\d+))(?:-(?<owner>[A-Z2-7]{8}))?$/

interface BalanceGroups {
  readonly head: string
  readonly choice?: SlotChoice
  readonly plain?: string
  readonly masquerade?: string
  readonly local?: string
  readonly cluster?: string
  readonly owner?: string
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
      // Chains of one frontend are not shared, and every change of its endpoints makes others.
      if (balance.owner === undefined) this.#made.set(name, chains)
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
  const { choice } = balance
  const choose: Statement = { kind: 'dnat-map', fields, count, offset, set, ...(choice && { choice }) }
  return [{ statements: [choose] }, drop]
}
