// Keeps the node's view of each family up to date: zone, interface addresses, service CIDRs and API servers.

import type { Family } from '../../lib/ip.ts'
import { makeNodeView, type NodeFacts } from '../../model/node.ts'
import type { NodeView, Problem, ServiceCidrRecord } from '../../model/types.ts'

export class NodeViews {
  readonly families: readonly Family[]
  #facts: NodeFacts
  readonly #views = new Map<Family, NodeView>()
  #onChange: (family: Family, view: NodeView) => void = () => {}

  constructor(facts: NodeFacts, families: readonly Family[]) {
    this.#facts = facts
    this.families = families
    for (const family of families) this.#views.set(family, makeNodeView(facts, family))
  }

  /** Returns the view of one of `families`. */
  get(family: Family): NodeView {
    const view = this.#views.get(family)
    if (view === undefined) throw new Error(`this node does not serve IPv${family}`)
    return view
  }

  /** The interface addresses of both families. */
  get addresses(): readonly string[] {
    return this.#facts.interfaceAddresses
  }

  watch(onChange: (family: Family, view: NodeView) => void): void {
    this.#onChange = onChange
  }

  update(change: Partial<Pick<NodeFacts, 'zone' | 'interfaceAddresses' | 'serviceCidrs' | 'apiServers'>>): void {
    this.#facts = { ...this.#facts, ...change }
    for (const [family, before] of this.#views) {
      const view = makeNodeView(this.#facts, family)
      if (JSON.stringify(view) === JSON.stringify(before)) continue
      this.#views.set(family, view)
      this.#onChange(family, view)
    }
  }
}

/** Receives ServiceCIDRs from a reflector. Two objects may list the same CIDR, and the CIDR stays when only one of them is deleted. */
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
    this.#report()
  }

  drop(key: string): void {
    this.#records.delete(key)
    this.#report()
  }

  synced(): void {
    this.#synced = true
    this.#report()
  }

  problem(problem: Problem): void {
    this.#onProblem(problem)
  }

  #report(): void {
    if (this.#synced) this.#onChange([...this.#records.values()].flatMap((record) => record.cidrs))
  }
}
