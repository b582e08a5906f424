// Who gets which slot of a frontend: the fewest writes from what is there to what is wanted. Pure.

export interface Placement {
  /** The endpoint of each slot, from 0. */
  readonly slots: readonly string[]
  /** Slots whose endpoint is new or another than before. */
  readonly written: readonly number[]
  /** Slots that were in use and are beyond the end now. */
  readonly orphaned: readonly number[]
}

/**
 * Endpoints that stay keep their slot, unless it lies beyond the new end; those that move and those that come fill the holes in
 * order. So a replaced endpoint is one write, an added one is one write at the end, a removed one moves the last into the hole.
 */
export function place(current: readonly string[], wanted: readonly string[]): Placement {
  const size = wanted.length
  if (current.length === 0) return { slots: wanted, written: wanted.map((_, i) => i), orphaned: [] }
  const slots = new Array<string | undefined>(size)
  const unplaced = new Set(wanted)
  for (let i = 0; i < Math.min(size, current.length); i++) {
    const endpoint = current[i] as string
    if (unplaced.delete(endpoint)) slots[i] = endpoint
  }
  const written: number[] = []
  const waiting = unplaced.values()
  for (let i = 0; i < size; i++) {
    if (slots[i] !== undefined) continue
    slots[i] = waiting.next().value as string
    written.push(i)
  }
  const orphaned: number[] = []
  for (let i = size; i < current.length; i++) orphaned.push(i)
  return { slots: slots as string[], written, orphaned }
}
