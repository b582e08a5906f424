// The entries of nftables mode: the parts of its table, with the texts that are their ids and digests. Pure.

import type { Protocol } from '../../model/types.ts'
import type { Held } from '../backend.ts'
import { hash32 } from '../names.ts'
import type { BalancerChoice } from '../relay/balancer-choice.ts'

export type NftEntry = NftSetEntry | ChainEntry | ElementEntry | FrontendEntry | LoopbackListenerEntry

/** A named set or map. */
export interface NftSetEntry extends Held {
  readonly kind: 'set'
  readonly set: NftSetSpec
}

/** A chain with all its rules, which are always written together. */
export interface ChainEntry extends Held {
  readonly kind: 'chain'
  readonly chain: ChainSpec
}

/**
 * One member of a set or map. The id is the set and the key (`service-ips 10.96.0.1 tcp 443`), the digest is the value and the comment
 * (`goto reject-chain # ns/name`).
 */
export interface ElementEntry extends Held {
  readonly kind: 'element'
}

/**
 * A balanced address: one verdict element and a numbered slot per endpoint. The target decides which endpoint gets which slot, because
 * only the target knows the current slots. Therefore a small change needs few writes.
 */
export interface FrontendEntry extends Held {
  readonly kind: 'frontend'
  /** The slots, but only with the choice `hash`. Otherwise the digest contains them, see `readFrontend`. */
  readonly tables?: SlotLists
}

/** Endpoints as `ip:port`, sorted, each as often as its weight wants. With the choice `hash` the endpoint of each slot. */
export interface SlotLists {
  readonly cluster: readonly string[]
  readonly local: readonly string[]
}

/** A socket on loopback for a node port: the kernel cannot translate packets to 127.0.0.1 and ::1 without route_localnet. */
export interface LoopbackListenerEntry extends Held {
  readonly kind: 'listener'
  readonly listener: ListenerSpec
}

export interface NftSetSpec {
  readonly name: string
  readonly shape: NftSetShape
  readonly comment: string
  /** Only for affinity sets, whose members are added by packets and expire after this time. */
  readonly timeoutSeconds?: number
}

/** The shapes of key and value that we use. Each has one encoding per family, see commit/set-codec.ts. */
export type NftSetShape =
  | 'address'
  | 'address . address . protocol . port'
  | 'address . protocol . port'
  | 'address . protocol . port . range'
  | 'address . protocol . port : verdict'
  | 'protocol . port : verdict'
  | 'address . protocol . port . slot : address . port'
  | 'protocol . port . slot : address . port'
  | 'affinity'

export interface ChainSpec {
  readonly name: string
  readonly hook?: { readonly type: 'filter' | 'nat'; readonly hook: ChainHook; readonly priority: number }
  readonly rules: readonly PlannedRule[]
  readonly comment?: string
}

export type ChainHook = 'prerouting' | 'input' | 'forward' | 'output' | 'postrouting'

export interface PlannedRule {
  readonly statements: readonly Statement[]
  readonly comment?: string
}

/** A statement of a rule; compile.ts knows the kernel's expressions for each. */
export type Statement = Match | Action

/** Ends the rule for packets that do not match. */
export type Match =
  | { readonly kind: 'ct-new' }
  | { readonly kind: 'ct-dnat' }
  | { readonly kind: 'match-address'; readonly field: 'saddr' | 'daddr'; readonly cidr: string; readonly not?: boolean }
  | { readonly kind: 'match-interface'; readonly name: string; readonly prefix: boolean; readonly not?: boolean }
  | { readonly kind: 'match-mark'; readonly bits: number }
  | { readonly kind: 'address-type-local'; readonly field: 'saddr' | 'daddr'; readonly not?: boolean }
  | { readonly kind: 'in-set'; readonly fields: readonly KeyField[]; readonly set: string; readonly not?: boolean }

type Action =
  | { readonly kind: 'verdict-map'; readonly fields: readonly KeyField[]; readonly set: string }
  /** One of the targets: at random, or with `turn` one after the other. A target may stand there several times. */
  | { readonly kind: 'random-verdict'; readonly targets: readonly string[]; readonly turn?: true }
  | { readonly kind: 'remember'; readonly set: string; readonly timeoutSeconds: number }
  | {
      readonly kind: 'dnat-map'
      readonly fields: readonly KeyField[]
      readonly count: number
      readonly offset: number
      readonly set: string
      /** How the slot is chosen; at random if absent. */
      readonly choice?: SlotChoice
    }
  | { readonly kind: 'dnat'; readonly protocol: Protocol; readonly ip: string; readonly port: number }
  | { readonly kind: 'count' }
  | { readonly kind: 'mark-or'; readonly bits: number }
  | { readonly kind: 'mark-clear'; readonly bits: number }
  | { readonly kind: 'masquerade' }
  | { readonly kind: 'reject' }
  | { readonly kind: 'drop' }
  | { readonly kind: 'jump'; readonly chain: string }
  | { readonly kind: 'goto'; readonly chain: string }

/** By the hash of the source address, or one after the other. */
export type SlotChoice = 'hash' | 'turn'

export type KeyField = 'saddr' | 'daddr' | 'l4proto' | 'dport'

