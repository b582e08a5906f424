// Keeps the node as each family sees it up to date: zone, interface addresses, service CIDRs.

import type { Family } from '../lib/ip.ts'
import { makeNodeView, type NodeFacts } from '../model/node.ts'
import type { NodeView, Problem, ServiceCidrRecord } from '../model/types.ts'

export class NodeViews {
  #facts: NodeFacts
  readonly #views = new Map<Family, NodeView>()
  #onChange: (family: Family, view: NodeView) => void = () => {}

  constructor(facts: NodeFacts, families: readonly Family[]) {
    this.#facts = facts
    for (const family of families) this.#views.set(family, makeNodeView(facts, family))
  }

  /** The view of a family that is served. */
  of(family: Family): NodeView {
    return this.#views.get(family) as NodeView
  }

  /** Every interface address, both families. */
  get addresses(): readonly string[] {
    return this.#facts.interfaceAddresses
  }

  watch(onChange: (family: Family, view: NodeView) => void): void {
    this.#onChange = onChange
  }

  update(change: Partial<Pick<NodeFacts, 'zone' | 'interfaceAddresses' | 'serviceCidrs'>>): void {
    this.#facts = { ...this.#facts, ...change }
    for (const [family, before] of this.#views) {
      const view = makeNodeView(this.#facts, family)
      if (JSON.stringify(view) === JSON.stringify(before)) continue
      this.#views.set(family, view)
      this.#onChange(family, view)
    }
  }
}

/** A reflector's sink for ServiceCIDRs: two objects may list the same CIDR, and deleting one leaves the other's. */
export class ServiceCidrs {
  readonly #records = new Map<string, ServiceCidrRecord>()
  readonly #onChange: (cidrs: readonly string[]) => void
  readonly #onProblem: (problem: Problem) => void
  #synced = false

  constructor(onChange: (cidrs: readonly string[]) => void, onProblem: (problem: Problem) => void) {
    this.#onChange = onChange
    this.#onProblem = onProblem
  }

  put(key: string, record: ServiceCidrRecord): void {
    this.#records.set(key, record)
    this.#tell()
  }

  drop(key: string): void {
    this.#records.delete(key)
    this.#tell()
  }

  synced(): void {
    this.#synced = true
    this.#tell()
  }

  problem(problem: Problem): void {
    this.#onProblem(problem)
  }

  #tell(): void {
    if (this.#synced) this.#onChange([...this.#records.values()].flatMap((record) => record.cidrs))
  }
}
