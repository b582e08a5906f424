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
  if (size <= fewEndpoints) return placeFew(current, wanted)
  const slots = new Array<string | undefined>(size)
  const unplaced = countEach(wanted)
  for (let i = 0; i < Math.min(size, current.length); i++) {
    const endpoint = current[i] as string
    const count = unplaced.get(endpoint)
    if (count === undefined) continue
    slots[i] = endpoint
    if (count === 1) unplaced.delete(endpoint)
    else unplaced.set(endpoint, count - 1)
  }
  const written: number[] = []
  // There are as many unplaced endpoints as holes.
  const waiting = repeatEach(unplaced)
  for (let i = 0; i < size; i++) {
    if (slots[i] !== undefined) continue
    slots[i] = waiting.next().value as string
    written.push(i)
  }
  // Every hole is filled by now.
  return { slots: slots as string[], written }
}

/** As many are found faster in a list than in a map that has to be made first. */
const fewEndpoints = 16

/** As `placeEndpoints`. */
function placeFew(current: readonly string[], wanted: readonly string[]): Placement {
  const unplaced = wanted.slice()
  const slots: string[] = []
  const written: number[] = []
  for (let i = 0; i < wanted.length; i++) {
    const at = i < current.length ? unplaced.indexOf(current[i] as string) : -1
    if (at < 0) written.push(i)
    slots.push(at < 0 ? '' : (unplaced[at] as string))
    if (at >= 0) unplaced.splice(at, 1)
  }
  // There are as many unplaced endpoints as holes.
  for (let i = 0; i < written.length; i++) slots[written[i] as number] = unplaced[i] as string
  return { slots, written }
}

/** An endpoint is there as often as its weight wants. */
function countEach(wanted: readonly string[]): Map<string, number> {
  const counts = new Map<string, number>()
  for (const endpoint of wanted) counts.set(endpoint, (counts.get(endpoint) ?? 0) + 1)
  return counts
}

function* repeatEach(counts: ReadonlyMap<string, number>): Iterator<string> {
  for (const [endpoint, count] of counts) for (let i = 0; i < count; i++) yield endpoint
}

/** With a hash the place of each endpoint is given. */
export function placeTable(current: readonly string[], wanted: readonly string[]): Placement {
  const written: number[] = []
  for (let i = 0; i < wanted.length; i++) if (current[i] !== wanted[i]) written.push(i)
  return { slots: wanted, written }
}