export interface FrontendSpec extends SlotLists {
  /** The service address; '' for a node port. */
  readonly ip: string
  readonly protocol: Protocol
  readonly port: number
  /** `local` sends traffic from other machines to `local`, and traffic of this node and its pods to `cluster`. */
  readonly policy: 'plain' | 'masquerade' | 'local'
  /** How a slot is chosen; at random if absent. */
  readonly choice?: SlotChoice | undefined
  /** The name of the service port. */
  readonly comment: string
}

export interface ListenerSpec {
  readonly ip: string
  readonly protocol: Protocol
  readonly port: number
  readonly endpoints: readonly string[]
  readonly affinitySeconds: number
  readonly choice?: BalancerChoice
}

export const element = (container: string, key: string, value = '', comment = ''): ElementEntry => ({
  kind: 'element',
  id: `${container} ${key}`,
  digest: comment === '' ? value : `${value} # ${comment}`,
})

/** `10.96.0.1 tcp 443`, or `tcp 30080` for a node port. */
export const frontendKey = (spec: Pick<FrontendSpec, 'ip' | 'protocol' | 'port'>): string =>
  spec.ip === '' ? `${spec.protocol} ${spec.port}` : `${spec.ip} ${spec.protocol} ${spec.port}`

export const frontendId = (spec: Pick<FrontendSpec, 'ip' | 'protocol' | 'port'>): string =>
  `frontend ${frontendKey(spec)}`

export function frontendDigest({ policy, choice, cluster, local, comment }: FrontendSpec): string {
  const list = choice === 'hash' ? digestTable : joinSlots
  const kind = choice === undefined ? policy : `${choice}-${policy}`
  return `${kind} ${list(cluster)} ${list(local)} # ${comment}`
}

const joinSlots = (slots: readonly string[]): string => slots.join(',')

/** `1024:ABCDEFGH`: thousands of slots are not kept as text. */
const digestTable = (slots: readonly string[]): string => `${slots.length}:${hash32(slots.join(','), 12)}`

export function frontendEntry(frontend: FrontendSpec): FrontendEntry {
  const held = { kind: 'frontend', id: frontendId(frontend), digest: frontendDigest(frontend) } as const
  return frontend.choice === 'hash' ? { ...held, tables: { cluster: frontend.cluster, local: frontend.local } } : held
}

/**
 * The inverse of `frontendEntry`. There is an entry for every frontend, so an entry is no more than its texts: what they say is read when
 * the frontend is written.
 */
export function readFrontend({ id, digest, tables }: FrontendEntry): FrontendSpec {
  const { ip, protocol, port } = parseFrontendKey(id.slice(id.indexOf(' ') + 1))
  const { policy, choice, cluster, local, comment } = readDigest(digest)
  const lists = tables ?? { cluster: splitSlots(cluster), local: splitSlots(local) }
  return { ip, protocol, port, policy, choice, cluster: lists.cluster, local: lists.local, comment }
}

interface DigestTexts extends Pick<FrontendSpec, 'policy' | 'choice' | 'comment'> {
  readonly cluster: string
  readonly local: string
}

/** The inverse of `frontendDigest`. Only the comment may contain spaces. */
export function readDigest(digest: string): DigestTexts {
  const kindEnd = digest.indexOf(' ')
  const clusterEnd = digest.indexOf(' ', kindEnd + 1)
  const localEnd = digest.indexOf(' ', clusterEnd + 1)
  const kind = digest.slice(0, kindEnd)
  const dash = kind.indexOf('-')
  return {
    policy: kind.slice(dash + 1) as FrontendSpec['policy'],
    choice: dash < 0 ? undefined : (kind.slice(0, dash) as SlotChoice),
    cluster: digest.slice(kindEnd + 1, clusterEnd),
    local: digest.slice(clusterEnd + 1, localEnd),
    comment: digest.slice(localEnd + ' # '.length),
  }
}

const splitSlots = (text: string): readonly string[] => (text === '' ? none : text.split(','))

const none: readonly never[] = Object.freeze([])

/** The inverse of `frontendKey`, for keys that this file or the codec made. */
export function parseFrontendKey(key: string): Pick<FrontendSpec, 'ip' | 'protocol' | 'port'> {
  const portAt = key.lastIndexOf(' ') + 1
  const protocolAt = key.lastIndexOf(' ', portAt - 2) + 1
  return {
    ip: key.slice(0, Math.max(0, protocolAt - 1)),
    protocol: key.slice(protocolAt, portAt - 1) as Protocol,
    port: Number(key.slice(portAt)),
  }
}

export const setEntry = (set: NftSetSpec): NftSetEntry => ({
  kind: 'set',
  id: `set ${set.name}`,
  digest: setDigest(set),
  set,
})

/** The digest does not contain the timeout of an affinity set: rules state the timeout with every client that they add. */
export const setDigest = (set: Pick<NftSetSpec, 'shape' | 'comment'>): string => `${set.shape} # ${set.comment}`

/** The kernel stores the digest with every rule of the chain, so that a chain is recognised without reading its rules. */
export const chainEntry = (chain: ChainSpec): ChainEntry => ({
  kind: 'chain',
  id: `chain ${chain.name}`,
  digest: chainDigest(chain),
  chain,
})

export const chainDigest = (chain: ChainSpec): string => hash32(JSON.stringify(chain), 12)
