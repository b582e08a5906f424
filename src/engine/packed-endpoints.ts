// Keeps the endpoints of a slice in little memory: a cluster has hundreds of thousands. Pure.
//
// Addresses differ, so they are one text. The rest of an endpoint is equal for many endpoints of a node, which share one object.

import type { EndpointList, EndpointRecord } from '../model/types.ts'

type EndpointTraits = Omit<EndpointRecord, 'ip'>

/** When a table has seen so many nodes it starts again empty, which costs only memory for traits that are then held twice. */
const maxNodes = 20_000
/** Endpoints of a node with still other traits do not share them: finding the right ones would take longer. */
const maxPerNode = 16

/** Finds the one object for endpoints that differ in nothing but their addresses. */
export class TraitsTable {
  readonly #byNode = new Map<string, EndpointTraits[]>()

  share(endpoint: EndpointRecord): EndpointTraits {
    const { node, ready, serving, terminating, zoneHints, nodeHints } = endpoint
    let known = this.#byNode.get(node)
    if (known === undefined) {
      if (this.#byNode.size >= maxNodes) this.#byNode.clear()
      known = []
      this.#byNode.set(node, known)
    }
    for (const traits of known) if (haveSameTraits(traits, endpoint)) return traits
    const traits = { node, ready, serving, terminating, zoneHints, nodeHints }
    if (known.length < maxPerNode) known.push(traits)
    return traits
  }
}

/** The fields are visible to loops over fields, unlike `#ips` would be, so that a comparison of records finds what differs. */
export class PackedEndpoints implements EndpointList {
  readonly length: number
  /** Separated by commas. */
  private readonly ips: string
  private readonly traits: readonly EndpointTraits[]

  /** Packs endpoints. Returns `before` if it has the same, and else shares with it what is equal. */
  static pack(endpoints: EndpointList, table: TraitsTable, before?: PackedEndpoints): PackedEndpoints {
    const ips: string[] = []
    const traits: EndpointTraits[] = []
    for (const endpoint of endpoints) {
      const old = before?.traits[ips.length]
      ips.push(endpoint.ip)
      traits.push(old !== undefined && haveSameTraits(old, endpoint) ? old : table.share(endpoint))
    }
    const text = ips.join(',')
    if (before === undefined) return new PackedEndpoints(text, traits.slice())
    const isSame = traits.length === before.length && traits.every((one, i) => one === before.traits[i])
    if (isSame && text === before.ips) return before
    // Lists that were filled by push have room for more; a slice has none.
    return new PackedEndpoints(text, isSame ? before.traits : traits.slice())
  }

  private constructor(ips: string, traits: readonly EndpointTraits[]) {
    this.length = traits.length
    this.ips = ips
    this.traits = traits
  }

  [Symbol.iterator](): Iterator<EndpointRecord> {
    return this.toJSON()[Symbol.iterator]()
  }

  toJSON(): readonly EndpointRecord[] {
    if (this.length === 0) return []
    const ips = this.ips.split(',')
    return this.traits.map(({ node, ready, serving, terminating, zoneHints, nodeHints }, i) => {
      return { ip: ips[i] as string, node, ready, serving, terminating, zoneHints, nodeHints }
    })
  }
}

/** True if two endpoints differ at most in their addresses. Hints with equal content are nearly always one list: decoders share them. */
export const haveSameTraits = (a: EndpointTraits, b: EndpointTraits): boolean =>
  a.node === b.node &&
  a.ready === b.ready &&
  a.serving === b.serving &&
  a.terminating === b.terminating &&
  haveSameNames(a.zoneHints, b.zoneHints) &&
  haveSameNames(a.nodeHints, b.nodeHints)

const haveSameNames = (a: readonly string[], b: readonly string[]): boolean =>
  a === b || (a.length === b.length && a.every((name, i) => name === b[i]))
