// Knows the weight of every node by its capacity, and which weights have changed. No I/O.

import type { NodeCapacityRecord } from '../../model/types.ts'
import { weighNode } from '../../model/weights.ts'

export class NodeCapacities {
  readonly #weights = new Map<string, number>()
  readonly #onChanged: () => void
  #changed = new Set<string>()
  #isComplete = false

  /** `onChanged` is called for every change of a weight once the first list is complete, and when it is. */
  constructor(onChanged: () => void) {
    this.#onChanged = onChanged
  }

  /** Undefined if the node is not known. Until all nodes are, none is: a part of them would send everything to that part. */
  weightOf(node: string): number | undefined {
    return this.#isComplete ? this.#weights.get(node) : undefined
  }

  /** Nodes report again and again that they are there; only another weight is a change. */
  put(node: string, { milliCpu }: NodeCapacityRecord): void {
    this.#set(node, milliCpu === undefined ? undefined : weighNode(milliCpu))
  }

  drop(node: string): void {
    this.#set(node, undefined)
  }

  complete(): void {
    this.#isComplete = true
    this.#onChanged()
  }

  /** Returns the nodes whose weights have changed since the last call. */
  takeChanged(): ReadonlySet<string> {
    const changed = this.#changed
    this.#changed = new Set()
    return changed
  }

  #set(node: string, weight: number | undefined): void {
    if (this.#weights.get(node) === weight) return
    if (weight === undefined) this.#weights.delete(node)
    else this.#weights.set(node, weight)
    this.#changed.add(node)
    if (this.#isComplete) this.#onChanged()
  }
}
