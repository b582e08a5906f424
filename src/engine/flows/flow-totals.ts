// Packets and bytes of flows in both directions: adds and subtracts them, and writes them as plain lists. Pure.

/** Packets and bytes from the client (in) and to the client (out). */
export interface FlowTotals {
  readonly packetsIn: number
  readonly bytesIn: number
  readonly packetsOut: number
  readonly bytesOut: number
}

export type MutableTotals = { -readonly [K in keyof FlowTotals]: FlowTotals[K] }

export type Figures = readonly [packetsIn: number, bytesIn: number, packetsOut: number, bytesOut: number]

export const nothing: FlowTotals = { packetsIn: 0, bytesIn: 0, packetsOut: 0, bytesOut: 0 }

/** True if any figure is lower. */
export const isLower = (a: FlowTotals, b: FlowTotals): boolean =>
  a.packetsIn < b.packetsIn || a.bytesIn < b.bytesIn || a.packetsOut < b.packetsOut || a.bytesOut < b.bytesOut

export const subtract = (a: FlowTotals, b: FlowTotals): FlowTotals => ({
  packetsIn: a.packetsIn - b.packetsIn,
  bytesIn: a.bytesIn - b.bytesIn,
  packetsOut: a.packetsOut - b.packetsOut,
  bytesOut: a.bytesOut - b.bytesOut,
})

/** Adds to a sum in place. */
export function raise(sum: MutableTotals, more: FlowTotals): void {
  sum.packetsIn += more.packetsIn
  sum.bytesIn += more.bytesIn
  sum.packetsOut += more.packetsOut
  sum.bytesOut += more.bytesOut
}

export const figuresOf = ({ packetsIn, bytesIn, packetsOut, bytesOut }: FlowTotals): Figures => [
  packetsIn,
  bytesIn,
  packetsOut,
  bytesOut,
]

export const toTotals = ([packetsIn, bytesIn, packetsOut, bytesOut]: Figures): FlowTotals => ({
  packetsIn,
  bytesIn,
  packetsOut,
  bytesOut,
})
