// Decides which endpoint gets which slot of a frontend, with the fewest writes from what is there to what is wanted. Pure.

export interface Placement {
  /** The endpoint of each slot, from 0. */
  readonly slots: readonly string[]
  /** The slots whose endpoint is new or different. */
  readonly written: readonly number[]
}

/**
 * An endpoint that stays keeps its slot, unless the slot lies beyond the new end. Endpoints that move and new ones fill the holes in
 * order. Therefore a replaced endpoint is one write, an added one is one write at the end, and a removed one moves the last endpoint
 * into the hole.
 */
export function placeEndpoints(current: readonly string[], wanted: readonly string[]): Placement {
  const size = wanted.length
  if (current.length === 0) return { slots: wanted, written: wanted.map((_, i) => i) }
  const slots = new Array<string | undefined>(size)
  const unplaced = new Set(wanted)
  for (let i = 0; i < Math.min(size, current.length); i++) {
    const endpoint = current[i] as string
    if (unplaced.delete(endpoint)) slots[i] = endpoint
  }
  const written: number[] = []
  // There are as many unplaced endpoints as holes.
  const waiting = unplaced.values()
  for (let i = 0; i < size; i++) {
    if (slots[i] !== undefined) continue
    slots[i] = waiting.next().value as string
    written.push(i)
  }
  // Every hole is filled by now.
  return { slots: slots as string[], written }
}
