// The numbers from which a new table counts when it takes the place of another. Pure.

import { slotKey } from '../commit/committed.ts'
import type { CarriedCounts } from './carried-counts.ts'
import { countedSets } from './counted-slots.ts'
import type { CarriedSlot } from './slot-counting.ts'

/** Numbers from which a new table counts. */
export interface InitialCounts {
  /** By `initialKey` for slots, and by chain for endpoints with affinity. */
  readonly packets: ReadonlyMap<string, number>
  /** What belongs to endpoints that the new table does not have. */
  readonly carried: CarriedCounts
  /** Where the count of each old slot and chain went, by `slotId` and `chainId`. */
  readonly written: ReadonlyMap<string, CarriedSlot>
  /** The old chains whose rules count. */
  readonly chains: readonly string[]
}

export const initialKey = (key: string, offset: number, endpoint: string): string =>
  `${slotKey(key, offset)} ${endpoint}`

/** A table with more slots is exchanged without the final reports of the kernel, which would not fit into the socket. */
const maxReported = 100_000

/** The kernel reports the final count of every slot of these sets when the table is exchanged. */
export const reportedSets = ({ written }: InitialCounts): readonly string[] =>
  written.size > maxReported ? [] : countedSets
